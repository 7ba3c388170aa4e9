"""How often another uncorrected HBM error follows, and who says it: `python -m benchmarks.detect_ecc --data FILE`.

FILE: `data/raw_data/dataset(opensource).csv` of openeuler hbm-predictor (Calchas, ATC'24; a mirror is
github.com/openeuler-mirror/hbm-predictor): corrected (CE), uncorrected and found by scrubbing (UEO), uncorrected
and read (UER), of 51 devices. At every moment at which a device logged anything, a method may speak; right is
another uncorrected error (UEO or UER) on it within 24 hours. Recall: uncorrected errors after a device's first that
had such a word in the 24 hours before.

Devices (Datacenter/Server/Name) with an even md5 are for the fit and for every choice, one device left out at a
time; odd ones for the score alone. Shares are beta-binomial over devices, so that one device of many moments is one
device. The score is of `benchmarks.held_out.ecc`.

The detector gets what an exporter and a kernel log would give: CE and UEO as counts, and as lines (CE as Xid 92,
UEO as Xid 171, UER as Xid 94, with row, bank and column), or counts alone.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import beta, betabinom

from benchmarks.report import write
from nightshift.collectors.frame import Frame, Instant, LogRecord, SeriesIndex
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Severity, State
from nightshift.detectors.contract.evaluate import exact_interval
from nightshift.detectors.ecc.counters import CORRECTED, UNCORRECTED
from nightshift.detectors.ecc.detector import BURST_S, STRATA, Ecc

HORIZON_S = 86400.0
FORMERLY = {
    "consumed": 15 / 43,
    "consumed again": 3 / 17,
    "latent": 2 / 5,
    "latent again": 36 / 38,
    "often": 34 / 36,
}
"""The shares that were stated before, by 27 of these devices; from 0.9 on they said imminent."""
AGAIN = "more than one uncorrected error within a day"
BANK = ["Stack", "SID", "PcId", "BankGroup", "BankArray"]
SHOWN = ("with lines", "counts alone")
"""What a detector gets to see; counts alone: no kernel log."""
CODES = {"CE": 92, "UEO": 171, "UER": 94}


def is_odd(device: str) -> bool:
    return int(hashlib.md5(device.encode()).hexdigest(), 16) % 2 == 1


def load(path: Path) -> pd.DataFrame:
    table = pd.read_csv(path)
    table["device"] = table.Datacenter + "/" + table.Server + "/" + table.Name
    table["bank"] = table[BANK].agg("-".join, axis=1)
    return table.sort_values(["device", "Time"]).reset_index(drop=True)


def moments(table: pd.DataFrame) -> pd.DataFrame:
    """One row per device and logged moment: what its last day held, and whether an error follows within a day."""
    rows = []
    for device, log in table.groupby("device"):
        at = {kind: np.unique(log.Time[log.EccType == kind]) for kind in CODES}
        error_s = np.union1d(at["UEO"], at["UER"])
        errors: list[tuple[float, bool]] = []
        for at_s in np.unique(log.Time):
            read = bool(np.isin(at_s, at["UER"]))
            if np.isin(at_s, error_s):
                if errors and at_s - errors[-1][0] < BURST_S:
                    errors[-1] = (errors[-1][0], errors[-1][1] or read)
                else:
                    errors.append((float(at_s), read))
            errors = [e for e in errors if e[0] > at_s - HORIZON_S]
            row: dict[str, Any] = {
                "device": device,
                "at_s": at_s,
                "follows": _count(error_s, at_s, at_s + HORIZON_S) > 0,
                "follows_uer": _count(at["UER"], at_s, at_s + HORIZON_S) > 0,
                "ue_now": bool(np.isin(at_s, error_s)),
                "ue_day": len(errors),
                "formerly": _formerly([consumed for _, consumed in errors]),
            }
            row |= {f"{kind}_day": _count(at[kind], at_s - HORIZON_S, at_s) for kind in CODES}
            rows.append(row)
    return pd.DataFrame(rows).sort_values(["at_s", "device"]).reset_index(drop=True)


def _count(times_s: np.ndarray, after_s: float, to_s: float) -> int:
    """How many of these sorted times are in (after, to]."""
    return int(np.searchsorted(times_s, to_s, "right") - np.searchsorted(times_s, after_s, "right"))


def _formerly(consumed: Sequence[bool]) -> str:
    """The stratum that a day with these errors was in before (each: whether a program read it)."""
    latent = len(consumed) - sum(consumed)
    if latent >= 2 or len(consumed) >= 4:
        return "latent again" if latent >= 2 else "often"
    if latent == 1 or not consumed:
        return "latent" if consumed else "corrected"
    return "consumed again" if len(consumed) >= 2 else "consumed"


def ours(table: pd.DataFrame, points: pd.DataFrame, shown: str) -> pd.DataFrame:
    """What the detector says at each moment (critical, moments of its day, share): all devices in every frame."""
    logged = shown == SHOWN[0]
    devices = sorted(points.device.unique())
    gpus = {device: Subject(SubjectKind.GPU, device) for device in devices}
    nodes = {device: Subject(SubjectKind.NODE, device.rpartition("/")[0]) for device in devices}
    row_of = {device: row for row, device in enumerate(devices)}
    index = SeriesIndex(SubjectKind.GPU, tuple(gpus[d] for d in devices))
    detector, inventory = Ecc(), Inventory()
    begin_s = float(points.at_s.min()) - 3600.0
    for device in devices:
        inventory.observe(gpus[device], nodes[device], begin_s)
    counts = np.zeros((len(devices), 2))
    firing: dict[Subject, tuple[bool, float, float]] = {}

    def tick(at_s: float, events: list[KernelEvent]) -> None:
        seen, epoch = np.full((1, 2), at_s), np.zeros(len(devices), dtype=np.int64)
        frame = Frame(at_s, index, (CORRECTED, UNCORRECTED), counts.copy(), seen, epoch)
        for f in detector.update(Tick(at_s, {SubjectKind.GPU: frame}, events=tuple(events)), inventory):
            if f.state is State.FIRING:
                facts = (float(f.facts.get(n, np.nan)) for n in ("error_moments_24h", "next_error_24h"))
                firing[f.subject] = (f.severity is Severity.CRITICAL, *facts)  # type: ignore[assignment]
            else:
                firing.pop(f.subject, None)

    def event(kind: KernelEventKind, device: str, at_s: float, code: int | None, **where: str) -> KernelEvent:
        record = LogRecord(Instant(at_s), "bench", nodes[device], f"{kind} {code}", 0)
        return KernelEvent(kind, record, nodes[device], code=code, gpu=gpus[device], attributes=where)

    tick(begin_s, [event(KernelEventKind.BOOT, device, begin_s, None) for device in devices] if logged else [])
    grouped = dict(tuple(table.groupby(["Time", "device"])))
    said = []
    for point in points.itertuples():
        at_s, device = float(point.at_s), str(point.device)
        log, events = grouped[(point.at_s, point.device)], []
        for line in log.itertuples():
            counts[row_of[device], int(line.EccType != "CE")] += 1
            where = {"row": line.Row, "bank": line.bank, "column": line.Col}
            if logged:
                events.append(event(KernelEventKind.XID, device, at_s, CODES[line.EccType], **where))
        tick(at_s, events)
        said.append(firing.get(gpus[device], (False, 0.0, np.nan)))
    return pd.DataFrame(said, columns=["critical", "moments", "share"])


MEAN, K = np.linspace(0.01, 0.99, 50)[:, None], np.geomspace(0.2, 200.0, 40)[None, :]


def shrunken(counts: Sequence[tuple[int, int]]) -> np.ndarray:
    """[50, 40] weight of each (MEAN, K) of a beta-binomial over devices, from (moments, followed) by device.

    Flat prior on the mean, and on the weight of one device's own moments, 1 / (1 + K).
    """
    log_p = np.log(K) - 2.0 * np.log1p(K) + np.zeros((50, 40))  # log K: the grid is even in log K
    for moments_, followed in counts:
        log_p = log_p + betabinom.logpmf(followed, moments_, MEAN * K, (1.0 - MEAN) * K)
    weight = np.exp(log_p - log_p.max())
    return np.asarray(weight / weight.sum())


def on_a_new_device(weight: np.ndarray) -> tuple[float, float, float]:
    """Mean and 95 % interval of the share on a device that was not seen."""
    x = np.linspace(0.0, 1.0, 1001)
    kept = weight > 1e-6  # the rest moves no third digit
    a, b = (MEAN * K)[kept], ((1.0 - MEAN) * K)[kept]
    below = weight[kept] @ beta.cdf(x, a[:, None], b[:, None])
    low = float(x[max(int(np.searchsorted(below, 0.025)) - 1, 0)])  # outwards to the grid
    high = float(x[min(int(np.searchsorted(below, 0.975)), 1000)])
    return float((weight * MEAN).sum()), low, high


def apart(points: pd.DataFrame) -> pd.DataFrame:
    """Moments that count once, with their stratum; uncorrected ones within five minutes are one."""
    kept = points.sort_values(["device", "at_s"])
    error = kept[kept.ue_now]
    error = error[error.groupby("device").at_s.diff().fillna(np.inf) >= BURST_S]
    plain = kept[~kept.ue_now & (kept.ue_day == 0)]
    return pd.concat([error.assign(stratum=STRATA[1].name), plain.assign(stratum=STRATA[0].name)])


def by_device(moments_: pd.DataFrame) -> list[tuple[int, int]]:
    return [(len(own), int(own.follows.sum())) for _, own in moments_.groupby("device")]


def strata(points: pd.DataFrame) -> dict[str, Any]:
    """The strata of `detectors.ecc` on these devices, one device left out at a time beside; AGAIN is a part
    of its second stratum, of which the same is stated."""
    found: dict[str, Any] = {}
    once = apart(points)
    parts = [(stratum.name, stratum, once.query("stratum == @stratum.name")) for stratum in STRATA]
    parts += [(AGAIN, STRATA[1], once.query("ue_now and ue_day > 1"))]
    for name, stratum, rows in parts:
        counts = by_device(rows)
        out = [(float((shrunken(counts[:n] + counts[n + 1 :]) * MEAN).sum()), c) for n, c in enumerate(counts)]
        wrong = [followed / of * (1 - q) ** 2 + (1 - followed / of) * q**2 for q, (of, followed) in out]
        share = float(rows.follows.mean())
        found[name] = {
            "moments": len(rows),
            "devices": len(counts),
            "followed": int(rows.follows.sum()),
            "share of moments": share,
            "mean, low, high on a device not seen": on_a_new_device(shrunken(counts)),
            "stated": [stratum.share, stratum.low, stratum.high],
            "share of moments within the stated interval": stratum.low <= share <= stratum.high,
            "Brier by device, this device left out": float(np.mean(wrong)),
        }
    return found


def score(points: pd.DataFrame, said: np.ndarray) -> dict[str, Any]:
    right, uer = int((said & points.follows).sum()), int((said & points.follows_uer).sum())
    following, warned, first_words = 0, 0, []
    for _, log in points.assign(said=said).groupby("device"):
        errors_s = log.at_s[log.ue_now].to_numpy()
        for at_s in errors_s[1:]:
            following += 1
            warned += bool((log.said & (log.at_s < at_s) & (log.at_s >= at_s - HORIZON_S)).any())
        words = log[log.said]
        first_words += words[words.at_s.diff().fillna(np.inf) > HORIZON_S].follows.tolist()
    count = int(said.sum())
    return {
        "said": count,
        "devices": int(points.device[said].nunique()),
        "right": right,
        "precision": right / count if count else None,
        "precision_interval": exact_interval(right, count),
        "first_words_right": [int(sum(first_words)), len(first_words)],
        "first_words_interval": exact_interval(int(sum(first_words)), len(first_words)),
        "right_if_only_UER_counts": uer,
        "next_errors": following,
        "warned": warned,
        "next_error_recall": warned / following if following else None,
        "recall_interval": exact_interval(warned, following),
    }


def brier(points: pd.DataFrame, known: pd.DataFrame) -> dict[str, Any]:
    """Mean squared error of P(another within a day) at uncorrected moments: over moments, and over devices."""
    rows = apart(points).query("ue_now")
    base = apart(known).query("ue_now")
    says = {
        "nightshift, stated now": np.full(len(rows), STRATA[1].share),
        "constant: the share of the fit's moments": np.full(len(rows), base.follows.mean()),
        "the earlier table": rows.formerly.map(FORMERLY).to_numpy(float),
    }
    squares = {name: pd.Series((said - rows.follows.to_numpy(float)) ** 2) for name, said in says.items()}
    devices = rows.device.to_numpy()
    return {n: [float(e.mean()), float(e.groupby(devices).mean().mean())] for n, e in squares.items()}


def scored(table: pd.DataFrame, points: pd.DataFrame, known: pd.DataFrame) -> dict[str, Any]:
    found: dict[str, Any] = {
        "devices": int(points.device.nunique()),
        "moments": len(points),
        "strata": strata(points),
        "Brier score, by moments and by devices": brier(points, known),
    }
    formerly = points.formerly.map({**FORMERLY, "corrected": 0.0}).to_numpy(float) >= 0.9
    for name in SHOWN:
        words = ours(table, points, name)
        rules = {
            "nightshift, critical": words.critical.to_numpy(bool),
            "nightshift, more than one within a day": (words.critical & (words.moments >= 2)).to_numpy(bool),
            "imminent, as it was": formerly & points.ue_day.gt(0).to_numpy(),
            "constant: always": np.ones(len(points), dtype=bool),
            "any uncorrected error now": points.ue_now.to_numpy(bool),
            "2 or more UER within a day": (points.UER_day >= 2).to_numpy(bool),
            "10 or more CE within a day": (points.CE_day >= 10).to_numpy(bool),
        }
        found[name] = {rule: score(points, said) for rule, said in rules.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="Raw data set of Calchas (CSV)")
    arguments = parser.parse_args()
    table = load(Path(arguments.data))
    odd = table.device.map({device: is_odd(device) for device in table.device.unique()})
    fit = table[~odd].reset_index(drop=True)
    known = moments(fit)
    write("detect_ecc", {"even devices (fit and choice)": scored(fit, known, known)})


if __name__ == "__main__":
    main()
