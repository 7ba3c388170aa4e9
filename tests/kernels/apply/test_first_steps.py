"""The canary of a job's first steps: what it keeps, what it gives back, and what it leaves as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.kernels.apply.canary_world import NAMES, World, worlds
from tests.kernels.apply.torch_kernels import SAME, Job, N, held, quietly

RANKS = Path(__file__).parent / "first_steps_program.py"
PLACES = (*NAMES, "softmax", "swiglu", "layernorm", "geglu")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Any, World]]]:
    build, made = worlds(tmp_path, monkeypatch), list[Any]()

    def begun(*names: Any, **figures: Any) -> tuple[Any, World]:
        runtime, one = build(*names, **figures)
        monkeypatch.setattr(runtime, "host_clock", one.clock)
        one.state.log = one.told.append
        one.report = runtime.Report()
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.0)
        runtime.measure_first_steps(optimizer, one.report)
        made.append(one.state.first_steps)
        return runtime, one

    yield begun
    for first in reversed(made):
        first.end("the test ended")


def ran(runtime: Any, one: World, steps: int = 60, between: Callable[[int], None] = lambda number: None) -> None:
    for number in range(steps):
        one.step()
        between(number)
        runtime._after_step()


@pytest.mark.parametrize(
    ("gains", "kept"),
    [
        ({"rmsnorm": 0.1, "cross_entropy": 0.05, "gelu": 0.01}, set(NAMES)),
        ({"rmsnorm": 0.1, "cross_entropy": -0.05}, {"rmsnorm", "rmsnorm_backward", "gelu"}),
        ({"rmsnorm": 0.05, "gelu": -0.05}, {"rmsnorm", "rmsnorm_backward", "cross_entropy"}),
        ({"rmsnorm": -0.1, "cross_entropy": -0.05, "gelu": -0.01}, set()),
        ({"rmsnorm": 0.0005, "cross_entropy": 0.0}, set()),
    ],
)
def test_what_does_not_pay_goes_back_to_torch(world: Any, gains: dict[str, float], kept: set[str]) -> None:
    runtime, one = world(gains=gains)
    ran(runtime, one)
    assert set(one.state.kernels) == kept
    assert not one.state.first_steps.running
    assert one.state.first_steps.steps <= runtime.LIMIT
    assert f"canary keeps {', '.join(n for n in NAMES if n in kept) or 'none'} of" in one.told[-1]
    given_back = {what.split()[0] for what, why in one.report.skipped if why == "the canary gave it back to torch"}
    assert given_back == set(NAMES) - kept
    told = {place: gain for place, gain in gains.items() if abs(gain) > 0.005}
    assert one.report.gains == pytest.approx(
        {place: gain / (1.0 - sum(gains.values())) for place, gain in told.items()}, abs=1e-6
    )
    if kept:
        said = one.state.gain
        with_s = 1.0 - sum(gains.get(name, 0.0) for name in kept)
        assert said["step_us"] == pytest.approx(with_s * 1e6, abs=2)
        assert said["gain_us"] == pytest.approx((1.0 - with_s) * 1e6, abs=2)
        assert 0 < said["gain_low_us"] <= said["gain_us"]
    else:
        assert one.state.gain == {}


@pytest.mark.parametrize("names", [(), ("gelu",)])
@pytest.mark.parametrize("gain", [0.1, -0.05])
def test_what_passes_change_without_a_kernel_is_on_trial_as_well(
    world: Any, names: tuple[str, ...], gain: float
) -> None:
    runtime, one = world(names, gains={"gelu": 0.03, "passes": gain})
    ran(runtime, one)
    assert one.state.passing == (gain > 0)
    assert set(one.state.kernels) == set(names)
    assert one.state.first_steps.steps <= runtime.LIMIT
    assert (("passes", "the canary gave it back to torch") in one.report.skipped) == (gain < 0)
    assert one.told[-1].count("passes") >= 1
    one.state.first_steps.end("the test ended")
    assert one.state.passing


@pytest.mark.parametrize("names", [(), ("gelu", "rmsnorm")])
def test_passes_stay_where_a_step_without_them_may_not_fit(
    world: Any, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, one = world(names, gains={"gelu": 0.03, "rmsnorm": -0.1, "passes": -0.05})
    monkeypatch.setattr(runtime, "memory_share", lambda device: 0.9)
    ran(runtime, one)
    assert one.state.passing
    assert all("passes" in held for held in one.held)
    assert set(one.state.kernels) == {*names} - {"rmsnorm"}
    assert "memory is nearly full" in one.told[-1]


def test_noise_alone_seldom_keeps_anything_and_a_clear_gain_stays(world: Any) -> None:
    """Undecided is torch's. A twentieth by right, and what 200 draws allow above it."""
    kept = Counter[float]()
    for gain in (0.0, 0.05):
        for seed in range(200):
            runtime, one = world(("rmsnorm",), gains={"rmsnorm": gain}, noise=0.01, seed=seed)
            ran(runtime, one)
            kept[gain] += bool(one.state.kernels)
    assert kept[0.0] <= 0.08 * 200
    assert kept[0.05] >= 0.9 * 200


@pytest.mark.parametrize("drift", [0.0005, -0.0005])
def test_a_machine_that_warms_up_or_cools_down_neither_hides_nor_makes_a_gain(world: Any, drift: float) -> None:
    runtime, one = world(("gelu",), gains={"gelu": 0.03}, drift=drift)
    ran(runtime, one)
    assert "gelu" in one.state.kernels
    runtime, one = world(("gelu",), gains={}, drift=drift)
    ran(runtime, one)
    assert not one.state.kernels


def test_an_evaluation_or_a_checkpoint_between_steps_counts_for_no_set(world: Any) -> None:
    runtime, one = world(gains={"rmsnorm": 0.1, "gelu": -0.1})

    def evaluated(number: int) -> None:
        one.now += 10.0 * (number % 9 == 4)

    ran(runtime, one, between=evaluated)
    assert "rmsnorm" in one.state.kernels
    assert one.state.gain["gain_us"] < 0.13e6


def test_more_places_than_steps_are_measured_together_and_named_so(world: Any) -> None:
    runtime, one = world(PLACES, gains=dict.fromkeys(PLACES, 0.02))
    ran(runtime, one)
    assert set(one.state.kernels) == set(PLACES)
    assert len(one.report.gains) <= 6
    together = [place for place in one.report.gains if " + " in place]
    assert together
    assert one.state.first_steps.steps <= runtime.LIMIT
    assert f"{together[0]} +" in one.told[-1]


def test_kernels_that_no_step_called_are_named_and_not_kept(world: Any) -> None:
    runtime, one = world(gains={"rmsnorm": 0.1, "cross_entropy": 0.1}, idle=("gelu", "rmsnorm_backward"))
    ran(runtime, one)
    assert any("no step called gelu" in line for line in one.told)
    assert set(one.state.kernels) == {"rmsnorm", "rmsnorm_backward", "cross_entropy"}
    runtime, one = world(gains=dict.fromkeys(NAMES, 0.1), idle=NAMES)
    ran(runtime, one)
    assert not one.state.kernels
    assert "no step used one" in one.told[-1]


def test_a_job_that_ends_before_its_canary_says_what_it_used(world: Any) -> None:
    runtime, one = world(gains={"rmsnorm": 0.1})
    ran(runtime, one, 7)
    used = ", ".join(one.state.kernels)
    one.state.first_steps._job_ended()
    assert one.told[-1].endswith(f"the job ended in step 7 of its canary: no choice, last used: {used}")
    assert one.state.gain == {}


@pytest.mark.parametrize("steps", [7, 40, 60])
def test_the_other_canary_ends_it_and_begins_with_all_kernels(world: Any, steps: int) -> None:
    runtime, one = world(gains={"rmsnorm": 0.1, "gelu": -0.1})
    ran(runtime, one, steps)

    def step() -> None:
        one.step()
        runtime._after_step()

    one.held.clear()
    runtime.canary(step, clock=one.clock)
    assert set(one.held[0]) == set(NAMES)
    assert not one.state.first_steps.running
    assert set(one.state.kernels) == {"rmsnorm", "rmsnorm_backward"}


def test_a_demotion_reaches_a_kernel_that_is_out_for_these_steps(
    world: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would come back with the next block, and the registry's list is read once."""
    runtime, one = world(gains={"rmsnorm": 0.1, "gelu": 0.1})
    gelu = one.state.kernels["gelu"]
    monkeypatch.setenv(runtime.DEMOTED_ENV, str(tmp_path))
    steps = 0
    while "gelu" in one.state.kernels:
        ran(runtime, one, 1)
        steps += 1
    (tmp_path / "demoted.json").write_text(json.dumps([{"certificate": "gelu"}]))
    ran(runtime, one, 1)
    assert gelu.disabled
    ran(runtime, one, 60 - steps)
    assert not one.state.first_steps.running
    assert one.state.gain == {} or "gelu" not in one.state.kernels, "it was measured with a kernel that is gone"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(N, eps=1e-6)
        self.out = nn.Linear(N, N)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(F.gelu(self.norm(x)))


def made() -> Net:
    torch.manual_seed(3)
    return Net()


def trained(model: nn.Module, optimizer: Any, steps: int, run: Any = None) -> list[float]:
    """As jobs do it: gradients of two batches, a skipped step now and then, another optimiser, an evaluation."""
    seen, other, run = [], torch.optim.SGD(model.parameters(), lr=1e-3), run or model
    for number in range(steps):
        loss = torch.zeros(())
        for part in range(2):
            one = run(SAME * (1.0 + part)).square().mean()
            one.backward()
            loss = loss + one.detach()
        if number % 10 == 7:  # as a gradient scaler does after an overflow
            optimizer.zero_grad()
            continue
        optimizer.step()
        other.step()
        optimizer.zero_grad()
        seen.append(float(loss))
        if number % 11 == 5:
            with torch.no_grad():
                seen.append(float(run(SAME).sum()))
    return seen


def begun(
    kernels: Any, monkeypatch: pytest.MonkeyPatch, gain: float, **more: Any
) -> tuple[Net, Any, Any, list[str]]:
    """A clock on which a step takes 1 s, and less by `gain` where all kernels are in use."""
    clock, told = [0.0], list[str]()

    def now() -> float:
        clock[0] += 1.0 - gain * (len(kernels.STATE.kernels) / len(kernels.KERNELS))
        return clock[0]

    monkeypatch.setattr(kernels, "host_clock", now)
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    report = kernels.apply(model, optimizer, log=told.append, shadow_every=0, log_every=0, **more)
    return model, optimizer, report, told


@pytest.mark.parametrize("gain", [0.1, -0.1])
def test_a_job_s_numbers_do_not_change_while_sets_change(
    job: Job, monkeypatch: pytest.MonkeyPatch, gain: float
) -> None:
    torchs = made()
    want = trained(torchs, torch.optim.SGD(torchs.parameters(), lr=0.05), 80)
    kernels = job(held("rmsnorm"), held("gelu"))
    model, optimizer, report, told = begun(kernels, monkeypatch, gain)
    assert "canary: the next 60 steps" in str(report)
    assert trained(model, optimizer, 80) == pytest.approx(want, rel=1e-5)
    assert set(kernels.STATE.kernels) == ({"rmsnorm", "gelu"} if gain > 0 else set())
    assert "canary: keeps" in str(report)
    assert len(report.applied) == (2 if gain > 0 else 0)
    assert ("gain_us=" in kernels.log_line()) is (gain > 0)
    # a second call changes nothing, nor does it bring back what was given back
    again = kernels.apply(model, optimizer, log=told.append, log_every=0)
    assert set(kernels.STATE.kernels) == ({"rmsnorm", "gelu"} if gain > 0 else set())
    assert not kernels.STATE.first_steps.running
    assert all(why == "the canary gave it back to torch" for _, why in again.skipped)


def test_an_optimizer_whose_step_changes_hands_counts_its_steps_on(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel keeps the number of the step on the host, torch in a tensor: a bias correction depends on it."""
    torchs = made()
    want = trained(torchs, torch.optim.AdamW(torchs.parameters(), lr=1e-2), 80)
    kernels = job(held("adamw", mutates=[0, 2, 3]))
    monkeypatch.setattr(kernels, "SMALLEST", 1)
    clock = [0.0]

    def now() -> float:
        clock[0] += 1.0 - 0.1 * len(kernels.STATE.kernels)
        return clock[0]

    monkeypatch.setattr(kernels, "host_clock", now)
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    quietly(kernels, model, optimizer=optimizer, log_every=0, canary=True)
    kernel = kernels.STATE.kernels["adamw"]
    kernel.entry = kernels.adamw_step
    assert trained(model, optimizer, 80) == pytest.approx(want, rel=1e-4, abs=1e-5)  # some lie near zero
    assert not kernels.STATE.first_steps.running
    assert 0 < kernel.calls < 3 * 72, "torch's own step ran as well"
    assert {int(state["step"]) for state in optimizer.state.values()} == {72}


def test_it_can_be_switched_off_and_needs_an_optimizer(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = job(held("rmsnorm"), held("gelu"))
    model, optimizer, report, _ = begun(kernels, monkeypatch, -0.1, canary=False)
    trained(model, optimizer, 70)
    assert len(kernels.STATE.kernels) == 2
    assert (kernels.STATE.first_steps, report.canary) == (None, "")
    kernels.unapply(model)
    kernels.apply(model, log=lambda _: None)
    assert kernels.STATE.first_steps is None


@pytest.mark.parametrize("steps", [9, 30])
def test_unapply_in_the_middle_takes_all_back_and_a_later_apply_begins_anew(
    job: Job, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    kernels = job(held("rmsnorm"), held("gelu"))
    limit = torch._dynamo.config.recompile_limit
    model, optimizer, _, told = begun(kernels, monkeypatch, 0.1)
    trained(model, optimizer, steps)
    assert kernels.STATE.first_steps.running
    kernels.unapply(model)
    assert "without a choice: unapply was called" in told[-1]
    assert (kernels.STATE.kernels, kernels.STATE.first_steps) == ({}, None)
    assert torch._dynamo.config.recompile_limit == limit
    assert "forward" not in model.norm.__dict__
    trained(model, optimizer, 5)
    model, optimizer, _, _ = begun(kernels, monkeypatch, 0.1)
    trained(model, optimizer, 80)
    assert len(kernels.STATE.kernels) == 2


def test_apply_in_the_middle_begins_anew_with_all_kernels(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = job(held("rmsnorm"), held("gelu"))
    model, optimizer, _, _ = begun(kernels, monkeypatch, 0.1)
    first = dict(kernels.STATE.kernels)
    while len(kernels.STATE.kernels) == 2:
        trained(model, optimizer, 1)
    kernels.apply(nn.Identity(), log=lambda _: None, log_every=0)
    assert kernels.STATE.kernels == first
    assert (kernels.STATE.first_steps.running, kernels.STATE.first_steps.steps) == (True, 0)
    trained(model, optimizer, 70)
    assert kernels.STATE.kernels == first


@pytest.mark.parametrize("passed", [False, True])
def test_a_compiled_region_is_compiled_once_for_each_set_and_never_in_a_step_that_is_read(
    job: Job, monkeypatch: pytest.MonkeyPatch, passed: bool
) -> None:
    """Also where a pass put a kernel into a region, which then guards on nothing of it."""
    records = [held("rmsnorm"), held("linear", sizes={"m": 6, "n": N, "k": N}) if passed else held("gelu")]
    kernels = job(*records)
    model, optimizer, _, _ = begun(kernels, monkeypatch, 0.1)
    compiled: list[tuple[tuple[str, ...], bool]] = []

    def backend(graph: Any, inputs: Any) -> Any:
        first = kernels.STATE.first_steps
        read = first.running and not first._due and first._plan[first._at][2]
        compiled.append((tuple(kernels.STATE.kernels), read))
        for kernel in kernels.STATE.kernels.values():
            kernel.calls += passed  # the pass itself is one of Inductor's
        return graph.forward

    step = torch.compile(model, backend=backend)
    sets: list[tuple[str, ...]] = []
    for _ in range(60):
        step(SAME).square().mean().backward()
        sets.append(tuple(kernels.STATE.kernels))
        optimizer.step()
        optimizer.zero_grad()
    assert not kernels.STATE.first_steps.running
    assert len(kernels.STATE.kernels) == 2
    assert {names for names, _ in compiled} == set(sets)
    assert max(Counter(compiled).values()) == 1
    assert not any(read for _, read in compiled)
    assert not torch.are_deterministic_algorithms_enabled()
    kernels.unapply(model)
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_a_region_that_a_pass_makes_slower_is_compiled_anew_without_it(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a job's second start, which finds both in torch's cache."""
    kernels, told = job(), list[str]()
    clock, weight = [0.0], nn.Parameter(torch.full((8,), 0.5))
    counted = torch._dynamo.utils.counters["aot_autograd"]

    def now() -> float:
        clock[0] += 1.0 + 0.1 * kernels.STATE.passing
        return clock[0]

    @torch.compile
    def step() -> torch.Tensor:
        x = torch.linspace(-1.0, 1.0, 64).view(1, 1, 8, 8) * weight
        return F.scaled_dot_product_attention(x, x, x, torch.ones(8, 8, dtype=torch.bool).tril()).square().sum()

    monkeypatch.setattr(kernels, "host_clock", now)
    losses = []
    alone = torch._inductor.config.patch(joint_custom_pre_pass=None)  # another test's file would be first
    with alone, torch._inductor.utils.fresh_cache():
        for start in range(2):
            torch._dynamo.reset()
            before, optimizer = dict(counted), torch.optim.SGD([weight], lr=1e-3)
            kernels.apply(nn.Identity(), optimizer, log=told.append)
            for _ in range(50):
                loss = step()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(loss.detach()))
            assert not kernels.STATE.passing, told
            assert kernels.STATE.rewritten == {"causal masks": 1}  # and of the second graph none
            assert counted["autograd_cache_hit"] - before.get("autograd_cache_hit", 0) == 2 * start
            kernels.unapply(nn.Identity())
            assert kernels.STATE.passing
    assert losses == sorted(losses, reverse=True)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_inductor_makes_one_graph_for_each_set_with_its_product_or_without(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    kernels = job(held("rmsnorm"), held("linear_bias", sizes={"m": 6, "n": N, "k": N}), held("gelu"))
    torchs = made()
    want = trained(torchs, torch.optim.SGD(torchs.parameters(), lr=0.05), 80)
    model, optimizer, _, _ = begun(kernels, monkeypatch, 0.1)
    step, seen = torch.compile(model), set[tuple[bool, bool]]()

    def run(x: torch.Tensor) -> torch.Tensor:
        product = next((k for k in kernels.STATE.kernels.values() if k.problem == "linear_bias"), None)
        before = product.calls if product else 0
        out: torch.Tensor = step(x)
        seen.add((product is not None, product is not None and product.calls > before))
        return out

    assert trained(model, optimizer, 80, run) == pytest.approx(want, rel=1e-4)
    assert seen == {(False, False), (True, True)}
    assert len(kernels.STATE.kernels) == 3


def test_where_regions_cannot_be_told_apart_nothing_is_measured_and_it_is_said(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        _, _, report, _ = begun(job(held("linear", sizes={"m": 6, "n": N, "k": N})), monkeypatch, 0.1)
        assert "deterministic" in report.canary
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.full
def test_two_ranks_change_sets_at_the_same_steps_and_none_waits_for_one_that_ended(tmp_path: Path) -> None:
    """The first job exchanges gradients; in the others each goes at its own pace: rank 0 or rank 1 ends first."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANKS), str(tmp_path)],
            env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=180.0) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], [err[-1500:] for _, err in outputs]
    together, early, late = zip(*(json.loads(out.splitlines()[0]) for out, _ in outputs), strict=True)
    assert together[0]["sets"] == together[1]["sets"]
    assert len({tuple(names) for names in together[0]["sets"]}) > 2
    assert [seen["kept"] for seen in together] == [["rmsnorm"]] * 2, "rank 1's own clock says otherwise"
    assert together[0]["gain"] == together[1]["gain"] != {}
    assert [seen["running"] for seen in together] == [False, False]
    assert [seen["running"] for seen in early] == [True, False]
    assert early[1]["kept"] == []
    assert "the first rank did not say what to keep" in early[1]["told"][-1]
    assert [seen["running"] for seen in late] == [False, True]
    assert late[0]["kept"] == ["rmsnorm"]
    assert "the job ended in step 12 of its canary" in outputs[1][0]
