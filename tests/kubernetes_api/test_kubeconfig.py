"""What NIGHTSHIFT_TEST_KUBECONFIG names is read so that tests anywhere can use it."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.kubernetes_api.cluster import read_kubeconfig


def test_only_the_current_context_is_kept_and_its_files_are_absolute(tmp_path: Path) -> None:
    """Another user's credentials are never taken by position; relative files are found from any folder."""
    clusters = [{"name": n, "cluster": {"server": f"https://{n}", "certificate-authority": "ca.crt"}} for n in "ab"]
    users = [{"name": f"u{n}", "user": {"client-key": "keys/k.pem"}} for n in "ab"]
    contexts = [{"name": n, "context": {"cluster": n, "user": f"u{n}"}} for n in "ab"]
    content = {"clusters": clusters, "users": users, "contexts": contexts, "current-context": "b"}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(content))
    found = read_kubeconfig(path)
    assert [e["name"] for e in (*found["clusters"], *found["users"], *found["contexts"])] == ["b", "ub", "b"]
    assert found["clusters"][0]["cluster"]["certificate-authority"] == str(tmp_path / "ca.crt")
    assert found["users"][0]["user"]["client-key"] == str(tmp_path / "keys/k.pem")
