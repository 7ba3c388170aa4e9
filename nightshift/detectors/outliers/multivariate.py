"""What has no name: a GPU whose metrics, each within its range, together look like no workload that it ever ran.

A model learnt offline from this fleet's own healthy telemetry (`nightshift learn`) says how unlike every class of
workload a look is. Three guards keep it quiet: it judges only GPUs of the model that it was trained on, and only
after they have looked usual for a while (a new kind of workload is no fault), and it counts the least unusual of
several looks in a row. Its rate is calibrated on series that the training never saw, and is held by the threshold.
Without a model it is silent, and says so in its settings: there is no model of everyone's fleet.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Floats, Frame, SeriesIndex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, RateBasis, SeriesExhibit, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.outliers.density import Density, find
from nightshift.detectors.series_table import Column, SeriesTable
from nightshift.detectors.snapshot import pack, unpack

VERSION = 1
MODEL_FACT = "model"
_REFRESH_S = 300.0


# A GPU unseen for this long is forgotten.
FORGET_S = 86400.0


class MultivariateSettings(BaseModel):
    """Which model, and how rare an alarm has to be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        default="", description="File that `nightshift learn` wrote, or `h200` (an example); empty: not watched"
    )
    rate_per_1000: float = Field(default=10.0, gt=0, description="False alarms per 1,000 healthy GPU-days")


class Multivariate:
    """ANOMALY on the GPU that looks like no workload.

    >>> from nightshift.detectors.contract.testing import START_S, gpu, inventory, show, tick
    >>> known = inventory()
    >>> known.describe(gpu(0), model="NVIDIA H200")
    >>> works = {"gpu_utilization_percent": 96.0, "gpu_power_w": 655.0, "gpu_temperature_c": 52.0}
    >>> works |= {"gpu_sm_clock_mhz": 1980.0, "gpu_memory_used_bytes": 64e9}
    >>> odd = {**works, "gpu_power_w": 75.0}  # each value is usual, together they are not
    >>> ticks = [tick(START_S + 5 * n, {0: works if n < 40 else odd}) for n in range(100)]
    >>> show(Multivariate(MultivariateSettings(model="h200")), ticks, known)
    265 s: firing anomaly gpu:GPU-0
        Looks like no workload of this kind of GPU; furthest off: gpu_power_w 75, near to 600.6 ± 1.1e+02
    """

    plugin: ClassVar[str] = "multivariate"
    Settings = MultivariateSettings

    def __init__(self, settings: MultivariateSettings | None = None, density: Density | None = None) -> None:
        """`density`, where given, instead of the settings' file. Raises ModelError."""
        self.settings = settings or MultivariateSettings()
        self.density = density or (find(self.settings.model) if self.settings.model else None)
        self._table = self._fresh()
        self._bucket = -1
        self._known: tuple[SeriesIndex | None, float, NDArray[np.bool_]] = (None, -np.inf, np.zeros(0, bool))
        self._episodes = Episodes(self.name)

    @classmethod
    def for_check(cls) -> Multivariate:
        """With the example model, for the contract check and the benchmarks."""
        return cls(MultivariateSettings(model="h200"))

    def _fresh(self) -> SeriesTable:
        d = len(self.density.metrics) if self.density else 1
        persist = self.density.persist if self.density else 1
        columns = {
            "sum": Column(np.float64, 0.0, (d,)),
            "n": Column(np.int32, 0),
            "mean": Column(np.float32, np.nan, (persist, d)),
            "recent": Column(np.float32, np.nan, (persist,)),
            "calm": Column(np.int32, 0),
            "known": Column(np.bool_, 0),
            "looked_s": Column(np.float64, np.nan),
        }
        return SeriesTable(columns, FORGET_S)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.ANOMALY,)

    @property
    def stated(self) -> StatedRate:
        if self.density is None:
            return StatedRate(0.0, RateBasis.STATISTICAL, "no model is configured: silent")
        rate = min(self.settings.rate_per_1000, self.density.tail.rate_per_1000)
        return StatedRate(rate, RateBasis.STATISTICAL, self.density.source, tail=self.density.tail)

    @property
    def threshold(self) -> float:
        return self.density.tail.score(self.settings.rate_per_1000) if self.density else np.inf

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        frame = tick.frames.get(SubjectKind.GPU)
        if self.density is None:
            return []
        if frame is not None and len(frame.index):
            self._take(self.density, frame, tick.at_s, inventory)
        density = self.density
        return self._episodes.report(lambda fault, subject: self._word(density, fault, subject, tick.at_s))

    def _take(self, density: Density, frame: Frame, at_s: float, inventory: Inventory) -> None:
        table = self._table
        bucket = int(at_s // density.look_s)
        rows = table.rows(frame.index, at_s)
        if self._bucket >= 0 and bucket > self._bucket:
            self._look(density, at_s, inventory)
        self._bucket = max(self._bucket, bucket)
        values = np.stack([frame.column(name) for name in density.metrics], axis=1)
        with np.errstate(invalid="ignore"):
            whole = (np.abs(values) < 1e15).all(axis=1) & self._ours(density, frame, at_s, inventory)
        table["sum"][rows] += np.where(whole[:, None], values, 0.0)
        table["n"][rows] += whole

    def _ours(self, density: Density, frame: Frame, at_s: float, inventory: Inventory) -> NDArray[np.bool_]:
        """[n] whether a row is a GPU of the model's kind; asked anew when rows move, and now and then."""
        index, since_s, ours = self._known
        if index is not frame.index or not 0 <= at_s - since_s < _REFRESH_S:
            models = (inventory.fact(subject, MODEL_FACT) or "" for subject in frame.index.subjects)
            ours = np.fromiter((density.sku in model for model in models), bool, len(frame.index))
            self._known = (frame.index, at_s, ours)
        return ours

    def _look(self, density: Density, at_s: float, inventory: Inventory) -> None:
        """Closes a look for every GPU: its score, whether it is usual, and whether an episode begins."""
        table = self._table
        seen = table["n"] > 0
        mean = np.full_like(table["sum"], np.nan)
        mean[seen] = table["sum"][seen] / table["n"][seen][:, None]
        score = np.full(len(table), np.nan)
        score[seen] = density.score(mean[seen])[0]
        table["sum"][:], table["n"][:] = 0.0, 0
        # a look that was missed breaks the row of looks: what came before it is not in a row with what comes after
        table["recent"][:, :-1], table["mean"][:, :-1] = table["recent"][:, 1:], table["mean"][:, 1:]
        table["recent"][:, -1], table["mean"][:, -1] = score, mean
        table["looked_s"][seen] = at_s
        least = table["recent"].min(axis=1)  # NaN where one is missing
        usual = density.tail.threshold
        with np.errstate(invalid="ignore"):
            calm = np.where(
                score < usual, table["calm"] + 1, np.where(score >= usual, table["calm"] - 2, table["calm"])
            )
            table["calm"][:] = np.clip(calm, 0, density.settle)
            table["known"][:] |= table["calm"] >= density.settle
            above = table["known"] & (least >= self.threshold)
        for slot in np.flatnonzero(above).tolist():
            self._fire(density, slot, float(least[slot]), at_s, inventory)

    def _fire(self, density: Density, slot: int, score: float, at_s: float, inventory: Inventory) -> None:
        table = self._table
        subject = table.subjects[slot]
        open_now = self._episodes.get(Fault.ANOMALY, subject)
        since_s = at_s - density.persist * density.look_s
        if open_now is None and self._changed_hands(subject, since_s - density.look_s, at_s, inventory):
            table["known"][slot], table["calm"][slot] = False, 0
            return
        score = max(score, open_now.score) if open_now else score
        mean = table["mean"][slot].astype(float)
        k = int(density.score(mean[-1:])[1][0])
        usual = density.centre + density.scale * density.means[k]
        spread = density.scale * np.sqrt(np.diagonal(_covariance(density.whiten[k])))
        worst = int(np.argmax(np.abs(mean[-1] - usual) / spread))
        metric = density.metrics[worst]
        t_s = tuple(at_s - density.look_s * (density.persist - n) for n in range(density.persist))
        exhibit = SeriesExhibit(
            subject,
            metric,
            "",
            t_s,
            tuple(mean[:, worst].tolist()),
            float(usual[worst]),
            "",
            f"means of {density.look_s:.0f} s; the reference is the nearest class of workload",
        )
        facts: dict[str, float | str] = {"metric": metric, "class": float(k)}
        facts |= {name: float(v) for name, v in zip(density.metrics, mean[-1], strict=True)}
        facts |= {f"usual_{name}": float(v) for name, v in zip(density.metrics, usual, strict=True)}
        alarm = Alarm(
            Fault.ANOMALY,
            subject,
            since_s,
            Severity.WARNING,
            f"Looks like no workload of this kind of GPU; furthest off: {metric} {mean[-1][worst]:.4g}, "
            f"near to {usual[worst]:.4g} ± {spread[worst]:.2g}",
            score=min(score, 1e12),
            threshold=self.threshold,
            p_value=density.p_value(score),
            evidence=(exhibit,),
            facts=facts,
        )
        self._episodes.fire(alarm, at_s)

    @staticmethod
    def _changed_hands(subject: Subject, before_s: float, at_s: float, inventory: Inventory) -> bool:
        """Whether other pods hold the GPU than before: then it runs something else, which is no fault."""
        then = inventory.parents(subject, before_s, SubjectKind.POD)
        return then != inventory.parents(subject, at_s, SubjectKind.POD)

    def _word(self, density: Density, fault: Fault, subject: Subject, at_s: float) -> Finding | None:
        slot = self._table.slot(subject)
        if slot is None or not at_s - float(self._table["looked_s"][slot]) <= 2.5 * density.look_s:
            return self._episodes.no_data(fault, subject, at_s, "Its metrics are missing")
        recent = self._table["recent"][slot]
        if np.isfinite(recent).all() and float(recent.max()) < density.tail.threshold:
            return self._episodes.clear(fault, subject, at_s, "Looks as usual again", float(recent.max()))
        return self._episodes.again(fault, subject, at_s)

    def snapshot(self) -> bytes:
        subjects, arrays = self._table.saved()
        meta = {
            "subjects": subjects,
            "bucket": self._bucket,
            "episodes": self._episodes.saved(),
            "metrics": list(self.density.metrics) if self.density else [],
        }
        return pack(self.name, VERSION, meta, arrays)

    def restore(self, state: bytes) -> None:
        """A state of another model's metrics is refused: the detector learns anew which GPUs look usual."""
        _, meta, arrays = unpack(state, self.name, (VERSION,))
        table, episodes = self._fresh(), Episodes(self.name)
        try:
            if meta["metrics"] != (list(self.density.metrics) if self.density else []):
                raise SnapshotError(f"{self.name}: the snapshot is of a model of {meta['metrics']}")
            table.load(meta["subjects"], arrays)
            episodes.load(meta["episodes"])
            bucket = int(meta["bucket"])
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._table, self._episodes, self._bucket = table, episodes, bucket


def _covariance(whiten: Floats) -> Floats:
    return np.asarray(np.linalg.inv(whiten @ whiten.T), dtype=np.float64)
