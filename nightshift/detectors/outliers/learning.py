"""Learns what GPUs usually look like from healthy telemetry: the training behind `detectors.outliers.multivariate`.

Half of the series (whole series, by a hash of their name) are fitted by a mixture of normals with scikit-learn; the
other half calibrates: its scores rank new ones, and the episodes that the detector would have called on it give the
tail of the false-alarm rate. Needs scikit-learn; what it writes does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Floats
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.tail import Tail, fit
from nightshift.detectors.outliers.density import KEPT_SCORES, Density

METRICS = ("gpu_utilization_percent", "gpu_power_w", "gpu_temperature_c", "gpu_sm_clock_mhz")
DAY_S = 86400.0
FEW = 10
CAUTION = 0.25
SURE, RESAMPLED = 0.8, 400
"""Fewer episodes than FEW have no tail of their own: single looks beyond "usual" give its scale, and its shape is
at least CAUTION, which asks for a far stronger alarm than an exponential would."""


class LearningError(Permanent):
    """There is not enough to learn from, or nothing to learn with."""


@dataclass(frozen=True)
class LearningPlan:
    """How to learn: classes at most, and the detector's constants that the calibration is made for."""

    sku: str
    metrics: tuple[str, ...] = METRICS
    look_s: float = 15.0
    persist: int = 4
    settle: int = 40
    classes: int = 8
    usual: float = 0.98
    """Quantile of the calibration's scores below which a look counts as usual."""
    seed: int = 0


def looks(ticks: Iterable[Tick], plan: LearningPlan) -> dict[Subject, Floats]:
    """Means per look of every GPU, in order: [n_looks, d], NaN where a look was missed."""
    sums: dict[Subject, Floats] = {}
    counts: dict[Subject, int] = {}
    found: dict[Subject, dict[int, Floats]] = {}
    bucket = None
    for tick in ticks:
        frame, now = tick.frames.get(SubjectKind.GPU), int(tick.at_s // plan.look_s)
        if bucket is not None and now != bucket:
            for gpu, total in sums.items():
                found.setdefault(gpu, {})[bucket] = total / counts[gpu]
            sums, counts = {}, {}
        bucket = now
        if frame is None:
            continue
        values = np.stack([frame.column(name) for name in plan.metrics], axis=1)
        whole = np.isfinite(values).all(axis=1)
        for row in np.flatnonzero(whole).tolist():
            gpu = frame.index.subjects[row]
            sums[gpu] = sums.get(gpu, np.zeros(len(plan.metrics))) + values[row]
            counts[gpu] = counts.get(gpu, 0) + 1
    series = {}
    for gpu, by_bucket in found.items():
        first, last = min(by_bucket), max(by_bucket)
        rows = np.full((last - first + 1, len(plan.metrics)), np.nan)
        for number, mean in by_bucket.items():
            rows[number - first] = mean
        series[gpu] = rows
    return series


def is_for_training(subject: Subject) -> bool:
    """Half of all series, the same in every run."""
    return hashlib.sha256(str(subject).encode()).digest()[0] % 2 == 0


def learn(series: Mapping[Subject, Floats], plan: LearningPlan, source: str) -> Density:
    """A calibrated model from looks by GPU. Raises LearningError."""
    train = [rows for gpu, rows in series.items() if is_for_training(gpu)]
    calibrate = [rows for gpu, rows in series.items() if not is_for_training(gpu)]
    return learn_from(train, calibrate, plan, source)


def learn_from(train: list[Floats], calibrate: list[Floats], plan: LearningPlan, source: str) -> Density:
    """The same from a split of one's own: series [n_looks, d] to fit, and others to calibrate on."""
    try:
        from sklearn.mixture import GaussianMixture
    except ImportError as error:
        raise LearningError("learning needs scikit-learn: pip install scikit-learn") from error
    fitted, held = _whole(train), _whole(calibrate)
    least = 20 * len(plan.metrics)
    if len(fitted) < least or len(held) < least:
        raise LearningError(
            f"{len(fitted)} looks to train on and {len(held)} to calibrate on; {least} each are needed, "
            f"with {', '.join(plan.metrics)}"
        )
    centre, scale = fitted.mean(axis=0), np.maximum(fitted.std(axis=0), 1e-3 * np.abs(fitted).max(axis=0) + 1e-9)
    z = (fitted - centre) / scale
    most = max(1, min(plan.classes, len(z) // least))
    # a floor under the spread of a class: a few quiet minutes are not the width of the world
    mixtures = [
        GaussianMixture(k, reg_covar=0.01, random_state=plan.seed, n_init=2).fit(z) for k in range(1, most + 1)
    ]
    best = min(mixtures, key=lambda m: float(m.bic(z)))
    model = Density(
        sku=plan.sku,
        metrics=plan.metrics,
        look_s=plan.look_s,
        persist=plan.persist,
        settle=plan.settle,
        centre=centre,
        scale=scale,
        weights=np.asarray(best.weights_, dtype=float),
        means=np.asarray(best.means_, dtype=float),
        whiten=np.asarray(best.precisions_cholesky_, dtype=float),
        highest=np.zeros(1),
        scored=0,
        tail=Tail(0.0, 1.0, 1.0, 0.0, 0, 1.0, ""),
        source=source,
    )
    return calibrated(model, calibrate, plan)


def calibrated(model: Density, calibrate: list[Floats], plan: LearningPlan) -> Density:
    """The model with p-values and the tail of false episodes, both from series that it was not fitted on."""
    scores = [_scores(model, rows) for rows in calibrate]
    flat = np.concatenate(scores)
    flat = np.sort(flat[np.isfinite(flat)])
    usual = float(np.quantile(flat, plan.usual))
    by_series = [episodes(s, usual, plan.persist, plan.settle) for s in scores]
    peaks = [peak for found in by_series for peak in found]
    days_of = np.array([np.isfinite(s).sum() for s in scores]) * plan.look_s / DAY_S
    days = float(days_of.sum())
    tail = fit(np.array(peaks), days, usual, f"{model.source}: {len(calibrate)} held-out series, GPD")
    rate = _upper_rate(np.array([len(found) for found in by_series]), days_of, plan.seed)
    tail = replace(tail, rate_per_1000=max(tail.rate_per_1000, rate))
    # a normal's own negative log density has an exponential tail of scale 1: healthy telemetry has no lighter one
    tail = replace(tail, scale=max(tail.scale, 1.0))
    if tail.episodes < FEW:
        beyond = fit(flat, days, usual, tail.source)
        tail = replace(tail, scale=max(tail.scale, beyond.scale), shape=max(beyond.shape, CAUTION))
    return replace(model, highest=flat[-KEPT_SCORES:], scored=len(flat), tail=tail)


def _upper_rate(count: Floats, days: Floats, seed: int) -> float:
    """Episodes per 1,000 series-days that other series of this fleet will hardly exceed: the upper SURE quantile
    over resampled series, because episodes of one series come together and the next series is another one."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(count), (RESAMPLED, len(count)))
    rates = (count[drawn].sum(axis=1) + 1) / np.maximum(days[drawn].sum(axis=1), 1e-9)
    return 1000.0 * float(np.quantile(rates, SURE))


def episodes(scores: Floats, usual: float, persist: int, settle: int) -> list[float]:
    """Peak scores of the episodes that the detector, with `usual` as its threshold, calls on one series."""
    calm, known, peak = 0, False, None
    found: list[float] = []
    for n in range(len(scores)):
        score = scores[n]
        if np.isfinite(score):
            calm = min(calm + 1, settle) if score < usual else max(calm - 2, 0)
        known = known or calm >= settle
        recent = scores[max(n - persist + 1, 0) : n + 1]
        whole = len(recent) == persist and bool(np.isfinite(recent).all())
        if whole and known and recent.min() >= usual:
            peak = max(peak if peak is not None else -np.inf, float(recent.min()))
        elif whole and peak is not None and recent.max() < usual:
            found.append(peak)
            peak = None
    return found if peak is None else [*found, peak]


def _scores(model: Density, rows: Floats) -> Floats:
    scores = np.full(len(rows), np.nan)
    whole = np.isfinite(rows).all(axis=1)
    if whole.any():
        scores[whole] = model.score(rows[whole])[0]
    return scores


def _whole(series: list[Floats]) -> Floats:
    if not series:
        return np.zeros((0, 1))
    rows = np.concatenate(series)
    found: Floats = rows[np.isfinite(rows).all(axis=1)]
    return found
