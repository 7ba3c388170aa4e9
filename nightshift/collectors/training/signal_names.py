"""What trainers call their figures, in TensorBoard tags and in metrics: the one table behind both collectors.

A pattern matches a whole name, whatever its case. From the trainers' sources: Megatron-LM (megatron/training/
training.py: `lm loss`, `grad-norm`, `learning-rate`, `iteration-time`), HF Trainer (`train/loss`,
`train/grad_norm`, `train/learning_rate`), Lightning (`train_loss`, `lr-AdamW`), torchtitan (components/metrics.py:
`loss_metrics/global_avg_loss`, `throughput(tps)`, `time_metrics/end_to_end(s)`, `time_metrics/data_loading(s)`).
"""

from __future__ import annotations

import re
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field, field_validator

from nightshift.collectors.frame import STEP_COLUMNS

DEFAULTS: dict[str, tuple[str, ...]] = {
    "loss": (
        r"(?:train(?:ing)?[/_.])?(?:lm[ _-])?loss(?:[/_.]train)?(?:_step)?",
        r"loss_metrics/global_avg_loss",
        r"(?:train(?:ing)?[/_.])?total_loss",
    ),
    "grad_norm": (
        r"(?:train(?:ing)?[/_.])?(?:global_)?(?:grad(?:ient)?[ _-]?norm|gnorm)(?:_total)?",
        r"grad_[\d.]+_norm(?:_total)?",
    ),
    "local_grad_norm": (r"(?:train(?:ing)?[/_.])?(?:local[ _-]grad[ _-]?norm|grad[ _-]?norm[ _-]local)",),
    "learning_rate": (r"(?:train(?:ing)?[/_.])?(?:learning[ _-]rate|lr)(?:-\w+)?(?:/pg\d+)?",),
    "step_time_s": (
        r"(?:train(?:ing)?[/_.])?(?:iteration|step)[ _-]time(?:_s|_seconds)?",
        r"time_metrics/end_to_end\(s\)",
    ),
    "tokens_per_s": (
        r"(?:train(?:ing)?[/_.])?(?:tokens_per_(?:s|sec|second)|tokens/s(?:ec)?|tps)",
        r"throughput\(tps\)",
    ),
    "data_s": (r"time_metrics/data_loading\(s\)", r"(?:train(?:ing)?[/_.])?data(?:loader)?_time(?:_s|_seconds)?"),
}
STEP_NAMES = r"(?:train(?:ing)?[/_.])?(?:global_)?(?:step|iteration)s?(?:_total)?"


class SignalNames(BaseModel):
    """Names of your own trainer's figures, tried before the known ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: dict[str, list[str]] = Field(
        default_factory=dict,
        description="Patterns of whole names (tags, metrics) by figure: loss, grad_norm, "
        "local_grad_norm, learning_rate, step_time_s, tokens_per_s, compute_s, data_s, comm_s",
    )

    @field_validator("columns")
    @classmethod
    def _are_known(cls, columns: dict[str, list[str]]) -> dict[str, list[str]]:
        if unknown := set(columns) - set(STEP_COLUMNS):
            raise ValueError(f"columns: {sorted(unknown)} are no figures; known: {sorted(STEP_COLUMNS)}")
        for text in (text for texts in columns.values() for text in texts):
            try:
                re.compile(text)
            except re.error as error:
                raise ValueError(f"columns: {text!r}: {error}") from error
        return columns

    def reader(self) -> NameReader:
        return NameReader(self)


class NameReader:
    """Looks names up, each once.

    >>> names = SignalNames(columns={"loss": ["my_objective"]}).reader()
    >>> [names.column(name) for name in ("my_objective", "train/grad_norm", "lr-AdamW", "accuracy")]
    ['loss', 'grad_norm', 'learning_rate', None]
    """

    def __init__(self, names: SignalNames) -> None:
        self._patterns = [
            (column, re.compile(text, re.IGNORECASE))
            for table in (names.columns, DEFAULTS)
            for column, texts in table.items()
            for text in texts
        ]
        self.column = lru_cache(maxsize=4096)(self._column)

    def _column(self, name: str) -> str | None:
        """The figure that a name stands for, or None."""
        return next((column for column, pattern in self._patterns if pattern.fullmatch(name)), None)
