"""Evidence for the vendor: collected before the action, in a minute, redacted; or the page says why not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from nightshift.agent.incidents.rma import bundle
from nightshift.agent.incidents.vendor_evidence import LIMIT_S, MOST_BYTES, VendorEvidence, server_maker
from nightshift.agent.rca.redact import MAX_TEXT, Redactor
from nightshift.agent.store.incident import Cause
from nightshift.agent.store.incident_store import number_of
from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.action import Action, ActionKind, UnderWay
from nightshift.controllers.actuators.kube_repair_jobs import EVIDENCE, evidence_of
from nightshift.controllers.actuators.simulated import SimulatedActuator
from tests.agent.incidents import GPU, ManualClock, an_action
from tests.agent.incidents.test_rma import opened as unpacked
from tests.agent.lives import approved, opened, running
from tests.agent.world import World

SECRET = "ghp_" + "a" * 36
FILES = {
    "nvidia-smi": (
        f"GPU 0\n    Serial Number : 7\n    GPU UUID : GPU-0\nGPU 1\n    Serial Number : 1650123456789\n"
        f"    GPU UUID : {GPU.name}\nGPU 2\n    Serial Number : 8\nexport GITHUB_TOKEN={SECRET}\n"
    ).encode(),
    "dmidecode": b"System Information\n\tManufacturer: Supermicro\n\tSerial Number: S1\n",
    "sel": b"",
}


class Node(SimulatedActuator):
    """Collects what `says` is, after so many looks."""

    says: Mapping[str, bytes] | Exception = FILES
    looks = 0

    def evidence(self, action: Action) -> Mapping[str, bytes]:
        assert not self.cluster.effects(), "the node is asked before it is changed"
        if self.looks:
            self.looks -= 1
            raise UnderWay("collecting")
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    made = World(
        sqlite_url, tmp_path, clock,
        action=lambda i: an_action(f"{i.id}-{i.attempt + 1}".lower(), ActionKind.RESET_GPU, GPU, expires_at_s=1e9),
    )  # fmt: skip
    made.actuator = Node(made.cluster.path, clock.now_s)
    yield made
    made.store.close()


def run(world: World, clock: ManualClock, for_s: float = 90.0) -> str:
    sources = [world.actuator]
    evidence = VendorEvidence(world.store, clock, lambda: sources, Redactor().document)
    with running(world, evidence=evidence) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        begun_s = clock.now_s()
        while clock.now_s() < begun_s + for_s and not world.cluster.effects():
            lifecycle.wait_idle()
            clock.advance(5.0)
        assert clock.now_s() - begun_s <= LIMIT_S + 10.0
    return name


def note_of(world: World, name: str) -> str:
    (step,) = [s for s in world.store.incident(name).history if s.cause == Cause.EVIDENCE_COLLECTED]
    return step.note


def test_it_is_stored_redacted_before_the_action_and_in_the_archive(world: World, clock: ManualClock) -> None:
    world.actuator.looks = 3  # type: ignore[attr-defined]
    name = run(world, clock)
    assert len(world.cluster.effects()) == 1
    assert note_of(world, name).startswith("collected before reset_gpu of gpu:GPU-1: 2 files")
    files = unpacked(bundle(world.store, GPU.name, clock.now_s()))
    (smi,) = [content for path, content in files.items() if path.endswith("/nvidia-smi.txt")]
    assert b"1650123456789" in smi
    assert SECRET.encode() not in b"".join(files.values())
    with world.store.database.read() as connection:
        assert server_maker(connection, number_of(name)) == "Supermicro"


@pytest.mark.parametrize(
    ("says", "looks", "why"),
    [
        (Permanent("the image has no shell"), 0, "the image has no shell"),
        (Temporary("connection refused"), 0, "not collected within 60 s"),
        (FILES, 1000, "not collected within 60 s"),
        ({}, 0, "the node had nothing to say"),
    ],
)
def test_what_cannot_be_collected_in_a_minute_holds_nothing_up_and_is_said(
    world: World, clock: ManualClock, says: object, looks: int, why: str
) -> None:
    world.actuator.says, world.actuator.looks = says, looks  # type: ignore[attr-defined]
    name = run(world, clock)
    assert len(world.cluster.effects()) == 1
    assert why in note_of(world, name)


def test_without_a_source_the_page_says_so(world: World, clock: ManualClock) -> None:
    world.actuator = SimulatedActuator(world.cluster.path, clock.now_s)
    assert "no configured actuator" in note_of(world, run(world, clock))


def test_a_long_document_is_redacted_to_its_end() -> None:
    """Also where a key lies over the end of a piece."""
    key = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIE\n" * 50 + "-----END RSA PRIVATE KEY-----\n"
    for offset in (0, 40, 200):
        filler = "x" * 99 + "\n"
        text = filler * ((MAX_TEXT - offset) // 100) + key + filler * 2000 + f"TOKEN={SECRET}\n"
        cleaned = Redactor().document(text)
        assert "MIIE" not in cleaned
        assert SECRET not in cleaned
        assert cleaned.count("\n") == text.count("\n")


def test_the_script_prints_what_it_has_though_a_command_hangs(tmp_path: Path) -> None:
    """The real script, with commands that answer, are missing, hang, print too much and forge a heading."""
    commands = {
        "nvidia-smi": 'if [ "$1" = -q ]; then echo "Serial Number : 7"; else sleep 60; fi',
        "nsenter": 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
        "ipmitool": "head -c 2000000 /dev/zero | tr '\\0' s",
        "dmesg": 'printf "NVRM: Xid 79\\n0000 end\\n"',
        "nvidia-bug-report.sh": 'echo report | gzip > "$3.gz"; sleep 60',
    }
    for name, body in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    script = EVIDENCE.replace("/tmp/evidence", str(tmp_path / "out"))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LIMIT": "7", "MARK": "m4rk"}
    ran = subprocess.run(["sh", "-ec", script], env=env, capture_output=True, timeout=40, check=False)
    found = evidence_of(ran.stdout, "m4rk")
    assert found is not None, ran
    assert b"Serial Number : 7" in found["nvidia-smi"]
    assert b"report" in found["bug-report"]
    assert b"0000 end" in found["kernel-log"]
    assert len(found["sel"]) == 300_000
    assert b"cut" in found["nvlink"] or b"exit status" in found["nvlink"]
    assert found["diagnostic"]
    assert evidence_of(ran.stdout[:-10], "m4rk") is None
    assert evidence_of(b"", "m4rk") is None


@pytest.mark.full
def test_a_file_is_no_larger_than_its_bound(world: World, clock: ManualClock) -> None:
    world.actuator.says = {"bug-report": b"line\n" * 1_500_000}  # type: ignore[attr-defined]
    run(world, clock)
    files = unpacked(bundle(world.store, GPU.name, clock.now_s()))
    (report,) = [content for path, content in files.items() if path.endswith("/bug-report.txt")]
    assert len(report) <= MOST_BYTES + 10
