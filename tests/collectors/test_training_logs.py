"""Trainers' logs become steps: every known format, rotation, restarts, and nothing from lines that are none."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Reason, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tail import FileTail
from nightshift.collectors.tick import Batch
from nightshift.collectors.training.line import LinePattern, behind, read_line, read_nccl_line
from nightshift.collectors.training.logs import TrainingLogsCollector
from nightshift.collectors.training.workload import WorkloadRule
from tests.detectors.test_hang_place import dump

NOW = 1_795_266_100.0
RANK = Subject(SubjectKind.RANK, "ml/job#3")
MEGATRON = (
    "[2026-11-21 13:00:00] iteration      100/  500000 | consumed samples:       102400 | elapsed time per "
    "iteration (ms): 3456.7 | learning rate: 1.500000E-04 | global batch size:  1024 | lm loss: 6.512345E+00 | "
    "loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
# flagos-ai/OpenSeek, docs: Megatron-LM under torchrun
OPENSEEK = (
    "[default0]: [2025-05-27 15:23:07] iteration        1/    24000 | consumed samples:          1024 | elapsed "
    "time per iteration (ms): 271607.0 | throughput per GPU (TFLOP/s/GPU): 40.4 | learning rate: 1.500000E-06 | "
    "global batch size:  1024 | lm loss: 1.192634E+01 | load_balancing_loss: 1.041994E+00 | loss scale: 1.0 | "
    "grad norm: 5.960 | num zeros: 0.0 | params norm: 238.330 | number of skipped iterations:    0 |"
)
# Ascend/ModelLink, examples/llama: an older Megatron-LM
MODELLINK = (
    " iteration  11/50000 | consumed samples: 5632 | consumed tokens:  11534336 | elapsed time per iteration "
    "(ms):  52728.1 | learning rate:    1.499E-05 | gloabl batch size:  512 | lm loss:  1.376514E+01 | loss "
    "scale:  65536.0 | grad norm:    459.628 | actual seqlen:  2048 | number of nan iterations:   0 |"
)
# AMD-AGI/Primus: this step's time over their mean
PRIMUS = (
    " iteration       12/     50 | elapsed time per iteration (ms): 284.1/283.9 | lm loss: nan | grad norm: inf |"
)
TITAN = (
    "[titan] 2026-11-21 13:00:00,500 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  8.0123  \x1b[33mgrad_norm:  "
    "1.2345  \x1b[34mmemory: 10.00GiB(20.00%)  tps: 12,345  tflops: 10.0  mfu: 20.0%\x1b[39m"
)
MMENGINE = (
    "11/21 10:00:00 - mmengine - INFO - Epoch(train)  [1][ 100/1000]  lr: 1.0000e-02  eta: 1:00:00  "
    "time: 0.2500  data_time: 0.0100  memory: 10000  loss: 2.3  loss_cls: 1.0"
)
FAIRSEQ = (
    "2026-11-21 10:00:00 | INFO | train_inner | epoch 002:    100 / 5000 loss=8.5, nll_loss=7.1, wps=1000, "
    "num_updates=5100, lr=1e-05, gnorm=1.2, loss_scale=128"
)
NEMO = (
    "Training epoch 0, iteration 99/999 | lr: 3e-05 | global_batch_size: 512 | global_step: 99 | "
    "reduced_train_loss: 8.125 | train_step_timing in s: 1.25 | consumed_samples: 51200"
)


@pytest.mark.parametrize(
    ("line", "step", "figures"),
    [
        (MEGATRON, 100, {"step_time_s": 3.4567, "learning_rate": 1.5e-4, "loss": 6.512345, "grad_norm": 1.234}),
        (OPENSEEK, 1, {"step_time_s": 271.607, "learning_rate": 1.5e-6, "loss": 11.92634, "grad_norm": 5.96}),
        (
            MODELLINK,
            11,
            {"step_time_s": 52.7281, "learning_rate": 1.499e-5, "loss": 13.76514, "grad_norm": 459.628},
        ),
        (PRIMUS, 12, {"step_time_s": 0.2841, "loss": math.inf, "grad_norm": math.inf}),
        (TITAN, 10, {"loss": 8.0123, "grad_norm": 1.2345, "tokens_per_s": 12345.0}),
        ("iter 100: loss 2.3456, time 123.45ms, mfu 12.34%", 100, {"loss": 2.3456, "step_time_s": 0.12345}),
        (
            "{'loss': 2.3, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.1}",
            None,
            {"loss": 2.3, "grad_norm": 1.25, "learning_rate": 5e-5},
        ),
        ("{'loss': '2.3', 'grad_norm': 'nan', 'step': 40}", 40, {"loss": 2.3, "grad_norm": math.inf}),
        (
            "Epoch 1:  10%|█ | 100/1000 [00:10<01:30,  2.00it/s, v_num=0, train_loss=2.300]",
            1100,
            {"step_time_s": 0.5, "loss": 2.3},
        ),
        (
            "Epoch 1:  10%|█ | 100/1000 [00:10<01:30,  2.00it/s, v_num=0, train_loss=nan.0, grad_norm=inf.0]",
            1100,
            {"step_time_s": 0.5, "loss": math.inf, "grad_norm": math.inf},
        ),
        ("step=7 loss=tensor(nan, device='cuda:0') lr=0.1", 7, {"loss": math.inf, "learning_rate": 0.1}),
        ("step=7 loss=tensor(2.5)", 7, {"loss": 2.5}),
        ("step=7, grad_norm=.5, loss=NaN.", 7, {"grad_norm": 0.5, "loss": math.inf}),
        (
            "step=7 loss=2.5 grad_norm=1.0 lr=1e-4 step_time=250ms tokens_per_s=1000",
            7,
            {"loss": 2.5, "grad_norm": 1.0, "learning_rate": 1e-4, "step_time_s": 0.25, "tokens_per_s": 1000.0},
        ),
        ('{"step": 7, "train/loss": NaN, "grad_norm": 3}', 7, {"loss": math.inf, "grad_norm": 3.0}),
        (
            "Epoch: [2][ 100/5005]\tTime  0.250 ( 0.300)\tData  0.010 ( 0.050)\tLoss 6.9e+00 (6.95e+00)\tAcc@1",
            10110,
            {"step_time_s": 0.25, "data_s": 0.01, "loss": 6.9},
        ),
        (
            "Train: 1 [ 100/1251 (  8%)]  Loss: 6.95 (6.96)  Time: 0.250s, 1000/s  LR: 1e-05  Data: 0.010 (0.05)",
            1351,
            {"loss": 6.95, "step_time_s": 0.25, "learning_rate": 1e-5, "data_s": 0.01},
        ),
        (
            MMENGINE,
            1100,
            {"learning_rate": 0.01, "step_time_s": 0.25, "data_s": 0.01, "loss": 2.3},
        ),
        (
            "INFO - Iter(train) [  100/80000]  lr: 1.0e-02  data_time: 0.01  loss: 2.3",
            100,
            {"learning_rate": 0.01, "data_s": 0.01, "loss": 2.3},
        ),
        ("Train Epoch: 1 [6400/60000 (11%)]\tLoss: 0.345", 66400, {"loss": 0.345}),
        ("Epoch [1/10], Step [100/600], Loss: 0.3456", 700, {"loss": 0.3456}),
        ("Epoch 1/10, batch 100/600, loss = nan", 700, {"loss": math.inf}),
        (
            "step   100/19073 | loss: 2.345678 | lr 6.0000e-04 | norm: 1.2345 | dt: 250.00ms | tok/sec: 1000.0",
            100,
            {
                "loss": 2.345678,
                "learning_rate": 6e-4,
                "grad_norm": 1.2345,
                "step_time_s": 0.25,
                "tokens_per_s": 1000.0,
            },
        ),
        (
            "2026-11-21T10:00:00Z INFO rank0: step 100 loss 2.345 lr 1e-4",
            100,
            {"loss": 2.345, "learning_rate": 1e-4},
        ),
        (
            "Step 100 | param norm: 300.0 | grad norm: 1.5 | val loss: 2.5 | loss: 2.25",
            100,
            {"grad_norm": 1.5, "loss": 2.25},
        ),
        (
            FAIRSEQ,
            5100,
            {"loss": 8.5, "tokens_per_s": 1000.0, "learning_rate": 1e-5, "grad_norm": 1.2},
        ),
        (
            "I1121 10:00:00.12 140 logging_writer.py:48] [100] learning_rate=0.001, loss=2.3",
            100,
            {"learning_rate": 0.001, "loss": 2.3},
        ),
        (
            NEMO,
            99,
            {"learning_rate": 3e-5, "loss": 8.125, "step_time_s": 1.25},
        ),
        ("100it [00:10,  9.90it/s, loss=2.3]", 100, {"loss": 2.3}),
        (
            "Train epoch 2:  10%|█ | 100/1000 [00:10<01:30, 2.00it/s, loss=2.3]",
            2100,
            {"step_time_s": 0.5, "loss": 2.3},
        ),
        ("[batch=100/1000]:", 100, {}),
        ("\t Train loss/train/total: 2.3456", None, {"loss": 2.3456}),
        (
            "[11/21 10:00:00 d2.utils.events]:  eta: 1:00:00  iter: 99  total_loss: 2.3  lr: 0.01",
            99,
            {"loss": 2.3, "learning_rate": 0.01},
        ),
        (
            "\x1b[A\x1b[2K[rank1]: #033[32mstep: 10  [33mloss:  8.0  [39mgrad_norm:  1.2",
            10,
            {"loss": 8.0, "grad_norm": 1.2},
        ),
        ("successfully saved checkpoint from iteration     500 to /ckpt", 500, {"checkpoint_saved": 1.0}),
        ("Saving model checkpoint to out/checkpoint-80", 80, {"checkpoint_saved": 1.0}),
        ("saving checkpoint to out", None, {"checkpoint_saved": 1.0}),
        ("Saved checkpoint step=500 path=/checkpoints/x/500", 500, {"checkpoint_saved": 1.0}),
    ],
)
def test_every_trainers_step_line_is_read(line: str, step: int | None, figures: dict[str, float]) -> None:
    found = read_line(line)
    assert found is not None
    assert (found.step, dict(found.figures)) == (step, pytest.approx(figures))


@pytest.mark.parametrize(
    "line",
    [
        "step 250: train loss 2.1012, val loss 2.2022",
        "{'eval_loss': 2.3, 'eval_runtime': 1.0}",
        "Map:  57%|█████▋    | 570/1000 [00:01<00:00, 500.00 examples/s]",
        "validation loss=2.0",
        "step 100 eval: loss=2.0",
        "step=100, val loss=2.0",
        "[eval] Step 100/1000 Loss 2.0",
        "INFO - Epoch(val) [1][ 100/500]  data_time: 0.01  time: 0.2  loss: 2.0",
        "Test: [ 100/196]\tTime  0.250 ( 0.300)\tLoss 6.9e+00 (6.95e+00)",
        "Overflow at step 100: loss scale 65536 reduced",
        "saving checkpoint at iteration     500 to /ckpt in torch_dist format",
        "",
    ],
)
def test_evaluations_and_other_lines_give_no_figures(line: str) -> None:
    found = read_line(line)
    assert found is None or not found.figures


def test_times_and_ranks_are_read_where_a_line_gives_them() -> None:
    for text, t_s in [
        ("2026-11-21T13:00:00.250Z INFO step=1 loss=2", 1795266000.25),
        ("2026-11-21T13:00:00.25+00:00 stdout F step=1 loss=2", 1795266000.25),
        ("[2026-11-21 14:00:00,250 +01:00] step=1 loss=2", 1795266000.25),
        ("step=1 loss=2", None),
    ]:
        line = read_line(text)
        assert line is not None
        assert line.t_s == pytest.approx(t_s)
    for text in (
        "step=1 loss=2 rank=3",
        "[rank3] step=1 loss=2",
        "[default3]: step=1 loss=2",
        "rank: 3 step=1 loss=2",
    ):
        line = read_line(text)
        assert line is not None
        assert line.rank == (None if "default" in text else 3)


def test_a_format_of_ones_own_is_a_pattern_and_a_wrong_pattern_is_refused_by_name() -> None:
    own = LinePattern.parse(r"batch (?P<step>\d+) done in (?P<step_time_ms>[\d.]+) cost (?P<loss>\S+)")
    line = read_line("batch 12 done in 250.0 cost 3.5", [own])
    assert line is not None
    assert (line.step, line.figures) == (12, {"loss": 3.5, "step_time_s": 0.25})
    for wrong in ("(", r"(?P<cost>\d+)", r"(?P<step>\d+)"):
        with pytest.raises(ValueError, match="pattern"):
            LinePattern.parse(wrong)


@settings(max_examples=400, deadline=None)
@given(
    st.text(max_size=120), st.sampled_from(["", "step=1 loss=", "iteration 1/2 |", "iter 1: loss ", "{'loss': "])
)
def test_no_line_makes_it_raise(text: str, start: str) -> None:
    line = read_line(start + text)
    assert line is None or not any(math.isnan(value) for value in line.figures.values())


@pytest.mark.parametrize(
    ("pod", "job", "rank"),
    [
        ("job-3", "job", 3),
        ("llama-70b-v3-worker-12", "llama-70b-v3", 12),
        ("job-master-0", "job", 0),
        ("job-0-x7k2p", "job", 0),
        ("notebook", None, None),
    ],
)
def test_a_pods_name_tells_job_and_rank(pod: str, job: str | None, rank: int | None) -> None:
    found_job, found_rank = WorkloadRule().place("ml", pod)
    assert found_job == (None if job is None else Subject(SubjectKind.JOB, f"ml/{job}"))
    assert found_rank == (None if rank is None else Subject(SubjectKind.RANK, f"ml/{job}#{rank}"))


@pytest.fixture
def collector(opened: Any, tmp_path: Path) -> Callable[..., TrainingLogsCollector]:
    def make(**given: Any) -> TrainingLogsCollector:
        made: TrainingLogsCollector = opened(
            TrainingLogsCollector(TrainingLogsCollector.Settings(directory=tmp_path, **given))
        )
        return made

    return make


def take(of: TrainingLogsCollector, inventory: Inventory | None = None) -> Batch:
    return check_collect(of, NOW, inventory or Inventory(), 30.0)


def only(batch: Batch) -> StepSeries:
    (series,) = batch.steps
    return series


def test_new_steps_arrive_once_with_their_rank_and_relations(collector: Any, tmp_path: Path) -> None:
    log, of, inventory = tmp_path / "ml_job-3_trainer.log", collector(), Inventory()
    log.write_text(
        "NCCL version 2.27.5+cuda12.8\nIt was compiled with NCCL version 2.29.2, but is running with another\n"
        "2026-11-21T13:00:00Z INFO rank=3 step=1 loss=2.5\n2026-11-21T13:00:01Z INFO rank=3 step=2 loss=2.4"
    )
    first = only(take(of, inventory))
    assert (first.subject, first.step.tolist(), first.t_s.tolist()) == (RANK, [1], [1795266000.0])
    with log.open("a") as stream:
        stream.write("\n2026-11-21T13:00:02Z INFO rank=3 step=3 loss=nan\n")
    second = only(take(of, inventory))
    assert second.step.tolist() == [2, 3]
    assert second.column("loss").tolist() == [2.4, math.inf]
    assert np.isnan(second.column("grad_norm")).all()
    assert take(of, inventory).steps == []
    assert inventory.fact(Subject(SubjectKind.JOB, "ml/job"), "nccl") == "2.27.5"
    assert inventory.parents(RANK, NOW, SubjectKind.POD) == [Subject(SubjectKind.POD, "ml/job-3")]
    assert inventory.parents(RANK, NOW, SubjectKind.JOB) == [Subject(SubjectKind.JOB, "ml/job")]


@pytest.mark.parametrize(
    "path",
    [
        "ml_job-3_trainer.log",
        "ml_job-3_0a1b2c3d-0000-1111-2222-333344445555/trainer/0.log",
        f"job-3_ml_trainer-{'a' * 64}.log",
    ],
)
def test_the_kubelets_layouts_and_ours_are_known(collector: Any, tmp_path: Path, path: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("step=1 loss=2.5\n")
    assert only(take(collector())).subject == RANK


def test_a_checkpoint_that_an_evaluation_loads_is_no_restart(collector: Any, tmp_path: Path) -> None:
    """The steps go on: a detector that began anew at each of them would never know the run."""
    log, of = tmp_path / "ml_job-3_trainer.log", collector()
    runs = []
    for text in (
        "step=10 loss=2\n",
        "Loading checkpoint shards: 100%\nSaved checkpoint at step=10\nstep=11 loss=2\n",
        "starting training\nstep=12 loss=2\n",
        "Loading checkpoint step=5\nstep=6 loss=2\n",
    ):
        with log.open("a") as stream:
            stream.write(text)
        runs.append(only(take(of)).run)
    assert runs[0] == runs[1] == runs[2] != runs[3]


def test_a_rotated_log_is_the_same_run_and_one_that_begins_anew_is_not(collector: Any, tmp_path: Path) -> None:
    """The kubelet rotates at 10 MiB: each time the run's loss was learned anew, and a divergence was over."""
    log, of = tmp_path / "ml_job-3_trainer.log", collector()
    runs = []
    for step in (10, 11, 12, 5):
        if log.exists():
            log.rename(tmp_path / "ml_job-3_trainer.log.20261121-130000")
        log.write_text(f"step={step} loss=2\n")
        runs.append(only(take(of)).run)
    assert runs[0] == runs[1] == runs[2] != runs[3]


@pytest.mark.parametrize("zone_h", [-7.0, -3.5, 0.0, 5.75, 13.0])
def test_a_clock_without_a_zone_is_understood_from_lines_that_were_just_written(
    zone_h: float, collector: Any, tmp_path: Path
) -> None:
    """A log in California's time was eight hours old: its run hung, and no restart of it was ever proved. Where the
    clock is put back in autumn, an hour of steps was late."""
    log, of = tmp_path / "ml_job-3_trainer.log", collector()
    for n, hours in enumerate((zone_h, zone_h, zone_h - (zone_h < 0))):
        for old_s in (20.0, 10.0):
            at = datetime.fromtimestamp(NOW - old_s + 3600.0 * hours, UTC).strftime("%Y-%m-%d %H:%M:%S,000")
            with log.open("a") as stream:
                stream.write(f"{at} INFO step={10 * n - int(old_s / 5) + 5} loss=2\n")
        batch = take(of)
        assert only(batch).t_s.tolist() == pytest.approx([NOW - 20.0, NOW - 10.0], abs=1.0)
        assert not batch.sources[0].rejected


def test_a_line_that_is_old_is_in_no_other_zone(collector: Any, tmp_path: Path) -> None:
    """Of a log that ended five hours ago the lines are five hours old."""
    log = tmp_path / "ml_job-3_trainer.log"
    log.write_text("2026-11-21 08:01:30 INFO step=1 loss=2\n")
    os.utime(log, times=(time.time() - 18_000.0,) * 2)
    assert only(take(collector())).t_s[0] == pytest.approx(NOW - 18_000.0, abs=60.0)


def test_a_restart_changes_the_run_and_a_rewind_alone_does_not(collector: Any, tmp_path: Path) -> None:
    log, of = tmp_path / "ml_job-3_trainer.log", collector()
    runs = []
    for text in ("step=10 loss=2\n", "step=5 loss=2\n", "Loading checkpoint step=5 rank=3\nstep=6 loss=2\n"):
        with log.open("a") as stream:
            stream.write(text)
        runs.append(only(take(of)).run)
    log.unlink()
    log.write_text("step=1 loss=2\n")
    runs.append(only(take(of)).run)
    assert runs[0] == runs[1]
    assert len(set(runs)) == 3


@pytest.mark.parametrize("before", ["", "Loading checkpoint shards: 100%|██| 4/4 [00:01<00:00,  2.00it/s]\n"])
def test_losses_without_any_step_are_counted(collector: Any, tmp_path: Path, before: str) -> None:
    """HF Trainer without its bar tells none: all losses were of one step, and but the first were never judged."""
    log, of = tmp_path / "ml_job-3_trainer.log", collector()
    line = "{'loss': 2.0, 'grad_norm': 1.0, 'learning_rate': 5e-05, 'epoch': 0.1}\n"
    log.write_text(before + "***** Running training *****\n" + line * 3)
    first = only(take(of))
    assert np.diff(first.step).tolist() == [1, 1]
    with log.open("a") as stream:
        stream.write("saving checkpoint to out\n" + line)
    second = only(take(of))
    assert (second.run, int(second.step[-1])) == (first.run, int(first.step[-1]) + 1)
    with log.open("a") as stream:
        stream.write("***** Running training *****\n" + line)
    assert only(take(of)).run != first.run


def test_a_bar_tells_the_steps_of_the_losses_between_its_states(collector: Any, tmp_path: Path) -> None:
    line = "{'loss': 2.0, 'learning_rate': 5e-05, 'epoch': 0.1}\n"
    bars = [f"  1%|█ | {n}/4000 [00:10<01:30,  9.90it/s]\r\n{line}" for n in (10, 20, 30)]
    (tmp_path / "ml_job-3_trainer.log").write_text("".join(bars))
    assert only(take(collector())).step.tolist() == [10, 20, 30]


def test_one_pod_of_several_ranks_is_told_apart_by_its_lines(collector: Any, tmp_path: Path) -> None:
    (tmp_path / "ml_big-0_t.log").write_text("rank=8 step=1 loss=2\nrank=9 step=1 loss=3\n")
    found = {s.subject.name: s.column("loss").tolist() for s in take(collector()).steps}
    assert found == {"ml/big#8": [2.0], "ml/big#9": [3.0]}


def test_trainers_that_print_steps_in_a_bar_and_figures_apart_are_joined(collector: Any, tmp_path: Path) -> None:
    (tmp_path / "ml_hf-0_t.log").write_text(
        "\r 10%|#         | 100/1000 [00:10<01:30,  2.00it/s]{'loss': 2.3, 'grad_norm': 1.2}\n"
        "\r 20%|##        | 200/1000 [00:10<01:30,  2.00it/s]\n{'loss': 2.1, 'grad_norm': 1.2}\n"
    )
    found = only(take(collector()))
    assert found.step.tolist() == [100, 200]
    assert found.column("loss").tolist() == [2.3, 2.1]


def test_quotable_lines_are_kept_and_bounded(
    collector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.training.logs.MAX_LINES", 20)
    lines = ["RuntimeError: CUDA error: uncorrectable ECC error"] + ["noise"] * 50 + ["NCCL WARN x"] * 500
    (tmp_path / "ml_job-3_trainer.log").write_text("\n".join(lines) + "\n")
    logs = take(collector()).logs
    assert logs[0].text.startswith("RuntimeError")
    assert logs[0].subject == RANK
    assert len(logs) == 20


def test_a_watchdogs_line_is_of_its_rank_and_kept_in_a_flood_of_errors(
    collector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pod of eight ranks: each rank's last word is kept, and nothing without bound."""
    monkeypatch.setattr("nightshift.collectors.training.logs.MAX_LINES", 10)
    folder, of = tmp_path, collector()
    said = "[rank{0}]:[E1] [PG 0 (default_pg) Rank {0}] Timeout at NCCL work: 7, last enqueued NCCL work: {1}, last"
    lines = [f"RuntimeError: {n}" for n in range(500)]
    lines += [f"{said.format(rank, 6 if rank == 5 else 7)} completed NCCL work: 6." for rank in range(8)]
    (folder / "ml_big-pod_t.log").write_text("\n".join(lines) + "\n")
    logs = [record for record in of.collect(NOW, Inventory(), 30.0).logs if "NCCL" in record.text]
    assert [record.subject.name for record in logs] == [f"ml/big-pod#{rank}" for rank in range(8)]
    told = [line for record in logs if (line := read_nccl_line(record.text)) is not None]
    assert behind(told) == {"default_pg": (5,)}


def test_a_huge_file_is_read_from_near_its_end_and_an_endless_line_is_skipped(
    collector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.training.logs.MAX_BYTES", 2**18)
    log = tmp_path / "ml_job-3_trainer.log"
    log.write_text("".join(f"step={n} loss=2\n" for n in range(10_000)) + "x" * 100_000 + "\nstep=10000 loss=3\n")
    of = collector()
    batch = take(of)
    assert only(batch).step.tolist()[-1] == 10_000
    with log.open("a") as stream:
        stream.write("y" * 300_000)
    assert take(of).sources[0].rejected == {Reason.TOO_LARGE: 1}
    with log.open("a") as stream:
        stream.write("\nstep=10001 loss=3\n")
    assert only(take(of)).step.tolist() == [10_001]


def test_a_rotated_file_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("1\n")
    tail = FileTail(path, 2**16)
    assert [line for _, line in tail.read().lines] == [b"1"]
    with path.open("a") as stream:
        stream.write("2\n")
    path.rename(tmp_path / "a.log.1")
    path.write_text("3\n")
    read = tail.read()
    assert [line for _, line in read.lines] == [b"2", b"3"]
    assert read.replaced


def test_the_collector_reads_a_storm_in_one_tick(collector: Any, tmp_path: Path) -> None:
    for rank in range(4):
        text = "".join(f"2026-11-21T13:00:00Z rank={rank} step={n} loss=2.5 grad_norm=1.0\n" for n in range(2500))
        (tmp_path / f"ml_job-{rank}_t.log").write_text(text)
    batch = take(collector())
    assert sum(len(s.step) for s in batch.steps) == 10_000


KERAS_BAR = (
    "\x1b[1m{0}/{1}\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━\x1b[0m \x1b[1m4s\x1b[0m 2ms/step - acc: 0.8 - loss: {2}"
)


@pytest.mark.parametrize(
    ("bar", "runtime"),
    [
        ("{0}/{1} [=====>......] - ETA: 1:23 - loss: {2} - accuracy: 0.8912", ""),
        ("{0}/{1} - 5s - loss: {2} - accuracy: 0.9151 - 5s/epoch - 3ms/step", ""),
        (KERAS_BAR, ""),
        (KERAS_BAR, "2026-11-21T13:01:40Z stdout F "),
    ],
    ids=["keras 2", "keras 2 without its bar", "keras 3", "keras 3 under CRI"],
)
def test_the_steps_of_keras_bars_go_on_over_epochs_and_its_evaluations_are_none(
    collector: Any, tmp_path: Path, bar: str, runtime: str
) -> None:
    """Its bars were not read at all: a Keras job's loss was never judged."""
    lines = []
    for epoch, total in ((1, "Unknown"), (2, 20), (3, 20)):
        lines += [f"Epoch {epoch}/4", bar.format(10, total, 2.0 / epoch), bar.format(20, 20, 1.0 / epoch)]
        lines += [bar.format(5, 5, 99.0)] if epoch == 2 else []
    lines += ["Epoch 4/4", bar.format(1, 20, "nan")]
    (tmp_path / "ml_job-3_trainer.log").write_text("".join(f"{runtime}{line}\n" for line in lines))
    run = only(take(collector()))
    assert run.step.tolist() == [10, 20, 30, 40, 50, 60, 61]
    assert run.column("loss").tolist() == pytest.approx([2.0, 1.0, 1.0, 0.5, 2 / 3, 1 / 3, math.inf])


def test_a_bar_whose_line_never_ends_is_read_while_it_runs(collector: Any, tmp_path: Path) -> None:
    """tqdm ends its line when training ends: until then nothing of it was read, and past 64 KiB nothing ever."""
    log, of = tmp_path / "ml_job-3_trainer.log", collector()
    found: list[int] = []
    for first in range(1, 4001, 1000):
        with log.open("a") as stream:
            for n in range(first, first + 1000):
                stream.write(f"\rTraining:  10%|█         | {n}/9000 [00:10<01:30,  9.90it/s, loss={n}.5]")
        found += only(take(of)).step.tolist()
    assert found == list(range(1, 4000))  # the last state may not be whole


def test_a_bars_state_that_the_runtime_cut_in_two_is_read_whole(collector: Any, tmp_path: Path) -> None:
    """CRI cuts lines at 16 KiB: of `loss=12.3` it left `loss=1`, and a loss that fell to a tenth."""
    state = " 10%|█ | {0}/9000 [00:10<01:30,  9.90it/s, loss={0}.25]"
    text = "".join("\r" + state.format(n) for n in range(100, 130)) + "\n"
    log, of = tmp_path / "ml_job-3_trainer.log", collector()
    found: dict[int, float] = {}
    for at in range(0, len(text), 37):
        chunk = text[at : at + 37]
        tag = "F" if chunk.endswith("\n") else "P"
        with log.open("a") as stream:
            stream.write(f"2026-11-21T13:00:{at % 60:02d}.5Z stderr {tag} {chunk}" + ("" if tag == "F" else "\n"))
        for series in take(of).steps:
            assert (series.t_s < NOW).all()  # every state has its line's time
            found |= dict(zip(series.step.tolist(), series.column("loss").tolist(), strict=True))
    assert found == {n: n + 0.25 for n in range(100, 130)}


def test_dockers_json_is_taken_off_the_lines(collector: Any, tmp_path: Path) -> None:
    """Behind cri-dockerd the kubelet's logs are Docker's: of key=value the last figure was lost, of JSON all."""
    lines = ["step=1 loss=2.5\\n", '{\\"step\\": 2, \\"loss\\": 2.25}\\n']
    (tmp_path / "ml_job-3_trainer.log").write_text(
        "".join(
            f'{{"log":"{line}","stream":"stderr","time":"2026-11-21T13:00:0{n}.5Z"}}\n'
            for n, line in enumerate(lines)
        )
    )
    run = only(take(collector()))
    assert run.step.tolist() == [1, 2]
    assert run.column("loss").tolist() == [2.5, 2.25]
    assert run.t_s.tolist() == [1_795_266_000.5, 1_795_266_001.5]


def test_glogs_stamp_is_read_in_the_year_that_is_near() -> None:
    """Absl prints no year: every step of a log that was read late was of now."""
    for now_s, year in ((1_795_266_100.0, 2026), (1_798_761_700.0, 2026)):  # 21 November, and 1 January 2027
        line = read_line("I1231 23:59:59.500000 140 train.py:88] step: 100, loss: 2.3", now_s=now_s)
        assert line is not None
        assert line.t_s is not None
        assert not line.zoned
        assert datetime.fromtimestamp(line.t_s, UTC).isoformat() == f"{year}-12-31T23:59:59.500000+00:00"
    line = read_line("I1399 23:59:59.500000 140 train.py:88] step: 100, loss: 2.3", now_s=NOW)
    assert line is not None
    assert line.t_s is None


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (
            "step=100 loss=2,3456 grad_norm=1,25 lr=0,0001",
            {"loss": 2.3456, "grad_norm": 1.25, "learning_rate": 1e-4},
        ),
        ("step=1,200 loss=2,345 tps=1,234", {"loss": 2.345, "tokens_per_s": 1234.0}),
        ("step=100,loss=1.234,56,step_time=0,25s", {"loss": 1234.56, "step_time_s": 0.25}),
        ("step=100 loss=1,234.5 step_time_ms=1,250", {"loss": 1234.5, "step_time_s": 1.25}),
        ("step=100 loss=1,2,3.4 lr=1,5e-05", {"learning_rate": 1.5e-5}),
        ("steps: 100 loss: 2.5 iter time (s): 0,250 samples/sec: 12,3", {"loss": 2.5, "step_time_s": 0.25}),
    ],
)
def test_decimal_commas_are_no_thousands(text: str, figures: dict[str, float]) -> None:
    """A German loss of 2,3456 was 23456: a job that learns well had diverged."""
    line = read_line(text)
    assert line is not None
    assert line.figures == pytest.approx(figures)


@pytest.mark.parametrize(
    ("text", "step", "rank"),
    [
        ('{"_step": 100, "_runtime": 12.3, "train/loss": 2.5}', 100, None),
        ('{"trainer/global_step": 100, "loss/train/total": 2.5}', 100, None),
        ('[metric][batch=100]: { "loss/train/total": 2.5 }', 100, None),
        ("| epoch   2 |   100/ 2983 batches | lr 5.00 | ms/batch 12.34 | loss  2.50 | ppl  3361.12", 6066, None),
        ("[1,3]<stdout>:step=100 loss=2.5", 100, 3),
    ],
    ids=["wandb's rows", "Composer's rows", "Composer's file", "word_language_model", "mpirun's ranks"],
)
def test_rows_of_trackers_and_launchers_are_read(text: str, step: int, rank: int | None) -> None:
    line = read_line(text)
    assert line is not None
    assert (line.step, line.rank, line.figures["loss"]) == (step, rank, 2.5)


def test_every_line_is_kept_as_it_stood_also_those_that_no_one_reads(collector: Any, tmp_path: Path) -> None:
    lines = [f"preparing shard {number}" for number in range(300)]
    (tmp_path / "ml_train-0_main.log").write_text("".join(f"{line}\n" for line in lines))
    batch = take(collector())
    assert [record.text for record in batch.raw] == lines
    assert len(batch.logs) < 300


def test_an_epoch_is_a_step_only_where_nothing_else_is_counted(tmp_path: Path) -> None:
    """The summary of an epoch whose steps were told is none."""
    alone, beside = tmp_path / "ml_alone-0_main.log", tmp_path / "ml_beside-0_main.log"
    alone.write_text("".join(f"Epoch {n}/9: train_loss={3 - n / 9:.2f} val_loss=3.1\n" for n in range(3)))
    beside.write_text("step=1 loss=3.0\nstep=2 loss=2.9\nepoch 7 finished, loss: 2.0\nstep=3 loss=2.8\n")
    collector = TrainingLogsCollector(TrainingLogsCollector.Settings(directory=tmp_path))
    batch = collector.collect(time.time(), Inventory(), timeout_s=60.0)
    assert {s.subject.name: s.step.tolist() for s in batch.steps} == {
        "ml/alone#0": [0, 1, 2],
        "ml/beside#0": [1, 2, 3],
    }


def test_dumps_of_a_hang_beside_the_logs_are_read_once_whole(tmp_path: Path) -> None:
    """A broken or hostile one is counted as malformed; the next look reads none again."""
    good, bad = tmp_path / "ml_llm-0_nccl_trace_rank_3", tmp_path / "ml_llm-0_nccl_trace_rank_4"
    good.write_bytes(dump(3, 6, 6))
    bad.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    for path in (good, bad):
        os.utime(path, (time.time() - 60, time.time() - 60))
    collector = TrainingLogsCollector(TrainingLogsCollector.Settings(directory=tmp_path))
    first = collector.collect(1_000.0, Inventory(), 5.0)
    (record,) = first.raw
    assert record.text.startswith("nightshift dump ")
    assert record.subject == Subject(SubjectKind.RANK, "ml/llm#3")
    assert first.sources[0].rejected == {Reason.MALFORMED: 1}
    assert not first.logs
    assert not collector.collect(1_040.0, Inventory(), 5.0).raw
