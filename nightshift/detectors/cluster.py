"""What Kubernetes or Slurm itself calls wrong: nodes with a fault, pods that cannot start, jobs that it ended.

Every object's own status comes as lines (`collectors.kubernetes.states`, `collectors.slurm.states`); kubelets tell
of volumes and sandboxes by events alone, which count while their pod has not started. What one cause stops is one
alarm: a bad image on 64 pods is said of their job, a device plugin that crashes on many nodes of the cluster.
`TROUBLES` is the closed set.

Nothing is said of what passes by itself or is meant: a trouble has to outlast `grace_s`, which is longer than the
kubelet's first back-offs and than a plug-in's restart; a node that was taken away on purpose (cordoned, tainted by
an upgrade, still joining) before the trouble began is not told, nor are GPUs that are missing or pods that are
rejected while what serves the node's GPUs is being replaced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from nightshift.collectors.frame import Instant, LogRecord, SourceStatus
from nightshift.collectors.kubernetes.events import EVENTS
from nightshift.collectors.kubernetes.makers import DUE, NOTICE
from nightshift.collectors.kubernetes.states import ENDS, STATES, Trouble, maker, read
from nightshift.collectors.slurm import SLURM
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, LogExhibit, RateBasis, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1
END_S = 600.0
"""An end has no later state: it is told for so long, as the lines of a job's own log are."""
SETTLE_S = 120.0
"""A device plugin that was replaced registers, and the kubelet publishes its GPUs, within this."""
ROLLOUT_S = 900.0
"""What serves a node's GPUs and is not ready for longer holds nothing back: it is stuck, not being rolled out."""
KEEP = 8
_NODES = ("Node ", "SlurmNode ")
"""How the lines of a node begin, by its manager."""
PLATFORM, OWNER = "platform", "owner"
_K = SubjectKind
_Group = tuple[str, str]
"""A trouble, and what those that may be of one cause share."""


@dataclass(frozen=True, slots=True)
class TroubleKind:
    """A row of the table. words: the title's, with {cause}, {said} (the first words of the status) and {message}
    (its last, shortened) filled in.

    by: what tells two faults apart (`cause`, `node` or `job`). mended_by: who can change it.
    """

    fault: Fault
    words: str
    mended_by: str
    grace_s: float
    by: str = "cause"
    severity: Severity = Severity.WARNING


_START, _NODE, _END = Fault.POD_START, Fault.NODE_CONDITION, Fault.JOB_CRASH
TROUBLES: Mapping[str, TroubleKind] = {
    "not_ready": TroubleKind(_NODE, "Node not ready ({cause})", PLATFORM, 60.0, "node", Severity.CRITICAL),
    "condition": TroubleKind(_NODE, "Node reports {cause}: {message}", PLATFORM, 0.0, "node"),
    "pressure": TroubleKind(_NODE, "Node reports {cause}: {message}", PLATFORM, 120.0, "node"),
    "node_event": TroubleKind(_NODE, "Node reports {cause}: {message}", PLATFORM, 0.0, "node"),
    "gpus_missing": TroubleKind(_NODE, "Node offers {cause} GPUs", PLATFORM, 60.0, "node"),
    "gpus_gone": TroubleKind(_NODE, "Node offers {cause} GPUs", PLATFORM, 120.0, "node", Severity.CRITICAL),
    NOTICE: TroubleKind(_NODE, "Cloud announces: {message}", PLATFORM, 0.0, "node"),
    "rejected": TroubleKind(_START, "Node rejects GPU pods ({cause})", PLATFORM, 30.0, "node"),
    "runtime": TroubleKind(_START, "Container runtime fails to start GPU containers: {cause}", PLATFORM, 60.0),
    "sandbox": TroubleKind(_START, "Pod sandboxes cannot be created", PLATFORM, 60.0),
    "mount": TroubleKind(_START, "Volume {cause} cannot be mounted", PLATFORM, 90.0),
    "registry": TroubleKind(_START, "Registry {cause} does not serve images", PLATFORM, 60.0),
    "image_pull": TroubleKind(_START, "Image {cause} cannot be pulled", OWNER, 60.0),
    "claim": TroubleKind(_START, "GPU claims (DRA) cannot be prepared: {message}", PLATFORM, 60.0, "node"),
    "not_created": TroubleKind(_START, "Pods of the job cannot be created: {message}", OWNER, 60.0, "job"),
    "config": TroubleKind(_START, "Container cannot be created ({said})", OWNER, 60.0, "job"),
    "probe": TroubleKind(_START, "Container does not become ready: its {cause} fails", OWNER, 0.0, "job"),
    "job_failed": TroubleKind(_END, "{said}", PLATFORM, 0.0, "job"),
    "oom": TroubleKind(_END, "out of memory: a container was killed", OWNER, 0.0, "job"),
    "exited": TroubleKind(_END, "its container ended with an error ({cause})", OWNER, 0.0, "job"),
    # the condition that made the kubelet evict it comes with the node's next status
    "evicted": TroubleKind(_END, "evicted from its node: {message}", PLATFORM, 20.0, "job"),
    "preempted": TroubleKind(_END, "preempted by the scheduler", PLATFORM, 0.0, "job"),
    "node_failed": TroubleKind(_END, "its node failed ({cause})", PLATFORM, 0.0, "job"),
    "timed_out": TroubleKind(_END, "it reached its time limit ({cause})", OWNER, 0.0, "job"),
    "requeued": TroubleKind(_END, "requeued by Slurm ({cause})", PLATFORM, 0.0, "job"),
    "launch_failed": TroubleKind(_START, "Slurm cannot launch the job ({cause}): {message}", PLATFORM, 0.0, "job"),
    "crash_loop": TroubleKind(_END, "its container is in CrashLoopBackOff ({cause})", OWNER, 0.0, "job"),
}
"""Every trouble that is a fault; the first of several at one place decides. `maintenance` and `starting` of the
collector are none by themselves: they hold others back."""
_RANK = {name: rank for rank, name in enumerate(TROUBLES)}
# What an upgrade or a node pool's replacement does to a node, whoever else may look at it.
_HELD_BY_MAINTENANCE = frozenset(
    {"not_ready", "condition", "pressure", "node_event", "gpus_missing", "gpus_gone", "rejected", "evicted"}
)
_HELD_BY_ROLLOUT = frozenset({"gpus_missing", "gpus_gone", "rejected"})
_OF_PODS = {
    **dict.fromkeys(("FailedMount", "FailedAttachVolume", "FailedMapVolume"), "mount"),
    **dict.fromkeys(("FailedCreatePodSandBox", "NetworkNotReady"), "sandbox"),
    "FailedPrepareDynamicResources": "claim",
    "FailedCreatePodContainer": "config",
}
_ENDED = {"Evicted": "evicted", "Preempted": "preempted"}
_OF_NODES: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys(
        (
            *("TaskHung", "KernelOops", "Ext4Error", "IOError", "CperHardwareErrorRecoverable"),
            "UnregisterNetDevice",
        ),
        re.compile(""),
    ),
    # a kubelet that starts has no figures of its images yet and says so by the same reason
    **dict.fromkeys(("ImageGCFailed", "FreeDiskSpaceFailed"), re.compile(r"garbage collect|bytes eligible")),
}
"""What node-problem-detector (config/kernel-monitor.json) and the kubelet say once, by an event, with the words
that make it a fault; corrected errors and kills for want of memory, which may be of any process, are not among
them."""
_EVENT = re.compile(
    r"(?P<type>Warning|Normal) (?P<reason>\w+) (?P<kind>Pod|Node|\w*Job|JobSet) (?P<name>\S+): (?P<words>.*?)"
    r"(?: \[(?P<by>\S+)\](?: \(×(?P<count>\d+)\))?)?$"
)
_MONITOR = re.compile(r"monitor|node-problem|\bnpd\b|health|gpud|sentinel|dcgm", re.I)
"""Components that watch nodes: each of their warnings is a fault, but for these."""
_HARMLESS = re.compile(
    r"OOMKilling|Ext4Warning|MemoryReadError|Corrected|ContainerStartupFailure|Preempt|Scheduled|Recovered|Healthy"
)
PROBES = 180
"""Failed probes, one in 10 s by default: half an hour, longer than a large model takes to load."""
_PROBE = re.compile(r"(?i:(startup|readiness|liveness) probe) (?:failed|errored)")
_OF_ITS_SPEC = re.compile(r'(?:configmap|secret) "[^"]+" not found|references non-existent', re.I)
_VOLUME = re.compile(r'for volume "([^"]+)"|volumes=\[([^\] ,]+)')
_NO_OWN_WORDS = re.compile(r'"[^"]*"|[0-9a-f]{8,}|\d+')


@dataclass(frozen=True, slots=True)
class _Wrong:
    """One trouble of one object, and the line that said it."""

    thing: str
    trouble: Trouble
    record: LogRecord
    job: str = ""
    node: str = ""
    serves: str = ""
    until_s: float = 0.0
    """An end is told until then; 0: until its object is well."""

    @property
    def kind(self) -> TroubleKind:
        row = TROUBLES[self.trouble.name]
        if not self.serves or row.fault is Fault.NODE_CONDITION:
            return row
        # what serves GPUs is nobody's job: the platform mends it, and an upgrade is given time to settle
        words = f"GPU infrastructure {self.serves} cannot start: " + row.words[:1].lower() + row.words[1:]
        return replace(row, fault=_START, words=words, mended_by=PLATFORM, grace_s=SETTLE_S, by="cause")

    @property
    def group(self) -> _Group:
        shared = {"node": self.node, "job": self.job or self.thing, "cause": self.trouble.cause}[self.kind.by]
        return self.trouble.name, f"{self.serves} {shared}" if self.serves else shared


class ClusterSettings(BaseModel):
    """Nothing to set: what Kubernetes says of its own objects is taken at its word."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ClusterFaults:
    """NODE_CONDITION on the node, POD_START and JOB_CRASH on the job (without one, on pod, node or cluster).

    >>> from nightshift.collectors.kubernetes.states import written
    >>> from nightshift.detectors.contract.testing import JOB, START_S, Subject, show, tick
    >>> def at(number):
    ...     wrong = (Trouble("image_pull", "reg/train:1", "ErrImagePull: not found", START_S),)
    ...     pods = [(f"ml/train-{n}", Subject(SubjectKind.POD, f"ml/train-{n}")) for n in range(8)]
    ...     told = [l for name, s in pods for l in written("Pod", name, {"job": JOB.name}, wrong, s, START_S)]
    ...     return replace(tick(START_S + number), logs=told if number == 0 else ())
    >>> show(ClusterFaults(), [at(0), at(30), at(60)])
    60 s: firing pod_start job:ml/train
        Image reg/train:1 cannot be pulled (8 pods)
    """

    plugin: ClassVar[str] = "cluster"
    Settings = ClusterSettings

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        self.settings = settings or ClusterSettings()
        self._wrong: dict[str, list[_Wrong]] = {}
        """By object, as its last lines say."""
        self._by_event: dict[tuple[str, str], _Wrong] = {}
        """By pod and trouble: what only events tell, while the pod has not started."""
        self._waiting: dict[str, float] = {}
        """Pods that have not started: since when (Unix s)."""
        self._away_s: dict[str, tuple[float, float]] = {}
        """Nodes, by what their manager calls them, that are taken away on purpose: from when, and till when
        (infinity: still)."""
        self._served_s: dict[str, tuple[float, frozenset[str]]] = {}
        """By node: when what serves its GPUs last changed, and which of it is not ready."""
        self._places: dict[_Group, Subject] = {}
        self._episodes = Episodes(self.name)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.NODE_CONDITION, Fault.POD_START, Fault.JOB_CRASH)

    @property
    def stated(self) -> StatedRate:
        return StatedRate(0.0, RateBasis.EVENT, "Kubernetes or Slurm itself says so", series=_K.NODE, precision=1.0)

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        self._read(tick, inventory)
        if _is_unanswered(tick.sources):
            said = "The API server, or Slurm's controller, does not answer"
            self._hold_ends(tick.at_s)
            return self._episodes.report(lambda fault, s: self._episodes.no_data(fault, s, tick.at_s, said))
        groups = self._groups(self._candidates(tick.at_s))
        ripe = {key: found for key, found in groups.items() if self._is_ripe(key, found, tick.at_s)}
        by_place = self._by_place(groups, ripe, inventory)
        self._away_s = {n: (a, b) for n, (a, b) in self._away_s.items() if tick.at_s < b + SETTLE_S}
        findings = []
        for (fault, place), keys in by_place.items():
            first = min(keys, key=lambda key: (_RANK[key[0]], key))
            cause = [w for w in ripe[first] if w.trouble.name == first[0]]
            findings.append(self._fire(fault, place, cause, [w for k in keys for w in ripe[k]], tick.at_s))
        for fault, place in [key for key in self._episodes if key not in by_place]:
            done = self._episodes.clear(fault, place, tick.at_s, "The cluster's manager reports no fault there now")
            findings += [done] if done else []
        return findings

    def _by_place(
        self, groups: Collection[_Group], ripe: Mapping[_Group, Sequence[_Wrong]], inventory: Inventory
    ) -> dict[tuple[Fault, Subject], list[_Group]]:
        """The ripe groups that are one alarm. A group's place is chosen once, and stays as long as there is any of
        it."""
        self._places = {key: place for key, place in self._places.items() if key in groups}
        by_place: dict[tuple[Fault, Subject], list[_Group]] = {}
        for key, found in ripe.items():
            place = self._places.setdefault(key, _place(found, inventory))
            by_place.setdefault((found[0].kind.fault, place), []).append(key)
        return by_place

    def _groups(self, candidates: Sequence[_Wrong]) -> dict[_Group, list[_Wrong]]:
        """What may be of one cause; what names a group comes first in it."""
        groups: dict[_Group, list[_Wrong]] = {}
        failing = {w.node: w.group for w in candidates if w.trouble.name in ("pressure", "not_ready")}
        for wrong in candidates:
            # a node that evicts its pods is one fault: that of the node
            of_node = failing.get(wrong.node) if wrong.trouble.name == "evicted" else None
            key = wrong.group if of_node is None or self._is_open(wrong) else of_node
            groups.setdefault(key, []).append(wrong)
        return {k: sorted(found, key=partial(_is_of_another, k)) for k, found in groups.items()}

    def _hold_ends(self, at_s: float) -> None:
        """What ended is told for its whole time once the API server answers again: silence ends nothing."""

        def held(wrong: _Wrong) -> _Wrong:
            return replace(wrong, until_s=at_s + END_S) if wrong.until_s else wrong

        self._wrong = {thing: [held(w) for w in found] for thing, found in self._wrong.items()}
        self._by_event = {key: held(w) for key, w in self._by_event.items()}

    # what the lines say

    def _read(self, tick: Tick, inventory: Inventory) -> None:
        """Takes in the lines of a tick: those of one object replace all that was known of it."""
        now: dict[str, list[_Wrong]] = {}
        listed = set()
        for record in tick.logs:
            if (told := read(record)) is not None:
                thing, facts, trouble = told
                kind, _, name = thing.partition(" ")
                if name == "*":
                    listed.add(kind)
                    continue
                self._serve(thing, facts, trouble, tick.at_s)
                now.setdefault(thing, [])
                if trouble is not None:
                    now[thing].append(_wrong_of(thing, facts, trouble, record, tick.at_s))
        for thing in [*self._wrong, *self._waiting, *self._away_s]:
            # the first list of a kind repeats all that goes on: the rest ended while nobody looked
            if thing.partition(" ")[0] in listed and thing not in now:
                now[thing] = []
        for thing, found in now.items():
            self._replace(thing, found, tick.at_s)
        # after the states: whether a pod has started decides what its events mean
        for record in tick.logs:
            if record.source.startswith(EVENTS) and record.source != STATES:
                self._hear(record, tick.at_s, inventory)

    def _replace(self, thing: str, found: Sequence[_Wrong], at_s: float) -> None:
        before = self._wrong.pop(thing, [])
        names = {w.trouble.name for w in found}
        self._note_away(thing, "maintenance" in names, at_s)
        if "starting" in names:
            self._waiting.setdefault(thing, at_s)
        else:
            self._waiting.pop(thing, None)
            self._by_event = {key: w for key, w in self._by_event.items() if key[0] != thing or w.until_s}
        known = {w.trouble.name: w for w in before}
        kept = [w for w in before if w.until_s > at_s and w.trouble.name not in names]
        kept += [_continued(wrong, known) for wrong in found if wrong.trouble.name in TROUBLES]
        if kept:
            self._wrong[thing] = kept

    def _note_away(self, thing: str, is_away: bool, at_s: float) -> None:
        from_s, till_s = self._away_s.get(thing, (at_s, math.inf))
        if thing.startswith(_NODES) and is_away:
            # the time at which it was seen: a cordon has none of its own
            self._away_s[thing] = (from_s, math.inf) if at_s < till_s + SETTLE_S else (at_s, math.inf)
        elif thing in self._away_s:
            self._away_s[thing] = (from_s, min(till_s, at_s))

    def _serve(self, thing: str, facts: Mapping[str, str], trouble: Trouble | None, at_s: float) -> None:
        """Notes that what serves a node's GPUs changed, or is not ready."""
        node = facts.get("node", "")
        if facts.get("serves") and node:
            _, unready = self._served_s.get(node, (0.0, frozenset()))
            self._served_s[node] = (at_s, unready - {thing} if trouble is None else unready | {thing})

    def _hear(self, record: LogRecord, at_s: float, inventory: Inventory) -> None:
        """Takes in an event of a pod or node, of those that no status tells."""
        match = _EVENT.match(record.text)
        if match is None:
            return
        is_of_job = record.subject.kind is _K.JOB and match["reason"].startswith("FailedCreate")
        kind = "Job" if is_of_job else {_K.POD: "Pod", _K.NODE: "Node"}.get(record.subject.kind, "")
        thing, words = f"{kind} {record.subject.name}", match["words"]
        job = record.subject if is_of_job else inventory.above(record.subject, _K.JOB, at_s)
        node = inventory.above(record.subject, _K.NODE, at_s)
        name = _of_event(kind, match)
        has_gpus = name == "not_created" or inventory.fact(record.subject, "gpus")
        if name is not None and has_gpus and at_s - record.at.t_s < END_S:
            until_s = at_s + END_S
            shared = match["reason"] if name == "node_event" else _NO_OWN_WORDS.sub("…", words)[:80]
        elif thing in self._waiting and (of_start := _of_start(match["reason"], words, match["count"])):
            until_s = 0.0
            name, shared = of_start
        else:
            return
        known = self._by_event.get((thing, name))
        since_s = known.trouble.since_s if known else max(record.at.t_s, self._waiting.get(thing, 0.0))
        trouble = Trouble(name, shared, f"{match['reason']}: {words}", since_s)
        facts = {"job": job.name if job else "", "node": node.name if node else ""}
        made = _wrong_of(thing, facts, trouble, record, at_s)
        self._by_event[thing, name] = replace(made, until_s=until_s)

    # what of it is a fault

    def _candidates(self, at_s: float) -> list[_Wrong]:
        """What may be a fault now. An end that was meant is forgotten: it stays meant once the node has settled."""

        self._drop_ends(at_s)
        every = (*(w for found in self._wrong.values() for w in found), *self._by_event.values())
        # a status names the step that failed, the event that it was NVIDIA's runtime
        runtime = {thing for thing, name in self._by_event if name == "runtime"}
        return [
            wrong
            for wrong in every
            if not (wrong.trouble.name == "config" and wrong.thing in runtime) and not self._is_meant(wrong, at_s)
        ]

    def _drop_ends(self, at_s: float) -> None:
        """Forgets ends that were told for their time, or were meant."""

        def stays(wrong: _Wrong) -> bool:
            return not wrong.until_s or (wrong.until_s > at_s and not self._is_meant(wrong, at_s))

        left = {thing: [w for w in found if stays(w)] for thing, found in self._wrong.items()}
        self._wrong = {thing: found for thing, found in left.items() if found}
        self._by_event = {key: w for key, w in self._by_event.items() if stays(w)}

    def _is_meant(self, wrong: _Wrong, at_s: float) -> bool:
        """Whether somebody took the node away before it began, or what serves its GPUs is being replaced."""
        name, node = wrong.trouble.name, wrong.node
        # of two managers, the one that has it away for longer
        away = [self._away_s.get(f"{kind}{node}", (math.inf, -math.inf)) for kind in _NODES]
        from_s, till_s = max(away, key=lambda span: span[1])
        if at_s < till_s + SETTLE_S and (name in _HELD_BY_MAINTENANCE or wrong.serves):
            # what a monitor said before the node was cordoned is why it was cordoned
            is_why = name in ("condition", "node_event") or self._is_open(wrong)
            if not is_why or from_s <= wrong.trouble.since_s:
                return True
        changed_s, unready = self._served_s.get(node, (0.0, frozenset()))
        if name not in _HELD_BY_ROLLOUT or not changed_s or self._is_open(wrong):
            return False
        if name == "rejected":
            return -SETTLE_S < wrong.trouble.since_s - changed_s < SETTLE_S or bool(unready)
        return at_s - changed_s < (ROLLOUT_S if unready else SETTLE_S)

    def _is_open(self, wrong: _Wrong) -> bool:
        place = self._places.get(wrong.group)
        return place is not None and (wrong.kind.fault, place) in self._episodes

    def _is_ripe(self, key: _Group, found: Sequence[_Wrong], at_s: float) -> bool:
        open_ = self._places.get(key)
        if open_ is not None and (found[0].kind.fault, open_) in self._episodes:
            return True
        is_felt = any(w.trouble.name == "evicted" for w in found) and key[0] != "evicted"
        return is_felt or at_s - min(w.trouble.since_s for w in found) >= found[0].kind.grace_s

    def _fire(
        self, fault: Fault, place: Subject, cause: Sequence[_Wrong], found: Sequence[_Wrong], at_s: float
    ) -> Finding:
        first = min(cause, key=lambda w: (w.trouble.since_s, w.thing))
        kind, trouble, words = first.kind, first.trouble, _title(first)
        pods = len({w.thing for w in cause if w.thing.startswith("Pod ")})
        shown = f"{words} ({pods} pods)" if pods > 1 else words
        places = {w.record.subject for w in found} | {Subject(_K.JOB, w.job) for w in found if w.job}
        covers = sorted(str(s) for s in places if s != place)[:64]
        facts: dict[str, float | str] = {
            "trouble": trouble.name,
            "cause": trouble.cause,
            "meaning": shown,
            "mended_by": kind.mended_by,
            "events": float(len({w.thing for w in found})),
        }
        if trouble.name == NOTICE and (due := DUE.search(trouble.words)):
            facts["due_s"] = datetime.fromisoformat(due[1]).timestamp()
        if fault is _END:
            facts |= {"crash": trouble.name, "ended_by": words}
        if covers:
            facts["covers"] = " ".join(covers)
        records = {w.record: None for w in (first, *cause, *found)}
        alarm = Alarm(
            fault,
            place,
            trouble.since_s,
            kind.severity,
            f"Job ended: {shown}" if fault is _END else shown,
            score=1.0,
            threshold=0.0,
            evidence=tuple(LogExhibit(record, "") for record in list(records)[:KEEP]),
            facts=facts,
        )
        return self._episodes.fire(alarm, at_s)

    # state

    def snapshot(self) -> bytes:
        meta = {
            "wrong": [_saved(w) for found in self._wrong.values() for w in found],
            "by_event": [_saved(w) for w in self._by_event.values()],
            "waiting": self._waiting,
            "away": {thing: [t, None if math.isinf(till) else till] for thing, (t, till) in self._away_s.items()},
            "served": {node: [t, sorted(unready)] for node, (t, unready) in self._served_s.items()},
            "places": [[*key, str(place)] for key, place in self._places.items()],
            "episodes": self._episodes.saved(),
        }
        return pack(self.name, VERSION, meta, {})

    def restore(self, state: bytes) -> None:
        _, meta, _ = unpack(state, self.name, (VERSION,))
        fresh = ClusterFaults(self.settings)
        try:
            for saved in meta["wrong"]:
                wrong = _loaded(saved)
                fresh._wrong.setdefault(wrong.thing, []).append(wrong)
            for saved in meta["by_event"]:
                wrong = _loaded(saved)
                fresh._by_event[wrong.thing, wrong.trouble.name] = wrong
            fresh._waiting = {str(thing): float(t) for thing, t in meta["waiting"].items()}
            fresh._away_s = {
                # snapshots of before Slurm have the node's name alone
                thing if " " in thing else f"Node {thing}": (float(t), math.inf if till is None else float(till))
                for thing, (t, till) in meta["away"].items()
            }
            fresh._served_s = {str(n): (float(t), frozenset(u)) for n, (t, u) in meta["served"].items()}
            fresh._places = {(str(a), str(b)): Subject.parse(s) for a, b, s in meta["places"]}
            fresh._episodes.load(meta["episodes"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._wrong, self._by_event, self._waiting = fresh._wrong, fresh._by_event, fresh._waiting
        self._served_s, self._places, self._episodes = fresh._served_s, fresh._places, fresh._episodes
        self._away_s = fresh._away_s


def _title(wrong: _Wrong) -> str:
    trouble = wrong.trouble
    said = re.split(r"[:(.] ?", trouble.words, maxsplit=1)[0][:80]
    if trouble.name == "job_failed":
        said = trouble.words.removesuffix(".")[:140]
    # before it stand the type and the reason, which the title says or does not need
    message = trouble.words.split(": ", 1 if trouble.name == "node_event" else 2)[-1][:80].strip()
    return wrong.kind.words.format(cause=trouble.cause, said=said, message=message)


def _continued(wrong: _Wrong, known: Mapping[str, _Wrong]) -> _Wrong:
    """What an object says now, since it, or another status of the same back-off, was said first. known: what it
    said before, by trouble."""
    at_registry = known.get("registry")
    # only every other status of a back-off says that it is the registry that does not answer
    if wrong.trouble.name == "image_pull" and at_registry is not None:
        wrong = replace(at_registry, record=wrong.record)
    old = known.get(wrong.trouble.name) or known.get("image_pull" if at_registry is None else "")
    if old is None or _family(old) != _family(wrong):
        return wrong
    # the message of a back-off changes, the onset does not
    since_s = min(wrong.trouble.since_s, old.trouble.since_s)
    return replace(wrong, trouble=replace(wrong.trouble, since_s=since_s), until_s=old.until_s)


def _of_event(kind: str, event: re.Match[str]) -> str | None:
    """The trouble that an event tells whatever its object's state is; None where it tells none."""
    if kind == "Job":
        # a plain Job may be anything; the others are made for training
        return "not_created" if event["kind"] != "Job" or "gpu" in event["words"] else None
    return "node_event" if kind == "Node" and _is_node_fault(event) else _ENDED.get(event["reason"])


def _is_node_fault(event: re.Match[str]) -> bool:
    fault_words = _OF_NODES.get(event["reason"])
    if fault_words is not None and fault_words.search(event["words"]):
        return True
    of_monitor = event["type"] == "Warning" and _MONITOR.search(event["by"] or "") is not None
    return of_monitor and _HARMLESS.search(event["reason"]) is None


def _of_start(reason: str, words: str, count: str | None) -> tuple[str, str] | None:
    """(trouble, cause) of an event about a pod that has not started; None where it is of none."""
    name = _OF_PODS.get(reason)
    if name == "mount" and _OF_ITS_SPEC.search(words):
        name = "config"
    if name is not None:
        volume = _VOLUME.search(words) if name != "sandbox" else None
        return name, next(filter(None, volume.groups())) if volume else _NO_OWN_WORDS.sub("…", words)[:80]
    probe = _PROBE.search(words) if reason == "Unhealthy" and int(count or 1) >= PROBES else None
    if probe is not None:
        return "probe", f"{probe.group(1).lower()} probe"
    if reason == "Failed" and (made := maker(words, ""))[0] == "runtime":
        return made
    return None


def _wrong_of(thing: str, facts: Mapping[str, str], trouble: Trouble, record: LogRecord, at_s: float) -> _Wrong:
    kind, _, name = thing.partition(" ")
    job = facts.get("job", "") if kind in ("Pod", "Node", "SlurmNode") else name
    node = name if f"{kind} " in _NODES else facts.get("node", "")
    until_s = at_s + END_S if trouble.name in ENDS else 0.0
    return _Wrong(thing, trouble, record, job, node, facts.get("serves", ""), until_s)


def _is_of_another(group: _Group, wrong: _Wrong) -> bool:
    return wrong.group != group


def _family(wrong: _Wrong) -> str:
    return "image_pull" if wrong.trouble.name == "registry" else wrong.trouble.name


def _place(found: Sequence[_Wrong], inventory: Inventory) -> Subject:
    """Where a fault is said to be: what all of it shares, else the cluster."""
    first = found[0]
    if first.kind.by == "node" and first.node:
        return Subject(_K.NODE, first.node)
    nodes, jobs = {w.node for w in found}, {w.job for w in found}
    if (first.serves or first.trouble.name in ("runtime", "sandbox")) and len(nodes) == 1 and first.node:
        return Subject(_K.NODE, first.node)
    if first.serves or len(jobs) > 1:
        return inventory.cluster
    return Subject(_K.JOB, first.job) if first.job else first.record.subject


def _is_unanswered(sources: Sequence[SourceStatus]) -> bool:
    """Whether no source answers, or a cluster's manager does not."""
    silent = (s for s in sources if not s.ok)
    return not any(s.ok for s in sources) or any(map(_is_manager, silent))


def _is_manager(status: SourceStatus) -> bool:
    return status.source.name.startswith(("kubernetes ", f"{SLURM} "))


def _saved(wrong: _Wrong) -> list[Any]:
    trouble, record = wrong.trouble, wrong.record
    return [
        *(wrong.thing, trouble.name, trouble.cause, trouble.words, trouble.since_s),
        *(record.at.t_s, record.source, str(record.subject), record.text),
        *(wrong.job, wrong.node, wrong.serves, wrong.until_s),
    ]


def _loaded(saved: Sequence[Any]) -> _Wrong:
    thing, name, cause, words, since_s, at_s, source, subject, text, job, node, serves, until_s = saved
    if name not in TROUBLES:
        raise ValueError(f"trouble {name!r}")
    record = LogRecord(Instant(float(at_s)), str(source), Subject.parse(subject), str(text), 0)
    trouble = Trouble(str(name), str(cause), str(words), float(since_s))
    return _Wrong(str(thing), trouble, record, str(job), str(node), str(serves), float(until_s))
