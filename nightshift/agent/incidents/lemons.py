"""Lemons: nodes, GPUs, slots, ports and cables where jobs fail more often than on their peers over 28 days.

Exposure is counted in days on which a unit held a job, failures in those of them on which hardware of the unit
stopped one (an incident, opened or back, that is diagnosed there). Peers differ, so their failures are
beta-binomial: mean and spread are fitted to the peers without their worst. A unit is a lemon where so many failures
in so many days are rarer than `FALSE_PER_MONTH` allows over all units of its kind. Each node with a lemon is a
ticket that names its units and incidents. Compare "lemon nodes" in Kokolis et al., arXiv 2410.21680.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa
import structlog

from nightshift.agent.correlation.kinship import HARDWARE, Kin, first_cause, kin_of
from nightshift.agent.store.incident import Cause, findings_of
from nightshift.agent.store.incident_store import Store, name_of
from nightshift.agent.store.tables import incidents, steps
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import CABLE, PEER, Inventory, Subject, SubjectKind
from nightshift.detectors.alarms.lanes import Lane, Proof, in_lane
from nightshift.detectors.base import Fault, Finding, Severity, State
from nightshift.detectors.tails import beta_binomial_tail

DAYS, DAY_S, EVERY_S = 28, 86_400.0, 3600.0
FALSE_PER_MONTH = 0.5
"""Healthy units that are called lemons, expected per kind and window. Windows overlap."""
LEAST_FAILURES = 3
"""Fewer failures are not reported: two may be a coincidence, and a person has seen both."""
LEAST_SPREAD = 0.01
"""Correlation of a unit's days that is assumed at least: few failures cannot show that there is none."""
_MOST_SPREAD, _PEERS = 0.2, 0.98
_CHARGED = HARDWARE | {Kin.HOST, Kin.NODE, Kin.GONE}
_KEPT = "lemons"


@dataclass(frozen=True, slots=True)
class PeerRate:
    """Failures per day of use of the units of a kind: a beta distribution."""

    mean: float
    spread: float

    def tail(self, days: np.ndarray, failures: np.ndarray) -> np.ndarray:
        """The chance of a healthy unit to have so many failures or more."""
        total = 1.0 / self.spread - 1.0
        a, b = self.mean * total, (1.0 - self.mean) * total
        pairs = zip(failures.tolist(), days.tolist(), strict=True)
        return np.array([beta_binomial_tail(count, of, a, b) for count, of in pairs])


def peer_rate(days: np.ndarray, failures: np.ndarray) -> PeerRate:
    """By moments, over all units but the worst: those would hide behind their own failures."""
    share = failures / np.maximum(days, 1)
    kept = np.argsort(share, kind="stable")[: max(1, int(_PEERS * len(share)))]
    n, y = days[kept], failures[kept]
    # half a failure: of a fleet that has had none, the next is no proof
    mean = (y.sum() + 0.5) / (n.sum() + 1.0)
    expected = n * mean
    excess = ((y - expected) ** 2).sum() / max((expected * (1.0 - mean)).sum(), 1e-12) - 1.0
    return PeerRate(float(mean), float(np.clip(excess / max(n.mean() - 1.0, 1.0), LEAST_SPREAD, _MOST_SPREAD)))


def lemons(counts: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Units of one kind that are lemons, each with the peers' failures per day; `counts`: (days, failures)."""
    names = list(counts)
    if not names:
        return {}
    days, failures = np.array([counts[name] for name in names]).T
    rate = peer_rate(days, failures)
    # the tail is reckoned one by one, and nearly every unit of a large fleet has no failure
    often = np.flatnonzero(failures >= LEAST_FAILURES)
    rare = rate.tail(days[often], failures[often]) * len(names) < FALSE_PER_MONTH
    return {names[i]: rate.mean for i in often[rare].tolist()}


@dataclass(frozen=True, slots=True)
class _Charge:
    """A failure: the day, and the units at its place."""

    day: int
    incident: int
    units: tuple[str, ...]


class Lemons:
    """Counted by the replica that leads, once an hour; what was counted outlives a restart."""

    def __init__(self, store: Store, inventory: Inventory) -> None:
        self._store, self._inventory = store, inventory
        self._used: dict[str, set[int]] = defaultdict(set)
        self._charges: dict[tuple[int, int], _Charge] = {}
        self._since_s: dict[str, float] = {}
        self._cables: dict[str, Subject] = {}
        """By cable the port of a node that it was last seen in."""
        self._seen: set[tuple[int, float]] = set()
        """Beginnings that were judged."""
        self._found: list[Finding] = []
        self._next_s = float("-inf")
        self._log = structlog.get_logger("lemons")

    def resume(self) -> None:
        """Takes up what was counted before, also by another replica."""
        kept = self._store.recall(_KEPT)
        if kept is None:
            return
        told = json.loads(kept[1])
        self._used = defaultdict(set, {unit: set(days) for unit, days in told["used"].items()})
        charges = [_Charge(day, incident, tuple(units)) for day, incident, units in told["charges"]]
        self._charges = {(charge.incident, charge.day): charge for charge in charges}
        self._since_s = told["since_s"]

    def findings(self, now_s: float) -> list[Finding]:
        """Each node with a lemon as a ticket, and once the end of one that is none by now."""
        # both bounds: a clock that was set back must not put the next count off
        if not self._next_s - EVERY_S <= now_s < self._next_s:
            self._next_s = now_s + EVERY_S
            try:
                self._count(now_s)
            except (Temporary, Permanent) as error:
                self._log.warning("lemons not counted", error=str(error))
        found, self._found = self._found, [one for one in self._found if one.state is State.FIRING]
        return found

    def _count(self, now_s: float) -> None:
        today = int(now_s // DAY_S)
        for unit in self._in_use(now_s):
            self._used[unit].add(today)
        self._charge(now_s)
        for unit in list(self._used):
            self._used[unit] = {day for day in self._used[unit] if today - DAYS < day <= today}
            if not self._used[unit]:
                del self._used[unit]
        self._charges = {key: c for key, c in self._charges.items() if today - DAYS < c.day <= today}
        self._judge(now_s)
        told = {
            "used": {unit: sorted(days) for unit, days in self._used.items()},
            "charges": [(c.day, c.incident, c.units) for c in self._charges.values()],
            "since_s": self._since_s,
        }
        self._store.keep({_KEPT: json.dumps(told).encode()})

    def _in_use(self, now_s: float) -> Iterator[str]:
        """Units that hold a job now, each once."""
        inventory, nodes = self._inventory, set()
        gpus = inventory.subjects(SubjectKind.GPU, now_s)
        above = inventory.nearest_each(gpus, (SubjectKind.JOB, SubjectKind.NODE), now_s)
        for gpu, (job, node) in zip(gpus, above, strict=True):
            if job is None:
                continue
            yield str(gpu)
            yield from map(str, inventory.children(gpu, now_s, SubjectKind.LINK))
            yield from self._ports(gpu, now_s)
            if node is None:
                continue
            if slot := inventory.fact(gpu, "slot"):
                yield f"slot:{node.name} {slot}"
            if node not in nodes:
                nodes.add(node)
                yield str(node)
                yield from self._ports(node, now_s)

    def _ports(self, owner: Subject, now_s: float) -> Iterator[str]:
        """Its ports and their cables."""
        for port in self._inventory.children(owner, now_s, SubjectKind.NIC):
            yield str(port)
            for cable in self._cable(port):
                self._cables[cable] = port
                yield cable

    def _charge(self, now_s: float) -> None:
        """Failures of incidents that were opened, or came back, of late; the inventory knows where that was."""
        begins = steps.c.before.is_(None) | (steps.c.cause == str(Cause.RELAPSED))
        recent = (
            sa.select(steps.c.incident, steps.c.at_s)
            .join(incidents, incidents.c.number == steps.c.incident)
            .where(steps.c.at_s > now_s - 2 * DAY_S, begins, incidents.c.diagnosis.is_not(None))
        )
        with self._store.database.read() as connection:
            found = {(row.incident, row.at_s) for row in connection.execute(recent)}
        for number, at_s in sorted(found - self._seen):
            cause = first_cause(findings_of(self._store.incident(name_of(number))))
            if kin_of(cause) not in _CHARGED:
                continue
            day = int(at_s // DAY_S)
            # a unit that held no job on that day failed nobody's
            units = self._units(cause.subject, cause.since.t_s)
            used = tuple(unit for unit in units if day in self._used.get(unit, ()))
            if used:
                self._charges.setdefault((number, day), _Charge(day, number, used))
        self._seen = found

    def _units(self, subject: Subject, at_s: float) -> tuple[str, ...]:
        """A place as units of each kind: its node; its GPU and that GPU's slot; the link or port, and its cable.
        What fails on a switch's port is charged to the port at the other end: that one's node held the job."""
        if subject.kind is SubjectKind.NIC and self._inventory.above(subject, SubjectKind.NODE, at_s) is None:
            peer = self._inventory.fact(subject, PEER)
            subject = Subject.parse(peer) if peer else subject
        node = self._inventory.above(subject, SubjectKind.NODE, at_s)
        gpu = self._inventory.above(subject, SubjectKind.GPU, at_s)
        found = [str(one) for one in (node, gpu) if one is not None]
        slot = self._inventory.fact(gpu, "slot") if gpu is not None else None
        if node is not None and slot:
            found.append(f"slot:{node.name} {slot}")
        if subject.kind in (SubjectKind.LINK, SubjectKind.NIC):
            found += [str(subject), *self._cable(subject)]
        return tuple(found)

    def _cable(self, port: Subject) -> tuple[str, ...]:
        """A cable by its serial number: it may be plugged elsewhere, and fail there."""
        cable = self._inventory.fact(port, CABLE) or ""
        return (f"cable:{cable}",) if cable.startswith("SN ") else ()

    def _judge(self, now_s: float) -> None:
        failed: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for charge in self._charges.values():
            for unit in charge.units:
                failed[unit][charge.day].append(charge.incident)
        counts: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        for unit in self._used:
            # charges are of days of use, which are forgotten at the same age
            counts[unit.partition(":")[0]][unit] = len(self._used.get(unit, ())), len(failed[unit])
        by_node: dict[Subject, list[str]] = defaultdict(list)
        for kind in counts.values():
            for unit, mean in lemons(kind).items():
                days, failures = kind[unit]
                names = ", ".join(name_of(n) for n in sorted({n for of in failed[unit].values() for n in of}))
                node = self._node_of(unit, now_s)
                by_node[node].append(f"{unit} failed on {failures} of {days} days (peers {mean:.2%}): {names}")
        self._tell(by_node, now_s)

    def _node_of(self, unit: str, now_s: float) -> Subject:
        kind, _, name = unit.partition(":")
        if kind == "slot":
            return Subject(SubjectKind.NODE, name.partition(" ")[0])
        subject = self._cables.get(unit, self._inventory.cluster) if kind == "cable" else Subject.parse(unit)
        return self._inventory.above(subject, SubjectKind.NODE, now_s) or subject

    def _tell(self, by_node: Mapping[Subject, list[str]], now_s: float) -> None:
        over = [one for one in self._since_s if Subject.parse(one) not in by_node]
        ends = [self._finding(Subject.parse(one), ["fails as its peers do"], now_s, State.CLEAR) for one in over]
        for node in by_node:
            self._since_s.setdefault(str(node), now_s)
        self._found = [self._finding(node, sorted(said), now_s) for node, said in sorted(by_node.items())] + ends
        for one in over:
            del self._since_s[one]

    def _finding(self, node: Subject, said: Iterable[str], now_s: float, state: State = State.FIRING) -> Finding:
        summary = f"Jobs fail on {node.name} more often than on its peers: {'; '.join(said)}"[:2000]
        told = (_KEPT, Fault.LEMON, node, state, Instant(self._since_s[str(node)]), Instant(now_s))
        found = Finding(*told, Severity.WARNING, summary, 1.0, 1.0, facts={"window_days": float(DAYS)})
        return in_lane(found, Lane.TICKET, Proof.RARE, "a pattern over weeks waits for the working day")
