"""A cluster of two teams, red and blue, with incidents of each, of both, and of nobody, for tests of who sees what.

Every text of red's carries the word `antelope`, every text of blue's `zebra`, every text of nobody's hardware
`walrus`: where such a word turns up before somebody else, something leaks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.kernel_gate import KernelGate, promotion, search
from nightshift.agent.approvals.people import Directory, Owner, Settings
from nightshift.agent.approvals.policy import ApprovalSettings, Person, Role
from nightshift.agent.clock import SteppedClock
from nightshift.agent.console.sessions import Doorkeeper, TokenAccount
from nightshift.agent.console.site import ConsoleParts, DaemonHealth
from nightshift.agent.incidents.suppression import Suppressor
from nightshift.agent.store.diagnosis import Claim, Confidence, Diagnosis, Evidence, Predicate, Quote
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.receipts import Receipts
from nightshift.collectors.frame import Frame, Instant, SeriesIndex
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Undo
from nightshift.detectors.base import Fault, Finding, Severity, State
from tests.agent.killed_policy import a_receipt
from tests.kernel_certificates import RECORD

NOW_S = 1_790_000_000.0
WORD = {"red": "antelope", "blue": "zebra", "nobody": "walrus"}
NODE, SPARE = Subject(SubjectKind.NODE, "n1"), Subject(SubjectKind.NODE, "n2")
GPUS = {team: Subject(SubjectKind.GPU, f"GPU-{team}-{WORD[team]}") for team in WORD}
PODS = {team: Subject(SubjectKind.POD, f"{team}/{WORD[team]}-7") for team in ("red", "blue")}
JOBS = {team: Subject(SubjectKind.JOB, f"{team}/{WORD[team]}-run") for team in ("red", "blue")}
ADMIN = Person("root@example.org", frozenset({Role.ADMIN}), "cli", NOW_S)
PEOPLE = Settings(
    roles={
        "wide-viewer@example.org": Role.VIEWER,
        "wide-approver@example.org": Role.APPROVER,
        "root@example.org": Role.ADMIN,
    },
    owners=tuple(
        Owner(
            team=team,
            namespaces=(team,),
            members=(f"{team}-responder@example.org",),
            approvers=(f"{team}-approver@example.org",),
            groups={f"{team}-watchers": Role.VIEWER},
        )
        for team in ("red", "blue")
    ),
)
TENANTS = ("red-responder@example.org", "red-approver@example.org", "blue-responder@example.org",
           "blue-approver@example.org")  # fmt: skip
WIDE = ("wide-viewer@example.org", "wide-approver@example.org", "root@example.org")
NOBODY = "stranger@example.org"
EVERYBODY = (*TENANTS, *WIDE, NOBODY)


def token_of(name: str) -> str:
    return f"token of {name} ".ljust(40, "x")


def team_of(name: str) -> str:
    """red, blue, or empty for those of the whole cluster and of nothing."""
    return name.partition("-")[0] if name in TENANTS else ""


def forbidden(name: str) -> set[str]:
    """The words that a person may never be shown."""
    if name in WIDE:
        return set()
    return {word for team, word in WORD.items() if team != team_of(name)}


class Cluster:
    """`ids`: red, blue, both and nobody → the incident's id."""

    def __init__(self, folder: Path) -> None:
        self.clock = SteppedClock(NOW_S)
        self.inventory = Inventory("prod")
        self.store = Store(f"sqlite:///{folder / 'tenants.db'}", self.clock, inventory=self.inventory)
        self.gate = Gate(self.store, ApprovalSettings(), self.clock)
        self.directory = Directory(PEOPLE)
        self.suppressor = Suppressor(self.store, self.clock, inventory=self.inventory)
        self.history = History()
        self._place()
        self.ids = {which: self._incident(which) for which in ("red", "blue", "both", "nobody")}
        self._others()
        keeper = Doorkeeper(
            b"k" * 32, {token_of(name): TokenAccount(name) for name in EVERYBODY}, 3600.0, self.store.database
        )
        self.parts = ConsoleParts(
            store=self.store,
            gate=self.gate,
            history=self.history,
            inventory=self.inventory,
            clock=self.clock,
            doorkeeper=keeper,
            directory=self.directory,
            health=lambda: DaemonHealth(True, False, ("walrus is away",)),
            suppressor=self.suppressor,
            metrics_page=lambda: b"nightshift_ticks_total 1.0\n",
            cluster="prod",
        )

    def _place(self) -> None:
        for team, gpu in GPUS.items():
            node = SPARE if team == "nobody" else NODE
            self.inventory.observe(gpu, node, NOW_S - 9000)
            self.inventory.describe(gpu, index="0", model="NVIDIA H200")
            if team in PODS:
                self.inventory.observe(gpu, PODS[team], NOW_S - 600)
                self.inventory.observe(PODS[team], NODE, NOW_S - 600)
                self.inventory.observe(PODS[team], JOBS[team], NOW_S - 600)
        index = SeriesIndex(SubjectKind.GPU, tuple(GPUS.values()))
        names = ("gpu_memory_used_bytes", "gpu_memory_free_bytes", "gpu_power_w")
        values = np.full((len(GPUS), 3), 1e9)
        for at_s in (NOW_S - 1200, NOW_S - 5, NOW_S):
            frame = Frame(
                at_s, index, names, values, np.full((1, 3), at_s), np.zeros(len(GPUS), dtype=np.int64)
            )  # fmt: skip
            self.history.add(Tick(at_s, {SubjectKind.GPU: frame}))

    def _incident(self, which: str) -> str:
        teams = ("red", "blue") if which == "both" else (which,)
        words = " and ".join(WORD[team] for team in teams)
        subjects = [PODS[team] for team in teams if team in PODS]
        subjects += [NODE] if which == "both" else [GPUS[which]]
        name = self.store.open_incident(f"{words} broke", [_finding(s, words) for s in subjects], note=words)
        self.store.save_diagnosis(self.store.incident(name), _diagnosis(words, which), by="rules")
        self.store.save_plan(self.store.incident(name), _plan(name, which, teams, words), words, by="plan")
        return name

    def _others(self) -> None:
        """What belongs to no incident: searches, a promotion, silences."""
        kernels = KernelGate(self.gate, self.store, self.clock)
        for number, job in enumerate(JOBS.values()):
            made = replace(a_receipt(number, NOW_S), job=job.name, unit=job.name)
            Receipts(self.store.database).keep(made)
        for team, job in JOBS.items():
            kernels.propose(search("prod", job.name, f"{WORD[team]}_gelu", WORD[team], 1.0, "low", NOW_S))
        plan = promotion("prod", "c" * 64, "walrus_norm", "canary", {"verdict": "walrus"}, NOW_S)
        kernels.propose(plan, record=RECORD)
        for matcher, team in (("namespace:red", "red"), ("namespace:blue", "blue"), ("node:walrus*", "nobody")):
            self.suppressor.silences.add(matcher, 3600.0, ADMIN, WORD[team])

    def person(self, name: str, channel: str = "console") -> Person:
        return self.directory.person(name, channel, NOW_S)

    def plan_of(self, which: str) -> str:
        action = self.store.incident(self.ids[which]).action
        assert action is not None
        return action.plan_sha256


def _finding(subject: Subject, words: str) -> Finding:
    word = next((WORD[t] for t in ("red", "blue") if subject in (PODS.get(t), GPUS[t])), words)
    said = f"{word} on {subject.name}"
    return Finding(
        "xid",
        Fault.GPU_LOST,
        subject,
        State.FIRING,
        Instant(NOW_S - 60),
        Instant(NOW_S),
        Severity.CRITICAL,
        said,
        9.0,
        4.0,
        facts={"who": word},
    )


def _diagnosis(words: str, which: str) -> Diagnosis:
    """Of red's own incident, some evidence names blue's work and nobody's hardware, as real bundles do."""
    named = {"red": "blue/zebra-7 runs beside it", "blue": "pod=antelope-7", "both": "", "nobody": ""}[which]
    evidence = [
        Evidence("E1", "kernel_log n1", "n1", NOW_S - 60, NOW_S, "text/plain", f"line of {words}".encode(), words),
        Evidence("E2", "inventory", "n1", NOW_S - 60, NOW_S, "text/plain", f"{named}.".encode(), "beside it"),
        Evidence("E3", "incident store", "similar", NOW_S - 60, NOW_S, "application/json", b'["walrus"]', "past"),
    ]
    claims = [
        Claim(f"{words} was lost", Predicate.EQUALS, (item.id,), (Quote(item.id, item.content.decode()),))
        for item in evidence[: 1 if which in ("red", "blue") else 3]
    ]
    facts: dict[str, str | float] = {"what": words}
    return Diagnosis(
        Fault.GPU_LOST, f"{words} is lost", Confidence.HIGH, tuple(claims), tuple(evidence), (words,), words,
        facts=facts,
    )  # fmt: skip


def _plan(incident_id: str, which: str, teams: tuple[str, ...], words: str) -> Action:
    known = [team for team in teams if team in PODS]
    radius: dict[str, Any] = {
        "jobs": tuple(JOBS[team].name for team in known),
        "pods": tuple(PODS[team].name for team in known),
        "note": words,
    }
    target = PODS[known[0]] if len(known) == 1 else NODE if known else SPARE
    kind = ActionKind.RESTART_POD if len(known) == 1 else ActionKind.CORDON
    undo = Undo(False, words)
    return Action(f"{incident_id}-1", kind, target, words, BlastRadius(**radius), undo, NOW_S + 3600, {"x": words})
