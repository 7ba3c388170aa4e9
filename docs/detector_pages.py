"""A page for each detector: what it catches and what it does not see, drawn from runs of its own code.

Where one of our recordings has its fault (`tests/recordings`), both charts are of recordings: the fault, and a
phase of which the detector says nothing. Elsewhere the telemetry is the contract's
(`nightshift/detectors/contract/streams.py`): eight synthetic GPUs, a look each 5 s, and a burst of every fault. The
second chart is then the same burst made weaker until the detector stays silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from nightshift.agent.presentation.incident_view import name_of
from nightshift.agent.presentation.line_chart import Chart, draw
from nightshift.collectors.frame import Frame, StepSeries
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.derived_metrics import Deriver
from nightshift.collectors.telemetry.metrics import BY_NAME
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Detector, Finding, LogExhibit, SeriesExhibit, State
from nightshift.detectors.contract.streams import faults, played
from nightshift.detectors.contract.world import HealthyFleet
from nightshift.detectors.plugins import ALL

NOTE = "<!-- Written by `make docs` from the code and runs of it; change it there. -->\n"
WEAKER = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.003, 0.001)
"""Shares of the burst, from strong to weak; the first at which nothing fires is drawn."""
_SIGNALS = {
    "hang": "gpu_power_w",
    "stall": "gpu_utilization_percent",
    "serving": "server_generated_tokens_total",
}
"""Where an alarm's own evidence is no series: a signal that shows it, of the alarm's subject or the first GPU."""
_BLIND = {
    "cluster": "What neither Kubernetes nor Slurm reports.",
    "gpu_lost": "A GPU that answers and computes wrong. All GPUs of a node: then its source is lost.",
    "job_crash": "A job that prints nothing when it ends, and one that hangs.",
    "kernel_events": "A fault that the kernel does not log.",
    "nccl_watchdog": "A hang with the watchdog switched off, or one shorter than its timeout.",
    "source": "A source that answers with wrong values.",
    "xid": "A fault without an Xid, and a node with a kernel log that no source reads.",
}
"""Of detectors that read events or answers."""
_FULL = 200
_H200 = "one H200 on which a 92M-parameter GPT trains"
_TWO = "two H200s on which one data-parallel job trains"


@dataclass(frozen=True)
class Recorded:
    """A detector's two phases of `tests/recordings`, and where: `fault` is found on one rank, of `silent`, on all
    ranks alike, nothing is said, and `signal` shows why. `ranks`: of the recording; one rank is played as four."""

    fault: str
    silent: str
    place: str
    words: str
    signal: str
    ranks: int = 1


RECORDED = {
    "memory_leak": Recorded(
        "train_gpu_leak", "train_varlen_benign", _H200,
        "Sequences of changing length: the host's memory grows with them. The detector reports nothing.",
        "container_memory_anonymous_bytes",
    ),
    "divergence": Recorded(
        "train_diverge", "train_spike_recovers", _H200,
        "Garbage batches at two steps: the loss jumps and recovers. The detector reports nothing.", "loss",
    ),
    "stall": Recorded(
        "train_data_stall", "train_periodic_eval_benign", _H200,
        "Evaluation each 150 steps: training pauses for it. The detector reports nothing.",
        "gpu_utilization_percent",
    ),
    "hang": Recorded(
        "hang_rank2_15s", "eval_rank0_benign", _TWO,
        "One rank evaluates while the other waits: too short for a hang. The detector reports nothing.",
        "gpu_power_w", 2,
    ),
}  # fmt: skip
_STYLE = (
    "<style>.grid{stroke:#d5dae1}.axis{fill:#5b6676;font:11px monospace}"
    ".signal{fill:none;stroke:#1260b8;stroke-width:1.8}.since{fill:#c22f2f14}.onset{stroke:#c22f2f}"
    ".onset-word{fill:#c22f2f;font:600 11px sans-serif}.mark{stroke:#1d7550;stroke-dasharray:2 3}"
    ".mark-word{fill:#1d7550;font:600 11px sans-serif}</style>"
)


@dataclass(frozen=True)
class Caught:
    """A detector's first alarm in the burst, and the signal that shows it; None: it reads events or answers."""

    finding: Finding
    signal: tuple[Subject, str, str] | None


def weaker(share: float) -> tuple[list[Tick], Inventory]:
    """The burst at a share of its size: rises, levels and losses in part, stops for a part of their length, and
    no line of a log."""
    world, deriver = HealthyFleet(), Deriver()
    pairs = zip(HealthyFleet().ticks(_FULL), faults(world), strict=True)
    ticks = [_between(calm, burst, share, number) for number, (calm, burst) in enumerate(pairs)]
    frames = [replace(t, frames={kind: deriver.extend(frame) for kind, frame in t.frames.items()}) for t in ticks]
    return frames, world.inventory()


def _between(calm: Tick, burst: Tick, share: float, number: int) -> Tick:
    start, length = (150, 50) if number >= 150 else (5, 5)
    into = (number - start) / length if number >= 150 else (number % 10 - start) / length
    stopped = not burst.steps and into < share
    frames = {kind: _frame(frame, burst.frames[kind], share, stopped) for kind, frame in calm.frames.items()}
    pairs = zip(calm.steps, burst.steps or calm.steps, strict=True)
    steps = () if stopped else tuple(_steps(a, b, share) for a, b in pairs)
    return replace(calm, frames=frames, steps=steps)


def _frame(calm: Frame, burst: Frame, share: float, stopped: bool) -> Frame:
    values = calm.values.copy()
    rows = min(len(values), len(burst.values))
    values[:rows] += (burst.values[:rows] - values[:rows]) * (1.0 if stopped else share)
    return replace(calm, values=values)


def _steps(calm: StepSeries, burst: StepSeries, share: float) -> StepSeries:
    columns = {name: a + (burst.columns[name] - a) * share for name, a in calm.columns.items()}
    return replace(calm, columns=columns)


def _first(detector: Detector, ticks: list[Tick], inventory: Inventory) -> Finding | None:
    for tick in ticks:
        for finding in detector.update(tick, inventory):
            if finding.state is State.FIRING:
                return finding
    return None


@cache
def replayed(phase: str, ranks: int, beside: int = 1) -> tuple[list[Tick], Inventory]:
    """A recorded phase after a healthy one, 5 s a sample. Of one rank's recording, `beside` of four ranks have it,
    the others stay healthy."""
    from tests.recordings.replay import Job, cut, h200, h200_rank

    if ranks > 1:
        job = Job([[h200_rank("healthy", rank), h200_rank(phase, rank)] for rank in range(ranks)])
    else:
        healthy = cut(h200("train_ok"), 30)
        job = Job([[healthy, h200(phase)]] * beside + [[healthy] * 4] * (4 - beside))
    return list(job.ticks()), job.inventory()


def telemetry(name: str) -> tuple[list[Tick], Inventory]:
    """What a detector's catch is of: ticks and who belongs to whom."""
    real = RECORDED.get(name)
    return played(faults) if real is None else replayed(real.fault, real.ranks)


@cache
def caught(kind: Callable[[], Any]) -> Caught:
    name = kind.plugin  # type: ignore[attr-defined]
    ticks, inventory = telemetry(name)
    finding = _first(kind(), ticks, inventory)
    assert finding is not None, f"{kind}: silent where its fault is"
    if name in RECORDED and name in _SIGNALS:
        metric = _SIGNALS[name]
        return Caught(
            finding, (inventory.subjects(SubjectKind.GPU, ticks[0].at_s)[0], metric, BY_NAME[metric].unit)
        )
    if kind.plugin in _SIGNALS:  # type: ignore[attr-defined]
        metric = _SIGNALS[kind.plugin]  # type: ignore[attr-defined]
        subject = finding.subject if metric.startswith("server") else HealthyFleet().gpus[0]
        return Caught(finding, (subject, metric, BY_NAME[metric].unit))
    for item in finding.evidence:
        if isinstance(item, SeriesExhibit) and _signal(ticks, item.subject, item.metric)[0].size > 1:
            return Caught(finding, (item.subject, item.metric, item.unit))
    return Caught(finding, None)


def silent_at(kind: Callable[[], Any]) -> tuple[float, list[Tick]]:
    """The largest share of the burst at which the detector says nothing, and its ticks."""
    for share in WEAKER:
        ticks, inventory = _weaker(share)
        if _first(kind(), ticks, inventory) is None:
            return share, ticks
    return 0.0, _weaker(0.0)[0]


_weaker = cache(weaker)


def _signal(ticks: list[Tick], subject: Subject, metric: str) -> tuple[Any, Any]:
    history = History()
    for tick in ticks:
        history.add(tick)
    return history.window(subject, metric, ticks[0].at_s - 3600.0, ticks[-1].at_s)


def _svg(chart: Chart) -> str:
    """The console's chart as a file of its own; its clock starts at zero."""
    start_s = float(chart.t_s[0])
    onset_s = None if chart.onset_s is None else chart.onset_s - start_s
    marks = tuple((at_s - start_s, word) for at_s, word in chart.marks)
    text = str(draw(replace(chart, t_s=chart.t_s - start_s, onset_s=onset_s, marks=marks)))
    text = text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return text.replace("<title>", f"{_STYLE}<title>", 1) + "\n"


def detector_pages() -> Iterator[tuple[str, str]]:
    """File name in docs/detectors → text."""
    rows = []
    for kind in ALL:
        yield from _page(kind)
        found = ", ".join(f"`{fault}`" for fault in kind().faults)
        rows.append(f"| [`{kind.plugin}`]({kind.plugin}.md) | {found} |")
    lines = [NOTE, "# Detectors, one by one\n", _ABOUT, "| detector | finds |", "|---|---|", *rows]
    yield "README.md", "\n".join(lines) + "\n"


def _page(kind: Any) -> Iterator[tuple[str, str]]:
    """A detector's page and its charts."""
    name, found = str(kind.plugin), caught(kind)
    finding = found.finding
    place = f"`{finding.fault}` on {finding.subject.kind} `{finding.subject.name}`"
    lines = [NOTE, f"# {name}\n"]
    lines += [f"How it works, its rates and what it needs: [the reference](../reference/detectors.md#{name}).\n"]
    real = RECORDED.get(name)
    of = f"Recorded: {real.place}." if real else "Synthetic telemetry of the detectors' contract, eight GPUs."
    lines += ["## A catch\n", of]
    lines += [f"{place}, {finding.at.t_s - finding.since.t_s:.0f} s after the onset:\n", f"> {finding.summary}\n"]
    if found.signal is None:
        records = [item.record.text for item in finding.evidence if isinstance(item, LogExhibit)][:3]
        lines += ["```text", *records, "```\n"] if records else []
        lines += ["## What it does not see\n", f"{_BLIND[name]}\n"]
        yield f"{name}.md", "\n".join(lines)
        return
    subject, metric, unit = found.signal
    title, ticks = f"{name_of(metric)} · {subject.name}", telemetry(name)[0]
    whole = Chart(
        title, unit, *_signal(ticks, subject, metric), finding.since.t_s, None, ((finding.at.t_s, "found"),)
    )
    yield f"{name}-catch.svg", _svg(whole)
    if real is not None:
        yield from _silent(kind, real, subject, lines, title)
        return
    share, weak = silent_at(kind)
    yield f"{name}-miss.svg", _svg(Chart(title, unit, *_signal(weak, subject, metric)))
    size = f"at {100 * share:g} % of its size" if share else "without its numbers"
    lines += [f"![{title}, onset and alarm]({name}-catch.svg)\n", "## What it does not see\n"]
    lines += [f"The same burst {size}, over {_FULL * 5 / 60:.0f} minutes: no finding.\n"]
    lines += [f"![{title}, no alarm]({name}-miss.svg)\n"]
    yield f"{name}.md", "\n".join(lines)


def _silent(
    kind: Any, real: Recorded, caught_on: Subject, lines: list[str], title: str
) -> Iterator[tuple[str, str]]:
    """The rest of a page of recordings: a phase of which the detector says nothing."""
    name, (ticks, inventory) = str(kind.plugin), replayed(real.silent, real.ranks, 4)
    assert _first(kind(), ticks, inventory) is None, f"{name}: {real.silent} alarms"
    of = SubjectKind.CONTAINER if real.signal.startswith("container") else SubjectKind.GPU
    subject = caught_on if real.signal == "loss" else inventory.subjects(of, ticks[0].at_s)[0]
    unit = BY_NAME[real.signal].unit if real.signal in BY_NAME else ""
    shown = f"{name_of(real.signal)} · {subject.name}"
    yield f"{name}-miss.svg", _svg(Chart(shown, unit, *_signal(ticks, subject, real.signal)))
    lines += [f"![{title}, onset and alarm]({name}-catch.svg)\n", "## What it does not see\n"]
    lines += [f"Recorded: {real.place}. {real.words}\n", f"![{shown}, no alarm]({name}-miss.svg)\n"]
    yield f"{name}.md", "\n".join(lines)


_ABOUT = (
    f"Each page has a catch and a miss, drawn from a run of the detector. Those of {', '.join(sorted(RECORDED))} "
    "are of recordings on H200s. The others are of the synthetic telemetry of the detectors' contract, since no "
    "recording has their fault. Rates on real telemetry: [detectors](../reference/detectors.md), "
    "[figures](../reference/figures.md).\n"
)
