"""A configuration that is replaced under the daemon is noticed, once, and a missing one is no change."""

from __future__ import annotations

from pathlib import Path

from nightshift.agent.daemon import LOOK_EVERY_S, Changes


def test_a_mounted_file_that_is_replaced_is_a_change_once(tmp_path: Path) -> None:
    """As the kubelet replaces a ConfigMap: another folder, then a link that is swung over."""
    now = [0.0]
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "n.yaml").write_text(f"cluster: {version}\n")
    data, file = tmp_path / "..data", tmp_path / "n.yaml"
    data.symlink_to("one")
    file.symlink_to("..data/n.yaml")
    changes = Changes(file, lambda: now[0])
    assert not changes()
    data.unlink()
    now[0] += LOOK_EVERY_S
    assert not changes(), "between two versions there is none"
    data.symlink_to("two")
    assert not changes(), "it looks every few seconds only"
    now[0] += LOOK_EVERY_S
    assert changes()
    now[0] += LOOK_EVERY_S
    assert not changes()
    assert not Changes(None)()
