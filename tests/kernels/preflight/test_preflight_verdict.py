"""The verdict: wrong bits and slow figures are refused, a test's own fault is not, and nothing is made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nightshift.kernels.preflight.gpu_tests import GpuRun, Wrong
from nightshift.kernels.preflight.verdict import CHANCE, EarlierPass, PreflightState, blind, judged

FACTS = {"serial": "s1", "uuid": "GPU-1", "model": "NVIDIA H100", "driver": "570"}
RNG = np.random.default_rng(7)


def a_pass(serial: str = "s1", cycles: float = 1100.0, clock: float = 1755.0, heat: float = 61.0) -> EarlierPass:
    figures = {"product_cycles": cycles * (1 + 0.001 * RNG.standard_normal()), "memory_bytes_per_s": 2.6e12}
    return EarlierPass(serial, FACTS["model"], "v", "quick", clock, heat, figures)


def a_run(cycles: float = 1100.0, memory: float = 2.6e12, **changes: object) -> GpuRun:
    run = GpuRun(FACTS, "quick", clock_mhz=1755.0, temperature_c=61.0)
    run.figures = {"product_cycles": cycles, "memory_bytes_per_s": memory}
    for name, value in changes.items():
        setattr(run, name, value)
    return run


HISTORY = [a_pass() for _ in range(12)]


@pytest.mark.parametrize(
    ("slower", "state"),
    [(0.04, PreflightState.REFUSED), (0.005, PreflightState.PASSED), (-0.1, PreflightState.PASSED)],
)
def test_four_percent_more_cycles_are_refused_and_half_a_percent_is_not(
    slower: float, state: PreflightState
) -> None:
    verdict = judged(a_run(1100.0 * (1 + slower)), "v", HISTORY)
    assert verdict.state is state
    assert 0 < verdict.chance <= 2 * CHANCE
    if state is PreflightState.REFUSED:
        assert "4.0 % worse than this GPU at the same clock and temperature (12 passes)" in verdict.reasons[0]


def test_less_bandwidth_is_worse() -> None:
    assert judged(a_run(memory=2.4e12), "v", HISTORY).state is PreflightState.REFUSED
    assert judged(a_run(memory=2.9e12), "v", HISTORY).state is PreflightState.PASSED


def test_wrong_bits_are_refused_and_name_the_sm() -> None:
    wrong = [Wrong("products bfloat16", 1, {17: 1}, 58.0, 3.0), Wrong("products bfloat16", 2, {17: 2}, 60.0, 4.0)]
    verdict = judged(a_run(wrong=wrong), "v", HISTORY)
    assert verdict.state is PreflightState.REFUSED
    assert verdict.reasons == ("products bfloat16: 3 wrong values in 2 launches, the first at 58 °C, all on SM 17",)


def test_a_fault_of_the_test_says_nothing_of_the_node() -> None:
    wrong = [Wrong("memory", 5, {0: 5}, 50.0, 1.0)]
    assert judged(a_run(suspect="no memory left", wrong=wrong), "v", HISTORY).state is PreflightState.BROKEN


def test_without_history_no_speed_is_judged_and_the_result_says_so() -> None:
    verdict = judged(a_run(cycles=5000.0), "v", HISTORY[:4])
    assert verdict.state is PreflightState.PASSED
    assert blind(verdict.readings) == ["product_cycles", "memory_bytes_per_s"]


def test_another_driver_begins_a_new_history() -> None:
    assert blind(judged(a_run(), "w", HISTORY).readings) == ["product_cycles", "memory_bytes_per_s"]


def test_another_temperature_and_the_fleet_have_wider_limits() -> None:
    hot = judged(a_run(1100.0 * 1.025, temperature_c=85.0), "v", HISTORY)
    assert hot.state is PreflightState.PASSED
    assert hot.readings[0].limit is not None
    assert hot.readings[0].limit.of == "this GPU at other clocks or temperatures"
    fleet = [replace(a_pass(), serial=f"o{n}") for n in range(6)]
    assert judged(a_run(1100.0 * 1.04), "v", fleet).state is PreflightState.PASSED
    assert judged(a_run(1100.0 * 1.08), "v", fleet).state is PreflightState.REFUSED


def test_a_noisy_history_is_said_to_be_blind() -> None:
    noisy = [
        replace(p, figures={"product_cycles": 1000.0 * (1.1 if n % 2 else 0.9)}) for n, p in enumerate(HISTORY)
    ]
    assert "product_cycles" in blind(judged(a_run(), "v", noisy).readings)


def test_the_rate_of_false_refusals_is_as_stated() -> None:
    """2,000 good runs of drawn GPUs, each against its own twelve passes: none may be refused."""
    count = 0
    for _ in range(2_000):
        level = RNG.normal(0, 0.02)
        logs = RNG.normal(level, 0.003, 13)
        past = [replace(HISTORY[0], figures={"product_cycles": float(1000 * np.exp(x))}) for x in logs[:12]]
        run = a_run(float(1000 * np.exp(logs[12])))
        del run.figures["memory_bytes_per_s"]
        count += judged(run, "v", past).state is PreflightState.REFUSED
    assert count == 0  # 0.02 expected
