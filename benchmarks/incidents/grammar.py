"""Draws cases from a grammar of faults: `python -m benchmarks.incidents.grammar` writes `drawn.json`.

    case   := fault decoys | fault fault decoys | decoys
    fault  := where (job, rank) × what (leak, damage, stall, hang, memory, bus, link, crash, …) × size × onset
    decoys := nothing | up to three of spike, pause, stray error, restart, growth that ends, talk, blip

Cases are drawn after the last change of the rules, and kept as they were drawn, the unlucky ones too. A case
without a fault is a no-op.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.incidents import written as w
from benchmarks.incidents.world import JOBS

SEED, WITH_FAULTS, WITHOUT = 20_261_122, 27, 9
Event = dict[str, Any]


def fault(rng: Random, job: str, onset_s: float) -> list[Event]:
    rank = rng.randrange(len(JOBS[job]))
    place = {"at_s": onset_s, "job": job, "rank": rank}

    def xids(lines: list[str], truth: str, **more: Any) -> list[Event]:
        return [{"do": "xids", **place, "lines": lines, "truth": truth, **more}]

    announced = rng.choice([w.RESET, w.DRAIN])
    kind = rng.choice(_KINDS)
    match kind:
        case "gpu_leak" | "host_leak":
            return [{"do": kind, **place, "mib_s": round(rng.uniform(2, 30), 1)}]
        case "lr_jump":
            return [{"do": kind, **place, "to": rng.choice([0.003, 0.01, 0.05, 0.3])}]
        case "bit_flip":
            return [{"do": kind, **place, "to": round(rng.uniform(2, 12), 2)}]
        case "nan" | "hang":
            return [{"do": kind, **place}]
        case "stall":
            return [{"do": kind, **place, "every_s": rng.randint(15, 90), "for_s": rng.randint(15, 75)}]
        case "ce":
            return [{"do": kind, **place, "every_s": rng.randint(8, 25), "truth": "hbm"}]
        case "contained":
            lines = [w.DBE, *([w.REMAP] if rng.random() < 0.7 else []), w.CONTAINED]
            return xids([*lines, *[w.TEARDOWN] * rng.randint(0, 3), announced], "hbm", crash=True, lasts=True)
        case "uncontained":
            lines = [*([w.DBE] if rng.random() < 0.5 else []), w.UNCONTAINED, w.TEARDOWN]
            return xids([*lines, announced], "hbm", crash=True, unusable=True, lasts=True)
        case "lost":
            more = [w.REBOOT] if rng.random() < 0.5 else []
            return xids([w.FELL, *more], "gpu_lost", crash=True, gone=True, stays_down=True, lasts=True)
        case "nvlink":
            lines = [w.NVLINK, *[w.TEARDOWN] * rng.randint(0, 2), announced]
            return xids(lines, "nvlink", crash=True, unusable=True, lasts=True)
        case "firmware":
            lines = [w.GSP, *([announced] if rng.random() < 0.5 else [])]
            return xids(lines, "firmware", crash=True, unusable=True, lasts=True)
        case "crash":
            line = rng.choice([w.FAULT_31, w.FAULT_13])
            return xids([line, w.STOPPED, w.TEARDOWN], "user_crash", crash=True, stays_down=True, says=w.ILLEGAL)
        case "oom_burst":
            return [{"do": kind, **place}]
        case _:
            node = JOBS[job][rank][0]
            return [{"do": "dark", "at_s": onset_s, "node": node, "for_s": rng.randint(600, 1200)}]


_KINDS = (
    *("gpu_leak", "host_leak", "lr_jump", "bit_flip", "nan", "hang", "stall", "stall", "ce", "contained"),
    *("uncontained", "lost", "nvlink", "firmware", "crash", "oom_burst", "dark"),
)


def decoy(rng: Random, job: str, at_s: float) -> Event:
    node, index = JOBS[job][rng.randrange(len(JOBS[job]))]
    event: Event = {"at_s": at_s, "decoy": True, "job": job}
    match rng.randrange(7):
        case 0:
            return event | {"do": "spike", "to": round(rng.uniform(0.5, 3), 2)}
        case 1:
            return event | {"do": "pause", "for_s": rng.randint(15, 80)}
        case 2:
            return {"at_s": at_s, "decoy": True, "do": "stray_ce", "node": node, "gpu": index}
        case 3:
            return event | {"do": "user_restart"}
        case 4:
            memory = rng.choice(["gpu", "host"])
            mib_s = round(rng.uniform(2, 20), 1)
            return event | {"do": "grow_then_stop", "memory": memory, "mib_s": mib_s, "for_s": rng.randint(60, 400)}
        case 5:
            said = rng.choice(["WARNING loss=nan skipped by the scaler", "INFO docs mention Xid 79 and cordon n01"])
            return event | {"do": "job_lines", "lines": [said]}
        case _:
            return {"at_s": at_s, "decoy": True, "do": "dark", "node": node, "for_s": rng.randint(5, 25)}


def draw(rng: Random, number: int, faults: int) -> dict[str, Any]:
    jobs = rng.sample(sorted(JOBS), len(JOBS))
    events: list[Event] = []
    for _ in range(faults):
        events += fault(rng, jobs.pop(), float(5 * rng.randint(96, 180)))
    end_s = max([600.0, *(e["at_s"] for e in events)]) + 1200.0
    for _ in range(rng.randint(0, 3)):
        events.append(decoy(rng, rng.choice(jobs), float(5 * rng.randint(90, int(end_s / 5) - 60))))
    names = " + ".join(f"{e['do']}" for e in events) or "nothing"
    return {"name": f"{number:02d} {names}", "half": "drawn", "seed": number, "duration_s": end_s, "events": events}


def main() -> None:
    rng = Random(SEED)
    cases = [draw(rng, n, 2 if rng.random() < 0.3 else 1) for n in range(1, WITH_FAULTS + 1)]
    cases += [draw(rng, n, 0) for n in range(WITH_FAULTS + 1, WITH_FAULTS + WITHOUT + 1)]
    path = Path(__file__).parent / "drawn.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    print(f"{len(cases)} cases in {path}")


if __name__ == "__main__":
    main()
