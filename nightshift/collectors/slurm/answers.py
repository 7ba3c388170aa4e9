"""Slurm's answers as plain records: the JSON of its data parsers, the text of `scontrol show` where there is none,
and accounting's (`sacct`), which has one form in all releases as text and another in each as JSON.

The shape of JSON follows the data parser that `meta` names. Until 22.05 (`openapi/v0.0.38`) a state is a word with
flags beside it, and a number is a number. Since 23.02 (v0.0.39) numbers are `{set, infinite, number}`; since 23.11
(v0.0.40) states are lists of words. A parser that is not in `PARSERS` is refused: what it omits would look like
health.

Sources: SchedMD/slurm, src/plugins/openapi/v0.0.38 and src/plugins/data_parser/v0.0.39 to v0.0.45 (PARSER_ARRAY of
NODE, JOB_INFO, OPENAPI_META), src/scontrol/info_node.c, info_job.c.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Host lists (`gpu[01-03,7]-ib[0-1],login1`). Source: slurm.schedmd.com/scontrol.html ("show hostnames"),
# src/common/hostlist.c: numbers keep their width.
MAX_HOSTS = 200_000
"""More than any cluster has: a list that names more is a mistake, and would fill the memory."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str, limit: int = MAX_HOSTS) -> tuple[str, ...]:
    """The names of a host list, in its order. Raises ValueError where it is none, or names more than `limit`.

    >>> expand("gpu[08-10],login1")
    ('gpu08', 'gpu09', 'gpu10', 'login1')
    >>> expand("r[1-2]n[1-2]")
    ('r1n1', 'r1n2', 'r2n1', 'r2n2')
    >>> expand("gpu[3-1]")
    Traceback (most recent call last):
        ...
    ValueError: host list 'gpu[3-1]': 3-1 is no range
    """
    found: list[str] = []
    for part in _parts(text):
        pieces = re.split(r"\[([^\[\]]*)\]", part)
        choices = [_numbers(piece, text, limit) if odd % 2 else [piece] for odd, piece in enumerate(pieces)]
        if any(re.search(r"[\[\]\s]", piece) for piece in pieces[::2]):
            raise ValueError(f"host list {text[:80]!r}: brackets do not match")
        for names in itertools.product(*choices):
            found.append("".join(names))
            if len(found) > limit:
                raise ValueError(f"host list {text[:80]!r}: more than {limit} hosts")
    return tuple(found)


def _parts(text: str) -> list[str]:
    """Split at the commas that stand outside brackets."""
    return [part for part in re.split(r",(?![^\[\]]*\])", text.strip()) if part]


def _numbers(piece: str, text: str, limit: int) -> list[str]:
    found: list[str] = []
    for item in piece.split(","):
        match = _RANGE.fullmatch(item)
        first, last = (match[1], match[2] or match[1]) if match else ("", "")
        if match is None or int(last) < int(first):
            raise ValueError(f"host list {text[:80]!r}: {item} is no range")
        if int(last) - int(first) >= limit:
            raise ValueError(f"host list {text[:80]!r}: more than {limit} hosts")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


PARSERS: Mapping[str, str] = {
    "v0.0.37": "21.08",
    "v0.0.38": "22.05",
    "v0.0.39": "23.02",
    "v0.0.40": "23.11",
    "v0.0.41": "24.05",
    "v0.0.42": "24.11",
    "v0.0.43": "25.05",
    "v0.0.44": "25.11",
    "v0.0.45": "26.05",
}
"""Data parsers that are read, with the release that brought each."""
_ALIASES = {"MAINT": "MAINTENANCE", "REBOOT": "REBOOT_REQUESTED", "NO_RESPOND": "NOT_RESPONDING"}
_NONE = frozenset({"", "(null)", "N/A", "n/a", "None", "none", "Unknown"})
_INDICES = re.compile(r"gpu(?::[\w.-]+)?:(\d+)(?:\((?:IDX|CNT):([\d,-]*)[^)]*\))?")


class AnswerError(ValueError):
    """Slurm answered, and the answer cannot be read. Nothing of it is used."""


class SlurmFailure(Exception):
    """Slurm's own word, inside a well-formed answer, that it has none."""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as its controller holds it. Times are Unix s, 0 where unknown."""

    name: str
    states: frozenset[str]
    """The base state and its flags, in capitals: IDLE, DRAIN, NOT_RESPONDING."""
    reason: str = ""
    reason_by: str = ""
    reason_s: float = 0.0
    boot_s: float = 0.0
    extra: str = ""
    comment: str = ""
    features: tuple[str, ...] = ()
    active_features: tuple[str, ...] = ()
    gpus: int = 0
    partitions: tuple[str, ...] = ()

    @property
    def is_drained(self) -> bool:
        """Whether it is kept from new jobs by a word of somebody's."""
        return bool(self.states & {"DRAIN", "FAIL"})

    @property
    def is_up(self) -> bool:
        return not self.states & {"DOWN", "NOT_RESPONDING", "UNKNOWN", "ERROR", "FUTURE", "INVALID_REG"}


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job that its controller holds: waiting, running, or ended a short while ago."""

    id: int
    name: str
    user: str
    account: str
    states: frozenset[str]
    reason: str = ""
    nodes: tuple[str, ...] = ()
    gpus: tuple[frozenset[int] | None, ...] = ()
    """Indices of the GPUs held on each of `nodes`; None where Slurm does not say which."""
    gpu_count: int = 0
    restarts: int = 0
    can_requeue: bool = False
    is_batch: bool = True
    exit_code: int = 0
    exit_signal: int = 0
    start_s: float = 0.0
    end_s: float = 0.0
    limit_min: float = math.nan
    comment: str = ""
    partition: str = ""

    @property
    def holds_nodes(self) -> bool:
        return bool(self.states & {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SIGNALING"})

    @property
    def key(self) -> str:
        """Its name as a subject: the account (else the user) and the id, which a requeue keeps."""
        return f"{self.account or self.user or 'slurm'}/{self.id}"


# JSON
# ---------------------------------------------------------------------------------------------------------------


def read_nodes(text: str) -> list[SlurmNode]:
    """Of `sinfo --json` (22.05) or `scontrol show nodes --json`. Raises AnswerError, or SlurmFailure where Slurm
    itself says that it failed."""
    return [_node(entry) for entry in _entries(text, "nodes")]


def read_jobs(text: str) -> list[SlurmJob]:
    """Of `squeue --json`. Raises AnswerError or SlurmFailure."""
    return [_job(entry) for entry in _entries(text, "jobs")]


def _entries(text: str, key: str) -> list[Any]:
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise AnswerError(f"not JSON: {error}") from error
    if not isinstance(answer, dict):
        raise AnswerError("JSON, but no object")
    parser = _parser(answer)
    # with munged away, 22.05 answers with exit code 0, this list and no nodes
    errors = answer.get("errors")
    if isinstance(errors, list) and errors:
        said = "; ".join(str(e.get("description") or e.get("error") or e) for e in errors if isinstance(e, dict))
        raise SlurmFailure(said or str(errors)[:200])
    found = answer.get(key)
    if not isinstance(found, list):
        raise AnswerError(f"data parser {parser}: no list `{key}`")
    return found


def _parser(answer: Mapping[str, Any]) -> str:
    meta = answer.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    named = {**_mapping(meta.get("plugins")), **_mapping(meta.get("plugin"))}
    match = re.search(r"v0\.0\.\d+", f"{named.get('data_parser') or ''} {named.get('type') or ''}")
    if match is None:
        raise AnswerError("`meta` names no data parser")
    if match[0] not in PARSERS:
        known = f"{next(iter(PARSERS))} to {list(PARSERS)[-1]}"
        raise AnswerError(f"data parser {match[0]} is unknown here; known are {known}")
    return match[0]


def _node(entry: Any) -> SlurmNode:
    """The name of each field is the same in all parsers; what stands in it is not."""
    entry = _mapping(entry)
    name = _word(entry.get("name"))
    states = _states(entry.get("state"), entry.get("state_flags"))
    if not name or not states:
        raise AnswerError(f"a node without a name or a state: {str(entry)[:80]}")
    return SlurmNode(
        name=name,
        states=states,
        reason=_word(entry.get("reason")),
        reason_by=_word(entry.get("reason_set_by_user")),
        reason_s=_number(entry.get("reason_changed_at")),
        boot_s=_number(entry.get("boot_time")),
        extra=_word(entry.get("extra")),
        comment=_word(entry.get("comment")),
        features=_words(entry.get("features")),
        active_features=_words(entry.get("active_features")),
        gpus=gpu_count(_word(entry.get("gres"))),
        partitions=_words(entry.get("partitions")),
    )


def _job(entry: Any) -> SlurmJob:
    entry = _mapping(entry)
    number, states = _number(entry.get("job_id"), math.nan), _states(entry.get("job_state"), None)
    if math.isnan(number) or not states:
        raise AnswerError(f"a job without an id or a state: {str(entry)[:80]}")
    nodes = _hosts(_word(entry.get("nodes")))
    details = entry.get("gres_detail")
    exit_code, exit_signal = _ending(entry.get("exit_code"))
    tres = f"{_word(entry.get('tres_alloc_str'))},{_word(entry.get('tres_req_str'))}"
    held = _held(nodes, details if isinstance(details, list) else [])
    asked = [_word(entry.get(f"tres_per_{what}")) for what in ("node", "job", "task", "socket")]
    return SlurmJob(
        id=int(number),
        name=_word(entry.get("name")),
        user=_word(entry.get("user_name")) or str(entry.get("user_id", "")),
        account=_word(entry.get("account")),
        states=states,
        reason=_word(entry.get("state_description")) or _word(entry.get("state_reason")),
        nodes=nodes,
        gpus=held,
        gpu_count=_gpus_of(held, tres, ",".join(asked)),
        restarts=int(_number(entry.get("restart_cnt"))),
        can_requeue=entry.get("requeue") is True,
        is_batch=entry.get("batch_flag") is True,
        exit_code=exit_code,
        exit_signal=exit_signal,
        start_s=_number(entry.get("start_time")),
        end_s=_number(entry.get("end_time")),
        limit_min=_number(entry.get("time_limit"), math.nan),
        comment=_word(entry.get("comment")),
        partition=_word(entry.get("partition")),
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _word(value: Any) -> str:
    return value if isinstance(value, str) and value not in _NONE else ""


def _words(value: Any) -> tuple[str, ...]:
    """A list of words, or one word with commas, as older parsers write it."""
    items = value if isinstance(value, list) else _word(value).split(",")
    return tuple(str(item) for item in items if item)


def _states(value: Any, flags: Any) -> frozenset[str]:
    words = [*(value if isinstance(value, list) else [value]), *(flags if isinstance(flags, list) else [])]
    found = {str(word).upper().strip("*~#!%$@^-+") for word in words if word}
    return frozenset(_ALIASES.get(word, word) for word in found if word)


def _number(value: Any, otherwise: float = 0.0) -> float:
    """A number, or `{set, infinite, number}`; `otherwise` where it is not set, or endless."""
    if isinstance(value, dict):
        if value.get("infinite") is True or value.get("set") is False:
            return otherwise
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return otherwise
    return float(value)


def _ending(value: Any) -> tuple[int, int]:
    """(exit code, signal): of a wait status, or of `{status, return_code, signal}`."""
    if isinstance(value, dict) and "return_code" in value:
        signal = value.get("signal")
        signal = _mapping(signal).get("id") if isinstance(signal, dict) else signal
        return int(_number(value["return_code"])), int(_number(signal))
    status = int(_number(value))
    return status >> 8 & 0xFF, status & 0x7F


def _hosts(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except ValueError as error:
        raise AnswerError(str(error)) from error


def gpu_count(gres: str) -> int:
    """GPUs that a `Gres` promises.

    >>> gpu_count("gpu:h100:8(S:0-1),nic:2")
    8
    """
    return sum(int(count) for count in re.findall(r"(?:^|,)gpu(?::[a-zA-Z_][\w.-]*)?:(\d+)", gres))


def _held(nodes: tuple[str, ...], details: list[Any]) -> tuple[frozenset[int] | None, ...]:
    """The indices of each node, in the nodes' order; all None where the two do not match."""
    if len(details) != len(nodes):
        return (None,) * len(nodes)
    return tuple(gpu_indices(_word(text)) for text in details)


def gpu_indices(gres: str) -> frozenset[int] | None:
    """The indices in `gpu:h100:4(IDX:0-1,6-7)`; None where GPUs are held and it is not said which.

    >>> sorted(gpu_indices("gpu:h100:4(IDX:0-1,6-7),nic:1(IDX:0)"))
    [0, 1, 6, 7]
    """
    found: set[int] = set()
    for count, text in _INDICES.findall(gres):
        if "IDX" not in gres and int(count):
            return None
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _gpus_of(held: tuple[frozenset[int] | None, ...], tres: str, asked: str) -> int:
    """GPUs of a job in all: those that it holds by index, else by its trackable resources, else as it asked."""
    if held and all(one is not None for one in held) and (total := sum(len(one or ()) for one in held)):
        return total
    counts = re.findall(r"gres/gpu(?::[\w.-]+)?=(\d+)", tres)
    if counts:
        return max(map(int, counts))
    return sum(int(count or 1) for count in re.findall(r"gpu(?::[a-zA-Z_][\w.-]*)?(?::(\d+))?", asked))


# Text
# ---------------------------------------------------------------------------------------------------------------

_WHOLE_LINES = frozenset(
    {"OS", "Comment", "Extra", "AdminComment", "SystemComment", "JobName", "Command", "WorkDir"}
    | {"StdErr", "StdIn", "StdOut", "MailUser"}
)
"""Fields whose value is somebody's text, to the end of its line; a node's reason is one, too."""
_NAMED_REASON = re.compile(r"(?P<text>.*) \[(?P<by>[^@\[\]]*)@(?P<at>[^\[\]]*)\]", re.S)
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w/:&]*)=((?<=\sReason=).*?(?=\sDependency=)|\S*)")


def nodes_of_text(text: str) -> list[SlurmNode]:
    """Of `scontrol show node`, with SLURM_TIME_FORMAT=%s. Raises AnswerError."""
    return [_text_node(record) for record in _records(text, "NodeName=")]


def jobs_of_text(text: str) -> list[SlurmJob]:
    """Of `scontrol -d show job`, with SLURM_TIME_FORMAT=%s. Raises AnswerError."""
    return [_text_job(record) for record in _records(text, "JobId=")]


def _records(text: str, first: str) -> Iterator[dict[str, list[str]]]:
    for chunk in re.split(rf"(?m)^(?={first})", text):
        if not chunk.startswith(first):
            continue
        fields: dict[str, list[str]] = {}
        whole = ""
        for line in chunk.splitlines():
            begins = line.startswith((first, "   "))
            if not begins and whole:
                fields[whole][-1] += f"\n{line}"  # somebody's text has more than one line
                continue
            head, whole = _split_whole(line)
            for key, value in _PAIR.findall(head):
                fields.setdefault(key, []).append(value)
            if whole:
                fields.setdefault(whole, []).append(line[len(head) :].partition("=")[2])
        yield {key: [value.strip() for value in values] for key, values in fields.items()}


def _split_whole(line: str) -> tuple[str, str]:
    """The part of a line before a field that takes the rest of it, and that field's name."""
    for match in _PAIR.finditer(line):
        if match[1] in _WHOLE_LINES or (match[1] == "Reason" and line.lstrip().startswith("Reason=")):
            return line[: match.start()], match[1]
    return line, ""


def _one(fields: Mapping[str, list[str]], key: str) -> str:
    """A field's value. Twice in one record means that somebody's text imitates a field: neither is believed."""
    values = fields.get(key, [""])
    if len(values) > 1:
        raise AnswerError(f"`{key}` is twice in the answer on {next(iter(fields.values()))[0][:60]!r}")
    return values[0] if values[0] not in _NONE else ""


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0


def _text_node(fields: Mapping[str, list[str]]) -> SlurmNode:
    name, states = _one(fields, "NodeName"), _states(_one(fields, "State").split("+"), None)
    if not name or not states:
        raise AnswerError(f"a node without a name or a state: {str(fields)[:80]}")
    reason = _one(fields, "Reason")
    named = _NAMED_REASON.fullmatch(reason)
    return SlurmNode(
        name=name,
        states=states,
        reason=named["text"] if named else reason,
        reason_by=named["by"] if named else "",
        reason_s=_seconds(named["at"]) if named else 0.0,
        boot_s=_seconds(_one(fields, "BootTime")),
        extra=_one(fields, "Extra"),
        comment=_one(fields, "Comment"),
        features=_words(_one(fields, "AvailableFeatures")),
        active_features=_words(_one(fields, "ActiveFeatures")),
        gpus=gpu_count(_one(fields, "Gres")),
        partitions=_words(_one(fields, "Partitions")),
    )


def _text_job(fields: Mapping[str, list[str]]) -> SlurmJob:
    number, states = _one(fields, "JobId"), _states(_one(fields, "JobState").split("+"), None)
    if not number.isdecimal() or not states:
        raise AnswerError(f"a job without an id or a state: {str(fields)[:80]}")
    nodes = _hosts(_one(fields, "NodeList"))
    held: dict[str, frozenset[int] | None] = {}
    # one line for each group of nodes that hold the same: `Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)`
    for names, gres in zip(fields.get("Nodes", []), fields.get("GRES", []), strict=False):
        held |= dict.fromkeys(_hosts(names), gpu_indices(gres) if gres else None)
    code, _, signal = _one(fields, "ExitCode").partition(":")
    gpus = tuple(held.get(node) for node in nodes)
    asked = ",".join(v for key in ("TresPerNode", "TresPerJob", "TresPerTask") for v in fields.get(key, []))
    return SlurmJob(
        id=int(number),
        name=_one(fields, "JobName"),
        user=_one(fields, "UserId").partition("(")[0],
        account=_one(fields, "Account"),
        states=states,
        reason=_one(fields, "Reason"),
        nodes=nodes,
        gpus=gpus,
        gpu_count=_gpus_of(gpus, _one(fields, "TRES"), asked),
        restarts=int(_seconds(_one(fields, "Restarts"))),
        can_requeue=_one(fields, "Requeue") == "1",
        is_batch=_one(fields, "BatchFlag") == "1",
        exit_code=int(_seconds(code)),
        exit_signal=int(_seconds(signal)),
        start_s=_seconds(_one(fields, "StartTime")),
        end_s=_seconds(_one(fields, "EndTime")),
        limit_min=_minutes(_one(fields, "TimeLimit")),
        comment=_one(fields, "Comment"),
        partition=_one(fields, "Partition"),
    )


ENDED_FIELDS = (
    *("JobIDRaw", "User", "Account", "State", "ExitCode", "NodeList", "End", "AllocTRES", "Partition"),
    *("TimelimitRaw", "JobName"),
)
"""What accounting is asked for. The name, in which a user may write the separator, is the last."""


def ended_of_text(text: str) -> list[SlurmJob]:
    """Of `sacct --parsable2 --format=ENDED_FIELDS`, with SLURM_TIME_FORMAT=%s. Raises AnswerError."""
    found = []
    for line in text.splitlines():
        values = line.split("|", len(ENDED_FIELDS) - 1)
        if len(values) != len(ENDED_FIELDS):
            raise AnswerError(f"a line of sacct with {len(values)} fields: {line[:80]!r}")
        entry = dict(zip(ENDED_FIELDS, (value if value not in _NONE else "" for value in values), strict=True))
        if not entry["JobIDRaw"].isdecimal():
            continue  # of a job of several components: its first has the plain number
        code, _, signal = entry["ExitCode"].partition(":")
        found.append(
            SlurmJob(
                id=int(entry["JobIDRaw"]),
                name=entry["JobName"],
                user=entry["User"],
                account=entry["Account"],
                states=_states(entry["State"].split(" ")[0], None),
                nodes=_hosts(entry["NodeList"]) if entry["NodeList"] != "None assigned" else (),
                gpu_count=_gpus_of((), entry["AllocTRES"], ""),
                exit_code=int(_seconds(code)),
                exit_signal=int(_seconds(signal)),
                end_s=_seconds(entry["End"]),
                limit_min=_seconds(entry["TimelimitRaw"]) or math.nan,
                partition=entry["Partition"],
            )
        )
    return found


def _minutes(text: str) -> float:
    """Of `[days-]hours:minutes:seconds`; NaN where there is no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if match is None:
        return math.nan
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60
