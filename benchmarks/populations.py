"""Where each detector's rate was measured: `python -m benchmarks.populations`, from committed results.

Writes `nightshift/detectors/alarms/populations.json`. Only telemetry on which no threshold was chosen counts. What
has no row was not measured. Intervals are Garwood's of a count over days, Clopper's and Pearson's of a
share of runs, both 90 %. They take alarms as independent; intervals by device are in the results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy.stats import beta

from benchmarks.report import RESULTS
from nightshift.detectors.alarms.promise import Population, PopulationRate, Unit
from nightshift.detectors.contract.evaluate import garwood
from nightshift.detectors.plugins import ALL

SHIPPED = Path(__file__).parent.parent / "nightshift/detectors/alarms/populations.json"
LEVEL = 0.9


Count = Callable[[Any], tuple[float, int]]
"""(exposure, alarms) of a result"""


@dataclass(frozen=True)
class Evidence:
    """Places in committed results. counts: what to read from each result, by its name."""

    detector: str
    population: Population
    telemetry: str
    unit: Unit
    counts: tuple[tuple[str, Count], ...]


def _held_out(name: str) -> tuple[tuple[str, Count], ...]:
    def count(result: Any) -> tuple[float, int]:
        own = result[f"{name}, false alarms per 1,000 days"]["nightshift"]
        return own["series_days"], own["alarms"]

    return (("held_out_leak", count),)


def _budget(detector: str, telemetry: str) -> tuple[tuple[str, Count], ...]:
    def count(result: Any) -> tuple[float, int]:
        rows = [row for row in result["statistical"] if row["detector"] == detector]
        rows = [row for row in rows if row["telemetry"].startswith(telemetry)]
        return sum(row["healthy_series_days"] for row in rows), sum(row["realised"] for row in rows)

    return (("budget", count),)


def _benign(result: Any) -> tuple[float, int]:
    own = result["unseen: varied runs, seed 7001"]["nightshift"]
    return own["benign"], own["benign_alarmed"]


def _public_logs(result: Any) -> tuple[float, int]:
    own = result["public_logs_odd"]
    return own["logs"], own["alarmed"]


def _runs(detector: str) -> Count:
    def count(result: Any) -> tuple[float, int]:
        own = result["MLPerf runs, odd"][detector]
        return own["runs"], own["alarmed"]

    return count


def _quiet_jobs(result: Any) -> tuple[float, int]:
    """Logs that the whole daemon read, and incidents about one of them."""
    return result["logs"], sum(bool(incident["log"]) for incident in result["opened"])


def _quiet_kernels(result: Any) -> tuple[float, int]:
    """Logs of machines, and how many of them had an event other than a start."""
    logs = [name for name in result["by_source"] if "/training_results" not in name and "nanogpt" not in name]
    return len(logs), sum(bool(result["events"].get(name, {}).keys() - {"boot"}) for name in logs)


def _sessions(detector: str) -> Count:
    def count(result: Any) -> tuple[float, int]:
        own = result["H100 nodes at work"][detector]
        return own["series_days"], own["alarms"]

    return count


def _healthy_gradients(result: Any) -> tuple[float, int]:
    own = [kind["runs_with_a_name"] for name, kind in result.items() if name.startswith("healthy")]
    return sum(kind["devices"] for kind in own), sum(round(kind["value"] * kind["devices"]) for kind in own)


TRAINING, SERVING, HOSTS = Population.TRAINING, Population.SERVING, Population.HOSTS
_RUNS = "benign labelled runs of a seed that no choice was made on; public training logs and MLPerf runs, odd names"
_MLPERF = "MLPerf training runs by their logs, odd names; the GPUs assumed idle in each pause"
_QUIET = "public logs of jobs that ended well, odd names, read by the whole daemon"
_KERNELS = "public kernel and system logs without a fault, odd names"
_TRAINED = "healthy runs of two and four ranks, trained here"
_SESSIONS = "public telemetry of H100 nodes at work, five minutes a session"
_RECORDED = "healthy phases of our own H200 recordings"
_VMS = "Bitbrains: virtual machines with a daily tide, odd names"
_LIFTED = "the same machines, peaks lifted to 97 % of the limit"
_TIDE = "machines drawn on the mean tide of Alibaba 2018, odd names"
EVIDENCE = (
    Evidence(
        "divergence",
        TRAINING,
        _RUNS,
        Unit.RUNS,
        (("detect_loss", _benign), ("held_out_loss", _public_logs), ("held_out_runs", _runs("divergence"))),
    ),
    *(
        Evidence(name, TRAINING, _MLPERF, Unit.RUNS, (("held_out_runs", _runs(name)),))
        for name in ("hang", "stall")
    ),
    *(
        Evidence(name, TRAINING, _QUIET, Unit.RUNS, (("field_quiet_jobs", _quiet_jobs),))
        for name in ("job_crash", "nccl_watchdog")
    ),
    *(
        Evidence(name, HOSTS, _KERNELS, Unit.RUNS, (("field_quiet_lines", _quiet_kernels),))
        for name in ("kernel_events", "xid", "interconnect")
    ),
    Evidence("local_gradients", TRAINING, _TRAINED, Unit.RUNS, (("held_out_gradients", _healthy_gradients),)),
    Evidence("memory_leak", SERVING, "GenTD26: serving pods, odd names", Unit.DAYS, _held_out("GenTD26 pods")),
    Evidence("memory_leak", HOSTS, _VMS, Unit.DAYS, _held_out("Bitbrains VMs with a tide")),
    Evidence("memory_leak", HOSTS, _LIFTED, Unit.DAYS, _held_out("Bitbrains VMs lifted to 97 %")),
    Evidence("memory_leak", HOSTS, _TIDE, Unit.DAYS, _held_out("drawn on Alibaba 2018's mean tide")),
    *(
        Evidence(name, TRAINING, _SESSIONS, Unit.DAYS, (("held_out_gpus", _sessions(name)),))
        for name in ("throttle", "memory_leak")
    ),
    *(
        Evidence(name, TRAINING, _RECORDED, Unit.DAYS, _budget(name, "healthy H200 recordings"))
        for name in ("ecc", "hang", "stall", "throttle")
    ),
    Evidence(
        "straggler",
        TRAINING,
        "ByteDance: two jobs with imbalance and no slow rank",
        Unit.DAYS,
        _budget("straggler", "ByteDance"),
    ),
)


def interval(unit: Unit, exposure: float, alarms: int) -> tuple[float, float]:
    """The 90 % interval of alarms per series-day or per run; `exposure` above 0."""
    if unit is Unit.DAYS:
        low, high = garwood(alarms, exposure, LEVEL)
    else:
        tail, clean = (1.0 - LEVEL) / 2.0, exposure - alarms
        low = 0.0 if alarms == 0 else float(beta.ppf(tail, alarms, clean + 1))
        high = 1.0 if clean == 0 else float(beta.ppf(1.0 - tail, alarms + 1, clean))
    return float(f"{low:.6g}"), float(f"{high:.6g}")  # the same on every machine


def _result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["results"]


def populations() -> list[dict[str, Any]]:
    """The rows of `populations.json`. Raises OSError, KeyError and ValueError where a figure is missing."""
    stated = {kind.plugin: kind().stated for kind in ALL}
    rows = []
    for evidence in EVIDENCE:
        name = evidence.detector
        counted = [count(_result(file)) for file, count in evidence.counts]
        exposure, alarms = sum(one for one, _ in counted), sum(one for _, one in counted)
        low, high = interval(evidence.unit, exposure, alarms)
        if not math.isfinite(high):
            raise ValueError(f"{name}, {evidence.telemetry}: no exposure")
        rate = PopulationRate(
            name,
            evidence.population,
            evidence.telemetry,
            evidence.unit,
            exposure,
            alarms,
            low,
            high,
            stated[name].per_1000_series_days,
            tuple(f"{file}.json" for file, _ in evidence.counts),
        )
        rows.append(asdict(rate))
    return rows


def main() -> None:
    SHIPPED.write_text(json.dumps(populations(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
