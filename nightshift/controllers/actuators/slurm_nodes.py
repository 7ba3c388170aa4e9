"""Slurm's nodes as mitigations see them: whose drain stands, our marks, and changes that a person's word survives.

A drain of ours bears the reason `nightshift: …` and, in the same write, the mark `nightshift:<action>:<boot time>`
in `Extra`. It is ours as long as reason, user, mark and boot time are. Slurm has no compare-and-set. So each
change is made between two looks, by one scontrol that asks, writes and asks again over one connection after
another: what a person wrote just before is seen in the first look, and put back.

Undo is UNDRAIN, never RESUME, which would also lift DOWN (src/slurmctld/node_mgr.c, update_node). Where the node is
idle, UNDRAIN deletes the reason; therefore the look before it is the one that counts.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.slurm import OURS
from nightshift.collectors.slurm.answers import AnswerError, SlurmNode, nodes_of_text
from nightshift.collectors.slurm.client import SlurmClient
from nightshift.controllers.action import Action
from nightshift.controllers.cordon import NOBODY, SOMEBODY_ELSE, cordon_ids

BOOT_JITTER_S = 5.0
"""slurmd reckons its boot time anew, from the clock and the uptime, each time it registers: it differs by
seconds."""
DRAINS, GAVE_BACK, LOST_FEATURES = "nightshift", "nightshift-back", "nightshift-taint"
"""Prefixes of marks: a drain that stands, a node that was given back, and features taken off."""
_MARK = re.compile(
    rf"(?:^|(?<=[,\s]))({GAVE_BACK}|{LOST_FEATURES}|{DRAINS}):([\w-]+):(\d+)(?::([^,\s]+))?(?:[,\s]|$)"
)
_REBOOTED = re.compile(r" : reboot \w+$")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
MAX_REASON = 200


class Mark(NamedTuple):
    """One entry of ours in a node's `Extra`. more: a drain's jobs with their restarts, or a taint's features."""

    kind: str
    id: str
    boot_s: float
    more: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}:{self.boot_s:.0f}" + (f":{self.more}" if self.more else "")


def marks(node: SlurmNode) -> tuple[Mark, ...]:
    """Ours, in their order.

    >>> node = SlurmNode("n1", frozenset({"IDLE"}), extra="rack=7,nightshift:inc-1-cordon-ab:1795740000")
    >>> marks(node)
    (Mark(kind='nightshift', id='inc-1-cordon-ab', boot_s=1795740000.0, more=''),)
    """
    return tuple(Mark(m[1], m[2], float(m[3]), m[4] or "") for m in _MARK.finditer(node.extra))


def mark_of(node: SlurmNode, action: Action, kind: str = DRAINS) -> Mark | None:
    return next((mark for mark in marks(node) if (mark.kind, mark.id) == (kind, action.id)), None)


def extra_with(node: SlurmNode, entries: tuple[Mark, ...]) -> str:
    """`Extra` with these marks of ours and every other word of it. Raises Permanent where it is another's JSON."""
    if node.extra.lstrip().startswith(("{", "[")):
        raise Permanent(
            f"node {node.name}: its Extra holds JSON of another tool, where Nightshift can keep no mark: "
            "nothing was changed"
        )
    others = _MARK.sub("", node.extra).strip(", ")
    return ",".join([*filter(None, [others]), *map(str, entries)])


@dataclass(frozen=True, slots=True)
class Change:
    """A write, with the node right before and after it."""

    before: SlurmNode
    after: SlurmNode


class SlurmNodes:
    """Reads and changes nodes. Raises SlurmSilent (Temporary) or SlurmRefused (Permanent)."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self.user = str(os.geteuid())
        with suppress(KeyError):
            self.user = pwd.getpwuid(os.geteuid()).pw_name
        self._names = frozenset({self.user, str(os.geteuid())})

    def get(self, name: str) -> SlurmNode:
        return self._client.node(checked(name))

    def is_ours(self, node: SlurmNode) -> bool:
        """Whether the drain that stands is ours alone: by its reason, its author, our mark and the boot. Raises
        Temporary while the boot is unknown, as after a restart of slurmctld, until slurmd registers."""
        if not self.written_by_us(node):
            return False
        if not node.boot_s:
            raise Temporary(f"node {node.name} registers with slurmctld: its boot time is unknown until then")
        return any(self.is_this_boot(node, mark) for mark in _drains(node))

    def written_by_us(self, node: SlurmNode) -> bool:
        """The same whatever the boot, as after a reboot of ours."""
        # slurmctld adds to the reason what it reboots, under its own name
        named = node.reason.startswith(OURS) and (node.reason_by in self._names or _REBOOTED.search(node.reason))
        return "DRAIN" in node.states and bool(named and _drains(node))

    def is_this_boot(self, node: SlurmNode, mark: Mark) -> bool:
        return node.boot_s > 0 and abs(node.boot_s - mark.boot_s) <= BOOT_JITTER_S

    def was_rebooted(self, node: SlurmNode) -> bool:
        """Whether slurmctld says in our reason that it has sent the node into a reboot, however soon it is back."""
        return self.written_by_us(node) and _REBOOTED.search(node.reason) is not None

    def cordon_of(self, node: SlurmNode) -> str:
        """Whose drain stands (`controllers.cordon`)."""
        if not node.is_drained:
            return NOBODY
        return cordon_ids(mark.id for mark in _drains(node)) if self.is_ours(node) else SOMEBODY_ELSE

    def whose(self, node: SlurmNode) -> str:
        """For people: why a node's drain is not ours to lift."""
        if node.reason.startswith(OURS) and node.reason_by in self._names and _drains(node):
            return f"{node.name} has booted since Nightshift drained it: a person may be repairing it"
        return f"drained by {node.reason_by or 'another client'}: {node.reason or 'no reason'}"

    def drain(self, node: SlurmNode, action: Action, jobs: str = "") -> Change:
        """Drains a node for an action, or adds the action's mark to a drain of ours. A person's drain that came
        in between has the last word, with its reason."""
        if not node.boot_s and not node.states & {"DOWN", "UNKNOWN"}:
            # right after an UNDRAIN its slurmd registers anew; a mark without the boot could never be taken back
            raise Temporary(f"node {node.name} registers with slurmctld: its boot time is unknown until then", 1.0)
        mark = Mark(DRAINS, action.id, node.boot_s, jobs)
        # on a node that takes jobs, marks of drains are of such as somebody has ended
        kept = tuple(m for m in marks(node) if m.kind == LOST_FEATURES or (node.is_drained and m.kind == DRAINS))
        extra = extra_with(node, (*(m for m in kept if m.id != action.id), mark))
        wanted = {"extra": extra}
        if not node.is_drained:
            wanted |= {"state": "drain", "reason": reason_of(action)}
        change = self.update(node.name, wanted)
        if change.before.is_drained and not node.is_drained and not self.written_by_us(change.before):
            self._put_back(change.before)
            return Change(change.before, self.get(node.name))
        return change

    def undrain(self, node: SlurmNode, entries: tuple[Mark, ...]) -> Change:
        """Lifts our drain and leaves these marks. A person's drain that came in between is put back."""
        change = self.update(node.name, {"state": "undrain", "extra": extra_with(node, entries)})
        theirs = change.before.is_drained and not self.written_by_us(change.before)
        if theirs and not change.after.is_drained:
            self._put_back(change.before)
            return Change(change.before, self.get(node.name))
        return change

    def _put_back(self, theirs: SlurmNode) -> None:
        """Restores a drain of another's over which we wrote; who it was stands in the reason, since Slurm takes
        the writer's name."""
        by = f" (set by {theirs.reason_by})" if theirs.reason_by and theirs.reason_by not in self._names else ""
        drained = {"state": "drain", "reason": theirs.reason + by, "extra": theirs.extra}
        self._client.ask("scontrol", "update", f"nodename={theirs.name}", *(f"{k}={v}" for k, v in drained.items()))

    def update(self, name: str, values: Mapping[str, str]) -> Change:
        """One write between two looks, by one process; by three where a value has what scontrol's own reader
        splits at (it knows quotes around a reason alone)."""
        look, write = ("show", "node", checked(name)), ("update", f"nodename={name}")
        if any(re.search(r"[\s\"']", value) for key, value in values.items() if key != "reason"):
            plain = (*write, *(f"{key}={value}" for key, value in values.items()))
            text = "\n".join(self._client.ask("scontrol", *argv) for argv in (look, plain, look))
        else:
            quoted = (f'{key}="{value}"' if key == "reason" else f"{key}={value}" for key, value in values.items())
            lines = (look, (*write, *quoted), look)
            text = self._client.ask("scontrol", stdin="".join(f"{' '.join(line)}\n" for line in lines))
        try:
            found = [node for node in nodes_of_text(text) if node.name == name]
        except AnswerError as error:
            raise Permanent(f"node {name}: Slurm's answer cannot be read: {error}") from error
        if len(found) != 2:
            raise Permanent(
                f"node {name}: {len(found)} looks of two were answered: the effect of the write is unknown"
            )
        return Change(found[0], found[1])


def _drains(node: SlurmNode) -> tuple[Mark, ...]:
    return tuple(mark for mark in marks(node) if mark.kind == DRAINS)


def checked(name: str) -> str:
    """A node's name as Slurm allows one; a host list, or what a shell would read as more, is refused."""
    if not _NAME.fullmatch(name):
        raise Permanent(f"node {name!r} is no name of a single Slurm node")
    return name


def reason_of(action: Action, text: str = "") -> str:
    """On one line, without what scontrol's own reader takes for a quote."""
    words = re.sub(r"[\"'\\\s]+", " ", f"{OURS} {text or action.why}").strip()
    return f"{words[:MAX_REASON]} ({action.id})"
