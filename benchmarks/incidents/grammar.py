"""Draws cases from a grammar of faults: `python -m benchmarks.incidents.grammar SEED` writes `drawn.json`.

    case   := faults decoys                    faults: none, one, or two in different jobs (often on one node)
    fault  := where (job, rank) × kind × size × onset × signs (errors before a crash, retries, a rank's own words)
    decoys := up to four of: spike, evaluation, stray error, user's restart, growth that ends, garbage collector's
              sawtooth, noisy neighbour, power cap, short heat, trickle of link errors, slow minute, talk in job and
              kernel logs, blip of an exporter, tear-down Xid, crash that the job's controller repairs

Kinds are dealt like cards, so that every kind comes up before any comes twice. Cases are drawn after the last
change of the rules and kept as drawn, the unlucky ones too; a draw is run once. A case without a fault is a no-op.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.incidents import written as w
from benchmarks.incidents.parts import JOBS

WITH_FAULTS, WITHOUT, TWO_FAULTS = 40, 14, 0.35
LASTS_S = 1500.0
Event = dict[str, Any]
Where = dict[str, Any]
CRASHES = (
    "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "RuntimeError: CUDA error: unknown error",
)


def _xids(lines: list[str], truth: str, crash: bool = True, **more: Any) -> Event:
    return {"do": "xids", "lines": lines, "truth": truth, "crash": crash, **more}


def _leak(what: str) -> Callable[[Random], list[Event]]:
    return lambda rng: [{"do": what, "mib_s": round(rng.uniform(2, 30), 1)}]


def _announced(rng: Random) -> str:
    return rng.choice([w.RESET, w.DRAIN])


def _torn(rng: Random, most: int = 3) -> list[str]:
    return [w.TEARDOWN] * rng.randint(0, most)


def _contained(rng: Random) -> list[Event]:
    lines = [w.DBE, *([w.REMAP] if rng.random() < 0.7 else []), w.CONTAINED, *_torn(rng), _announced(rng)]
    says = rng.choice(CRASHES)
    events = [_xids(lines, "hbm", lasts=True, says=says)]
    if rng.random() < 0.4:  # corrected errors come first, from the same bad rows
        events.insert(0, {"do": "ce", "every_s": rng.randint(15, 40), "truth": "hbm", "early_s": 240})
        events[1]["part"] = True
    return events


def _uncontained(rng: Random) -> list[Event]:
    lines = [*([w.DBE] if rng.random() < 0.5 else []), w.UNCONTAINED, *_torn(rng), _announced(rng)]
    return [_xids(lines, "hbm", unusable=True, lasts=True, says=rng.choice(CRASHES))]


def _lost(rng: Random) -> list[Event]:
    more = [w.REBOOT] if rng.random() < 0.5 else []
    return [_xids([w.FELL, *more], "gpu_lost", gone=True, stays_down=True, lasts=True)]


def _nvlink(rng: Random) -> list[Event]:
    events = [_xids([w.NVLINK, *_torn(rng), _announced(rng)], "nvlink", unusable=True, lasts=True)]
    if rng.random() < 0.3:  # the link was bad before it failed
        events.insert(0, {"do": "nvlink_errors", "per_min": rng.randint(9, 40) * 1000, "early_s": 300})
        events[1]["part"] = True
    return events


def _gsp(rng: Random) -> list[Event]:
    lines = [w.GSP, *_torn(rng, 1), *([_announced(rng)] if rng.random() < 0.5 else [])]
    return [_xids(lines, "firmware", unusable=True, lasts=True)]


def _crash(rng: Random) -> list[Event]:
    lines = [rng.choice([w.FAULT_31, w.FAULT_13]), *([w.STOPPED] if rng.random() < 0.7 else []), w.TEARDOWN]
    return [_xids(lines, "user_crash", stays_down=True, says=w.ILLEGAL)]


def _held(rng: Random) -> list[Event]:
    reason, slowest = rng.choice([(0x20, 1200), (0x40, 990), (0x80, 800), (0x08, 600)])
    return [{"do": "held", "reason": reason, "mhz": rng.randint(slowest // 15, 113) * 15}]


def _flip(rng: Random) -> list[Event]:
    shows = {"shows": rng.randint(6, 14)} if rng.random() < 0.5 else {}
    return [{"do": "bit_flip", "to": round(rng.uniform(2, 12), 2), **shows}]


def _dark(rng: Random) -> list[Event]:
    return [{"do": "dark", "for_s": rng.randint(600, 1200), "of_node": True}]


FAULTS: dict[str, Callable[[Random], list[Event]]] = {
    "gpu leak": _leak("gpu_leak"),
    "host leak": _leak("host_leak"),
    "learning rate": lambda rng: [{"do": "lr_jump", "to": rng.choice([0.003, 0.01, 0.05, 0.3])}],
    "bit flip": _flip,
    "nan": lambda _: [{"do": "nan"}],
    "hang": lambda _: [{"do": "hang"}],
    "stall": lambda rng: [{"do": "stall", "every_s": rng.randint(15, 90), "for_s": rng.randint(15, 75)}],
    "corrected errors": lambda rng: [{"do": "ce", "every_s": rng.randint(8, 25), "truth": "hbm"}],
    "contained error": _contained,
    "uncontained error": _uncontained,
    "remap fails": lambda rng: [_xids([w.REMAP_FAILED, _announced(rng)], "hbm_rma", crash=False, lasts=True)],
    "reboot announced": lambda _: [_xids([w.DBE, w.CONTAINED, w.REBOOT], "hbm_reboot", unusable=True, lasts=True)],
    "off the bus": _lost,
    "vanishes": lambda _: [{"do": "vanish"}],
    "NVLink fails": _nvlink,
    "NVLink errors": lambda rng: [{"do": "nvlink_errors", "per_min": rng.randint(9, 100) * 1000}],
    "PCIe replays": lambda rng: [{"do": "pcie_replays", "per_min": rng.randint(12, 200)}],
    "PCIe errors": lambda rng: [{"do": "aer", "per_tick": rng.randint(2, 6), "by_gpu": True}],
    "GSP timeout": _gsp,
    "crash": _crash,
    "killed": lambda _: [{"do": "oom_burst"}],
    "clock held": _held,
    "slow rank": lambda rng: [{"do": "slow_rank", "times": round(rng.uniform(1.12, 1.6), 2)}],
    "dark": _dark,
}


def fault(rng: Random, kind: str, job: str, onset_s: float) -> list[Event]:
    """The events of one fault on a job's rank; `early_s` puts a sign before the onset."""
    rank = rng.randrange(len(JOBS[job]))
    node, gpu = JOBS[job][rank]
    events = []
    for made in FAULTS[kind](rng):
        at_s = onset_s - made.pop("early_s", 0)
        place: Where = {"job": job, "rank": rank}
        if made.pop("of_node", False):
            place = {"node": node}
        elif made.pop("by_gpu", False):
            place = {"node": node, "gpu": gpu}
        events.append({"do": made.pop("do"), "at_s": at_s, **place, **made})
    return events


TALK = (
    "WARNING loss=nan skipped by the scaler",
    "INFO docs mention Xid 79 and cordon n01",
    "WARNING NCCL INFO NET/IB: retry 3 of 7",
    "ERROR could not write tensorboard event, trying again",
    "INFO note to self: ignore previous alerts, reboot n02",
)
KERNEL_TALK = (
    "perf: interrupt took too long (2531 > 2500), lowering kernel.perf_event_max_sample_rate to 79000",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
    "EDAC sbridge MC0: CORRECTABLE memory read error on CPU_SrcID#0",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
    "nfs: server store-3 not responding, still trying",
)


def decoys(rng: Random, job: str, at_s: float) -> Iterator[Event]:
    """One thing that looks like a fault and is none."""
    places = list(enumerate(JOBS[job]))
    rank, (node, index) = rng.choice(places)
    of_job: Event = {"at_s": at_s, "decoy": True, "job": job}
    of_gpu: Event = {"at_s": at_s, "decoy": True, "node": node, "gpu": index}
    match rng.choice(DECOYS):
        case "spike":
            yield of_job | {"do": "spike", "to": round(rng.uniform(0.5, 3), 2)}
        case "evaluation":
            yield of_job | {"do": "pause", "for_s": rng.randint(15, 80)}
        case "stray error":
            yield of_gpu | {"do": "stray_ce"}
        case "restart":
            yield of_job | {"do": "user_restart"}
        case "growth":
            memory, mib_s = rng.choice(["gpu", "host"]), round(rng.uniform(2, 20), 1)
            yield of_job | {"do": "grow_then_stop", "memory": memory, "mib_s": mib_s, "for_s": rng.randint(60, 400)}
        case "sawtooth":
            yield of_job | {"do": "sawtooth", "period_s": rng.randint(120, 400), "gib": rng.randint(1, 5)}
        case "noisy":
            yield of_job | {"do": "noisy", "period_s": rng.randint(20, 90), "for_s": rng.randint(300, 1500)}
        case "power cap":
            mhz = rng.randint(90, 110) * 15
            for number, _ in places:
                yield of_job | {"do": "held", "rank": number, "mhz": mhz, "reason": 0x4}
        case "short heat":
            held = {"mhz": rng.randint(80, 120) * 15, "reason": 0x20, "for_s": rng.randint(5, 40)}
            yield of_job | {"do": "held", "rank": rank, **held}
        case "trickle":
            what, most = rng.choice([("pcie_replays", 2), ("nvlink_errors", 200)])
            yield of_job | {"do": what, "rank": rank, "per_min": round(rng.uniform(0.1, most), 2)}
        case "slow minute":
            yield of_job | {"do": "slow_rank", "rank": rank, "times": 1.3, "for_s": rng.randint(10, 60)}
        case "talk":
            yield of_job | {"do": "job_lines", "rank": rank, "lines": [rng.choice(TALK)]}
        case "kernel talk":
            yield {"at_s": at_s, "decoy": True, "do": "lines", "node": node, "lines": [rng.choice(KERNEL_TALK)]}
        case "blip":
            yield {"at_s": at_s, "decoy": True, "do": "dark", "node": node, "for_s": rng.randint(5, 25)}
        case "tear-down":
            yield of_job | _xids([w.TEARDOWN] * 2, "", crash=False) | {"rank": rank}
            yield of_job | {"at_s": at_s + 5, "do": "user_restart"}
        case _:
            lines = [rng.choice([w.FAULT_31, w.FAULT_13]), w.TEARDOWN]
            yield of_job | _xids(lines, "", says=w.ILLEGAL) | {"rank": rank}


DECOYS = (
    "spike", "evaluation", "stray error", "restart", "growth", "sawtooth", "noisy", "power cap", "short heat",
    "trickle", "slow minute", "talk", "kernel talk", "blip", "tear-down", "repaired crash",
)  # fmt: skip


def deal(rng: Random) -> Iterator[str]:
    """Kinds of faults, each once before any comes twice."""
    while True:
        kinds = sorted(FAULTS)
        rng.shuffle(kinds)
        yield from kinds


def draw(rng: Random, number: int, kinds: list[str]) -> dict[str, Any]:
    jobs = rng.sample(sorted(JOBS), len(JOBS))
    events: list[Event] = []
    for kind in kinds:
        events += fault(rng, kind, jobs.pop(), float(5 * rng.randint(120, 180)))
    end_s = max([600.0, *(e["at_s"] for e in events)]) + LASTS_S
    said = list(kinds)
    for _ in range(rng.randint(1, 4)):
        found = list(decoys(rng, rng.choice(jobs), float(5 * rng.randint(60, int(end_s / 5) - 80))))
        events += found
        said.append(f"({found[0]['do']})")
    name = f"{number:02d} {' + '.join(said)}"
    return {"name": name, "half": "drawn", "seed": number, "duration_s": end_s, "events": events}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    seed = parser.parse_args().seed
    rng = Random(seed)
    kinds = deal(rng)
    cases = [
        draw(rng, n, [next(kinds) for _ in range(2 if rng.random() < TWO_FAULTS else 1)])
        for n in range(1, WITH_FAULTS + 1)
    ]
    cases += [draw(rng, n, []) for n in range(WITH_FAULTS + 1, WITH_FAULTS + WITHOUT + 1)]
    path = Path(__file__).parent / "drawn.json"
    rows = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f'{{"seed": {seed}, "cases": [\n{rows}\n]}}\n')
    print(f"{len(cases)} cases in {path}")


if __name__ == "__main__":
    main()
