"""Where a step line tells its step, in trainers' formats without `step=`, and figures told by a space.

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
    word_language_model  | epoch   1 |   200/ 2983 batches | lr 5.00 | ms/batch 12.34 | loss  8.12 | ppl  3361.12

What is counted anew in each epoch (100 of 5005) is told as a step that goes on over them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_IN_EPOCH = re.compile(
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
_BATCH = re.compile(r"\[batch=(\d+)/\d+\]:?\s*$")
_METRIC = re.compile(r"\[metric\]\[batch=(\d+)\]: \{.*\"loss/train/total\": ([^,}\s]+)")
_TRAIN_LOSS = re.compile(r"^\s*Train loss/train/total: (\S+)\s*$")


def counted(text: str) -> tuple[str | None, bool]:
    """(the step as it is written, None where the line tells none; whether the line counts within an epoch)."""
    if (match := _IN_EPOCH.search(text)) is not None:
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
    and `step 9 eval: loss=2.0`, or the norm of something other than the gradients."""
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
