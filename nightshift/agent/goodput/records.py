"""What a job says of itself where it does: records of Google's goodput library, FLOPs and utilisation.

The records are those of ml-goodput-measurement (github.com/AI-Hypercomputer/ml-goodput-measurement, goodput.py and
goodput_elastic.py), one JSON object a line, bare or as the `jsonPayload` of an exported log entry. A job needs no
library for it: it prints the line. Two names are ours: `flops_per_step` and `gpus`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from nightshift.agent.goodput.accounts import Account

_MARKS = {
    "tpu_init": Account.INITIALISING,
    "training_prep": Account.INITIALISING,
    "elastic_reinit": Account.INITIALISING,
    "elastic_wait": Account.IDLE_HELD,
    "data_loading": Account.DATA_WAIT,
}
_CUSTOM = "custom_badput_event"
_KINDS = (
    (re.compile(r"restore|load|init|compil|warm", re.IGNORECASE), Account.INITIALISING),
    (re.compile(r"checkpoint|ckpt|save|snapshot", re.IGNORECASE), Account.CHECKPOINTING),
    (re.compile(r"data|input", re.IGNORECASE), Account.DATA_WAIT),
)
_MFU = re.compile(r"\bmfu[\"']?\s*[:=]?\s*(\d{1,3}(?:\.\d+)?)\s*(%?)", re.IGNORECASE)
_MOST_CHARS = 4096


@dataclass(frozen=True, slots=True)
class StepBegins:
    """A step begins (Unix s)."""

    step: int
    t_s: float


@dataclass(frozen=True, slots=True)
class MarkEdge:
    """Something that is no step begins or ends. `kind`: what the job calls it."""

    kind: str
    account: Account
    t_s: float
    begins: bool


@dataclass(frozen=True, slots=True)
class ProcessBegins:
    """The job's program starts."""

    t_s: float


@dataclass(frozen=True, slots=True)
class StatedFlops:
    """Model FLOPs of one step over all of the job's GPUs, as the job states them."""

    per_step: float


JobRecord = StepBegins | MarkEdge | ProcessBegins | StatedFlops


def read_record(text: str) -> JobRecord | None:
    """What a line says; None where it is no such record. Never raises.

    >>> read_record('{"job_name": "llm", "step_count": 7, "step_start_time": 1700000000.5}')
    StepBegins(step=7, t_s=1700000000.5)
    >>> read_record('{"job_name": "llm", "custom_badput_event_type": "checkpoint_save", '
    ...             '"custom_badput_event_start_time": 5.0}').account.value
    'checkpointing'
    >>> read_record("step: 7 loss: 2.1") is None
    True
    """
    if '"job_name"' not in text or len(text) > _MOST_CHARS:
        return None
    try:
        value = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except (ValueError, RecursionError):
        return None
    payload = value.get("jsonPayload", value) if isinstance(value, dict) else None
    if not isinstance(payload, dict) or not isinstance(payload.get("job_name"), str):
        return None
    return _record(payload)


def _record(payload: dict[str, Any]) -> JobRecord | None:
    step, t_s = _number(payload, "step_count"), _number(payload, "step_start_time")
    if 0 <= step < 2**53 and math.isfinite(t_s):
        return StepBegins(int(step), t_s)
    if math.isfinite(t_s := _number(payload, "job_start_time")):
        return ProcessBegins(t_s)
    if 0 < (flops := _number(payload, "flops_per_step")) < math.inf:
        return StatedFlops(flops)
    for edge, begins in (("start", True), ("end", False)):
        for name, account in _MARKS.items():
            if math.isfinite(t_s := _number(payload, f"{name}_{edge}_time")):
                return MarkEdge(name, account, t_s, begins)
        if math.isfinite(t_s := _number(payload, f"{_CUSTOM}_{edge}_time")):
            kind = str(payload.get(f"{_CUSTOM}_type", "unknown"))[:40]
            account = next((a for words, a in _KINDS if words.search(kind)), Account.UNEXPLAINED)
            return MarkEdge(f"custom {kind}", account, t_s, begins)
    return None


def _number(payload: dict[str, Any], name: str) -> float:
    value = payload.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if is_number else math.nan  # type: ignore[arg-type]
    except OverflowError:
        return math.nan


def read_mfu(text: str) -> float | None:
    """The utilisation that a step line prints, as a ratio; None where it prints none.

    >>> read_mfu("step: 10  loss:  8.0  tps: 1,234  mfu: 20%"), read_mfu("mfu=0.43")
    (0.2, 0.43)
    """
    match = _MFU.search(text) if "mfu" in text.lower() else None
    if match is None:
        return None
    value = float(match[1])
    return value / 100.0 if match[2] or value > 1.0 else value


PEAKS = (
    ("B200", 2250e12),
    ("GB200", 2250e12),
    ("H200", 989.4e12),
    ("GH200", 989.4e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989.4e12),
    ("H800", 989.4e12),
    ("A100", 311.9e12),
    ("A800", 311.9e12),
    ("L40S", 362e12),
    ("V100", 125e12),
)
"""Dense BF16 (V100: FP16) FLOP/s of data sheets (nvidia.com/en-us/data-center), the first name that fits. A job
that computes in a narrower type shows more than its true utilisation; tensor activity bounds it all the same."""


def peak_flops(model: str) -> float:
    """FLOP/s of a GPU model; NaN where it is not in the table.

    >>> peak_flops("NVIDIA H100 80GB HBM3") / 1e12, peak_flops("Radeon")
    (989.4, nan)
    """
    return next((peak for name, peak in PEAKS if name.lower() in model.lower()), math.nan)


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Model FLOPs utilisation of a job: `stated` by it (NaN: not at all), against the activity of its tensor cores,
    which no true figure exceeds. `refused`: why the statement is not shown as MFU; empty: it is."""

    stated: float
    tensor_active: float
    refused: str = ""


TENSOR_MARGIN = 0.05


def judged(stated: float, tensor_active: float) -> Utilisation:
    """A statement, checked. Without tensor activity it stays unverified, and says so.

    >>> judged(0.41, 0.45).refused, judged(0.9, 0.2).refused
    ('', 'states 90 %; its tensor cores are active 20 % of the time')
    """
    refused = ""
    if stated > 1.0:
        refused = f"states {stated:.0%}: more than the GPU can do".replace("%", " %")
    elif stated > tensor_active + TENSOR_MARGIN:
        refused = (
            f"states {100 * stated:.0f} %; its tensor cores are active {100 * tensor_active:.0f} % of the time"
        )
    elif math.isnan(tensor_active):
        refused = "not verified: the activity of its tensor cores is not measured"
    return Utilisation(stated, tensor_active, refused)
