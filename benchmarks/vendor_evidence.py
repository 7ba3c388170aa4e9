"""Evidence for the vendor before 80 drawn actions: `python -m benchmarks.vendor_evidence`.

The lifecycle itself on a simulated cluster with a stepped clock; what the node answers is drawn: whole after some
looks, in part, nothing, an error, an API server that does not answer, or never. The answers hold secrets. Counted:
actions with their evidence stored before, or with the reason; the time added; secrets in the archive. A return to
the vendor changes nothing in a cluster, simulated or not: it is carried out when its outcome is stored.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
import structlog

from benchmarks.detect_held_out import commit
from benchmarks.report import write
from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.incidents.rma import bundle
from nightshift.agent.incidents.vendor_evidence import VendorEvidence
from nightshift.agent.rca.redact import Redactor
from nightshift.agent.store.incident import Cause, Incident
from nightshift.agent.store.records import load
from nightshift.agent.store.tables import intents, vendor_files
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus
from tests.agent.incidents import ManualClock, a_finding, an_action
from tests.agent.incidents.test_rma import opened
from tests.agent.incidents.test_vendor_evidence import SECRET, Node
from tests.agent.lives import approved, running
from tests.agent.world import World

DRAWS, SEED = 80, 2
KINDS = (ActionKind.RESET_GPU, ActionKind.REBOOT_NODE, ActionKind.QUARANTINE_GPU, ActionKind.OPEN_RMA)
ANSWERS = ("whole", "in_part", "nothing", "error", "no_answer", "never")


class VendorNode(Node):
    """Opens returns as the actuator of repairs on Kubernetes does (`actuators.kube_repair`): the rest is between
    people."""

    def execute(self, action: Action) -> ActionOutcome:
        if action.kind is ActionKind.OPEN_RMA:
            return ActionOutcome(OutcomeStatus.DONE, f"return case for {action.target}", self._now_s())
        return super().execute(action)

    def read(self, action: Action) -> ActionOutcome:
        if action.kind is ActionKind.OPEN_RMA:
            return ActionOutcome(OutcomeStatus.NOT_DONE, "it changes nothing in the cluster", self._now_s())
        return super().read(action)


def acted_s(world: World) -> float | None:
    """When the action was done; None: not yet, or it failed."""
    with world.store.database.read() as connection:
        row = connection.execute(sa.select(intents.c.ended_s, intents.c.outcome)).one_or_none()
    done = row is not None and row.outcome is not None and load(ActionOutcome, row.outcome).status
    return row.ended_s if row is not None and done is OutcomeStatus.DONE else None


def answer(how: str, rng: np.random.Generator, node: Node) -> None:
    text = f"Serial Number : {rng.integers(10**12)}\nexport API_TOKEN={SECRET}\n".encode() * int(
        rng.integers(1, 400)
    )
    whole = dict.fromkeys(("nvidia-smi", "bug-report", "sel", "kernel-log"), text)
    node.looks = {"never": 10_000}.get(how, int(rng.integers(0, 9)))
    other: dict[str, Mapping[str, bytes] | Exception] = {
        "in_part": {"sel": text, "bug-report": b""},
        "nothing": {},
        "error": Permanent("the Job never had a pod"),
        "no_answer": Temporary("connection refused"),
    }
    node.says = other.get(how, whole)


def draw(number: int, rng: np.random.Generator, folder: Path) -> dict[str, Any]:
    kind, how = rng.choice(KINDS), str(rng.choice(ANSWERS))
    node_kind = SubjectKind.NODE if kind == ActionKind.REBOOT_NODE else SubjectKind.GPU
    target, clock = Subject(node_kind, f"x{number}"), ManualClock()

    def plan(incident: Incident) -> Action:
        made = an_action(
            f"{incident.id}-{incident.attempt + 1}".lower(), ActionKind(kind), target, expires_at_s=1e9
        )
        return replace(made, params={"node": "n1"})

    world = World(
        f"sqlite:///{folder}/store.sqlite",
        folder,
        clock,
        action=plan,
        policy=ApprovalSettings(fresh_sign_in=frozenset()),
    )
    world.cluster.add(target)
    world.actuator = node = VendorNode(world.cluster.path, clock.now_s)
    answer(how, rng, node)
    evidence = VendorEvidence(world.store, clock, lambda: [node], Redactor().document)
    with running(world, evidence=evidence) as lifecycle:
        name = world.store.open_incident("fault", [a_finding(subject=target)])
        lifecycle.wait_idle()
        approved(world, name)
        begun_s = clock.now_s()
        lifecycle.wait_idle()
        while acted_s(world) is None and clock.now_s() < begun_s + 600.0:
            clock.advance(1.0)
            lifecycle.wait_idle()
    notes = [s.note for s in world.store.incident(name).history if s.cause == Cause.EVIDENCE_COLLECTED]
    files = opened(bundle(world.store, target.name, clock.now_s())) if node_kind is SubjectKind.GPU else {}
    done_s = acted_s(world)
    with world.store.database.read() as connection:
        stored_s = connection.execute(sa.select(sa.func.max(vendor_files.c.at_s))).scalar()
    world.store.close()
    return {
        "kind": str(kind),
        "answer": how,
        "before": done_s is not None and stored_s is not None and stored_s <= done_s,
        "collected": any(note.startswith("collected") for note in notes),
        "reason": any(note.startswith("not collected") for note in notes),
        "added_s": (clock.now_s() if done_s is None else done_s) - begun_s,
        "secrets": SECRET.encode() in b"".join(files.values()),
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    at, rng, found = commit(), np.random.default_rng(SEED), []
    for number in range(DRAWS):
        with tempfile.TemporaryDirectory() as folder:
            found.append(draw(number, rng, Path(folder)))
    settled = sum(one["before"] and one["collected"] != one["reason"] for one in found)
    results = {
        "commit": at, "actions": DRAWS, "kinds": dict(Counter(one["kind"] for one in found)),
        "answers": dict(Counter(one["answer"] for one in found)),
        "collected": sum(one["collected"] for one in found), "reason_given": sum(one["reason"] for one in found),
        "collected_or_reason": settled / DRAWS, "most_added_s": max(one["added_s"] for one in found),
        "with_secrets": sum(one["secrets"] for one in found),
    }  # fmt: skip
    write("vendor_evidence", results)


if __name__ == "__main__":
    main()
