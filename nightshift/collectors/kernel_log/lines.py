"""Reads kernel log lines: GPU errors (Xid), NVSwitch errors (SXid), PCIe errors, OOM kills, lost GPUs, boots, and
remote storage that does not answer (messages of Linux's net/sunrpc/clnt.c, fs/ceph, kernel/hung_task.c; Lustre).

The kernel log is the source of truth for Xids: DCGM's gauge holds only the last one and never clears. Formats, all
from public logs and NVIDIA's "Xid Errors" document (docs.nvidia.com/deploy/xid-errors):

    NVRM: Xid (PCI:0000:9b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: …     since R515
    NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.                          no process
    NVRM: Xid (PCI:0000:65:00 GPU-I:05): 94, pid=7194, name=python, …                    a MIG instance
    NVRM: Xid (0000:06:00): 13, 0003 00000000 0000a040 …                                 before R300
    NVRM: GPU at PCI:0000:9b:00: GPU-3f1c…                                                tells the UUID
    … 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)     overrides tables
    … 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 06 (0x…)                                  NVLink 5, 144 to 150
    nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS …         then two lines of its data

What is said without a number stands in `collectors.kernel_log.messages`.

A parser holds the state of one node's log: PCI addresses to UUIDs, and messages that run over several lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from nightshift.collectors.frame import LogRecord
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.kernel_log.messages import NEEDED, may_tell_of_device, read_message
from nightshift.collectors.kernel_log.pci import canonical_pci
from nightshift.collectors.subject import Subject, SubjectKind

MAX_TEXT = 4096
_SAID_AGAIN_S, _MOST_SERVERS = 30.0, 1000
_UNKNOWN = ("<unknown>", "'<unknown>'", "")

_XID = re.compile(
    r"NVRM:(?: GPU\d*)? Xid \((?:PCI:)?([0-9a-fA-F:.]+)(?: GPU-I:(\d+))?(?: GPU-CI:(\d+))?\): "
    r"(\d{1,4})\b(?:, (.*))?"
)
_SXID = re.compile(
    r"nvidia-nvswitch(\d+): SXid \(PCI:([0-9a-fA-F:.]+)\): (\d{1,6})\b(?:, (Fatal|Non-fatal|Non-Fatal))?(?:, (.*))?"
)
_PROCESS = re.compile(r"pid='?(<unknown>|\d+)'?(?:, name=('?<unknown>'?|[^,]*))?(?:, )?(.*)")
_RECOVERY = re.compile(r"recovery action changed from 0x([0-9a-fA-F]+) \((.*?)\) to 0x([0-9a-fA-F]+) \((.*?)\)")
_XID_INDEX = re.compile(r"NVRM: GPU(\d{1,2}) Xid|from GPU(\d{1,2}) GSP")
_SXID_FURTHER = re.compile(r"(?:Severity \d+ Engine instance|Data \{)")
_LINK = re.compile(r"\b[Ll]ink (?:ID )?(\d{1,2})\b")
_NVLINK5 = re.compile(r"(\w+) +(Fatal|Nonfatal|Non-fatal|Corr?ected) +(XC\d) +(i\d+) +Link +(-?\d+)")
_ROW = re.compile(r"\b(?:physical address|addr(?:ess)?|row|bank|partition|subpartition) (0x[0-9a-fA-F]+|\d+)")
_GPU_UUID = re.compile(r"NVRM: GPU at (?:PCI:)?([0-9a-fA-F:.]+): (GPU-[0-9a-fA-F-]{8,40})")
_FELL = re.compile(r"NVRM: GPU (?:at )?(?:PCI:)?([0-9a-fA-F:.]+?):? (?:GPU )?has fallen off the bus")
_FELL_FIRST = re.compile(r"NVRM: The NVIDIA (?:probe routine|GPU) ([0-9a-fA-F:.]+)")
_FELL_LAST = re.compile(r"NVRM: (?:.*)fallen off the bus and is not responding")
_AER_REPORT = re.compile(
    r"(\S+) ([0-9a-fA-F:.]+): AER: (?:Multiple )?(Corrected|Correctable|Uncorrected|Uncorrectable)"
    r"(?: \((Fatal|Non-Fatal)\))? error(?: message)? received(?: from)?:? ?([0-9a-fA-F:.]*)"
)
_AER_ERROR = re.compile(
    r"(\S+) ([0-9a-fA-F:.]+): (?:AER: )?PCIe Bus Error: severity=([^,]+), type=([^,]+)(?:, ?\(?(?:id=)?([^),]*))?"
)
_OOM_KILLED = re.compile(
    r"(Memory cgroup out of memory|Out of memory)[^:]*: Kill(?:ed)? process (\d+)(?: \((.*?)\))?"
    r"(?:.*?total-vm:(\d+)kB)?(?:.*?anon-rss:(\d+)kB)?"
)
_OOM_BARE = re.compile(r"^Killed process (\d+) \((.*?)\)(?:.*?total-vm:(\d+)kB)?(?:.*?anon-rss:(\d+)kB)?")
_OOM_CONTEXT = re.compile(
    r"oom-kill:constraint=(\w+),.*?(?:oom_memcg=([^,]*),)?task_memcg=([^,]*),task=(.*?),pid=(\d+)"
)
_POD_UID = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
# Not "Need to shutdown all links": so does every driver that is unloaded, and every GPU that is reset.
_NVLINK = re.compile(
    r"(?:nvidia-nvlink|NVRM: .*?(?:nvlink|NVLink|knvlink)).*?(?:error|Error|[Ff]ail|fatal|Fatal|timeout|\bdown\b)"
)
_NFS = re.compile(r"\b(nfs|lockd): server (\S+) (not responding|OK\b)")
_LUSTRE = re.compile(r"Lustre: .*?Connection (?:to|restored to) (\S+)(?: \(at [^)]+\))?( was lost)?")
_CEPH = re.compile(r"\bceph: (?:\[[^\]]*\]: )?(mds\d+) (hung|came back|caps renewed|recovery completed)")
_BLOCKED = re.compile(r"task (.+?):(\d{1,9}) blocked (?:in I/O wait )?for more than (\d+) seconds")
_DRIVER = re.compile(r"NVRM: loading NVIDIA UNIX .*?Kernel Module(?: for \S+)?  ?([\d.]+)")
_LOST = re.compile(
    r"(\d+) (?:callbacks|(?:kernel )?messages|lines) (?:suppressed|lost|dropped)|[Mm]issed (\d+) kernel messages"
)


@dataclass
class KernelLogParser:
    """Lines of one node's kernel log to events. `uuid_of`: canonical PCI address → UUID, as the log told.

    >>> from nightshift.collectors.frame import Instant
    >>> from nightshift.collectors.subject import SubjectKind
    >>> node = Subject(SubjectKind.NODE, "n1")
    >>> line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4242, name=python, GPU has fallen off the bus."
    >>> event = KernelLogParser(node).read(LogRecord(Instant(0.0), "/dev/kmsg", node, line, 0))
    >>> event.kind.value, event.code, event.pci_address
    ('xid', 79, '0000:9b:00')
    """

    node: Subject
    uuid_of: dict[str, str] = field(default_factory=dict)
    _address_of: dict[str, str] = field(default_factory=dict)
    """PCI addresses by the driver's own numbers of GPUs, which Xids tell: other lines have the number alone."""
    _falling: str | None = None
    _oom: Mapping[str, str] = field(default_factory=dict)
    _storage_said: dict[str, tuple[bool, float]] = field(default_factory=dict)
    _switch_error: tuple[str, str] = ("", "")

    def read(self, record: LogRecord) -> KernelEvent | None:
        """The event that a line tells, or None. Never raises: a line of no known form is no event."""
        text = record.text
        if text[:1] == " ":  # what the driver prints over several lines is indented from the second on
            text = text.lstrip(" ")
        at = text.find(" ", 0, 24)
        return self._of_kind(record, text, text[:2], text[at + 5 : at + 9 : 3] == "::")

    def _of_kind(self, record: LogRecord, text: str, head: str, of_device: bool) -> KernelEvent | None:
        text = text[:MAX_TEXT]
        for marker, read in _BY_HEAD.get(head, ()):
            if marker in text and (event := read(self, record, text)) is not None:
                return event
        if of_device and "rror" in text and ("AER: " in text or "PCIe Bus Error" in text):
            event = self._aer(record, text)
            if event is not None:
                return event
        if "NVRM" in text or "ess" in text:
            for marker, read in _ANYWHERE:
                if marker in text and (event := read(self, record, text)) is not None:
                    return event
        for needed in NEEDED.get(head, ()):
            if needed in text:
                return self._message(record, text)
        return self._message(record, text) if of_device and may_tell_of_device(text) else None

    def sift(self, records: Iterable[LogRecord], max_lines: int) -> tuple[list[LogRecord], list[KernelEvent]]:
        """The lines worth keeping and the events in them. In a flood every event's line is kept, of the others
        `max_lines`; that lines were dropped is told as a GAP. A record of several lines, as /dev/kmsg and journald
        give what the driver prints in one go, is read line by line."""
        lines, read, by_head = single_lines(records), self.read, _BY_HEAD
        events: list[KernelEvent] = []
        for record in lines:
            text = record.text
            head = text[:2]
            at = text.find(" ", 0, 24)
            # as in `read`, which most lines need not be handed to
            if (
                head in by_head
                or text[at + 5 : at + 9 : 3] == "::"
                or "NVRM" in text
                or "ess" in text
                or head < "!"
            ):
                event = read(record)
                if event is not None:
                    events.append(event)
        if len(lines) <= max_lines:
            return lines, events
        return self._cut(lines, events, max_lines)

    def _cut(
        self, lines: list[LogRecord], events: list[KernelEvent], max_lines: int
    ) -> tuple[list[LogRecord], list[KernelEvent]]:
        """A flood's first lines and every event's line; the events with a gap where lines were dropped."""
        told = {id(event.record) for event in events}
        kept = [r for n, r in enumerate(lines) if n < max_lines or id(r) in told]
        if len(kept) == len(lines):
            return kept, events
        dropped = len(lines) - len(kept)
        last = next(r for r in reversed(lines) if id(r) not in told)
        return kept, [*events, self.gap(last, f"{dropped} lines beyond {max_lines} in one tick", dropped)]

    def gap(self, record: LogRecord, why: str, lost_lines: int | None = None) -> KernelEvent:
        """Lines are missing before or at this one."""
        return self._event(KernelEventKind.GAP, record, why=why, lost_lines=lost_lines)

    def _event(
        self, kind: KernelEventKind, record: LogRecord, address: str | None = None, **given: object
    ) -> KernelEvent:
        pci = canonical_pci(address) if address else None
        uuid = self.uuid_of.get(pci) if pci is not None else None
        attributes = {
            key: str(value) for key, value in given.items() if key not in _FIELDS and value not in (None, "")
        }
        code, process, pid = given.get("code"), given.get("process"), given.get("pid")
        return KernelEvent(
            kind,
            record,
            self.node,
            code if isinstance(code, int) else None,
            Subject(SubjectKind.GPU, uuid) if uuid else None,
            pci,
            process if isinstance(process, str) and process not in _UNKNOWN else None,
            pid if isinstance(pid, int) else None,
            attributes,
        )

    def _nvrm(self, record: LogRecord, text: str) -> KernelEvent | None:
        if (match := _XID.search(text)) is not None:
            return self._xid(record, match)
        if (match := _GPU_UUID.search(text)) is not None:
            if (pci := canonical_pci(match.group(1))) is not None:
                self.uuid_of[pci] = match.group(2)
            return None
        if (match := _FELL.search(text)) is not None:
            return self._event(KernelEventKind.FELL_OFF_BUS, record, match.group(1))
        if (match := _FELL_FIRST.search(text)) is not None:
            self._falling = match.group(1)
            return None
        if _FELL_LAST.search(text):
            address, self._falling = self._falling, None
            return self._event(KernelEventKind.FELL_OFF_BUS, record, address)
        if (match := _DRIVER.search(text)) is not None:
            return self._event(KernelEventKind.BOOT, record, scope="driver", version=match.group(1))
        return None

    def _xid(self, record: LogRecord, match: re.Match[str]) -> KernelEvent:
        address, instance, compute, code, rest = match.groups()
        rest = rest or ""
        # an Xid may come by the thousand: plain searches say which of its parts the line has
        if " GPU" in match.string and (numbered := _XID_INDEX.search(match.string)) is not None:
            self._address_of[numbered.group(1) or numbered.group(2)] = address
        process, pid = None, None
        if rest.startswith("pid=") and (found := _PROCESS.match(rest)) is not None:
            pid = int(found.group(1)) if found.group(1).isdigit() and len(found.group(1)) < 10 else None
            process, rest = found.group(2), found.group(3)
        attributes: dict[str, object] = {
            "message": rest[:500],
            "gpu_instance": instance,
            "compute_instance": compute,
        }
        if "recovery" in rest and (found := _RECOVERY.search(rest)) is not None:
            attributes |= {"recovery_before": found.group(2), "recovery_action": recovery_words(*found.group(3, 4))}
        if "ink " in rest:
            if (found := _NVLINK5.search(rest)) is not None:
                unit, severity, _, _, link = found.groups()
                attributes |= {"unit": unit, "severity": severity, "link": link}
            elif (found := _LINK.search(rest)) is not None:
                attributes["link"] = found.group(1)
        for found in _ROW.finditer(rest):
            attributes.setdefault(found.group(0).split(" ")[0], found.group(1))
        return self._event(
            KernelEventKind.XID, record, address, code=int(code), process=process, pid=pid, **attributes
        )

    def _sxid(self, record: LogRecord, text: str) -> KernelEvent | None:
        if (match := _SXID.search(text)) is None:
            return None
        switch, address, code, severity, rest = match.groups()
        # the driver prints an error in three lines; the further two hold its registers
        if _SXID_FURTHER.match(rest or "") and self._switch_error == (address, code):
            return None
        self._switch_error = address, code
        link = _LINK.search(rest or "")
        return self._event(
            KernelEventKind.SXID,
            record,
            address,
            code=int(code),
            switch=switch,
            severity=severity,
            link=link.group(1) if link else None,
            message=(rest or "")[:500],
        )

    def _aer(self, record: LogRecord, text: str) -> KernelEvent | None:
        if (match := _AER_ERROR.search(text)) is not None:
            driver, address, severity, kind, agent = match.groups()
            return self._event(
                KernelEventKind.PCIE_AER, record, address, driver=driver, severity=severity, type=kind, agent=agent
            )
        if (match := _AER_REPORT.search(text)) is not None:
            driver, port, severity, fatal, device = match.groups()
            severity = f"{severity} ({fatal})" if fatal else severity
            return self._event(
                KernelEventKind.PCIE_AER, record, device or port, driver=driver, severity=severity, port=port
            )
        return None

    def _oom_killed(self, record: LogRecord, text: str) -> KernelEvent | None:
        if (match := _OOM_CONTEXT.search(text)) is not None:
            constraint, limited, group, task, pid = match.groups()
            uid = _POD_UID.search(group or limited or "")
            self._oom = {
                "constraint": constraint,
                "cgroup": (group or "")[:300],
                "pod_uid": uid.group(1).replace("_", "-") if uid else "",
                "pid": pid,
                "task": task,
            }
            return None
        if (match := _OOM_KILLED.search(text)) is not None:
            scope, pid, victim, total, anonymous = match.groups()
        elif (match := _OOM_BARE.search(text)) is not None:
            pid, victim, total, anonymous = match.groups()
            scope = "Out of memory"
        else:
            return None
        context = self._oom if self._oom.get("pid") == pid else {}
        self._oom = {}
        return self._event(
            KernelEventKind.OOM_KILL,
            record,
            process=victim,
            pid=int(pid) if len(pid) < 10 else None,
            victim=victim,
            scope="cgroup" if scope.startswith("Memory cgroup") else "host",
            anonymous_kib=anonymous,
            total_vm_kib=total,
            constraint=context.get("constraint"),
            cgroup=context.get("cgroup"),
            pod_uid=context.get("pod_uid"),
        )

    def _nvlink(self, record: LogRecord, text: str) -> KernelEvent | None:
        if not _NVLINK.search(text):
            return None
        link = _LINK.search(text)
        address = re.search(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?", text)
        return self._event(
            KernelEventKind.NVLINK,
            record,
            address.group(0) if address else None,
            link=link.group(1) if link else None,
        )

    def _storage(self, record: LogRecord, text: str) -> KernelEvent | None:
        """The same of one server or process is told again after a while only: its lines come by the thousand."""
        given: dict[str, object]
        if (match := _NFS.search(text)) is not None:
            given = {"server": f"NFS server {match.group(2)[:200]}", "answers": match.group(3) == "OK"}
        elif (match := _LUSTRE.search(text)) is not None:
            given = {"server": f"Lustre target {match.group(1)[:200]}", "answers": match.group(2) is None}
        elif (match := _CEPH.search(text)) is not None:
            given = {"server": f"Ceph {match.group(1)}", "answers": match.group(2) != "hung"}
        elif (match := _BLOCKED.search(text)) is not None:
            given = {"process": match.group(1)[:64], "pid": int(match.group(2)), "blocked_s": match.group(3)}
        else:
            return None
        what, answers = str(given.get("server") or given["process"]), given.get("answers", False)
        said, said_s = self._storage_said.get(what, (None, 0.0))
        if said is answers and 0 <= record.at.t_s - said_s < _SAID_AGAIN_S:
            return None
        if len(self._storage_said) >= _MOST_SERVERS:
            self._storage_said.clear()
        self._storage_said[what] = answers is True, record.at.t_s
        given |= {"answers": "yes" if answers else "no"} if "server" in given else {}
        return self._event(KernelEventKind.STORAGE, record, None, **given)

    def _message(self, record: LogRecord, text: str) -> KernelEvent | None:
        found = read_message(text)
        if found is None:
            return None
        kind = found.kind
        device = found.device if kind.about in ("nic", "disk") else ""
        subject = f"{kind.about}:{self.node.name}/{device}" if device else None
        return self._event(
            KernelEventKind.MESSAGE,
            record,
            found.pci_address or self._address_of.get(found.gpu_index) if kind.about == "gpu" else None,
            message=kind.name,
            gpu_index=found.gpu_index,
            is_over="yes" if found.is_over else None,
            errors=found.errors if found.errors > 1 else None,
            subject=f"node:{found.node}" if found.node else subject,
        )

    def _booted(self, record: LogRecord, text: str) -> KernelEvent | None:
        if not text.startswith("Linux version "):
            return None
        self.uuid_of.clear()
        self._address_of.clear()
        self._falling, self._oom = None, {}
        return self._event(KernelEventKind.BOOT, record, scope="host", version=text.split(" ")[2])

    def _gap(self, record: LogRecord, text: str) -> KernelEvent | None:
        if (match := _LOST.search(text)) is None:
            return None
        return self._event(KernelEventKind.GAP, record, lost_lines=match.group(1) or match.group(2))


# nvmlDeviceGpuRecoveryAction_t of nvml.h (615), as the driver's own lines call them.
RECOVERY_WORDS = (
    "None",
    "GPU Reset Required",
    "Node Reboot Required",
    "Drain P2P",
    "Drain and Reset",
    "Recover IMEX Domain",
    "GPU Bus Reset Required",
    "System Reboot Required",
)


def recovery_words(number: str, text: str = "") -> str:
    """What a recovery action is called: by the line's own words, else by its number (hexadecimal); a number that is
    not known says so, so that a person is asked.

    >>> recovery_words("4"), recovery_words("9")
    ('Drain and Reset', 'unknown action 9')
    """
    if text.strip():
        return text
    at = int(number, 16)
    return RECOVERY_WORDS[at] if at < len(RECOVERY_WORDS) else f"unknown action {at}"


def since(
    oldest_s: float, records: Iterable[LogRecord], events: Iterable[KernelEvent]
) -> tuple[list[LogRecord], list[KernelEvent]]:
    """What was written at or after `oldest_s` (Unix s), at the first look at a log: older lines tell the addresses
    of GPUs, but their events have had their day. Of errors that outlive their line (an Xid, of this boot and
    driver, of the last day) the event stays, marked `old`: whether it is grave, its detector knows."""
    told = list(events)
    boots = [number for number, event in enumerate(told) if event.kind is KernelEventKind.BOOT]
    first = boots[-1] if boots else 0
    kept = []
    for number, event in enumerate(told):
        t_s = event.record.at.t_s
        if t_s >= oldest_s:
            kept.append(event)
        elif number >= first and event.kind in _LASTING and t_s >= oldest_s - LASTING_S:
            kept.append(replace(event, attributes={**event.attributes, "old": "yes"}))
    lines = {id(event.record) for event in kept}
    return [r for r in records if r.at.t_s >= oldest_s or id(r) in lines], kept


LASTING_S = 86_400.0
_LASTING = (KernelEventKind.XID, KernelEventKind.SXID)


def single_lines(records: Iterable[LogRecord]) -> list[LogRecord]:
    """The lines of records, in order: the driver prints several in one go, as one record."""
    found: list[LogRecord] = []
    given = list(records)
    if not [None for record in given if "\n" in record.text]:
        return given
    for record in given:
        if "\n" in record.text:
            found += [replace(record, text=line) for line in record.text.splitlines() if line.strip()] or [record]
        else:
            found.append(record)
    return found


_FIELDS = frozenset({"code", "process", "pid"})
_Reader = Callable[[KernelLogParser, LogRecord, str], KernelEvent | None]
# By the first two letters of the line, as the kernel writes them, what else it holds and who reads it.
_READERS: tuple[tuple[tuple[str, ...], str, _Reader], ...] = (
    (("nv",), "SXid", KernelLogParser._sxid),
    (("Me", "Ou", "Ki"), "process ", KernelLogParser._oom_killed),
    (("oo",), "oom-kill:", KernelLogParser._oom_killed),
    (("nv",), "vlink", KernelLogParser._nvlink),
    (("nv",), "NVLink", KernelLogParser._nvlink),
    (("nf", "lo"), ": server ", KernelLogParser._storage),
    (("Lu",), "Lustre: ", KernelLogParser._storage),
    (("ce",), "ceph: ", KernelLogParser._storage),
    (("IN", "ta"), "blocked ", KernelLogParser._storage),
    (("Li",), "Linux version ", KernelLogParser._booted),
)
_ANYWHERE: tuple[tuple[str, _Reader], ...] = (
    ("NVRM", KernelLogParser._nvrm),
    ("NVRM", KernelLogParser._nvlink),
    ("suppressed", KernelLogParser._gap),
    ("messages", KernelLogParser._gap),
    ("beyond end of device", KernelLogParser._message),
)
"""What comes behind any word; `KernelLogParser.read` looks for the letters that these have in common."""


def _by_head() -> dict[str, tuple[tuple[str, _Reader], ...]]:
    found: dict[str, tuple[tuple[str, _Reader], ...]] = dict.fromkeys(NEEDED, ())
    for heads, marker, read in _READERS:
        for head in heads:
            found[head] = (*found.get(head, ()), (marker, read))
    return found


_BY_HEAD = _by_head()
