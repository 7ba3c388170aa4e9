"""What a hanging job leaves behind: flight recorder dumps, NCCL RAS reports and stacks of its processes.

    flight recorder   PyTorch writes one file a rank (TORCH_FR_DUMP_TEMP_FILE): a pickle or JSON, version 2
                      (torch/csrc/distributed/c10d/FlightRecorder.hpp; read by tools/flight_recorder)
    NCCL RAS          `ncclras -v` or `ncclras -f json` (docs.nvidia.com/deeplearning/nccl, RAS; NCCL 2.24 on)
    stacks            `py-spy dump --pid PID` (github.com/benfred/py-spy), or what Python's `faulthandler` writes
                      (docs.python.org/3/library/faulthandler), one file a rank

Dumps come from jobs, so nothing in them is trusted: a pickle may hold plain values alone, every size is bounded,
and what is no dump is refused with the reason.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

MAX_BYTES = 64 * 2**20
# A ring of 2,000 entries is the recorder's own default; further ones say nothing of the hang.
MAX_ENTRIES, MAX_RANKS = 20_000, 65_536
COMPLETED, STARTED = "completed", "started"
_TEXT = 200


class DumpError(ValueError):
    """A file is no dump of a kind that is read here. Says why."""


@dataclass(frozen=True, slots=True)
class CollectiveEntry:
    """One operation that a rank enqueued. `number`: in its group; of point-to-point operations among those."""

    group: str
    number: int
    name: str
    state: str
    sizes: str = ""
    line: str = ""
    peer: int | None = None
    """The group's rank at the other end of a send or receive."""
    created_ns: int = 0

    @property
    def is_p2p(self) -> bool:
        return self.peer is not None

    @property
    def is_send(self) -> bool:
        return self.name.startswith("send")


@dataclass(frozen=True)
class RankTrace:
    """The newest operations of one rank. `groups`: name → its global ranks, as the dump has them."""

    rank: int
    entries: tuple[CollectiveEntry, ...]
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    enqueued: Mapping[str, int] = field(default_factory=dict)
    """Group → number of the last collective that was enqueued."""


@dataclass(frozen=True)
class RasReport:
    """What RAS says: ranks that do not answer, and by communicator how many operations each outlier launched."""

    missing: frozenset[int] = frozenset()
    behind: Mapping[int, int] = field(default_factory=dict)
    launched: int = 0
    operation: str = ""
    places: Mapping[int, str] = field(default_factory=dict)
    """Rank → process, GPU and node in RAS' words."""


@dataclass(frozen=True, slots=True)
class ProcessStack:
    """The main thread of one rank, innermost frame first: `function (file:line)`."""

    rank: int
    frames: tuple[str, ...]


class _PlainUnpickler(pickle.Unpickler):
    """Takes numbers, text, lists and dicts; a dump needs no class, and a class is how a pickle runs code."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise DumpError(f"the pickle names {module_name}.{global_name}: refused")

    def persistent_load(self, pid: Any, /) -> Any:
        raise DumpError("the pickle has references to outside: refused")


def read_trace(data: bytes, rank: int) -> RankTrace:
    """A rank's flight recorder dump. Raises DumpError."""
    if len(data) > MAX_BYTES:
        raise DumpError(f"{len(data)} bytes: more than {MAX_BYTES}")
    value = _loaded(data)
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        raise DumpError("no flight recorder dump: it has no list `entries`")
    version = str(value.get("version", ""))
    if not version.startswith("2."):
        raise DumpError(f"flight recorder version {version[:20]!r}: 2.x is read")
    entries = [_entry(item) for item in value["entries"][-MAX_ENTRIES:]]
    return RankTrace(rank, tuple(e for e in entries if e is not None), _groups(value), _enqueued(value))


def _loaded(data: bytes) -> Any:
    try:
        if data[:1] in (b"{", b" ", b"\n"):
            return json.loads(data)
        return _PlainUnpickler(io.BytesIO(data)).load()
    except DumpError:
        raise
    except Exception as error:  # a broken pickle raises whatever its bytes lead to
        raise DumpError(f"cannot be read: {type(error).__name__}: {str(error)[:100]}") from error


def _entry(item: Any) -> CollectiveEntry | None:
    if not isinstance(item, dict):
        return None
    group, name = item.get("process_group"), str(item.get("profiling_name", ""))[:_TEXT]
    if not isinstance(group, list | tuple) or not group:
        return None
    _, _, operation = name.rpartition(":")
    kind, _, ends = operation.partition(" ")
    peer = None
    if item.get("is_p2p") and (match := re.fullmatch(r"(\d{1,6})(?:->|<-)(\d{1,6})", ends)) is not None:
        peer = int(match[2])
    number = item.get("p2p_seq_id" if peer is not None else "collective_seq_id")
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    shapes = [item.get(key) for key in ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")]
    created = item.get("time_created_ns")
    return CollectiveEntry(
        str(group[0])[:_TEXT],
        number,
        kind,
        str(item.get("state", ""))[:20],
        " ".join(_flat(shape) for shape in shapes),
        _own_line(item.get("frames")),
        peer,
        created if isinstance(created, int) else 0,
    )


def _flat(value: Any) -> str:
    """Sizes and types as text; what nests deeper than a dump's do is no size."""
    if isinstance(value, list | tuple):
        parts = ["x".join(map(str, v[:16])) if isinstance(v, list | tuple) else str(v)[:20] for v in value[:64]]
        return f"[{','.join(parts)}]"[:_TEXT]
    return "" if value is None else str(value)[:20]


_LIBRARY = re.compile(
    r"(?:site-packages|dist-packages)/(?:torch|deepspeed|accelerate|apex|transformer_engine|lightning\w*)/"
    r"|/torch/|/lib/python3|^<|importlib|multiprocessing|threading\.py|runpy"
)


def _own_line(frames: Any) -> str:
    """`function (file:line)` of the innermost frame outside of libraries; else of the innermost."""
    found = []
    for frame in frames if isinstance(frames, list) else ():
        if isinstance(frame, dict):
            file, line = str(frame.get("filename", "")), str(frame.get("line", ""))[:9]
            found.append((file, f"{str(frame.get('name', ''))[:80]} ({file[-_TEXT:]}:{line})"))
    own = [text for file, text in found if not _LIBRARY.search(file)]
    return own[0] if own else found[0][1] if found else ""


def _groups(value: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    config = value.get("pg_config")
    found = {}
    for name, about in config.items() if isinstance(config, dict) else ():
        ranks = about.get("ranks") if isinstance(about, dict) else None
        if isinstance(ranks, list) and len(ranks) <= MAX_RANKS:
            ranks = str(ranks)
        if isinstance(ranks, str):
            found[str(name)[:_TEXT]] = _ranks(ranks[: 8 * MAX_RANKS])
    return found


@lru_cache(maxsize=4096)
def _ranks(text: str) -> tuple[int, ...]:
    """The numbers of a list as text. Every rank's dump repeats its groups': each list is read once."""
    return tuple(sorted({int(number) for number in re.findall(r"\d{1,6}", text)}))


def _enqueued(value: Mapping[str, Any]) -> dict[str, int]:
    status = value.get("pg_status")
    found = {}
    for name, about in status.items() if isinstance(status, dict) else ():
        last = about.get("last_enqueued_collective") if isinstance(about, dict) else None
        if isinstance(last, int) and not isinstance(last, bool) and last >= 0:
            found[str(name)[:_TEXT]] = last
    return found


# NCCL RAS -------------------------------------------------------------------------------------------------------

_RAS_RANK = re.compile(r"^\s*(?:Rank|The missing rank:)\s*(\d{1,6})(.*)$")
_RAS_COUNT = re.compile(r"^\s*(\d{1,6}) ranks? ha(?:ve|s) launched up to operation (\d{1,18})")
_RAS_ONE = re.compile(r"^\s*Rank (\d{1,6}) has launched up to operation (\d{1,18})(.*)$")
_RAS_KIND = re.compile(r"Communicator ranks have different (\w+) operation counts")
_RAS_LIST = re.compile(r"^\s*The missing ranks: ([\d, ]+)$")


def read_ras(data: bytes) -> RasReport:
    """A report of `ncclras`, text or JSON. Raises DumpError."""
    if len(data) > MAX_BYTES:
        raise DumpError(f"{len(data)} bytes: more than {MAX_BYTES}")
    text = data.decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        return _ras_json(text)
    if "Communicators..." not in text:
        raise DumpError("no report of ncclras: it has no line `Communicators...`")
    return _ras_text(text)


def _ras_text(text: str) -> RasReport:
    missing: set[int] = set()
    counts: dict[int, int] = {}
    places: dict[int, str] = {}
    launched, section, operation, count = 0, "", "", None
    for line in text.splitlines():
        if line.startswith("#") or line.strip() in ("DEAD", "INCOMPLETE", "TIMEOUT"):
            section, count = line.rpartition(" ")[2], None
        elif (kind := _RAS_KIND.search(line)) is not None:
            operation = "" if kind[1] == "collective" else kind[1]
        elif (one := _RAS_ONE.match(line)) is not None:
            counts[int(one[1])], places[int(one[1])] = int(one[2]), one[3].strip(" -")[:_TEXT]
        elif (several := _RAS_COUNT.match(line)) is not None:
            count = int(several[2])
            launched = max(launched, count)
        elif (ranks := _RAS_LIST.match(line)) is not None:
            missing.update(int(n) for n in re.findall(r"\d{1,6}", ranks[1]))
        elif (rank := _RAS_RANK.match(line)) is not None:
            places[int(rank[1])] = rank[2].strip(" -")[:_TEXT]
            if section == "INCOMPLETE":
                missing.add(int(rank[1]))
            elif count is not None:
                counts[int(rank[1])] = count
    launched = max([launched, *counts.values()])
    behind = {rank: count for rank, count in counts.items() if count < launched}
    return RasReport(frozenset(missing), behind, launched, operation, places)


def _ras_json(text: str) -> RasReport:
    try:
        value = json.loads(text)
        communicators = value["communicators"]
        missing: set[int] = set()
        behind: dict[int, int] = {}
        places: dict[int, str] = {}
        launched, operation = 0, ""
        for communicator in communicators:
            for item in communicator.get("missing_ranks", ()):
                missing.add(int(item["rank"]))
                places[int(item["rank"])] = f"process {item.get('pid')} on node {str(item.get('host'))[:80]}"
            counts: dict[str, dict[int, int]] = {}
            for item in communicator.get("ranks", ()):
                places[int(item["rank"])] = f"process {item.get('pid')} on node {str(item.get('host'))[:80]}"
                for name, number in item.get("collective_counts", {}).items():
                    counts.setdefault(str(name)[:40], {})[int(item["rank"])] = int(number)
            for name, by_rank in counts.items():
                most = max(by_rank.values(), default=0)
                late = {rank: number for rank, number in by_rank.items() if number < most}
                if late:
                    behind, launched, operation = {**behind, **late}, max(launched, most), name
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DumpError(f"no report of ncclras in JSON: {type(error).__name__}") from error
    return RasReport(frozenset(missing), behind, launched, operation, places)


# Stacks ---------------------------------------------------------------------------------------------------------

_THREAD = re.compile(r'^Thread (?:0x[0-9A-Fa-f]+|\d+)[^:]*: "([^"]{0,80})"')
_FRAME = re.compile(r"^\s{4}(\S.{0,200}) \(([^()]{1,400}):(\d{1,9})\)\s*$")
_HANDLER_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9A-Fa-f]+ .*\(most recent call first\):$")
_HANDLER_FRAME = re.compile(r'^  File "([^"]{1,400})", line (\d{1,9}) in (\S.{0,200})$')


def read_stack(data: bytes, rank: int) -> ProcessStack:
    """The main thread of `py-spy dump`, or of a dump of `faulthandler`: there it is the oldest thread, which comes
    last. Raises DumpError."""
    text = data[:MAX_BYTES].decode("utf-8", "replace")
    handled: list[list[str]] = []
    for line in text.splitlines():
        if _HANDLER_THREAD.match(line):
            handled.append([])
        elif handled and (frame := _HANDLER_FRAME.match(line)) is not None:
            handled[-1].append(f"{frame[3]} ({frame[1]}:{frame[2]})")
    if handled and handled[-1]:
        return ProcessStack(rank, tuple(handled[-1]))
    threads: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if (thread := _THREAD.match(line)) is not None:
            name = thread[1] if thread[1] not in threads else f"{thread[1]} again"
            threads[name] = []
        elif name and (frame := _FRAME.match(line)) is not None:
            threads[name].append(f"{frame[1]} ({frame[2]}:{frame[3]})")
    if not threads:
        raise DumpError("no output of `py-spy dump` or `faulthandler`: it has no thread")
    main = threads.get("MainThread") or next(iter(threads.values()))
    return ProcessStack(rank, tuple(main))


def own_frame(frames: Sequence[str]) -> str:
    """The innermost frame outside of libraries; else the innermost."""
    return next(
        (frame for frame in frames if not _LIBRARY.search(frame.rpartition("(")[2])), frames[0] if frames else ""
    )


# As lines -------------------------------------------------------------------------------------------------------

FILE_PATTERN = re.compile(
    r"(?:.*/)?(?P<namespace>[^_/]+)_(?P<pod>[^_/]+)_"
    r"(?:(?P<kind>nccl_trace_rank|pyspy_rank)_?(?P<rank>\d{1,6})|(?P<ras>nccl_ras))(?:\.(?:pickle|json|txt))?"
)
"""Dumps beside a job's logs: `<namespace>_<pod>_nccl_trace_rank_3` (what TORCH_FR_DUMP_TEMP_FILE ends with, and the
rank), `<namespace>_<pod>_pyspy_rank_3.txt`, `<namespace>_<pod>_nccl_ras.txt`."""
PREFIX = "nightshift dump "
# A line keeps the newest operations: the hang is among them.
_NEWEST, _PENDING = 8, 24


@dataclass(frozen=True)
class HangDumps:
    """All that was found of one hang."""

    traces: tuple[RankTrace, ...] = ()
    ras: RasReport | None = None
    stacks: tuple[ProcessStack, ...] = ()


def as_line(match: re.Match[str], data: bytes) -> str:
    """A dump file as one line of text, for the log of its rank. Raises DumpError."""
    if match["ras"]:
        report = read_ras(data)
        value: dict[str, Any] = {"ras": {**asdict(report), "missing": sorted(report.missing)}}
    elif match["kind"] == "pyspy_rank":
        value = {"stack": asdict(read_stack(data, int(match["rank"])))}
    else:
        value = {"trace": _short(read_trace(data, int(match["rank"])))}
    text = json.dumps(value, separators=(",", ":"))
    return f"{PREFIX}{hashlib.sha256(data).hexdigest()[:16]} {text}"


def _short(trace: RankTrace) -> dict[str, Any]:
    """The newest operations of each group, and every pending one up to a bound."""
    pending = [entry for entry in trace.entries if entry.state != COMPLETED][:_PENDING]
    newest: dict[tuple[str, bool], list[CollectiveEntry]] = {}
    for entry in reversed(trace.entries):
        kept = newest.setdefault((entry.group, entry.is_p2p), [])
        if len(kept) < _NEWEST:
            kept.append(entry)
    chosen = {*pending, *(entry for kept in newest.values() for entry in kept)}
    used = {entry.group for entry in chosen}
    return {
        "rank": trace.rank,
        "entries": [list(asdict(entry).values()) for entry in trace.entries if entry in chosen],
        "groups": {name: list(ranks) for name, ranks in trace.groups.items() if name in used or name == ""},
        "enqueued": {name: number for name, number in trace.enqueued.items() if name in used},
    }


def from_lines(lines: Iterable[str]) -> HangDumps:
    """The dumps of these lines, the newest of each rank; lines that are no dumps are passed over."""
    traces: dict[int, RankTrace] = {}
    stacks: dict[int, ProcessStack] = {}
    ras: RasReport | None = None
    for line in lines:
        if not line.startswith(PREFIX):
            continue
        try:
            value = json.loads(line[len(PREFIX) + 17 :])
            if "trace" in value:
                given = value["trace"]
                entries = tuple(CollectiveEntry(*row) for row in given["entries"])
                groups = {name: tuple(ranks) for name, ranks in given["groups"].items()}
                traces[given["rank"]] = RankTrace(given["rank"], entries, groups, given["enqueued"])
            elif "stack" in value:
                stacks[value["stack"]["rank"]] = ProcessStack(
                    value["stack"]["rank"], tuple(value["stack"]["frames"])
                )
            elif "ras" in value:
                given = value["ras"]
                behind = {int(rank): count for rank, count in given["behind"].items()}
                places = {int(rank): words for rank, words in given["places"].items()}
                ras = RasReport(frozenset(given["missing"]), behind, given["launched"], given["operation"], places)
        except (ValueError, KeyError, TypeError):
            continue  # a log may hold any text
    return HangDumps(tuple(traces.values()), ras, tuple(stacks.values()))
