"""The hazard of a GPU's next uncorrected memory error, by what the last day held.

Few devices log anything before their first uncorrected error, so what can be won is the next one. Two kinds behave
differently. A *consumed* error (a program read the bad data, and the driver stopped it) is mostly followed by
nothing: the row is taken out of use. A *latent* one (found by scrubbing, or counted with no Xid behind it) stays
where it is, is found again, and waits for a program to read it: found twice within a day, another follows within a
day nearly always.

The counts are of 27 HBM devices of the Calchas field data (openeuler hbm-predictor; Yu et al., USENIX ATC 2024),
fitted by `python -m benchmarks.detect_ecc`. Moments of one device depend on each other, and a repaired device has
no next error: `devices` tells how much independent evidence there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nightshift.detectors.contract.evaluate import exact_interval

CONSUMED_XIDS = frozenset({48, 94, 95, 140})
HARD_XIDS = CONSUMED_XIDS | {63, 64, 171, 172}
SOFT_XIDS = frozenset({92})
FAILED_XID = 64
DAY_S = 86400.0
BURST_S = 300.0
"""Uncorrected errors closer than this are one moment."""
IMMINENT_FROM = 0.9
"""A moment is called imminent from this share of followed ones on."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """Moments of one kind: how many, on how many devices, and after how many another uncorrected error came."""

    name: str
    moments: int
    devices: int
    within_1h: int
    within_6h: int
    within_24h: int

    @property
    def share(self) -> float:
        """P(another uncorrected error within 24 h)."""
        return self.within_24h / self.moments if self.moments else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """Exact 95 % interval of `share`, as if moments were independent."""
        return exact_interval(self.within_24h, self.moments)

    def facts(self) -> dict[str, float | str]:
        """How often another uncorrected error followed within a day, and on what data."""
        low, high = self.interval
        return {
            "hazard_of": self.name,
            "next_error_24h": self.share,
            "next_error_low": low,
            "next_error_high": high,
            "next_error_6h": self.within_6h / self.moments,
            "hazard_devices": float(self.devices),
        }


CORRECTED = Stratum("corrected errors only", 1083, 6, 0, 0, 0)
CONSUMED = Stratum("an uncorrected error, consumed", 43, 22, 5, 10, 15)
CONSUMED_AGAIN = Stratum("consumed uncorrected errors, again within a day", 17, 13, 0, 1, 3)
LATENT = Stratum("an uncorrected error that no program read", 5, 4, 1, 2, 2)
LATENT_AGAIN = Stratum("uncorrected errors that no program read, again within a day", 38, 2, 7, 33, 36)
OFTEN = Stratum("uncorrected errors at four or more moments of a day, of whatever kind", 36, 2, 7, 31, 34)
"""Fitted with the kinds hidden: where no log is read, counts alone tell this much."""
STRATA = (CORRECTED, CONSUMED, CONSUMED_AGAIN, LATENT, LATENT_AGAIN, OFTEN)
OFTEN_FROM = 4


@dataclass(slots=True)
class Moment:
    """Uncorrected errors within BURST_S of each other; consumed where an Xid says that a program read them."""

    t_s: float
    consumed: bool


class ErrorHistory:
    """The uncorrected moments of one GPU's last day.

    >>> history = ErrorHistory()
    >>> history.add(0.0, consumed=True)
    >>> history.add(60.0, consumed=True)  # within five minutes: the same moment
    >>> history.stratum(100.0).name, round(history.stratum(100.0).share, 2)
    ('an uncorrected error, consumed', 0.35)
    """

    def __init__(self, moments: Iterable[Moment] = ()) -> None:
        self.moments = list(moments)

    def add(self, t_s: float, consumed: bool) -> None:
        """One uncorrected error. A line that comes late makes the moment that it belongs to a consumed one."""
        near = [m for m in self.moments if abs(m.t_s - t_s) < BURST_S]
        if near:
            near[-1].consumed |= consumed
        else:
            self.moments.append(Moment(t_s, consumed))
            self.moments.sort(key=lambda m: m.t_s)

    def forget(self, now_s: float) -> None:
        """Lets go of moments more than a day before now_s."""
        self.moments = [m for m in self.moments if m.t_s > now_s - DAY_S]

    def stratum(self, now_s: float, settle_s: float = 0.0) -> Stratum:
        """Where the GPU stands. A moment younger than settle_s counts as consumed: its Xid may still come."""
        day = [m for m in self.moments if m.t_s > now_s - DAY_S]
        latent = sum(not m.consumed and m.t_s <= now_s - settle_s for m in day)
        if latent >= 2:
            return LATENT_AGAIN
        if len(day) >= OFTEN_FROM:
            return OFTEN
        if latent == 1:
            return LATENT
        if len(day) >= 2:
            return CONSUMED_AGAIN
        return CONSUMED if day else CORRECTED
