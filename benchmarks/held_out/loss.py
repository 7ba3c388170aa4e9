"""Loss divergence on public training logs, on restarts in eight trainers' words, and on warm-ups.

Public logs: `git clone --bare` (or any git directory) of each repository of `REPOSITORIES` under one folder, as
`OWNER+NAME/repo`; then `python -m benchmarks.held_out.loss MIRRORS FOLDER` writes every log with at least 200
printed losses to `FOLDER/training_logs/`: lines of text as they stand there, and HF Trainer's `trainer_state.json`
as the lines that HF Trainer prints. Logs whose name has an odd md5 are for the score only.

Drawn here, not public: the losses of the restarts and warm-ups. Their lines are written in the trainers' formats.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nightshift.agent.rca.evidence import gather
from nightshift.collectors.frame import StepSeries
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.collectors.training.logs import TrainingLogsCollector
from nightshift.detectors.base import Fault, Finding, State
from nightshift.detectors.loss.divergence import Divergence

REPOSITORIES = (
    "KellerJordan/modded-nanogpt",
    "Jaong/Checkpoint-of-CPT",
    "P4P4N1CK/whisper-large-v2-japanese-5k-steps",
    "ShashankBommana/DNABERT-2",
    "aigoncharov/trainer_state_viz",
    "akhmetvaleev-ruslan/bashkir-language-audio2text",
)
LEAST_LOSSES = 200
LINES_A_LOOK = 10
LOOK_S = 5.0
_LOSS = re.compile(r"^(?:step:\d+/\d+ train_loss:|s:\d+ tel:|\{'loss': )")

Line = Callable[[int, float, float, float], str]
"""(step, loss, learning rate, gradient norm) → a line of the log"""
TRAINERS: dict[str, tuple[Line, str]] = {
    "Megatron-LM": (
        lambda s, loss, lr, norm: (
            f" iteration {s:8d}/    4000 | consumed samples: {64 * s:12d} | "
            f"elapsed time per iteration (ms): 250.0 | learning rate: {lr:.6E} | global batch size:    64 | "
            f"lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {norm:.3f} | "
            f"number of skipped iterations:   0 | number of nan iterations:   0 |"
        ),
        "> initializing torch distributed ...\ncould not find arguments in the checkpoint, will start from random",
    ),
    "torchtitan": (
        lambda s, loss, lr, norm: (
            f"[titan] 2026-11-21 13:00:00,000 - root - INFO - step: {s:2d}  loss: {loss:8.5f}  "
            f"grad_norm: {norm:7.4f}  memory: 10.00GiB(20.00%)  tps: 1,234  tflops: 20.00  mfu: 20.00%"
        ),
        "[titan] 2026-11-21 13:00:09,000 - root - INFO - Training starts at step 1.",
    ),
    "nanoGPT": (
        lambda s, loss, lr, norm: f"iter {s}: loss {loss:.4f}, time 123.45ms, mfu 12.30%",
        "tokens per iteration will be: 491,520\nInitializing a new model from scratch",
    ),
    "HF Trainer": (
        lambda s, loss, lr, norm: (
            f"{{'loss': {loss:.4f}, 'grad_norm': {norm:.6f}, 'learning_rate': {lr:.6g}, 'step': {s}, 'epoch': 0.1}}"
        ),
        "***** Running training *****\n  Num examples = 100,000",
    ),
    "fairseq": (
        lambda s, loss, lr, norm: (
            f"2026-11-21 13:00:00 | INFO | train_inner | epoch 001: {s:6d} / 50000 loss={loss:.3f}, wps=1000, "
            f"num_updates={s}, lr={lr:.6g}, gnorm={norm:.3f}"
        ),
        "| INFO | fairseq.trainer | No existing checkpoint found checkpoints/checkpoint_last.pt",
    ),
    "MaxText": (
        lambda s, loss, lr, norm: (
            f"completed step: {s}, seconds: 10.245, TFLOP/s/device: 350.985, Tokens/s/device: 19222.222, "
            f"total_weights: 65536, loss: {loss:.3f}"
        ),
        "No existing checkpoints found, not restoring checkpoint.",
    ),
    "llm.c": (
        lambda s, loss, lr, norm: (
            f"step {s:4d}/19073 | loss {loss:.6f} (+nanz)| norm {norm:.4f} (+nanz)| lr {lr:.2e} | 250.00 ms | "
            "50.0% bf16 MFU | 100000 tok/s"
        ),
        "| device                | NVIDIA H100 80GB HBM3                              |",
    ),
    "key=value": (
        lambda s, loss, lr, norm: f"step={s} loss={loss:.5f} lr={lr:.6g} grad_norm={norm:.4f}",
        "elastic agent: worker group failed, 2 restarts left; restarting",
    ),
}
WITHOUT = {"none: Megatron-LM": "Megatron-LM", "none: key=value": "key=value"}
"""The same lines with no word on the restart at all."""


def curve(steps: np.ndarray, top: float, end: float, tau: float, seed: int) -> np.ndarray:
    """Losses that fall from `top` to `end` with this time constant (steps), with noise."""
    noise = np.random.default_rng(seed).normal(0.0, 0.03, len(steps))
    return np.asarray(end + (top - end) * np.exp(-steps / tau) + noise)


def told(lines: Sequence[str]) -> Iterator[tuple[int, Finding]]:
    """(how many lines were written, finding) of a log that grows by LINES_A_LOOK lines a look."""
    detector, known = Divergence(), Inventory()
    now_s = 1_795_000_000.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ml_llm-0_main.log")
        path.write_text("")
        os.utime(path)
        collector = TrainingLogsCollector(TrainingLogsCollector.Settings(directory=Path(folder)))
        for first in range(0, len(lines), LINES_A_LOOK):
            part = lines[first : first + LINES_A_LOOK]
            with path.open("a") as log:
                log.write("".join(f"{line}\n" for line in part))
            now_s += LOOK_S
            batch = collector.collect(now_s, known, 60.0)
            for finding in detector.update(Tick(now_s, steps=tuple(batch.steps)), known):
                yield first + len(part), finding


def alarms(lines: Sequence[str]) -> list[int]:
    """How many lines had been written at each new alarm."""
    found: dict[str, int] = {}
    for count, finding in told(lines):
        if finding.state is State.FIRING:
            found.setdefault(finding.episode, count)
    return sorted(found.values())


def restarts() -> dict[str, Any]:
    """Two runs in one log, by trainer: from scratch, and from a checkpoint half-way; the second healthy, or with
    wrong labels from two thirds on. [found, runs] and false alarms."""
    found: dict[str, Any] = {}
    for number, name in enumerate([*TRAINERS, *WITHOUT]):
        line, words = TRAINERS[WITHOUT.get(name, name)]
        between = [] if name in WITHOUT else words.split("\n")
        false, right, runs = 0, 0, 0
        for every in (1, 10):
            for back in (0.0, 0.5):
                for ill in (False, True):
                    seed = 100 * number + runs
                    first, second, onset = _two_runs(every, back, ill, seed)
                    lines = [line(*entry) for entry in first] + between + [line(*entry) for entry in second]
                    at = len(first) + len(between) + onset
                    told_at = alarms(lines)
                    false += sum(count < at for count in told_at) if ill else len(told_at)
                    right += ill and any(at <= count <= at + 100 for count in told_at)
                    runs += ill
        found[name] = {"false_alarms": false, "true_faults_found": [right, runs]}
    return found


def _two_runs(every: int, back: float, ill: bool, seed: int) -> tuple[list[Any], list[Any], int]:
    """(entries of the first run, of the second, the entry of the second at which its labels go wrong)."""
    steps = every * np.arange(1, 401)
    loss = curve(steps, 10.7, 1.3, 50.0 * every, seed)
    start = int(back * steps[-1])
    again = steps[steps > start]
    other = curve(again, 10.7, 1.3, 50.0 * every, seed + 1)
    onset = 2 * len(again) // 3
    if ill:
        other[onset:] += 6.0 * (1.0 - np.exp(-np.arange(len(again) - onset) / 3.0))
    warm_up = 50.0 * every
    entries = [
        [
            (int(s), float(x), 3e-4 * min(1.0, s / warm_up), 1.0 + 0.3 * float(x))
            for s, x in zip(at, losses, strict=True)
        ]
        for at, losses in ((steps, loss), (again, other))
    ]
    return entries[0], entries[1], onset


def warmups() -> dict[str, Any]:
    """Warm-ups by length and by how often they are logged, each with labels that go wrong during it, right after
    it, or much later: how often "the learning rate jumped" was proven. And true jumps by factor, named or not."""
    blamed, runs, missed = 0, 0, 0
    for length in (100, 500, 2000):
        for every in (1, 10, 50):
            for onset in (0.6, 1.1, 3.0):
                steps = every * np.arange(1, max(4 * length // every, 300))
                rate = 1e-3 * np.minimum(1.0, steps / length)
                place = max(int(onset * length / every), 120)
                blamed_now, seen = _blamed(steps, rate, place)
                blamed, missed, runs = blamed + blamed_now, missed + (not seen), runs + 1
    named: dict[str, list[int]] = {}
    for factor in (2.0, 3.0, 10.0, 100.0):
        for every in (1, 10, 50):
            steps = every * np.arange(1, 301)
            rate = 3e-4 * np.minimum(1.0, steps / 100.0)
            rate[200:] *= factor
            named.setdefault(f"x{factor:g}", []).append(int(_blamed(steps, rate, 200)[0]))
    return {"warm_ups": runs, "blamed": blamed, "not_alarmed": missed, "true_jumps_named": named}


def _blamed(steps: np.ndarray, rate: np.ndarray, onset: int) -> tuple[bool, bool]:
    """(whether the evidence says that the rate jumped, whether there was an alarm) where labels go wrong here."""
    detector, history, known = Divergence(), History(), Inventory()
    job = Subject(SubjectKind.JOB, "bench/warm")
    tau = max(float(steps[onset]) / 4.0, 30.0)
    loss = curve(steps.astype(float), 10.7, 1.5, tau, len(steps))
    loss[onset:] += 5.0
    for first in range(0, len(steps), LINES_A_LOOK):
        part = slice(first, first + LINES_A_LOOK)
        at_s = 1_795_000_000.0 + np.arange(first, first + len(steps[part]), dtype=float)
        columns = {"loss": loss[part], "learning_rate": rate[part]}
        series = StepSeries(job, "run", steps[part].astype(np.int64), at_s, columns, "log")
        tick = Tick(float(at_s[-1]), steps=(series,))
        history.add(tick)
        firing = [f for f in detector.update(tick, known) if f.fault is Fault.LOSS_DIVERGED]
        if firing:
            item = gather(firing, history, known, tick.at_s).one("learning_rate")
            proven = item is not None and json.loads(item.content)["jumped"] == "yes"
            return proven or float(firing[0].facts["learning_rate_jump"]) > 1.0, True
    return False, False


def extract(mirrors: Path, folder: Path) -> None:
    """Writes the public logs of the git directories under `mirrors` to `folder/training_logs/`."""
    out = folder / "training_logs"
    out.mkdir(parents=True, exist_ok=True)
    for repository in REPOSITORIES:
        git = ["git", "-C", str(mirrors / repository.replace("/", "+") / "repo")]
        listing = [*git, "ls-tree", "-r", "--name-only", "HEAD"]
        listed = subprocess.run(listing, check=True, capture_output=True, text=True)
        for path in listed.stdout.splitlines():
            if not path.endswith((".txt", ".log", "trainer_state.json")):
                continue
            shown = subprocess.run([*git, "show", f"HEAD:{path}"], check=True, capture_output=True)
            lines = _lines(path, shown.stdout.decode(errors="replace"))
            if len(lines) >= LEAST_LOSSES or (lines and path.endswith(".json") and len(lines) >= 60):
                name = f"{repository}/{path}".replace("/", "+")
                (out / f"{name}.log").write_text("\n".join(lines) + "\n")


def _lines(path: str, text: str) -> list[str]:
    if not path.endswith(".json"):
        return [line for line in text.splitlines() if _LOSS.match(line)]
    try:
        entries = json.loads(text).get("log_history", [])
    except (ValueError, AttributeError):
        return []
    return [str(entry) for entry in entries if "loss" in entry]


def is_for_score(name: str) -> bool:
    return int(hashlib.md5(name.encode()).hexdigest(), 16) % 2 == 1


def public(folder: Path, score: bool) -> dict[str, Any]:
    """Public logs as they are, and each followed by the beginning of another run in the same log, without a word.

    They have no labels. Their authors published them as runs that ended well."""
    paths = sorted((folder / "training_logs").glob("*.log"))
    chosen = [path for path in paths if is_for_score(path.name) == score]
    alone, joined, losses = [], [], 0
    for number, path in enumerate(chosen):
        lines = path.read_text().splitlines()[:4000]
        losses += len(lines)
        alone += [path.name] if alarms(lines) else []
        # a run of the same trainer follows, as after a restart of its pod
        follower = chosen[(number + 1) % len(chosen)].read_text().splitlines()[:600]
        joined += [path.name] if alarms(lines[:1000] + follower) else []
    return {"logs": len(chosen), "losses": losses, "alarmed": alone, "alarmed_after_a_restart": joined}


def measure(folder: Path) -> dict[str, Any]:
    """Everything above; the public logs only where `folder` has them."""
    found: dict[str, Any] = {"restarts": restarts(), "warm_ups": warmups()}
    if (folder / "training_logs").is_dir():
        found["public_logs_even"] = public(folder, score=False)
        found["public_logs_odd"] = public(folder, score=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("mirrors", type=Path, help="folder of git directories, OWNER+NAME/repo each")
    parser.add_argument("folder", type=Path, help="folder to write training_logs/ to")
    chosen_folders = parser.parse_args()
    extract(chosen_folders.mirrors, chosen_folders.folder)
