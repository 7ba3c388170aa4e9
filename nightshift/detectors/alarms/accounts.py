"""What the budget keeps of every detector and every open alarm, and how it is saved: JSON, versioned."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from nightshift.detectors.alarms.history import History
from nightshift.detectors.base import RateBasis, SnapshotError, StatedRate

VERSION = 2


@dataclass(frozen=True, slots=True)
class Line:
    """One detector's part in the budget. Pages are per week on this fleet, rates per 1,000 series-days.

    expected: false pages per week; of statistics, the share, which is kept by counting. stated and realised rate
    are of pages (of an event's alarms). realised: pages that nobody confirmed, an upper bound of the false ones;
    NaN before a series was watched.
    """

    detector: str
    stated: StatedRate
    series: int
    share: float
    expected: float
    stated_rate: float
    realised: float
    series_days: float
    alarms: int
    withheld: int
    paged: int
    confirmed: int

    @property
    def basis_word(self) -> str:
        if self.stated.basis is RateBasis.EVENT:
            return "event"
        if self.stated.tail is None:
            return "learning"
        return "measured" if self.stated.tail.series_days > 0 else "bound"


class Said(IntEnum):
    """How an open episode stands."""

    WITHHELD = 0
    MERGED = 1
    """It pages as part of an earlier page, or as an event; nothing was spent on it."""
    PAGED = 2
    DRAINS = 3
    """Paged, and spent of the second purse too."""


@dataclass(slots=True)
class Account:
    series_days: float = 0.0
    alarms: int = 0
    withheld: int = 0
    paged: int = 0
    confirmed: int = 0
    history: History = field(default_factory=History)


@dataclass(frozen=True)
class Kept:
    """A budget's state. left: what the two purses hold; spent: episode → (detector, what it spent, when)."""

    accounts: dict[str, Account]
    left: tuple[float, float]
    open: dict[str, Said]
    spent: dict[str, tuple[str, Said, float]]
    paged_s: dict[tuple[str, str], float]
    last_s: float | None

    def dump(self) -> bytes:
        accounts = {
            name: [a.series_days, a.alarms, a.withheld, a.paged, a.confirmed, a.history.saved()]
            for name, a in self.accounts.items()
        }
        meta = {
            "version": VERSION,
            "accounts": accounts,
            "left": self.left,
            "open": self.open,
            "spent": self.spent,
            "paged": [[what, where, t] for (what, where), t in self.paged_s.items()],
            "at_s": self.last_s,
        }
        return json.dumps(meta).encode()

    @staticmethod
    def load(state: bytes) -> Kept:
        """Takes back a state of this or the previous version. Raises SnapshotError."""
        try:
            meta: dict[str, Any] = json.loads(state)
            version = meta["version"]
            if version not in (1, VERSION):
                raise SnapshotError(f"budget: snapshot version {version!r}, this code reads {VERSION} and 1")
            if version == 1:
                meta = _from_1(meta)
            accounts = {
                name: Account(float(days), int(alarms), int(held), int(paged), int(right), History.load(history))
                for name, (days, alarms, held, paged, right, history) in meta["accounts"].items()
            }
            left, drains = (float(n) for n in meta["left"])
            spent = {str(e): (str(d), Said(said), float(t)) for e, (d, said, t) in meta["spent"].items()}
            paged_s = {(str(what), str(where)): float(t) for what, where, t in meta["paged"]}
            still = {str(key): Said(said) for key, said in meta["open"].items()}
            last_s = None if meta["at_s"] is None else float(meta["at_s"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(f"budget: not a snapshot: {error!r}") from error
        if not all(map(math.isfinite, (left, drains, *paged_s.values(), last_s or 0.0))):
            raise SnapshotError("budget: a figure is not finite")
        return Kept(accounts, (left, drains), still, spent, paged_s, last_s)


def _from_1(meta: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had a bucket per detector and no history: what was watched counts, alarms of then as unknown."""
    old = meta["accounts"].items()
    accounts = {
        n: [days, alarms, held, 0, 0, History(float(days), float(alarms)).saved()]
        for n, (days, alarms, held, _) in old
    }
    still = {key: int(Said.PAGED if pages else Said.WITHHELD) for key, pages in meta["open"].items()}
    return {**meta, "accounts": accounts, "left": [1.0, 1.0], "open": still, "spent": {}}
