"""Slurm's nodes as mitigations see them: whose drain stands, our marks, and writes that a person's word survives.

A drain of ours bears the reason `nightshift: …` and, in the same write, the mark `nightshift:<action>:<boot time>`
in `Extra`. It is ours as long as reason, user, mark and boot time are. Slurm has no compare-and-set. So each write
is made by one scontrol that asks right before it: where the node is no longer as it was when we decided, nothing is
written, and the decision is made again. So a crash leaves nothing to be put back. The milliseconds from that answer
to the write are watched by a look right before the write; what a person wrote in them is put back.

Undo is UNDRAIN, never RESUME, which would also lift DOWN (src/slurmctld/node_mgr.c, update_node).
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from contextlib import suppress
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

    def drain(self, node: SlurmNode, action: Action, jobs: str = "", cause: str = "") -> SlurmNode:
        """Drains a node for an action, or adds the action's mark to a drain of ours; the node after it."""
        if not node.boot_s and not node.states & {"DOWN", "UNKNOWN"}:
            # right after an UNDRAIN its slurmd registers anew; a mark without the boot could never be taken back
            raise Temporary(f"node {node.name} registers with slurmctld: its boot time is unknown until then", 1.0)
        mark = Mark(DRAINS, action.id, node.boot_s, jobs)
        # on a node that takes jobs, marks of drains are of such as somebody has ended
        kept = tuple(m for m in marks(node) if m.kind == LOST_FEATURES or (node.is_drained and m.kind == DRAINS))
        wanted = {"extra": extra_with(node, (*(m for m in kept if m.id != action.id), mark))}
        if not node.is_drained:
            wanted |= {"state": "drain", "reason": reason_of(action, cause)}
        return self.update(node, wanted)

    def undrain(self, node: SlurmNode, entries: tuple[Mark, ...]) -> SlurmNode:
        """Lifts our drain and leaves these marks; the node after it."""
        return self.update(node, {"state": "undrain", "extra": extra_with(node, entries)})

    def update(self, node: SlurmNode, values: Mapping[str, str]) -> SlurmNode:
        """One write onto the node as it was read, and the node after it. Raises Temporary, with nothing written,
        where it is another by now."""
        name = checked(node.name)
        if any(re.search(r"[\s\"']", value) for key, value in values.items() if key != "reason"):
            # scontrol's own reader of lines knows quotes around a reason alone
            _is_as_read(node, self.get(name))
            self._client.ask("scontrol", "update", f"nodename={name}", *(f"{k}={v}" for k, v in values.items()))
            return self.get(name)
        quoted = (f'{key}="{value}"' if key == "reason" else f"{key}={value}" for key, value in values.items())
        line = f"update nodename={name} {' '.join(quoted)}"

        def line_of(answer: str) -> str:
            found = _named(answer, name)
            if found:
                _is_as_read(node, found[0])
            return line if found else ""

        looks = _named(self._client.write_after(f"show node {name}", line_of), name)
        if len(looks) != 2:
            raise Permanent(
                f"node {name}: {len(looks)} looks of two were answered: the effect of a write is unknown"
            )
        before, after = looks
        if before.is_drained and _word_on(before) != _word_on(node) and not self.written_by_us(before):
            return self._put_back(before)
        return after

    def _put_back(self, theirs: SlurmNode) -> SlurmNode:
        """Restores a drain of another's over which we wrote; who it was is said in the reason, since Slurm takes
        the writer's name."""
        by = f" (set by {theirs.reason_by})" if theirs.reason_by and theirs.reason_by not in self._names else ""
        values = (f"reason={theirs.reason}{by}", f"extra={theirs.extra}")
        self._client.ask("scontrol", "update", f"nodename={theirs.name}", "state=drain", *values)
        return self.get(theirs.name)


def _named(text: str, name: str) -> list[SlurmNode]:
    try:
        return [node for node in nodes_of_text(text) if node.name == name]
    except AnswerError as error:
        raise Permanent(f"node {name}: Slurm's answer cannot be read: {error}") from error


def _word_on(node: SlurmNode) -> tuple[object, ...]:
    """What people and tools write on a node; slurmd alone may register meanwhile."""
    return (
        *(node.is_drained, node.reason, node.reason_by, node.reason_s, node.extra),
        *(node.features, node.active_features),
    )


def _is_as_read(read: SlurmNode, now: SlurmNode) -> None:
    """Raises Temporary where anybody has changed the node since it was read."""
    if _word_on(read) != _word_on(now):
        by = f" ({now.reason_by}: {now.reason})" if now.is_drained else ""
        raise Temporary(f"node {now.name} was changed since it was read{by}: nothing was written", 1.0)


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
