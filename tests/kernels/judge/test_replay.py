"""Timed replays: whatever a kernel remembers of earlier calls is of no use to it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nightshift.kernels.judge import cuda
from nightshift.kernels.judge.host import replay
from nightshift.kernels.judge.host.replay import Replayer, timed
from nightshift.kernels.judge.launch_plan import Plan
from nightshift.kernels.judge.probes.blend import PLAIN, SMALL, blended
from nightshift.kernels.judge.race.contestants import Replayed


def _replayer(slots: int) -> tuple[Replayer, list[torch.Tensor], list[torch.Tensor]]:
    inputs = [torch.arange(4000.0).reshape(40, 100) + 10000 * n for n in range(slots)]
    outputs = [torch.zeros(30, 40) for _ in range(slots)]
    made = Replayer.__new__(Replayer)
    made._tensors = [([x, None], [y]) for x, y in zip(inputs, outputs, strict=True)]
    made._values = [[x.clone(), None] for x in inputs]
    made._scratch = [torch.zeros(8, dtype=torch.uint8)]
    made._spoiler = None
    return made, inputs, outputs


class _Queue:
    """A GPU that begins what is queued when it has done what came before, and a host that takes its time."""

    def __init__(self, wait_us: float) -> None:
        self.host_us = self.gpu_us = 0.0
        self.wait_us = wait_us
        self.waits: list[int] = []

    def sleep(self, cycles: int) -> None:
        self.waits.append(cycles)
        self.gpu_us = max(self.gpu_us, self.host_us) + self.wait_us * cycles / self.waits[0]

    def launch(self, gpu_us: float, host_us: float) -> None:
        self.host_us += host_us
        self.gpu_us = max(self.gpu_us, self.host_us) + gpu_us

    def synchronize(self) -> None:
        self.host_us = max(self.host_us, self.gpu_us)

    def event(self) -> SimpleNamespace:
        at = SimpleNamespace(us=0.0)
        return SimpleNamespace(
            at=at,
            record=lambda: setattr(at, "us", max(self.gpu_us, self.host_us)),
            query=lambda: at.us <= self.host_us,
            elapsed_time=lambda end: (end.at.us - at.us) * 1e-3,
        )


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], _Queue]:
    def made(wait_us: float) -> _Queue:
        gpu = _Queue(wait_us)
        monkeypatch.setattr(torch.cuda, "_sleep", gpu.sleep)
        monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
        monkeypatch.setattr(replay, "_event", gpu.event)
        return gpu

    return made


def test_every_timed_call_finds_values_that_no_earlier_call_has_seen() -> None:
    """Outputs and scratch hold NaN before it, inputs a blend of two slots' values that the judge can make again."""
    replayer, inputs, outputs = _replayer(3)
    base = [x.clone() for x in inputs]
    seen: list[torch.Tensor] = []
    for seed, slot in enumerate([0, 1, 0, 0, 2, 1, 0], 1):
        outputs[slot].fill_(7.0)
        replayer._scratch[0].fill_(7)
        replayer._unsettle(slot, seed)
        assert bool(torch.isnan(outputs[slot]).all())
        assert replayer._scratch[0].tolist() == [255] * 8
        again, number = blended((base[slot], 3), (base[(slot + 1) % 3], 3), seed)
        assert torch.equal(again, inputs[slot])
        assert number == 3
        assert not any(torch.equal(inputs[slot], old) for old in seen)
        seen.append(inputs[slot].clone())
    replayer._unsettle(1, PLAIN)
    assert torch.equal(inputs[1], base[1])


def test_no_slot_keeps_lines_in_l2_beyond_its_own_call(
    queue: Callable[[float], _Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a kernel asked L2 to hold of one slot would take room from the next one's call, and from a baseline."""
    queue(1000.0)
    replayer, inputs, outputs = _replayer(3)
    told: list[object] = []
    monkeypatch.setattr(torch.Tensor, "cuda", lambda x: x)
    replayer._lines = None
    replayer._spoiler = SimpleNamespace(give_back=lambda lines: told.append(lines.tolist()))  # type: ignore[assignment]
    replayer._flush = SimpleNamespace(numel=lambda: 8, zero_=lambda: told.append("flush"))  # type: ignore[assignment]
    replayer._slots = [[lambda _, n=n: told.append(n)] for n in range(3)]  # type: ignore[misc]
    seconds, on_time = replayer._time([0, 2], [1, 2], 8, 1)
    assert (len(seconds), on_time) == (2, True)
    tensors = (*(x for pair in zip(inputs, outputs, strict=True) for x in pair), replayer._scratch[0])
    every = [list(x) for x in cuda.lines_of(sorted((x.data_ptr(), x.numel() * x.itemsize) for x in tensors))]
    assert len(every) == 6  # scratch of eight bytes has no line of its own
    assert told == [every, "flush", 0, every, "flush", 2, every]


def test_only_lines_that_lie_wholly_inside_are_given_back() -> None:
    assert cuda.lines_of([(128, 256), (130, 256), (130, 200), (256, 127)]) == [(128, 2), (256, 1)]


@given(st.integers(1, 2**62), st.integers(0, 3))
def test_a_blend_takes_each_element_from_one_of_two_and_about_half_from_each(seed: int, position: int) -> None:
    """So it stays in the domain of both, whatever the type."""
    first, second = torch.zeros(4, 1000, dtype=torch.int8), torch.ones(4, 1000, dtype=torch.int8)
    made = blended((first,) * (position + 1), (second,) * (position + 1), seed)[position]
    assert set(made.unique().tolist()) == {0, 1}
    assert 1700 < int(made.sum()) < 2300


def test_two_inputs_of_a_call_are_blended_by_coins_of_their_own() -> None:
    """Small ones from one draw, a large one from its own; in any order of memory."""
    forms = [(1000,), (1000,), (0,), (2, SMALL), (50, 20)]
    zeros, ones = ([fill(form).t() if form == (50, 20) else fill(form) for form in forms]
                   for fill in (torch.zeros, torch.ones))  # fmt: skip
    left, right, _, large, turned = blended(zeros, ones, 5)
    assert not torch.equal(left, right)
    assert not torch.equal(left, turned.reshape(-1))
    assert turned.is_contiguous()
    assert all(0.45 < float(x.mean()) < 0.55 for x in (left, right, large, turned))


def _seconds(gpu: _Queue, hosts_us: list[float], tries: int = 1) -> list[float]:
    flush = SimpleNamespace(zero_=lambda: gpu.launch(40.0, 5.0))
    return timed([lambda us=us: gpu.launch(10.0, us) for us in hosts_us], flush, (), tries)[0]  # type: ignore[misc, arg-type]


def test_a_call_that_the_gpu_waited_for_is_left_out_of_its_times(queue: Callable[[float], _Queue]) -> None:
    gpu = queue(1000.0)
    found = _seconds(gpu, [20.0] * 10 + [5000.0] + [20.0] * 10)
    assert [round(s * 1e6) for s in found] == [10] * 20


def test_where_the_host_is_too_slow_for_the_wait_it_begins_again_with_a_longer_one(
    queue: Callable[[float], _Queue],
) -> None:
    gpu = queue(1000.0)
    slow = [300.0] * 21
    assert max(_seconds(gpu, slow, 3)) < 11e-6
    assert [wait / gpu.waits[0] for wait in gpu.waits] == [1, 2, 4]


def test_a_callable_that_always_waits_for_the_gpu_keeps_all_its_times(queue: Callable[[float], _Queue]) -> None:
    gpu = queue(1000.0)
    found = _seconds(gpu, [5000.0] * 7, 3)
    assert len(found) == 7
    assert len(gpu.waits) == 3


def test_a_candidate_that_is_timed_again_sees_other_values_behind_a_longer_wait() -> None:
    orders: list[dict[str, object]] = []

    def request(body: dict[str, object], limit_s: float, blob: bytes = b"", stage: str = "") -> SimpleNamespace:
        orders.append(body)
        return SimpleNamespace(body={"seconds": [3e-6 * len(orders)] * 4, "on_time": len(orders) == 4})

    process = SimpleNamespace(request=request, limits=SimpleNamespace(call_s=1.0))
    slots = [SimpleNamespace(blend=0) for _ in range(2)]
    track = SimpleNamespace(process=process, slots=slots, to_json=list, kept=False)
    raced = Replayed(track, Plan((), ()), 8)  # type: ignore[arg-type]
    assert raced.seconds([0, 1, 1, 0]) == pytest.approx(12e-6)
    first, second = (set(order["seeds"]) for order in orders[2:])  # type: ignore[call-overload]
    assert not first & second
    assert [order["wait"] for order in orders[2:]] == [1, 2]
    assert [slot.blend for slot in slots] == [orders[3]["seeds"][3], orders[3]["seeds"][2]]  # type: ignore[index]
