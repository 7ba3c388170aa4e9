"""How often another uncorrected memory error follows within a day, by devices and not by their moments.

Few devices log anything before their first uncorrected error, so what can be told is the next one. Devices differ
far more than the moments of one do: on the devices of the fit one gives 33 of 50 followed errors, and a rule that
crosses 0.9 on it alone gave 0.66 on others. So what is stated is the share on *a device that was not seen*: a
beta-binomial over devices (Skellam 1948), whose interval is of one device's own share. Sorting errors further (by
whether a program read them, or by how many a day held) is no better on a device left out than one share for all.

The counts are of HBM devices of the Calchas field data (openeuler hbm-predictor; Yu et al., USENIX ATC 2024),
fitted by `python -m benchmarks.detect_ecc` on the devices with an even md5 of the name. They are accelerators of
another maker than NVIDIA, and HBM: nothing is stated of errors in SRAM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

UNCORRECTED_XIDS = frozenset({48, 94, 95, 140, 171, 172})
HARD_XIDS = UNCORRECTED_XIDS | {63, 64}
SOFT_XIDS = frozenset({92})
DAY_S = 86400.0
BURST_S = 300.0
"""Uncorrected errors closer than this are one moment."""
FEW_DEVICES = 5
"""With fewer devices than this, no more than the lower bound is stated."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """Moments of one kind, and after how many another uncorrected error came within 24 h.

    expected, low, high: mean and 95 % interval of that share on a device that was not seen.
    """

    name: str
    moments: int
    devices: int
    within_24h: int
    expected: float
    low: float
    high: float

    @property
    def share(self) -> float:
        """What is stated as P(another uncorrected error within 24 h)."""
        # moments of four devices can be one device's story: their bound is all that they carry
        return self.expected if self.devices >= FEW_DEVICES else self.low

    def facts(self) -> dict[str, float | str]:
        """How often another uncorrected error followed within a day, and on what data."""
        return {
            "hazard_of": self.name,
            "next_error_24h": self.share,
            "next_error_low": self.low,
            "next_error_high": self.high,
            "hazard_devices": float(self.devices),
        }


CORRECTED = Stratum("corrected errors only", 4571, 10, 1, 0.049, 0.0, 0.78)
UNCORRECTED = Stratum("an uncorrected error", 100, 20, 50, 0.343, 0.002, 0.907)
STRATA = (CORRECTED, UNCORRECTED)


class ErrorHistory:
    """The moments of the last day at which one GPU had uncorrected errors (Unix s, ascending).

    >>> history = ErrorHistory()
    >>> history.add(0.0)
    >>> history.add(60.0)  # within five minutes: the same moment
    >>> len(history.moments_s), history.stratum().name, history.stratum().share
    (1, 'an uncorrected error', 0.343)
    """

    def __init__(self, moments_s: Iterable[float] = ()) -> None:
        self.moments_s = sorted(moments_s)

    def add(self, t_s: float) -> None:
        """One uncorrected error; a line that comes late joins the moment that it belongs to."""
        if all(abs(known_s - t_s) >= BURST_S for known_s in self.moments_s):
            self.moments_s = sorted([*self.moments_s, t_s])

    def forget(self, now_s: float) -> None:
        """Lets go of moments more than a day before now_s."""
        self.moments_s = [t_s for t_s in self.moments_s if t_s > now_s - DAY_S]

    def stratum(self) -> Stratum:
        return UNCORRECTED if self.moments_s else CORRECTED
