"""Xid 48 in a lab of four Slurm nodes: the whole daemon, from the exporter's page to the drain that a person
approved."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from nightshift.controllers.actuators.slurm import marks
from tests.agent.fleet import Exporter
from tests.end_to_end.stage import Daemon, until
from tests.slurm_lab import SlurmLab


class SlurmTelemetry(Exporter):
    """One dcgm-exporter page for the GPUs of four nodes, without a word on pods; `xid` of n1's first GPU."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        self._nodes, self.xid = nodes, 0
        super().__init__(gpus=2 * len(nodes))

    def _labels(self, i: int) -> str:
        node, index = self._nodes[i // 2], i % 2
        return (
            f'gpu="{index}",UUID="GPU-{i:08x}-0000-0000-0000-000000000000",pci_bus_id="00000000:0{index + 1}:00.0",'
            f'device="nvidia{index}",modelName="NVIDIA H200",Hostname="{node}"'
        )

    def page(self) -> bytes:
        told = (0 if i else self.xid for i in range(len(self.used_mib)))
        xids = [f"DCGM_FI_DEV_XID_ERRORS{{{self._labels(i)}}} {xid}" for i, xid in enumerate(told)]
        return super().page() + ("\n".join(xids) + "\n").encode()


def clock_of(folder: Path) -> Path:
    """The daemon of `stage` asks a file how far its clock is ahead: here not at all."""
    path = folder / "clock.json"
    path.write_text(json.dumps({"began_s": time.time(), "ahead_s": 0.0}))
    return path


def drained_after_approval(lab: SlurmLab, folder: Path) -> dict[str, Any]:
    """How long after the approval the node stands drained with our reason (s), and what else is to be seen."""
    telemetry = SlurmTelemetry(lab.names)
    job = lab.run("--nodelist=n1,n2", nodes=2)
    access = {key: str(value) for key, value in lab.access.model_dump().items()}
    values = {
        "replica": "replica-0",
        "console": {"port": 0},
        "tick_s": 20.0,  # of a clock that runs 20 times as fast
        "guard": {"cluster_fraction": 0.5},
        "sources": [{"type": "dcgm_exporter", "urls": [telemetry.url]}, {"type": "slurm"}],
        "actuators": [{"type": "slurm"}],
        "slurm": access,
    }
    daemon = Daemon(folder / "replica", clock_of(folder), values)
    try:
        daemon.start()

        def seen() -> bool:
            page = httpx.get(f"{daemon.url()}/metrics").text
            return 'nightshift_sources{state="up"} 3.0' in page and 'nightshift_subjects{kind="gpu"} 8.0' in page

        until(seen, "a page of healthy GPUs, and Slurm's nodes and jobs")
        telemetry.xid = 48

        def plan() -> Any:
            answer = daemon.ask("GET", "/incidents/INC-1")
            found = answer.json() if answer.status_code == 200 else {}
            return found if found.get("state") == "awaiting_approval" else None

        incident = until(plan, "a plan")
        before = lab.node("n1")
        began_s = time.monotonic()
        answer = daemon.ask("POST", "/incidents/INC-1/approve", json={"plan_sha256": incident["plan_sha256"]})
        assert answer.status_code == 200, answer.text
        node = until(lambda: (n := lab.node("n1")) and "DRAIN" in n.states and n, "the drain")
        took_s = time.monotonic() - began_s
        return {
            "drained_before_approval": "DRAIN" in before.states,
            "after_approval_s": round(took_s, 2),
            "reason": node.reason,
            "extra": node.extra,
            "marks": len(marks(node)),
            "job_runs_on": lab.job(job, "JobState") == "RUNNING",
            "others_drained": sorted(n for n in lab.names[1:] if "DRAIN" in lab.node(n).states),
        }
    finally:
        daemon.kill()
        telemetry.close()


@pytest.mark.full
def test_xid_48_drains_its_node_once_a_person_approves(slurm: SlurmLab, tmp_path: Path) -> None:
    """One node, with our reason and mark; nothing before the approval; Slurm's drain evicts nothing."""
    found = drained_after_approval(slurm, tmp_path)
    assert not found["drained_before_approval"]
    assert found["reason"].startswith("nightshift: ")
    assert found["marks"] == 1
    assert found["job_runs_on"]
    assert found["others_drained"] == []
