"""The archive for a return holds the logs, counters and history of one GPU, each file sealed, and is
reproducible."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from nightshift.agent.incidents.rma import bundle
from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import sha256_hex
from nightshift.collectors.subject import Subject, SubjectKind
from tests.agent.approvals.test_scoreboard import made, once
from tests.agent.incidents import GPU, a_finding


def opened(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        return {m.name: archive.extractfile(m).read() for m in archive.getmembers()}  # type: ignore[union-attr]


def test_it_holds_every_incident_of_the_gpu_and_no_other(tmp_path: Path) -> None:
    """Report, audit records, evidence, kernel lines and counters; every file's hash stands in the manifest."""
    world, clock = made(tmp_path)
    once(world, clock, "approve")
    other = Subject(SubjectKind.GPU, "GPU-2")
    world.store.open_incident("other", [a_finding(subject=other, at_s=clock.now_s())])
    files = opened(bundle(world.store, GPU.name, clock.now_s()))
    manifest = json.loads(files.pop("manifest.json"))
    assert manifest["incidents"] == ["INC-1"]
    assert manifest["sha256"] == {name: sha256_hex(content) for name, content in files.items()}
    assert manifest["audit_head"] == str(world.store.audit.head())
    assert b"Xid" in files["INC-1/findings/1-gpu_memory_leak.log"]
    assert files["INC-1/findings/1-gpu_memory_leak.csv"].startswith(b"metric,t_s,value\ngpu_memory_used_bytes,")
    assert {"INC-1/report.md", "INC-1/audit.jsonl"} <= set(files)
    assert any(name.startswith("INC-1/evidence/E1.") for name in files)
    kinds = [json.loads(line)["kind"] for line in files["INC-1/audit.jsonl"].splitlines()]
    assert {"plan", "approval", "intent", "outcome"} <= set(kinds)


def test_the_same_store_gives_the_same_bytes(tmp_path: Path) -> None:
    world, clock = made(tmp_path)
    once(world, clock, "approve")
    assert bundle(world.store, GPU.name, clock.now_s()) == bundle(world.store, GPU.name, clock.now_s())


def test_a_gpu_without_incidents_is_refused_by_name(tmp_path: Path) -> None:
    world, clock = made(tmp_path)
    with pytest.raises(Permanent, match="no incident is about GPU GPU-9"):
        bundle(world.store, "GPU-9", clock.now_s())
