"""Layouts from elsewhere: believed by digest and signature only, and never read without end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nightshift.kernels.certification.registry import CertificateState, Registry, RegistryError
from nightshift.kernels.certification.registry_oci import read_layout, write_layout
from tests.kernels.certification.test_registry import PLAN, TRUSTED, certificate


def test_what_lies_in_a_file_s_place_of_a_layout_is_named_and_never_read_without_end(tmp_path: Path) -> None:
    """A pipe, a device, a folder and a file larger than the memory; and one kernel under two tags is one."""
    here, there = Registry(tmp_path / "here", TRUSTED), Registry(tmp_path / "there", TRUSTED)
    here.move(
        here.propose(certificate(), "ann", "", 1.0).certificate, CertificateState.canary, "ann", "tried", 2.0, PLAN
    )
    layout = tmp_path / "layout"
    write_layout(here, layout)
    index = json.loads((layout / "index.json").read_text())
    (described,) = index["manifests"]
    blob = layout / "blobs" / "sha256" / described["digest"].removeprefix("sha256:")
    for path in (blob, layout / "index.json"):
        whole = path.read_bytes()
        for odd in ("large", "folder", "pipe", "device"):
            path.unlink()
            if odd == "large":
                path.touch()
                os.truncate(path, 1 << 42)
            elif odd == "folder":
                path.mkdir()
            elif odd == "pipe":
                os.mkfifo(path)
            else:
                path.symlink_to("/dev/zero")
            with pytest.raises(RegistryError, match="no plain file"):
                read_layout(there, layout, "eve", 3.0)
            path.rmdir() if odd == "folder" else path.unlink()
            path.write_bytes(whole)
    again = {**described, "annotations": {"org.opencontainers.image.ref.name": "active-softmax"}}
    (layout / "index.json").write_text(json.dumps({**index, "manifests": [described, again]}))
    assert len(read_layout(there, layout, "eve", 4.0)) == 1
