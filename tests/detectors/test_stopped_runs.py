"""Runs that stop, wait or pause: hangs and data stalls from steps, and from what the GPUs do meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from nightshift.collectors.frame import StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Detector, Fault, State
from nightshift.detectors.contract.testing import JOB, START_S, changes, gpu, inventory, tick
from nightshift.detectors.progress.hang import Hang
from nightshift.detectors.progress.stall import DataStall

TICK_S, RANKS = 5.0, 4
Row = dict[str, float]
Step = tuple[float, float]
"""(time of the step, of which waiting for data) in s"""
WORKS: Row = {"gpu_utilization_percent": 97.0, "gpu_power_w": 600.0, "gpu_memory_used_bytes": 6e10}
IDLES: Row = {**WORKS, "gpu_utilization_percent": 0.0, "gpu_power_w": 110.0}


def rank(number: int) -> Subject:
    return Subject(SubjectKind.RANK, f"ml/train#{number}")


def known() -> Inventory:
    found = inventory(RANKS)
    for number in range(RANKS):
        found.observe(gpu(number), rank(number), START_S - 60)
        found.observe(rank(number), JOB, START_S - 60)
    return found


def stream(
    steps: Callable[[int], list[Step]], row: Callable[[float, int], Row], ticks: int, printed: int = RANKS
) -> Iterator[Tick]:
    """Every rank's own steps, its GPU's row by time (s) and number; `printed` ranks log."""
    times = {r: START_S + np.cumsum([took for took, _ in steps(r)]) for r in range(printed)}
    waits = {r: np.array([wait for _, wait in steps(r)]) for r in range(printed)}
    for n in range(ticks):
        at_s = START_S + TICK_S * n
        series = []
        for r in range(printed):
            new = np.flatnonzero((times[r] > at_s - TICK_S) & (times[r] <= at_s))
            if len(new):
                columns = {"loss": np.full(len(new), 2.0), "data_s": waits[r][new]}
                series.append(StepSeries(rank(r), "run", new, times[r][new], columns, "log"))
        rows = {g: row(TICK_S * n, g) for g in range(RANKS)}
        yield replace(tick(at_s, rows), steps=tuple(series))


def words(detector: Detector, ticks: Iterator[Tick]) -> dict[str, list[State]]:
    found: dict[str, list[State]] = {}
    for finding in changes(detector, list(ticks), known()):
        found.setdefault(finding.subject.name, []).append(finding.state)
    return found


def test_a_run_that_pauses_for_its_checkpoints_hangs_once_at_most() -> None:
    """Four minutes on a slow disk, every five minutes: the first pause is told, the next ones are its habit; a
    silence of another kind is told again."""
    usual, pause = [(0.5, 0.0)] * 600, [(240.0, 0.0)]
    steps = (usual + pause) * 4 + usual
    ends = np.cumsum([took for took, _ in steps])
    starts = ends - [took for took, _ in steps]
    pauses = [(a, b) for a, b in zip(starts, ends, strict=True) if b - a > 100.0]

    def row(t_s: float, _: int) -> Row:
        return IDLES if t_s > ends[-1] or any(a < t_s <= b for a, b in pauses) else WORKS

    found = changes(Hang(), list(stream(lambda r: steps, row, int(ends[-1] / TICK_S) + 120)), known())
    mine = [f for f in found if f.subject == rank(0)]
    assert [f.state for f in mine] == [State.FIRING, State.CLEAR, State.FIRING]
    assert mine[-1].at.t_s - START_S == pytest.approx(ends[-1] + 1.5 * 240.0, abs=2 * TICK_S)


@pytest.mark.parametrize(
    ("waiting", "hangs"),
    [
        ({**WORKS, "gpu_power_w": 190.0}, False),
        ({**WORKS, "gpu_power_w": 190.0, "gpu_dram_active_ratio": 0.3, "gpu_tensor_active_ratio": 0.2}, False),
        ({**WORKS, "gpu_power_w": 190.0, "gpu_dram_active_ratio": 0.001}, True),
        ({**WORKS, "gpu_power_w": 190.0, "gpu_dram_active_ratio": 0.001, "gpu_tensor_active_ratio": 0.3}, False),
        ({**WORKS, "gpu_power_w": 120.0}, True),
    ],
    ids=["little less power", "at work", "spins: no memory traffic", "tensor cores at work", "much less power"],
)
def test_a_light_job_that_spins_hangs_where_its_memory_stands_still(waiting: Row, hangs: bool) -> None:
    """It usually draws 220 W, so that spinning in a collective saves little power."""
    steps = [(0.5, 0.0)] * 1200
    ticks = stream(lambda r: steps, lambda t, g: waiting if t > 600.0 else {**WORKS, "gpu_power_w": 220.0}, 240)
    assert bool(words(Hang(), ticks)) == hangs


def test_where_one_gpu_of_a_job_idles_the_others_need_not_draw_much_less() -> None:
    """Only rank 0 prints, so all GPUs are its own to watch: three spin at 86 % of their draw for the fourth."""
    steps, whole = [(0.5, 0.0)] * 1200, known()
    for number in range(RANKS):
        whole.observe(gpu(number), rank(0), START_S - 60)

    def row(t_s: float, g: int) -> Row:
        return (
            {**WORKS, "gpu_power_w": 220.0} if t_s <= 600 else IDLES if g == 2 else {**WORKS, "gpu_power_w": 190.0}
        )

    found = changes(Hang(), list(stream(lambda r: steps, row, 240, printed=1)), whole)
    assert [(f.fault, f.subject, f.facts["idle_gpus"]) for f in found] == [(Fault.HANG, rank(0), "GPU-2")]


def slower(wait_s: float, step_s: float) -> list[Step]:
    """Ten minutes of half-second steps, then twenty of others, then ten as before."""
    usual = [(0.5, 0.02)] * 1200
    return usual + [(step_s, wait_s)] * int(1200 / step_s) + usual


def computes() -> list[Step]:
    """The same steps, of a rank that loads nothing."""
    return [(took, 0.0) for took, _ in slower(1.02, 1.5)]


def draws(watts: float) -> Callable[[float, int], Row]:
    return lambda t_s, g: {**WORKS, "gpu_power_w": watts if 600 < t_s <= 1800 else 600.0}


def test_a_loader_that_is_too_slow_for_every_step_is_a_stall_without_gaps() -> None:
    """Steps take three times as long, two thirds of it waiting: told within six minutes, cleared when over."""
    found = changes(DataStall(), list(stream(lambda r: slower(1.02, 1.5), draws(300.0), 480)), known())
    first = [f for f in found if f.subject == rank(0)]
    assert [f.state for f in first] == [State.FIRING, State.CLEAR]
    assert 600 - 61 <= first[0].since.t_s - START_S <= 600 + 61
    assert first[0].at.t_s - START_S <= 600 + 400
    assert first[0].facts["lost_share"] == pytest.approx(2 / 3, abs=0.05)
    assert {f.subject for f in found} == {rank(r) for r in range(RANKS)}


def test_where_one_stage_alone_loads_its_ranks_are_told() -> None:
    """Ranks 2 and 3 get activations and wait for no data, before as after."""
    found = words(DataStall(), stream(lambda r: slower(1.02, 1.5) if r < 2 else computes(), draws(300.0), 400))
    assert set(found) == {rank(0).name, rank(1).name}


@pytest.mark.parametrize(
    ("steps", "watts"),
    [
        (lambda r: slower(0.02, 1.5), 600.0),
        (lambda r: slower(0.05, 0.53), 590.0),
        (lambda r: slower(1.02, 1.5), 600.0),
        (lambda r: slower(1.02, 1.5) if r == 1 else slower(0.02, 1.5), 300.0),
        (lambda r: [(1.5, 1.02)] * 1600, 300.0),
    ],
    ids=["longer sequences", "a little", "its GPUs work on", "one rank's own loader", "built so"],
)
def test_slower_steps_that_are_no_stall(steps: Callable[[int], list[Step]], watts: float) -> None:
    """What grew is not the wait, or too little, or the GPU has not less to do; one rank alone is a straggler."""
    assert words(DataStall(), stream(steps, draws(watts), 480)) == {}


def test_a_starved_run_survives_a_restart_of_the_daemon() -> None:
    """The usual pace is kept in the snapshot: the episode goes on and clears as it would have."""
    ticks = list(stream(lambda r: slower(1.02, 1.5), draws(300.0), 480))
    first, second = DataStall(), DataStall()
    early = changes(first, ticks[:250], known())
    second.restore(first.snapshot())
    late = changes(second, ticks[250:], known())
    assert {f.state for f in early} == {State.FIRING}
    assert [f.state for f in late if f.subject == rank(0)] == [State.FIRING, State.CLEAR]


def holds(gib: float, row: Row) -> Row:
    return {**row, "gpu_memory_used_bytes": gib * 2**30}


@pytest.mark.parametrize("detector", [Hang, DataStall])
def test_what_a_hang_was_is_told_once(detector: type[Hang] | type[DataStall]) -> None:
    """Five minutes of silence that end, then checkpoints of six seconds: the hang is told, and nothing after."""
    hang_s, save_s = 300.0, 6.0
    steps = [(0.5, 0.0)] * 600 + [(hang_s, 0.0)] + ([(0.5, 0.0)] * 120 + [(save_s, 0.0)]) * 8 + [(0.5, 0.0)] * 200
    ends = np.cumsum([took for took, _ in steps])
    spans = [(e - took, e) for e, (took, _) in zip(ends, steps, strict=True) if took > 1.0]

    def row(t_s: float, _: int) -> Row:
        return IDLES if any(a < t_s <= b for a, b in spans) else WORKS

    found = words(detector(), stream(lambda r: steps, row, int(ends[-1] / TICK_S)))
    told = {rank(r).name: [State.FIRING, State.CLEAR] for r in range(RANKS)}
    assert found == (told if detector is Hang else {})


@pytest.mark.parametrize("earlier_gib", [0.0, 5.0, 13.0, 40.0, 80.0, 140.0])
@pytest.mark.parametrize("ends", [False, True], ids=["hangs", "ends"])
def test_what_an_earlier_job_held_says_nothing_of_this_one(earlier_gib: float, ends: bool) -> None:
    """A job that holds 6 GiB after one that held more, or less: its hang is found within 190 s, its end is none."""
    steps, begins_s = [(420.0, 0.0)] + [(0.5, 0.0)] * 600, 420.0
    last_s = begins_s + 300.0

    def row(t_s: float, _: int) -> Row:
        if t_s < 300.0:
            return holds(earlier_gib, WORKS)
        if t_s < begins_s:
            return holds(0.5, IDLES)
        if t_s <= last_s:
            return holds(6.0, WORKS)
        return holds(0.5 if ends else 6.0, IDLES)

    found = changes(Hang(), list(stream(lambda r: steps, row, int((last_s + 400.0) / TICK_S))), known())
    assert len(found) == (0 if ends else RANKS)
    assert all(f.at.t_s - START_S - last_s <= 190.0 for f in found)


def test_a_silence_whose_beginning_nobody_watched_is_no_alarm() -> None:
    """GPUs are read from after the last step on: what they held while it trained, nobody knows."""
    steps = [(0.5, 0.0)] * 600
    ticks = stream(lambda r: steps, lambda t, g: IDLES if t > 330.0 else {}, 200)
    assert words(Hang(), ticks) == {}


@pytest.mark.parametrize("off_s", [-3600.0, 3600.0])
def test_a_run_whose_clock_is_an_hour_off_is_watched_by_ours(off_s: float) -> None:
    """A pause of forty seconds with idle GPUs is none of a hang's; a silence of three minutes is."""
    steps = [(0.5, 0.0)] * 400 + [(40.0, 0.0)] + [(0.5, 0.0)] * 400
    end_s = float(sum(took for took, _ in steps))

    def row(t_s: float, _: int) -> Row:
        return IDLES if 200.0 < t_s <= 240.0 or t_s > end_s else WORKS

    ticks = [
        replace(t, steps=tuple(replace(s, t_s=s.t_s + off_s) for s in t.steps))
        for t in stream(lambda r: steps, row, int((end_s + 400.0) / TICK_S))
    ]
    found = changes(Hang(), ticks, known())
    assert {f.subject for f in found} == {rank(r) for r in range(RANKS)}
    assert all(175.0 <= f.at.t_s - START_S - end_s <= 195.0 for f in found)


def test_a_pod_that_came_after_the_last_step_holds_the_memory_itself() -> None:
    """Pods get new names at a restart: the old name's run made its last step before the new pod came."""
    steps, whole = [(0.5, 0.0)] * 600, known()
    ticks = list(stream(lambda r: steps, lambda t, g: IDLES if t > 300.0 else WORKS, 120))
    for number in range(RANKS):
        whole.observe(gpu(number), Subject(SubjectKind.POD, f"ml/train-{number}-again"), START_S + 320.0)
    assert changes(Hang(), ticks, whole) == []


def test_a_sensor_that_always_says_idle_proves_no_hang() -> None:
    """An evaluation of ten minutes at the usual draw, on GPUs whose utilisation reads 0 since the beginning."""
    steps, stuck = [(0.5, 0.0)] * 600, {**WORKS, "gpu_utilization_percent": 0.0}
    assert words(Hang(), stream(lambda r: steps, lambda t, g: stuck, 180)) == {}
