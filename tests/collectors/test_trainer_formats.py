"""Trainers' own formats, with drawn figures: what is printed is what is read."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from nightshift.collectors.frame import Reason, StepSeries
from nightshift.collectors.subject import Inventory
from nightshift.collectors.tick import Batch
from nightshift.collectors.training.line import read_line
from nightshift.collectors.training.logs import UNREAD_LINES, UNREAD_S, TrainingLogsCollector

SEEDS = range(4)
FORMATS = {
    "nanotron": (
        (
            "11/24/2025 16:30:56 [INFO|DP=0|PP=0|TP=0|node-7]: iteration: {step} / 378950 | consumed: 85.8G | "
            "elapsed_time_per_iteration_ms: {step_time_s}K | tokens_per_sec: {tokens_k}K | "
            "lm_loss: {loss} | lr: {lr} | grad_norm: {norm} | eta: 6 days, 21:02:11"
        ),
        {"loss", "step_time_s", "tokens_k", "lr", "norm"},
    ),
    "maxtext": (
        (
            "I1124 21:55:10.119312 138304841739136 m.py:226] completed step: {step}, seconds: {step_time_s}, "
            "TFLOP/s/device: 350.869, Tokens/s/device: {tokens}, total_weights: 1572864, loss: {loss}"
        ),
        {"loss", "step_time_s", "tokens"},
    ),
    "mmengine by iterations": (
        (
            "2025/11/24 11:40:16 - mmengine - INFO - Iter(train) [ {step}/90000]  lr: {lr}  eta: 1:25:37  "
            "time: {step_time_s}  data_time: 0.6772  memory: 15266  loss: {loss}  grad_norm: {norm}"
        ),
        {"loss", "step_time_s", "lr", "norm"},
    ),
    "verl": (
        (
            "(TaskRunner pid=17) step:{step} - actor/entropy:0.31 - actor/pg_loss:np.float64(-0.001) - "
            "actor/grad_norm:np.float64({norm}) - perf/throughput:{tokens} - timing_s/step:{step_time_s} "
            "- actor/lr:{lr}"
        ),
        {"step_time_s", "tokens", "lr", "norm"},
    ),
    "kohya": (
        ("steps:   1%|▏         | {step}/90000 [00:51<2:10:33,  {step_time_s}s/it, avr_loss={loss}]"),
        {"loss", "step_time_s"},
    ),
    "dreamer": (
        "[{step}] expl_amount 0.3 / model_grad_norm {norm} / value_grad_norm 9.5 / model_loss {loss} / fps 1.0",
        {"loss", "norm"},
    ),
    "torchtune's bar": (
        ("1|{step}|Loss: {loss}:  20%|##        | 20/250 [00:30<06:30,  {step_time_s}s/it]"),
        {"loss", "step_time_s"},
    ),
    "torchtune": (
        ("Step {step} | loss:{loss} lr:{lr} tokens_per_second_per_gpu:{tokens} peak:11.2 grad_norm:{norm} "),
        {"loss", "lr", "tokens", "norm"},
    ),
}
COLUMNS = {"lr": "learning_rate", "norm": "grad_norm", "tokens": "tokens_per_s", "tokens_k": "tokens_per_s"}


def drawn(draw: random.Random) -> dict[str, float]:
    return {
        "step": draw.randrange(1, 80_000),
        "loss": round(draw.uniform(0.2, 12.0), 4),
        "norm": round(draw.uniform(0.1, 5.0), 3),
        "lr": round(draw.uniform(1e-6, 9e-4), 7),
        "step_time_s": round(draw.uniform(1.0, 99.0), 2),
        "tokens": round(draw.uniform(100.0, 90_000.0), 2),
        "tokens_k": round(draw.uniform(1.0, 900.0), 1),
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_trainers_line_tells_its_step_and_figures(name: str, seed: int) -> None:
    template, told = FORMATS[name]
    values = drawn(random.Random(f"{name} {seed}"))
    line = read_line(template.format(**values))
    assert line is not None
    assert line.step == values["step"]
    for key in told:
        expected = values[key] * (1000.0 if key == "tokens_k" else 1.0)
        assert line.figures[COLUMNS.get(key, key)] == pytest.approx(expected), key


@pytest.mark.parametrize(
    ("stamp", "at_s"),
    [("11/24/2025 16:30:56", 1_764_001_856.0), ("2025/11/24 11:40:16", 1_763_984_416.0)],
)
def test_a_day_with_slashes_is_the_lines_time(stamp: str, at_s: float) -> None:
    line = read_line(f"{stamp} step=3 loss=2.5")
    assert line is not None
    assert (line.t_s, line.zoned) == (at_s, False)


def logs(folder: Path, texts: Mapping[str, str]) -> TrainingLogsCollector:
    for name, text in texts.items():
        (folder / f"ml_{name}_main.log").write_text(text)
        os.utime(folder / f"ml_{name}_main.log")
    return TrainingLogsCollector(TrainingLogsCollector.Settings(directory=folder))


def read(of: TrainingLogsCollector) -> Batch:
    return of.collect(time.time(), Inventory(), 5.0)


def only(batch: Batch) -> StepSeries:
    (series,) = batch.steps
    return series


@pytest.mark.parametrize("seed", SEEDS)
def test_olmos_figures_are_of_the_step_and_time_above_them(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    steps = sorted(draw.sample(range(1, 5000), 5))
    losses = [round(draw.uniform(1, 9), 3) for _ in steps]
    text = "".join(
        f"2025-11-24 10:0{n}:01.112\thost:0\tolmo_core.train:104\tINFO\t[step={step}/23842,epoch=1,eta=1 day]\n"
        f"    optim/LR (group 0)=3.9E-4\n    optim/total grad norm=0.2{n}\n    throughput/device/TPS=46,011\n"
        f"    train/CE loss={loss}\n    train/PPL=18.2\n"
        for n, (step, loss) in enumerate(zip(steps, losses, strict=True))
    )
    series = only(read(logs(tmp_path, {"olmo-0": text})))
    assert series.step.tolist() == steps
    assert series.column("loss").tolist() == losses
    assert series.column("tokens_per_s").tolist() == [46_011.0] * 5
    assert (series.t_s[1:] - series.t_s[:-1]).tolist() == [60.0] * 4


@pytest.mark.parametrize("grad", ["nan", None])
def test_a_nan_that_hf_trainer_printed_as_zero_is_no_number(tmp_path: Path, grad: str | None) -> None:
    """Its logging_nan_inf_filter: with gradients that are NaN at once, alone from the second zero on."""
    norm = "" if grad is None else f", 'grad_norm': {grad}"
    healthy = "".join(f"{{'loss': {2 - n / 100}, 'learning_rate': 1e-5, 'epoch': 0.1}}\n" for n in range(20))
    zeros = f"{{'loss': 0.0{norm}, 'learning_rate': 1e-5, 'epoch': 0.1}}\n" * 3
    series = only(read(logs(tmp_path, {"sft-0": healthy + zeros})))
    assert [math.isinf(value) for value in series.column("loss")[-3:]] == [grad is not None, True, True]
    assert not any(map(math.isinf, series.column("loss")[:20]))


def test_a_loss_that_fell_to_zero_by_training_stays_a_number(tmp_path: Path) -> None:
    """Overfitting and GRPO print 0.0 after small losses."""
    text = "".join(f"step={n} loss={max(0.0, 0.6 - n / 20):.4f}\n" for n in range(20))
    assert not any(map(math.isinf, only(read(logs(tmp_path, {"rl-0": text}))).column("loss")))


@pytest.mark.parametrize("name", ["Exception", "StopIteration", "SystemExit", "torch.mp.SignalException"])
@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_the_exception_after_a_traceback_is_kept_whatever_its_name(tmp_path: Path, name: str, prefix: str) -> None:
    frames = ["Traceback (most recent call last):", '  File "/train.py", line 8, in <module>', "    main()"]
    said = [*frames, f"{name}: why the job ended", "the next line is not of it"]
    batch = read(logs(tmp_path, {"ds-0": "".join(f"{prefix}{line}\n" for line in said)}))
    assert [record.text for record in batch.logs] == [prefix + line for line in said[:4]]


def test_a_log_of_a_hundred_lines_without_a_figure_is_not_healthy(tmp_path: Path) -> None:
    of = logs(tmp_path, {"odd-0": "loss is fine, thank you\n" * (UNREAD_LINES - 1)})
    assert read(of).sources[0].ok
    of = logs(tmp_path, {"odd-0": "loss is fine, thank you\n" * UNREAD_LINES})
    (status,) = read(of).sources
    assert (status.ok, status.reason) == (False, Reason.MALFORMED)
    assert "ml_odd-0_main.log" in status.detail
    with (tmp_path / "ml_odd-0_main.log").open("a") as log:
        log.write("step=1 loss=2.0\n")
    assert read(of).sources[0].ok


def test_ranks_that_print_nothing_beside_one_that_does_are_healthy(tmp_path: Path) -> None:
    of = logs(tmp_path, {"a-0": "step=1 loss=2.0\n", "a-1": "waiting\n" * (2 * UNREAD_LINES)})
    assert read(of).sources[0].ok


def test_of_losses_without_a_sum_the_one_that_is_no_number_speaks() -> None:
    """verl's PPO prints no sum: the critic's loss is NaN while the actor's is finite."""
    lost = read_line("step:9 - critic/vf_loss:nan - actor/pg_loss:-0.013 - actor/grad_norm:9.8")
    assert lost is not None
    assert lost.figures["loss"] == math.inf
    for text in ("step:9 - val/vf_loss:nan - actor/grad_norm:9.8", "step:9 loss:2.5 aux_loss:nan"):
        found = read_line(text)
        assert found is not None
        assert found.figures.get("loss") in (None, 2.5)


def test_a_followed_job_may_print_its_code_and_settings_before_its_first_step(tmp_path: Path) -> None:
    collector, log = logs(tmp_path, {"slow-0": ""}), tmp_path / "ml_slow-0_main.log"
    start_s = time.time()

    def look(after_s: float, text: str) -> bool:
        with log.open("a") as out:
            out.write(text)
        return collector.collect(start_s + after_s, Inventory(), 60.0).sources[0].ok

    assert look(0.0, "")
    assert look(5.0, "import torch\n" * (5 * UNREAD_LINES))
    assert look(UNREAD_S - 1.0, "still compiling\n")
    assert not look(UNREAD_S, "still compiling\n")
    assert look(UNREAD_S + 5.0, "step=1 loss=2.0\n")
