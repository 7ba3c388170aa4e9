"""Whether kernels change how a training run's loss goes: the band of five eager seeds, and what it can tell.

    python -m benchmarks.kernels_train_loss BUNDLE KEPT      # a part of `benchmarks.kernels_train_step`

KEPT is a file that appears once the canary has chosen: {"mode", "only", "launches"}. All runs see the same batches.

Of six runs that are alike, one is first or last at each step in two of six: so a run without any kernel leaves the
band of five others at a third of its steps, and "within the band at every step" would refuse eager itself. Three
readings that can tell something are made instead:

- rank: how many steps a run of a *new* seed spends outside, among eager runs of as many further seeds. With the
  kernels it should be one of them: `p` is the share of runs that are outside at least as often.
- smoothed: the same of the mean over 20 steps.
- own seed: the largest gap to eager's run of the same seed, beside what torch.compile alone and what eager run
  again leave, and beside the band's width.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpt_step import SIZE, TINY, Job, batches

OUT = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
BAND, FURTHER, NEW = range(1, 6), range(6, 20), 20
ENOUGH = 9
"""Further seeds after which the kernels' own runs come first, once there is something to run."""
WINDOW = 20
Curve = list[float]


def outside(values: Curve, band: list[Curve]) -> int:
    """At how many steps a curve leaves the band of others."""
    columns = zip(values, *band, strict=True)
    return sum(not min(others) <= value <= max(others) for value, *others in columns)


def smooth(values: Curve, window: int = WINDOW) -> Curve:
    """Means over the window's steps up to each; the first of whole windows."""
    return [statistics.fmean(values[n - window + 1 : n + 1]) for n in range(window - 1, len(values))] or values


def gap(values: Curve, others: Curve) -> float:
    return max(abs(a - b) for a, b in zip(values, others, strict=True))


def readings(curves: dict[str, Curve]) -> dict[str, Any]:
    """The figures of the curves so far, by the names that `main` gives them."""
    band = [curves[f"eager {seed}"] for seed in BAND]
    further = [curves[f"eager {seed}"] for seed in FURTHER if f"eager {seed}" in curves]
    known = {name: curve for name, curve in curves.items() if not name.startswith("eager ")}
    found: dict[str, Any] = {"steps": len(band[0]), "further_seeds": len(further)}
    for what, change in (("outside", list), ("outside_smoothed", smooth)):
        inner = [change(curve) for curve in band]
        counts = [outside(change(curve), inner) for curve in further]
        found[what] = {name: outside(change(curve), inner) for name, curve in known.items()}
        found[f"{what}_of_further_seeds"] = counts
        found[f"{what}_p"] = {
            name: (1 + sum(count >= found[what][name] for count in counts)) / (1 + len(counts))
            for name in known if name.endswith("new seed")
        }  # fmt: skip
    found["gap_to_own_seed"] = {n: gap(c, band[0]) for n, c in known.items() if not n.endswith("new seed")}
    found["band_median_width"] = statistics.median(max(c) - min(c) for c in zip(*band, strict=True))
    found["last"] = {name: curve[-1] for name, curve in curves.items()}
    found["curve_every_10"] = {n: c[::10] for n, c in curves.items() if n in known or n in ("eager 1", "eager 2")}
    mine = found["outside"].get("kernels, new seed")
    counts = found["outside_of_further_seeds"]
    found["told"] = f"outside five seeds' band at {mine} of {len(band[0])} steps, further eager seeds at {counts}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("kept", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--loss-steps", type=int, default=300)
    given = parser.parse_args()
    device, size = ("cpu", TINY) if given.tiny else ("cuda", SIZE)
    data = batches(size, device, 8 if given.tiny else 24)
    curves: dict[str, Curve] = {}
    started = time.time()

    def add(name: str, job: Job) -> None:
        found = torch.stack([job.step(data[n % len(data)]) for n in range(given.loss_steps)])
        curves[name] = found.tolist()
        if job.kernels is not None:
            job.kernels.unapply(job.model)
        torch._dynamo.reset()
        if all(f"eager {seed}" in curves for seed in BAND):
            made = readings(curves)
            (OUT / "kernels_train_loss.json").write_text(json.dumps(made, indent=1) + "\n")
        print(f"[{time.time() - started:.0f} s] {name}: {curves[name][-1]:.4f}", flush=True)

    for seed in BAND:
        add(f"eager {seed}", Job(size, device, seed, ""))
    add("eager again", Job(size, device, 1, ""))
    add("compile", Job(size, device, 1, "reduce-overhead"))
    add("compile, new seed", Job(size, device, NEW, "reduce-overhead"))
    left = list(FURTHER)[:2] if given.tiny else list(FURTHER)
    while left and not (given.kept.exists() and len(FURTHER) - len(left) >= ENOUGH):
        seed = left.pop(0)
        add(f"eager {seed}", Job(size, device, seed, ""))
    while not given.kept.exists():
        time.sleep(0.5)
    chosen = json.loads(given.kept.read_text())
    if chosen["only"]:
        from benchmarks.kernels_train_step import load

        kernels = load(given.bundle)
        for name, seed in (("kernels, new seed", NEW), ("kernels", 1)):
            add(name, Job(size, device, seed, chosen["mode"], kernels, chosen["only"], chosen["launches"]))
    for seed in left:
        add(f"eager {seed}", Job(size, device, seed, ""))


if __name__ == "__main__":
    main()
