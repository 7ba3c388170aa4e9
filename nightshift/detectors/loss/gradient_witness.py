"""What the gradient norm says of a loss that jumped: whether the model itself changed, or only its data.

A loss that jumps and stays up may be a shift of the data that the run will learn, or damage that it will not; the
first dozen losses look alike. The gradient norm tells many of them apart: new data move it little (it rises for a
few steps and comes back), while damaged weights or a broken backward pass change its size at once, by a factor, for
good: saturated layers pass almost no gradient, an exploding one passes far too much. So it is a witness and never
the accuser: it shortens the wait for a loss that stands above its baseline. Alone it says nothing: a larger batch
or a longer context moves it as well, without a rise of the loss.

Norms are judged as logarithms: they are positive, and their scatter is a factor (Gaussian on the logarithm, as in
the adaptive clipping of AutoClip, Seetharaman et al., arXiv 2007.14469).

Where ranks tell their own norms, before gradients are averaged, the ranks are each other's witnesses: one whose
norm leaves its peers' again and again has other data, or computes something else (`LocalGradients`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from nightshift.collectors.frame import Floats, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.promise import stated
from nightshift.detectors.base import Fault, Finding, SeriesExhibit, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.ordered import medians
from nightshift.detectors.series_table import Column, SeriesTable
from nightshift.detectors.snapshot import pack, unpack

STEPS = 8
"""Steps of a watch that must all agree."""
LEAST = 40
"""Norms that a baseline needs."""
COLLAPSED = 0.8
"""Every norm below e^-0.8 = 0.45 of the baseline. A batch four times as large, with gradients that are all noise,
halves the norm (McCandlish et al., arXiv 1812.06162); of the benign labelled runs none fell below 0.65."""
EXPLODED = 1.5
"""The median above e^1.5 = 4.5 times the baseline; on new data 3 times was seen, for five steps."""
HELD = 0.9
"""... and every norm above e^0.9 = 2.5 times."""
SIGMAS = 6.0
MOST_LOG = 700.0
"""e to this is near the largest number that a float holds."""

COLUMNS = {
    "grad": Column(np.float64, np.nan),
    "grad_dev": Column(np.float64, 0.0),
    "grad_n": Column(np.int64, 0),
    "ring_grad": Column(np.float64, np.nan, (STEPS,)),
}

Slots = NDArray[np.int64]


def note(table: SeriesTable, slots: Slots, position: NDArray[Any], norm: Floats) -> None:
    """Keeps the norms of one step of each of these series; NaN where none was printed, or it is no number."""
    with np.errstate(invalid="ignore"):
        log = np.where(np.isfinite(norm) & (norm >= 0), np.log(np.fmax(norm, 1e-30)), np.nan)
    table["ring_grad"][slots, position % STEPS] = log


def learn(table: SeriesTable, slots: Slots, position: NDArray[Any], memory_steps: int) -> None:
    """Baseline and scatter of the logarithm from the newest norms, robustly; steps without a norm teach nothing."""
    log = table["ring_grad"][slots, position % STEPS]
    known = np.isfinite(log)
    slots, log = slots[known], log[known]
    table["grad_n"][slots] += 1
    n = table["grad_n"][slots]
    rate = np.maximum(1.0 / n, 1.0 / memory_steps)
    base = np.where(n == 1, log, table["grad"][slots])
    dev = table["grad_dev"][slots]
    limit = np.where(n > 10, 4.0 * 1.2533 * dev + 0.02, np.inf)
    residual = np.clip(log - base, -limit, limit)
    table["grad"][slots] = base + rate * residual
    table["grad_dev"][slots] = dev + rate * (np.abs(residual) - dev)


def testifies(
    table: SeriesTable, slots: Slots, watched: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """([n] collapsed, [n] exploded) over all of the last STEPS steps of watches this long."""
    shift = table["ring_grad"][slots] - table["grad"][slots][:, None]
    sigma = 1.2533 * table["grad_dev"][slots]
    ready = (watched >= STEPS) & (table["grad_n"][slots] >= LEAST) & np.isfinite(shift).all(axis=1)
    shift = np.where(ready[:, None], shift, 0.0)
    far = SIGMAS * sigma
    collapsed = ready & (shift.max(axis=1) < -np.maximum(COLLAPSED, far))
    exploded = ready & (shift.min(axis=1) > np.maximum(HELD, far)) & (np.median(shift, axis=1) > EXPLODED)
    return collapsed, exploded


def recent(table: SeriesTable, slots: Slots) -> Floats:
    """[n, STEPS] logarithms of the last norms, newest last; NaN where none was printed."""
    places = (table["total"][slots][:, None] + np.arange(-STEPS, 0)[None, :]) % STEPS
    found: Floats = table["ring_grad"][slots[:, None], places]
    return found


def factor(table: SeriesTable, slot: int) -> float:
    """The last STEPS gradient norms over their baseline (geometric mean); NaN where unknown."""
    shift = table["ring_grad"][slot] - table["grad"][slot]
    seen = shift[np.isfinite(shift)]
    return float(np.exp(np.clip(np.mean(seen), -50.0, 50.0))) if len(seen) else float("nan")


# Steps that are compared, and how many of them show what is usual between a rank and its peers.
COMPARED, USUAL = 64, 20
# A norm this many times as large as usual beside its peers', and as many deviations, has left them.
APART, DEVIATIONS = 5.0, 6.0
# One such step is a batch of its own; so many of those compared are a rank of its own ...
OFTEN = 6
# ... where no other rank has more than this share of them: what makes all ranks' norms jump is not one rank's.
OTHERS = 1.0 / 6.0
# What is usual follows by this share of the distance at each look without such a step.
SLOWLY = 0.05
# No step for this long says nothing of gradients.
SILENT_AFTER_S = 900.0
FORGET_S = 86400.0
VERSION = 1


class LocalGradientsSettings(BaseModel):
    """Nothing to set: a factor of five is beyond what batches of one task differ by."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LocalGradients:
    """ANOMALY on the rank whose own gradient norm leaves its peers' again and again; its GPUs are among the facts.

    >>> from nightshift.detectors.contract.testing import START_S, rank, show, steps, tick
    >>> def look(n):  # from step 100 on every fifth norm of rank 3 is fifty times as large
    ...     at_s, far = START_S + n, n >= 100 and n % 5 == 0
    ...     norms = {rank(r): {"local_grad_norm": [100.0 if far and r == 3 else 2.0]} for r in range(8)}
    ...     return tick(at_s, series=[steps(one, n, [at_s], columns) for one, columns in norms.items()])
    >>> show(LocalGradients(), [look(n) for n in range(140)])
    125 s: firing anomaly rank:ml/train#3
        Local gradient norm is 50 times its peers' in 6 of 64 steps
    """

    plugin: ClassVar[str] = "local_gradients"
    Settings = LocalGradientsSettings

    def __init__(self, settings: LocalGradientsSettings | None = None) -> None:
        self.settings = settings or LocalGradientsSettings()
        ring = (COMPARED,)
        columns = {"norm": Column(np.float64, np.nan, ring), "step": Column(np.int64, -1, ring)}
        columns |= {"usual": Column(np.float64, np.nan), "scatter": Column(np.float64, np.nan)}
        columns |= {"last_s": Column(np.float64, -np.inf)}
        self._table = SeriesTable(columns, FORGET_S)
        self._episodes = Episodes(self.name, self.stated.per_1000_series_days / 1000.0)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.ANOMALY,)

    @property
    def stated(self) -> StatedRate:
        return stated(self.plugin, 1.0, "claimed: no public set has norms by rank", 1.0, SubjectKind.RANK)

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        told = [s for s in tick.steps if s.subject.kind is SubjectKind.RANK and "local_grad_norm" in s.columns]
        if told:
            self._table.take([series.subject for series in told], tick.at_s)
        jobs: dict[Subject, None] = {}
        for series in told:
            self._take(series, tick.at_s)
            job = inventory.above(series.subject, SubjectKind.JOB, tick.at_s)
            if job is not None:
                jobs[job] = None
        findings = [found for job in jobs for found in self._judge(job, tick.at_s, inventory)]
        judged = {finding.subject for finding in findings}
        return findings + self._rest(judged, tick.at_s)

    def _take(self, series: StepSeries, at_s: float) -> None:
        table, slot = self._table, self._table.slot(series.subject)
        place = series.step[-COMPARED:] % COMPARED
        norm = series.column("local_grad_norm")[-COMPARED:]
        with np.errstate(invalid="ignore", divide="ignore"):
            table["norm"][slot, place] = np.where((norm > 0) & (norm < 1e30), np.log(norm), np.nan)
        table["step"][slot, place] = series.step[-COMPARED:]
        latest = series.t_s[np.isfinite(series.t_s)]
        if len(latest):
            table["last_s"][slot] = min(max(float(table["last_s"][slot]), float(latest.max())), at_s)

    def _judge(self, job: Subject, at_s: float, inventory: Inventory) -> list[Finding]:
        table = self._table
        ranks = inventory.children(job, at_s, SubjectKind.RANK)
        known = [(rank, slot) for rank in ranks if (slot := table.slot(rank)) is not None]
        slots = np.array(
            [slot for _, slot in known if table["last_s"][slot] >= at_s - SILENT_AFTER_S], dtype=np.int64
        )
        if len(slots) < 2:
            return []
        step = table["step"][slots]
        norm = np.where(step == step.max(axis=0), table["norm"][slots], np.nan)
        beside = norm - _others(norm)  # the logarithm of how many times as large as its peers'
        enough = np.isfinite(beside).sum(axis=1) >= USUAL
        fresh = enough & np.isnan(table["usual"][slots])
        if fresh.any():
            table["usual"][slots[fresh]] = medians(beside[fresh])
        away = beside - table["usual"][slots][:, None]
        if fresh.any():  # once, while nothing is open: a rank that has left its peers widens its own scatter
            table["scatter"][slots[fresh]] = 1.4826 * medians(np.abs(away[fresh]))
        limit = np.maximum(np.log(APART), DEVIATIONS * table["scatter"][slots])[:, None]
        with np.errstate(invalid="ignore"):
            far = away > limit
        counts = far.sum(axis=1)
        findings: list[Finding] = []
        for row, count in enumerate(counts.tolist()):
            rank = table.subjects[int(slots[row])]
            others = int(np.delete(counts, row).max())
            found: Finding | None = None
            if count >= OFTEN and others <= OTHERS * count:
                told = np.isfinite(norm[row])
                order = np.argsort(step[row][told])
                compared = np.stack([step[row], norm[row], away[row], far[row]])[:, told][:, order]
                alarm = self._alarm(rank, compared, len(slots) - 1, at_s, inventory)
                found = self._episodes.fire(alarm, at_s)
            elif count == 0 and enough[row]:
                # shards and stages drift apart over a run, by far less than a fault and over many steps
                table["usual"][slots[row]] += SLOWLY * float(medians(away[[row]])[0])
                found = self._episodes.clear(Fault.ANOMALY, rank, at_s, "Its gradient norm is as its peers' again")
            findings += [found] if found is not None else []
        return findings

    @staticmethod
    def _alarm(rank: Subject, compared: Floats, peers: int, at_s: float, inventory: Inventory) -> Alarm:
        """compared [4, steps]: steps in their order, logarithms of its norms and of how many times as large as
        usual beside its peers' they are, and which have left them."""
        step, norm, away, far = compared
        left = far > 0
        times = float(np.exp(np.clip(np.median(away[left]), -MOST_LOG, MOST_LOG)))
        exhibit = SeriesExhibit(
            rank,
            "local_grad_norm",
            "",
            tuple(step.tolist()),
            tuple(np.exp(np.clip(norm, -MOST_LOG, MOST_LOG)).tolist()),
            float(np.exp(np.clip(np.median(norm - away), -MOST_LOG, MOST_LOG))),
            "",
            "by step number; the reference is what its peers have, and what is usual beside them",
        )
        return Alarm(
            Fault.ANOMALY,
            rank,
            at_s,
            Severity.WARNING,
            f"Local gradient norm is {times:.2g} times its peers' in {int(left.sum())} of {len(step)} steps",
            score=float(left.sum()) / OFTEN,
            threshold=1.0,
            evidence=(exhibit,),
            facts={
                "times_its_peers": times,
                "steps_apart": float(left.sum()),
                "first_step": float(step[left].min()),
                "peers": float(peers),
                "gpus": " ".join(gpu.name for gpu in inventory.gpus(rank, at_s)[:8]),
            },
        )

    def _rest(self, judged: set[Subject], at_s: float) -> list[Finding]:
        """What is open and was not judged: it goes on while its rank makes steps."""

        def word(fault: Fault, rank: Subject) -> Finding | None:
            if rank in judged:
                return None
            slot = self._table.slot(rank)
            if slot is None or at_s - float(self._table["last_s"][slot]) > SILENT_AFTER_S:
                return self._episodes.no_data(fault, rank, at_s, "No new step of this rank")
            return self._episodes.again(fault, rank, at_s)

        return self._episodes.report(word)

    def snapshot(self) -> bytes:
        subjects, arrays = self._table.saved()
        return pack(self.name, VERSION, {"subjects": subjects, "episodes": self._episodes.saved()}, arrays)

    def restore(self, state: bytes) -> None:
        _, meta, arrays = unpack(state, self.name, (VERSION,))
        fresh = LocalGradients(self.settings)
        try:
            fresh._table.load(meta["subjects"], arrays)
            fresh._episodes.load(meta["episodes"])
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._table, self._episodes = fresh._table, fresh._episodes


def _others(norm: Floats) -> Floats:
    """[ranks, steps] the median of the other ranks' norms in each step; of many ranks their own changes nothing."""
    if len(norm) > 16:
        known = np.isfinite(norm).any(axis=0)
        whole = np.full(norm.shape[1], np.nan)
        whole[known] = medians(norm[:, known].T)
        return np.broadcast_to(whole, norm.shape)
    found = np.full(norm.shape, np.nan)
    for row in range(len(norm)):
        rest = np.delete(norm, row, axis=0)
        known = np.isfinite(rest).any(axis=0)
        found[row, known] = medians(rest[:, known].T)
    return found
