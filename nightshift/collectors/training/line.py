"""What one line of a trainer's log says: the step and its figures, in the formats that trainers print.

    Megatron-LM   [2026-11-21 13:00:00] iteration 9/ 500 | elapsed time per iteration (ms): 250.0 | lm loss: 2E+00 |
    torchtitan    [titan] … step: 10  loss:  8.0  grad_norm:  1.2  memory: 10.0GiB(20%)  tps: 1,234  mfu: 20%
    nanoGPT       iter 100: loss 2.3456, time 123.45ms, mfu 12.3%
    HF Trainer    {'loss': 2.3, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}   step: tqdm's `100/1000 [`
    Lightning     Epoch 0:  10%|█ | 100/1000 [00:10<01:30, 9.90it/s, v_num=0, train_loss=2.30]
    Keras         Epoch 2/10, then lines such as 100/1875 ━━━━━━ 4s 2ms/step - accuracy: 0.9 - loss: 0.3
    key=value     step=100 loss=2.3 grad_norm=1.2 lr=1e-4 step_time=0.25s tokens_per_s=1000 rank=3, also as JSON
    nanotron      iteration: 100 / 5000 | elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K | …
    MaxText       completed step: 10, seconds: 10.2, TFLOP/s/device: 350.9, Tokens/s/device: 19222.2, loss: 12.9
    verl          step:1 - actor/grad_norm:np.float64(0.21) - perf/throughput:1023.2 - timing_s/step:62.2
    kohya         steps:   1%|█ | 1/1600 [00:51<2:10:33,  4.92s/it, avr_loss=0.101]
    torchtune     1|20|Loss: 1.7000000:  20%|█ | 20/250 [00:30<06:30,  1.55s/it]

Formats without `step=` tell their step otherwise; what they count anew in each epoch (100 of 5005) is told as a
step that goes on over them:

    PyTorch's examples   Epoch: [0][ 100/5005]  Time  0.250 ( 0.300)  Data  0.001 ( 0.050)  Loss 6.9e+00 (6.95e+00)
                         Train Epoch: 1 [6400/60000 (11%)]  Loss: 0.345
    timm                 Train: 0 [ 100/1251 (  8%)]  Loss: 6.95 (6.96)  Time: 0.250s, 1000.0/s  LR: 1.000e-05
    MMEngine             Epoch(train) [1][ 100/1000]  lr: 1e-02  time: 0.2500  data_time: 0.0100  loss: 2.3
    tutorials            Epoch [1/10], Step [100/600], Loss: 0.3456      Epoch 1/10, batch 100/600, loss = 0.3456
    llm.c, build-nanogpt step  100/19073 | loss: 2.345 | lr 6.0000e-04 | norm: 1.2345 | dt: 250.00ms | tok/sec: 1000
    fairseq              epoch 001:    100 / 5000 loss=8.5, wps=1000, num_updates=100, lr=1e-05, gnorm=1.2
    clu (JAX)            [100] learning_rate=0.001, loss=2.3
    tqdm without an end  100it [00:10,  9.90it/s, loss=2.3]
    Composer             [batch=100/1000]:   and, in lines of their own,   Train loss/train/total: 2.3456
                         [metric][batch=100]: { "loss/train/total": 2.3456 }
    OLMo-core            [step=10/23842,epoch=1,eta=…]   and, in lines of their own,   train/CE loss=2.911
    Dreamer              [6000] expl_amount 0.3 / model_grad_norm 44.1 / model_loss 5864.5 / value_loss 6.3
    epochs alone         Epoch 3: train_loss=0.34 val_loss=0.41   (a step, where a log counts nothing else)
    word_language_model  | epoch   1 |   200/ 2983 batches | lr 5.00 | ms/batch 12.34 | loss  8.12 | ppl  3361.12

A printed NaN or infinity of a figure is +inf here, because NaN means "not printed". Numbers may be grouped
(1,234.5) or have a decimal comma (2,3456); what may be either (2,345) is grouped only where it counts something.

Beside steps, a trainer's log has the lines of PyTorch's NCCL watchdog and flight recorder: `read_nccl_line`.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

_WITHIN_EPOCH = re.compile(
    r"\b(?:Epoch(?:\(train\))?:?\s*\[(\d+)\]|Train(?: Epoch)?:\s*(\d+))\s*\[\s*(\d+)\s*/\s*(\d+)"
    r"|\bepoch:?\s*\[?\s*(\d+)(?:\s*/\s*\d+)?\]?[\s,;:|-]+(?:step|batch|iter(?:ation)?)s?:?\s*\[?\s*(\d+)\s*/\s*(\d+)"
    r"|\bepoch\s+(\d+)\s*\|\s*(\d+)\s*/\s*(\d+) batches\b",
    re.IGNORECASE,
)
_COUNTED = re.compile(
    r"(?:^|[\s|\]:(])(?:step|iter(?:ation)?(?:\(train\))?)s?:?\s*(?:\[\s*(\d+)\s*/\s*\d+|(\d[\d,]*)(?=\s*[/|:,;\s\])]|$))"
    r"|\] \[(\d+)\] (?=[\w/]+=)"
    r"|(?:^|\s)(\d+)it \[\d",
    re.IGNORECASE,
)
_SPACED = re.compile(
    r"(?<![\w/.-])(loss|train_loss|lr|grad_norm|gnorm|norm|time|data)\s+"
    r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|[-+]?inf)(?=[\s,;|)]|$)",
    re.IGNORECASE,
)
_EVALUATES = re.compile(
    r"(?<![\w/.-])(?:(?:val|valid|validation|eval|evaluation|best)(?![\w/.-])|(?:test|dev)\s+$)", re.IGNORECASE
)
_OTHER_NORM = re.compile(r"(?<!grad)(?<!gradient)(?<=[A-Za-z])\s$", re.IGNORECASE)
_EVALUATION_KEY = re.compile(r"(?:^|[/_.])(?:val|valid|validation|eval|test|dev)(?:[/_.]|$)")
_BATCH = re.compile(r"\[batch=(\d+)/\d+\]:?\s*$")
_METRIC = re.compile(r"\[metric\]\[batch=(\d+)\]: \{.*\"loss/train/total\": ([^,}\s]+)")
_TRAIN_LOSS = re.compile(r"^\s*Train loss/train/total: (\S+)\s*$")


def counted(text: str) -> tuple[str | None, bool]:
    """(the step as it is written, None where the line tells none; whether the line counts within an epoch).

    >>> counted("Epoch: [2][ 100/5005]  Loss 6.9e+00")  # 2 epochs of 5005 steps, and 100
    ('10110', True)
    >>> counted("step  100/19073 | loss: 2.345")
    ('100', False)
    """
    if (match := _WITHIN_EPOCH.search(text)) is not None:
        epoch, number, total = [group for group in match.groups() if group is not None][-3:]
        return str(int(epoch[:9]) * int(total[:12]) + int(number[:12])), True
    if (match := _COUNTED.search(text)) is not None:
        return next(group for group in match.groups() if group is not None), False
    return None, False


def spaced(text: str) -> Iterator[tuple[str, str, int]]:
    """(name in lower case, value, where the name begins) of figures that stand beside their names."""
    for match in _SPACED.finditer(text):
        yield match.group(1).lower(), match.group(2), match.start(1)


def of_another(column: str, text: str, at: int) -> bool:
    """Whether the name at this place is of something else: a loss of an evaluation, as in `val loss: 2.0`
    and `step 9 eval: loss=2.0`, or the norm of something other than the gradients.

    >>> text = "step 9, val loss: 2.0"
    >>> of_another("loss", text, text.index("loss"))
    True
    """
    if column == "grad_norm":
        return _OTHER_NORM.search(text[:at]) is not None
    begin = max(text.rfind(mark, 0, at) for mark in ",|;")
    return column == "loss" and _EVALUATES.search(text[begin + 1 : at]) is not None


def in_parts(text: str) -> tuple[str | None, str | None]:
    """(step, loss) of Composer's lines, which tell one of them each, and of its log file's, which tell both."""
    if (match := _METRIC.search(text)) is not None:
        return match.group(1), match.group(2)
    if (match := _BATCH.search(text)) is not None:
        return match.group(1), None
    match = _TRAIN_LOSS.match(text)
    return None, None if match is None else match.group(1)


_NUMBER = (
    r"[-+]?(?:\d{1,3}(?:\.\d{3})+,\d+|\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|(?i:nan|inf(?:inity)?)(?:\.0)?)"
)
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
_GROUPED_BY_DOTS = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+,\d+")
# Colours and moves of the cursor, also as syslog and log shippers leave them: escaped, or without escape.
_ANSI = re.compile(r"(?:\x1b|#033|\^\[)\[[0-9;?]*[A-Za-z]|\[\d{1,2}(?:;\d{1,3})*m|\x08+")
_KERAS = re.compile(r"^\s*(\d+)/(\d+|Unknown) (?:\[[=>.]*\]|[\u2500-\u257f]+|-(?= \d+m?s\b)) ")
_KERAS_EPOCH = re.compile(r"^Epoch (\d{1,9})/\d+\s*$")
_MEGATRON = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|(.*)")
_NANOGPT = re.compile(rf"^(?:.* )?iter (\d+): loss ({_NUMBER}), time ({_NUMBER})ms")
_NANOGPT_EVAL = re.compile(r"\bstep \d+: train loss \S+, val loss")
_PROGRESS = re.compile(r"\|\s*(\d+)/(\d+) \[[^,\]]*(?:,\s*([\d.]+|\?)\s*(it/s|s/it))?(.*)\]")
_ITER_TIME = re.compile(rf"\biter time \(s\): ({_NUMBER})")
_EPOCH = re.compile(r"\bepoch[:\s]\s*\[?(\d+)", re.IGNORECASE)
_EPOCH_ALONE = re.compile(r"\bepochs?\b[\s:=#\[(]*(\d{1,6})\b(?!\.\d)", re.IGNORECASE)
_HF = re.compile(rf"'(loss|grad_norm|learning_rate|step)': '?({_NUMBER})'?")
_PAIR = re.compile(
    rf"""["']?(?<![\w/])([A-Za-z_][\w/.-]*?)["']?\s*[=:]\s*["']?(?:tensor\(|np\.float(?:16|32|64)\()?({_NUMBER})"""
    r"""(ms|s|[KMGB])?(?=[\s,;|\]})"']|\.?$|\.\s)"""
)
_THOUSANDS = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
_TORCHTUNE = re.compile(rf"\b\d+\|(\d+)\|Loss: ({_NUMBER}):")
_DREAMER = re.compile(rf"^\[(\d+)\] \w+ {_NUMBER} / ")
_DREAMER_FIGURE = re.compile(rf"(\w+) ({_NUMBER})(?= / |\s*$)")
_OLMO_STEP = re.compile(r"\[step=(\d+)/\d+,epoch=")
_OLMO_FIGURE = re.compile(rf"^\s{{2,}}([a-z]+/[^=]{{1,60}})=({_NUMBER})\s*$")
_RANK = re.compile(
    r"(?:\[(?:default)?rank\s?(\d+)\]|\b(?:global_)?rank[=: ]?\s?(\d+)\b|^\[\d+,(\d+)\]<std)", re.IGNORECASE
)
_SAVED = re.compile(
    r"(?:\bsaved\b.*\bcheckpoint|\bcheckpoint\b.*\bsaved\b|finished saving.*checkpoint|saving model checkpoint to"
    r"|^saving checkpoint to\b)",
    re.IGNORECASE,
)
_SAVED_STEP = re.compile(r"(?:step[=: ]+|iteration\s+|checkpoint-|global_step_?|iter[_ ])(\d+)", re.IGNORECASE)
_STARTED = re.compile(
    r"\b(?:initializing process group|loading checkpoint|loaded checkpoint|resum(?:e|ed|ing) (?:from|training)"
    r"|start(?:ing)? training|training starts|(?<=\*\s)running training)\b",
    re.IGNORECASE,
)
# A word of each start, to look for first: most lines have none, and a plain search is ten times as fast.
_STARTING = ("process group", "checkpoint", "resum", "start", "running training")
_STAMP = re.compile(r"\[?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?")
# glog's and absl's stamp, which has no year: `I1123 12:00:01.123456 1234 train.py:10]`.
_DAY_WITH_SLASHES = re.compile(r"\[?(?:(\d{4})/(\d\d)/(\d\d)|(\d\d)/(\d\d)/(\d{4}))[ T](\d\d:\d\d:\d\d)")
"""mmengine (2025/11/24) and nanotron (11/24/2025, the month first, as its logger's format has it)."""
_GLOG = re.compile(r"^[IWEF](\d\d)(\d\d) (\d\d:\d\d:\d\d)\.(\d{1,9})\s+\d+ ")
# What the container runtime puts before each line (CRI log format); P: the line goes on in the next one.
CRI = re.compile(r"^(\d{4}-\d\d-\d\dT\S+) (?:stdout|stderr) ([FP]) ")

_NAMES = {
    "step": (
        *("step", "iteration", "iter", "global_step", "train/step", "train/global_step", "num_updates"),
        *("_step", "trainer/global_step"),
    ),
    "loss": (
        *("loss", "train_loss", "train/loss", "lm_loss", "lm loss", "training_loss", "train_loss_step"),
        *("reduced_train_loss", "step_loss", "total_loss", "loss/train/total", "train/loss_step"),
        *("avr_loss", "train/ce loss"),
    ),
    "grad_norm": (
        *("grad_norm", "gnorm", "gradnorm", "grad-norm", "grad norm", "train/grad_norm", "gradient_norm", "norm"),
        *("actor/grad_norm", "optim/total grad norm"),
    ),
    # a rank's own, before gradients are averaged; none of the formats above has one, key=value and JSON may
    "local_grad_norm": ("local_grad_norm", "grad_norm_local", "local grad norm", "train/local_grad_norm"),
    "learning_rate": (
        *("lr", "learning_rate", "learning rate", "train/learning_rate", "train/lr", "actor/lr"),
        "optim/lr (group 0)",
    ),
    "step_time_s": (
        *("step_time", "step_time_s", "iter_time", "time_per_step", "step_time_ms", "iter_time_ms", "dt"),
        *("train_step_timing in s", "elapsed_time_per_iteration_ms", "timing_s/step"),
    ),
    "tokens_per_s": (
        "tokens_per_s",
        "tokens_per_sec",
        "tokens/s",
        "tok/s",
        "tok/sec",
        "tps",
        "wps",
        "tokens_per_second",
        "throughput/tokens_per_sec",
        # what one device does; a trainer that prints the job's, too, prints it first
        *("tokens/s/device", "tokens_per_second_per_gpu", "tokens_per_sec_per_gpu", "perf/throughput"),
        "throughput/device/tps",
    ),
    "compute_s": ("compute_s", "compute_time", "compute_time_s", "fwd_bwd_time"),
    "data_s": (
        *("data_s", "data_time", "data_time_s", "dataloader_time", "data_load_time"),
        "throughput/device/data loading (s)",
    ),
    "comm_s": ("comm_s", "comm_time", "comm_time_s", "allreduce_time"),
    "rank": ("rank", "global_rank"),
}
_IN_EPOCH = {"time": "step_time_s", "data": "data_s"}
"""What PyTorch's examples, timm and MMEngine call them."""
_OF_FORMAT = {"completed step:": {"seconds": "step_time_s"}, "Iter(train)": _IN_EPOCH}
"""Names that are a step's figure only in lines of one format (MaxText, MMEngine by iterations), by its words."""
_COLUMN_OF = {alias: column for column, aliases in _NAMES.items() for alias in aliases}
FIGURES = (
    "loss",
    "grad_norm",
    "local_grad_norm",
    "learning_rate",
    "step_time_s",
    "tokens_per_s",
    "compute_s",
    "data_s",
    "comm_s",
)


@dataclass(frozen=True, slots=True)
class TrainerLine:
    """step: None where the line gives none; figures: column of `STEP_COLUMNS` → value (+inf: printed, not finite);
    t_s: the line's own time (Unix s) or None; `zoned`: it names its time zone, else it was taken for UTC;
    `started`: the process began anew; `epoch`: the epoch (from 0) that begins with this line; `of`: how many steps
    the epoch has within which `step` counts (0: not known yet), None where steps go on over epochs; `by_epoch`:
    `step` is the epoch's number, for want of another."""

    step: int | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    t_s: float | None = None
    rank: int | None = None
    started: bool = False
    zoned: bool = True
    epoch: int | None = None
    of: int | None = None
    by_epoch: bool = False


@dataclass(frozen=True, slots=True)
class LinePattern:
    """A format of the user's own: named groups `step`, the figures (`step_time_ms` too), `rank`, `t_s`,
    `checkpoint_saved` (matching is enough)."""

    expression: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> LinePattern:
        r"""Raises ValueError where the expression is none, or names no known group.

        >>> mine = LinePattern.parse(r"it (?P<step>\d+) L=(?P<loss>\S+)")
        >>> read_line("it 12 L=0.5", [mine]).step
        12
        >>> LinePattern.parse(r"it (?P<step>\d+)")
        Traceback (most recent call last):
            ...
        ValueError: pattern 'it (?P<step>\\d+)': names no figure
        """
        try:
            expression = re.compile(text)
        except re.error as error:
            raise ValueError(f"pattern {text!r}: {error}") from error
        known = {"step", "rank", "t_s", "step_time_ms", "checkpoint_saved", *FIGURES}
        if unknown := set(expression.groupindex) - known:
            raise ValueError(f"pattern {text!r}: unknown groups {sorted(unknown)}; known: {sorted(known)}")
        if not set(expression.groupindex) & {"checkpoint_saved", *FIGURES, "step_time_ms"}:
            raise ValueError(f"pattern {text!r}: names no figure")
        return cls(expression)


def read_line(text: str, patterns: Sequence[LinePattern] = (), now_s: float | None = None) -> TrainerLine | None:
    """What the line says, or None where it says nothing of training. Never raises. `now_s` (Unix s; none: this
    machine's clock) tells the year of stamps that have none.

    >>> megatron = "iteration 9/ 500 | elapsed time per iteration (ms): 250.0 | lm loss: 2.5E+00 |"
    >>> line = read_line(megatron)
    >>> line.step, dict(line.figures)
    (9, {'step_time_s': 0.25, 'loss': 2.5})
    >>> read_line("step=7 loss=nan").figures["loss"]  # printed, but no number; NaN would mean "not printed"
    inf
    >>> read_line("step 250: train loss 2.1, val loss 2.2") is None  # an evaluation is no step
    True
    """
    # the substitution is the dearest part of a line, and nearly no line has a colour
    if "\x1b" in text or "\x08" in text or ("m" in text and "[" in text):
        text = _ANSI.sub("", text)
    t_s, text = _without_runtime(text)
    if t_s is not None:
        return _read(text, patterns, t_s)
    t_s, zoned = _stamp(text, now_s)
    line = _read(text, patterns, t_s)
    return line if zoned or line is None or line.t_s != t_s else replace(line, zoned=False)


def _read(text: str, patterns: Sequence[LinePattern], t_s: float | None) -> TrainerLine | None:
    rank = _rank(text) if "rank" in text or "RANK" in text or "Rank" in text or "]<std" in text else None
    for pattern in patterns:
        if (match := pattern.expression.search(text)) is not None:
            return _own(match, t_s, rank)
    lower = text.lower()
    for markers, notice in _NOTICES:
        if any(marker in lower for marker in markers) and (line := notice(text)) is not None:
            return None if line == _NOTHING else replace(line, t_s=t_s, rank=rank)
    step, figures, told = _figures(text)
    # HF Trainer's logging_nan_inf_filter prints 0.0 in the place of a loss that was NaN; its gradients tell
    if figures.get("loss") == 0.0 and figures.get("grad_norm") == math.inf:
        figures["loss"] = math.inf
    if step is None and not figures:
        told_by = _of_epoch(text) if "poch" in text and "oss" in text else None
        return None if told_by is None else replace(told_by, t_s=t_s, rank=rank)
    # `rank=3` among the figures is the trainer's own word; a prefix may be the launcher's, of the node
    return TrainerLine(step, figures, t_s, rank if told is None else told)


def _checkpoint(text: str) -> TrainerLine | None:
    if not _SAVED.search(text):
        return None
    found = _SAVED_STEP.search(text)
    return TrainerLine(_step(found.group(1)) if found else None, {"checkpoint_saved": 1.0})


def _starts(text: str) -> TrainerLine | None:
    return TrainerLine(started=True) if _STARTED.search(text) else None


def _keras_epoch(text: str) -> TrainerLine | None:
    if (begins := _KERAS_EPOCH.match(text)) is None:
        return None
    epoch = max(int(begins.group(1)) - 1, 0)
    return TrainerLine(started=epoch == 0, epoch=epoch)


def _keras_bar(text: str) -> TrainerLine | None:
    if (bar := _KERAS.match(text)) is None:
        return None
    of = int(bar.group(2)[:12]) if bar.group(2).isdigit() else 0
    loss = _named(text[bar.end() :], "loss")
    # a bar without a loss counts a download or an evaluation: no format below may take it for a step
    return _NOTHING if loss is None else TrainerLine(_step(bar.group(1)), {"loss": loss}, of=of)


_NOTHING = TrainerLine()
_NOTICES: tuple[tuple[tuple[str, ...], Callable[[str], TrainerLine | None]], ...] = (
    (("checkpoint",), _checkpoint),
    (_STARTING, _starts),
    (("epoch ",), _keras_epoch),
    (("/",), _keras_bar),
)
"""Lines that are no step's figures, and bars whose step counts within an epoch: (words in lower case, reader)."""

_Figures = tuple[int | None, dict[str, float], int | None]
"""Step, figures, rank."""


def _megatron(text: str) -> _Figures | None:
    if (match := _MEGATRON.search(text)) is None:
        return None
    figures: dict[str, float] = {}
    for part in match.group(2).split("|"):
        key, _, value = part.partition(":")
        key = key.strip().lower()
        if key == "elapsed time per iteration (ms)":  # some forks add the mean: 284.1/283.9
            _set(figures, "step_time_s", value.partition("/")[0], 1e-3)
        elif (column := _COLUMN_OF.get(key)) in FIGURES:
            _set(figures, str(column), value)
    return _step(match.group(1)), figures, None


def _nanogpt(text: str) -> _Figures | None:
    if (match := _NANOGPT.search(text)) is None:
        return None
    figures: dict[str, float] = {}
    _set(figures, "loss", match.group(2))
    _set(figures, "step_time_s", match.group(3), 1e-3)
    return _step(match.group(1)), figures, None


def _nanogpt_evaluation(text: str) -> _Figures | None:
    # it repeats the step; taken for a step, its loss would look like a jump
    return (None, {}, None) if _NANOGPT_EVAL.search(text) else None


def _hf(text: str) -> _Figures | None:
    if "{'" not in text:
        return None
    figures: dict[str, float] = {}
    step = None
    for key, value in _HF.findall(text):
        if key == "step":
            step = _step(value)
        else:
            _set(figures, key, value)
    return _progress(text)[0] if step is None else step, figures, None


def _composer(text: str) -> _Figures | None:
    step, loss = in_parts(text)
    if step is None and loss is None:
        return None
    figures: dict[str, float] = {}
    _set(figures, "loss", loss or "")
    return _step(step or ""), figures, None


# What stands in every line of a format, and its reader; the first that knows the line has it. A plain search
# rules out nearly every line.
def _torchtune(text: str) -> _Figures | None:
    if (match := _TORCHTUNE.search(text)) is None:
        return None
    # the bar counts within its epoch, the title over all of them
    figures = dict(_progress(text)[1])
    _set(figures, "loss", match.group(2))
    return _step(match.group(1)), figures, None


def _olmo(text: str) -> _Figures | None:
    if (match := _OLMO_STEP.search(text)) is not None:
        return _step(match.group(1)), {}, None
    match = _OLMO_FIGURE.match(text)
    column = None if match is None else _COLUMN_OF.get(match.group(1).lower())
    if match is None or column not in FIGURES:
        return None
    figures: dict[str, float] = {}
    _set(figures, str(column), match.group(2))
    return None, figures, None


def _dreamer(text: str) -> _Figures | None:
    if (match := _DREAMER.match(text)) is None:
        return None
    figures: dict[str, float] = {}
    for name, value in _DREAMER_FIGURE.findall(text):
        column = _COLUMN_OF.get(name.removeprefix("model_"))
        if column in FIGURES and column not in figures:
            _set(figures, str(column), value)
    return _step(match.group(1)), figures, None


_FORMATS: tuple[tuple[str, Callable[[str], _Figures | None]], ...] = (
    ("iteration", _megatron),
    ("iter ", _nanogpt),
    ("val loss", _nanogpt_evaluation),
    ("'loss'", _hf),
    ("[batch=", _composer),
    ("Train loss/", _composer),
    ("|Loss: ", _torchtune),
    ("[step=", _olmo),
    (" / ", _dreamer),
    ("    ", _olmo),
)


def _figures(text: str) -> _Figures:
    for marker, read in _FORMATS:
        if marker in text and (found := read(text)) is not None:
            return found
    return _pairs(text)


def _pairs(text: str) -> tuple[int | None, dict[str, float], int | None]:
    """A line of names and values, after a progress bar or without one."""
    step, figures, rest = _progress(text)
    is_bar = step is not None
    also: Mapping[str, str] = next((names for words, names in _OF_FORMAT.items() if words in text), {})
    rest = rest if is_bar else text
    pairs = [(m.group(1).lower(), m.group(2), m.group(3), m.start(1)) for m in _PAIR.finditer(rest)]
    tells_step = is_bar or any(_COLUMN_OF.get(key) == "step" for key, _, _, _ in pairs)
    if not tells_step and ("loss" in text or "Loss" in text):
        told, in_epoch = counted(text)
        also = _IN_EPOCH if in_epoch else also
        step = None if told is None else _step(told)
        pairs += [(key, value, "", at) for key, value, at in spaced(rest)]
    step, told_rank = _take_pairs(pairs, rest, also, step, figures)
    # of several losses without a sum (PPO's actor and critic) the one that is no number speaks for all
    if "loss" not in figures and any(_is_lost(key, value) for key, value, _, _ in pairs):
        figures["loss"] = math.inf
    if "step_time_s" not in figures and (match := _ITER_TIME.search(rest)) is not None:  # DeepSpeed's pipelines
        _set(figures, "step_time_s", match.group(1))
    if step is None:
        return None, {}, told_rank  # a loss without a step is an evaluation or a summary
    if is_bar and figures.keys() <= {"step_time_s"}:
        return step, {}, told_rank  # a bare progress bar may count anything
    return step, figures, told_rank


def _of_epoch(text: str) -> TrainerLine | None:
    """The loss of a whole epoch, in a line that counts epochs alone.

    >>> line = _of_epoch("Epoch 3/20: train_loss=0.34 val_loss=0.41")
    >>> line.step, line.figures["loss"]
    (3, 0.34)
    """
    match = _EPOCH_ALONE.search(text)
    if match is None:
        return None
    figures: dict[str, float] = {}
    pairs = [(m.group(1).lower(), m.group(2), m.group(3), m.start(1)) for m in _PAIR.finditer(text)]
    pairs += [(key, value, "", at) for key, value, at in spaced(text)]
    _take_pairs(pairs, text, {}, None, figures)
    return TrainerLine(int(match.group(1)), figures, by_epoch=True) if "loss" in figures else None


def _is_lost(key: str, value: str) -> bool:
    """Whether this is a training loss that was printed as NaN or infinity."""
    if not key.endswith("loss") or "n" not in value.lower():
        return False
    return _EVALUATION_KEY.search(key) is None


def _take_pairs(
    pairs: Sequence[tuple[str, str, str, int]],
    text: str,
    also: Mapping[str, str],
    step: int | None,
    figures: dict[str, float],
) -> tuple[int | None, int | None]:
    """Sets the figures that are named; (step, rank). The first of a name counts: what follows are means."""
    rank: int | None = None
    for key, value, unit, at in pairs:
        column = _COLUMN_OF.get(key) or also.get(key)
        if column == "step":
            step = _step(value) if step is None else step
        elif column == "rank":
            rank = _step(value)
        elif column is not None and column not in figures and not of_another(column, text, at):
            in_ms = unit == "ms" or key.endswith("_ms")
            _set(figures, column, value, (1e-3 if in_ms else 1.0) * _THOUSANDS.get(unit, 1.0))
    return step, rank


def _progress(text: str) -> tuple[int | None, dict[str, float], str]:
    """Step, step time and what follows of a tqdm bar; Lightning counts anew in each epoch."""
    match = _PROGRESS.search(text) if "|" in text else None
    if match is None:
        return None, {}, ""
    number, total, speed, unit, rest = match.groups()
    step, figures = _step(number), {}
    epoch = _EPOCH.search(text, 0, match.start())
    if step is not None and epoch is not None:
        step += int(epoch.group(1)[:9]) * int(total[:12])
    if speed and speed != "?" and float(speed) > 0:
        figures["step_time_s"] = float(speed) if unit == "s/it" else 1 / float(speed)
    return step, figures, rest


def _named(text: str, column: str) -> float | None:
    """The first figure of that column among names and values; None where there is none."""
    figures: dict[str, float] = {}
    for match in _PAIR.finditer(text):
        if _COLUMN_OF.get(match.group(1).lower()) == column and column not in figures:
            _set(figures, column, match.group(2))
    return figures.get(column)


def _own(match: re.Match[str], t_s: float | None, rank: int | None) -> TrainerLine:
    groups = {key: value for key, value in match.groupdict().items() if value is not None}
    figures: dict[str, float] = {}
    for key in FIGURES:
        if key in groups:
            _set(figures, key, groups[key])
    if "step_time_ms" in groups:
        _set(figures, "step_time_s", groups["step_time_ms"], 1e-3)
    if "checkpoint_saved" in groups:
        figures["checkpoint_saved"] = 1.0
    stamp: dict[str, float] = {}
    _set(stamp, "t_s", groups.get("t_s", ""))
    own_rank = _step(groups["rank"]) if "rank" in groups else rank
    return TrainerLine(
        _step(groups["step"]) if "step" in groups else None,
        figures,
        stamp["t_s"] if math.isfinite(stamp.get("t_s", math.inf)) else t_s,
        own_rank,
    )


def _set(figures: dict[str, float], column: str, text: str, scale: float = 1.0) -> None:
    clean = text.strip().rstrip(",")
    if "," in clean:
        clean = _without_commas(clean, counts=column == "tokens_per_s" or scale != 1.0)
    if "n" in clean.lower():  # Lightning pads what its bar shows: nan.0
        clean = clean.partition(".")[0]
    try:
        value = float(clean) * scale
    except ValueError:
        return
    figures[column] = value if math.isfinite(value) else math.inf


def _without_commas(text: str, counts: bool) -> str:
    """A number with commas as Python writes it. `counts`: 1,234 is a thousand and some, else one and some.

    >>> _without_commas("2,345", counts=True), _without_commas("2,345", counts=False)
    ('2345', '2.345')
    >>> _without_commas("1.234,5", counts=False)
    '1234.5'
    """
    if _GROUPED_BY_DOTS.fullmatch(text):
        return text.replace(".", "").replace(",", ".")
    is_clear = "." in text or text.count(",") > 1
    if _GROUPED.fullmatch(text) and (counts or is_clear):
        return text.replace(",", "")
    return text.replace(",", ".") if not is_clear else ""


def _step(text: str) -> int | None:
    digits = text.replace(",", "").strip()
    if digits.endswith(".0"):
        digits = digits[:-2]
    # isdigit alone takes ², on which int fails; 16 digits do not fit a float exactly
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else None


def _rank(text: str) -> int | None:
    match = _RANK.search(text)
    return None if match is None else _step(next(group for group in match.groups() if group is not None))


def _without_runtime(text: str) -> tuple[float | None, str]:
    """Takes off what the container runtime puts around each line: CRI's log format, or Docker's JSON."""
    if text.startswith('{"log":"'):
        try:
            told = json.loads(text)
            return _stamp(told["time"])[0], str(told["log"]).rstrip("\r\n")
        except (ValueError, KeyError, TypeError, RecursionError):
            return None, text
    match = CRI.match(text)
    return (None, text) if match is None else (_stamp(match.group(1))[0], text[match.end() :])


def _stamp(text: str, now_s: float | None = None) -> tuple[float | None, bool]:
    """The first ISO-like time in a line's first 80 characters, or glog's at its beginning (Unix s), and whether it
    names its zone; without one it is taken for UTC."""
    if (glog := _GLOG.match(text)) is not None:
        return _of_no_year(glog, time.time() if now_s is None else now_s), False
    match = _STAMP.search(text[:80])
    if match is None:
        at_s = _of_slashes(text)
        return at_s, at_s is None
    day, clock, fraction, zone = match.groups()
    try:
        at = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in (None, 'Z') else zone}").astimezone(UTC)
    except ValueError:
        return None, True
    return at.timestamp() + (float(f"0.{fraction}") if fraction else 0.0), zone is not None


def _of_slashes(text: str) -> float | None:
    match = _DAY_WITH_SLASHES.match(text)
    if match is None:
        return None
    first, second, third, month, day, year, clock = match.groups()
    date = f"{first}-{second}-{third}" if first else f"{year}-{month}-{day}"
    try:
        return datetime.fromisoformat(f"{date}T{clock}+00:00").timestamp()
    except ValueError:
        return None


def _of_no_year(match: re.Match[str], now_s: float) -> float | None:
    """The time of month, day and clock in the year that brings it nearest to `now_s` (both Unix s)."""
    month, day, clock, fraction = match.groups()
    near = []
    for year in (datetime.fromtimestamp(now_s, UTC).year + n for n in (-1, 0, 1)):
        try:
            at = datetime.fromisoformat(f"{year}-{month}-{day}T{clock}+00:00")
        except ValueError:
            continue
        near.append(at.timestamp() + float(f"0.{fraction}"))
    return min(near, key=lambda t_s: abs(t_s - now_s), default=None)


_NCCL_RANK = re.compile(r"\[rank(\d{1,6})\]|\bRank (\d{1,6})\b", re.IGNORECASE)
_NCCL_GROUP = re.compile(r"\[PG (?:ID )?(\d{1,9})(?: PG GUID [^\s(]*)? ?(?:\(([^)]{0,80})\))?")
_NCCL_WORK = re.compile(
    r"WorkNCCL\((?:SeqNum=(\d{1,18}), )?OpType=(\w{1,40})(?:, NumelIn=(\d{1,18}))?"
    # PyTorch 2.0 has TensorShape=[…] here; a line that was cut may end anywhere
    r"[^()\n]{0,400}(?:\(ms\)=(\d{1,12}))?\)?(?: ran for (\d{1,12}) milliseconds)?"
)
_NCCL_AT = re.compile(r"(?:Timeout at NCCL work|detected by watchdog at work(?: sequence id)?): (\d{1,18})")
_NCCL_STATUS = re.compile(
    r"last enqueued (?:NCCL )?work: (-?\d{1,18}),\s+last completed (?:NCCL )?work: (-?\d{1,18})", re.IGNORECASE
)
_NCCL_DUMP = re.compile(
    r"[Rr]eceived a dump signal.*? from (?:this local rank|rank (\d{1,6}))|FlightRecorder|flight recorder"
)
_NCCL_VERSION = re.compile(r"(?:^|\s)NCCL version (\d{1,3}(?:\.\d{1,4}){1,3})\+cuda\d")
# Beyond this a counter was never set: an old release prints uninitialised memory.
_NEVER_SET = 2**40


@dataclass(frozen=True, slots=True)
class NcclLine:
    """One line of the NCCL watchdog. Each field is None where the line does not tell it; -1 of work: none was ever
    enqueued."""

    rank: int | None = None
    group: str | None = None
    work: int | None = None
    operation: str | None = None
    elements: int | None = None
    timeout_s: float | None = None
    ran_s: float | None = None
    last_enqueued: int | None = None
    last_completed: int | None = None
    dumps: bool = False


def read_nccl_line(text: str) -> NcclLine | None:
    """What a line of PyTorch's NCCL watchdog or flight recorder tells: which collective hangs, and how far ranks
    came. None where it is none of these; never raises.

    Lines as torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp writes them (2.0 to 2.9):

        [rank1]:[E… ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(
            SeqNum=78, OpType=BROADCAST, NumelIn=80, NumelOut=80, Timeout(ms)=600000) ran for 600096 milliseconds …
        [rank1]:[E… ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 1] Exception (…) detected by watchdog at
            work: 6463, last enqueued NCCL work: 6463, last completed NCCL work: 6462.
        … [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective timeout from rank 0 and
            we will try our best to dump the debug info. Last enqueued NCCL work: 11, last completed NCCL work: 10.

    >>> line = read_nccl_line("[rank3]: last enqueued NCCL work: 11, last completed NCCL work: 10.")
    >>> line.rank, line.last_enqueued, line.last_completed
    (3, 11, 10)
    """
    if "NCCL" not in text and "watchdog" not in text and "dump signal" not in text:
        return None
    work, at, status = _NCCL_WORK.search(text), _NCCL_AT.search(text), _NCCL_STATUS.search(text)
    dumps = _NCCL_DUMP.search(text) is not None
    if not (work or at or status or dumps):
        return None
    rank, group = _NCCL_RANK.search(text), _NCCL_GROUP.search(text)
    number = _whole(work, 1)
    limit_ms, ran_ms = _whole(work, 4), _whole(work, 5)
    return NcclLine(
        _whole(rank, 1, 2),
        None if group is None else group.group(2) or group.group(1),
        _whole(at, 1) if number is None else number,
        None if work is None else work.group(2),
        _whole(work, 3),
        None if limit_ms is None else limit_ms / 1000,
        None if ran_ms is None else ran_ms / 1000,
        _work_number(status, 1),
        _work_number(status, 2),
        dumps,
    )


def read_nccl_version(text: str) -> str | None:
    """The version that NCCL's first rank prints at its start (`NCCL_DEBUG=VERSION`); None where a line has none. Of
    an error message's versions none is read: they may be of what the job was compiled with.

    >>> read_nccl_version("(WorkerDict pid=295552) NCCL version 2.27.5+cuda12.8")
    '2.27.5'
    """
    match = _NCCL_VERSION.search(text) if "NCCL version" in text else None
    return None if match is None else match[1]


def _whole(match: re.Match[str] | None, *groups: int) -> int | None:
    """The first of these groups that took part in the match."""
    return None if match is None else next((int(text) for n in groups if (text := match.group(n))), None)


def _work_number(status: re.Match[str] | None, group: int) -> int | None:
    value = _whole(status, group)
    return None if value is None or value >= _NEVER_SET else value


def behind(lines: Iterable[NcclLine]) -> dict[str, tuple[int, ...]]:
    """By group, the ranks that had enqueued less than another of it: the rank that enqueued least never reached the
    collective that the others wait in. Of a rank's lines the last counts. A group of which one rank spoke, or all
    came equally far, is left out.

    >>> behind([NcclLine(rank=0, last_enqueued=12), NcclLine(rank=1, last_enqueued=11)])
    {'': (1,)}
    """
    reached: dict[str, dict[int, int]] = {}
    for line in lines:
        if line.rank is not None and line.last_enqueued is not None:
            reached.setdefault(line.group or "", {})[line.rank] = line.last_enqueued
    return {
        group: tuple(sorted(rank for rank, work in by_rank.items() if work < max(by_rank.values())))
        for group, by_rank in reached.items()
        if len(by_rank) > 1 and len(set(by_rank.values())) > 1
    }
