"""Which labelled loss runs diverged: the rule by which detectors are judged.

*Diverged*: any loss that is not finite, or a final loss above 1.15 times the loss before the onset, in a run with a
cause that can diverge (`div_*`, `nan_inject`, `spike_not_recover`). *Benign*: kinds `clean*` and `benign_*`. All
others (a frozen plateau, a fault that the run survived) are neither and left out.
"""

from __future__ import annotations

from enum import StrEnum

RISE = 1.15


class Truth(StrEnum):
    DIVERGED = "diverged"
    BENIGN = "benign"
    LEFT_OUT = "left_out"


def truth(kind: str, loss_pre: float, loss_final: float, n_nonfinite: int) -> Truth:
    """The truth of one run by its kind and its figures as in `loss_meta.csv`."""
    if kind.startswith(("clean", "benign")):
        return Truth.BENIGN
    can_diverge = kind.startswith("div_") or kind in ("nan_inject", "spike_not_recover")
    if can_diverge and (n_nonfinite > 0 or loss_final > RISE * loss_pre):
        return Truth.DIVERGED
    return Truth.LEFT_OUT
