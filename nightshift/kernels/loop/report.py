"""A run as a report: Markdown and HTML, written from the ledgers alone.

Every figure in a table links to the ledger line that it was read from; a hypothesis stands as its author wrote it
before the trial, with what the trial then said. Plots: the way to the best (convergence) and the roofline.
"""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nightshift.kernels.certification.envelope import ledger_head, unsigned
from nightshift.kernels.loop.ledger import LedgerError, Line, read_audit, write_whole
from nightshift.kernels.loop.ledger_chain import Audit
from nightshift.kernels.loop.optimise import FIT, tasks_of
from nightshift.kernels.loop.verdict_figures import figures

_MANY = 40


@dataclass(frozen=True)
class SearchSection:
    """One search of a run."""

    slug: str
    folder: Path
    asked: dict[str, Any]
    lines: tuple[Line, ...]
    audit: Audit
    figures: dict[str, Any] = field(default_factory=dict)
    """Of the certified verdict; empty without one."""

    @property
    def best(self) -> Line | None:
        """What stands: the line of the whole verdict that let it through, else the last kept that none refused."""
        stood = [line for line in self.lines if line.full and line.decision != "discard" and line.status in FIT]
        if stood:
            return stood[-1]
        # the fastest in a search may have been refused by its whole verdict: quoting it would promise what does not
        # stand
        refused = {line.candidate_sha256 for line in self.lines if line.full and line.decision == "discard"}
        kept = [x for x in self.lines if x.decision == "keep" and x.candidate_sha256 not in refused]
        return kept[-1] if kept else None

    @property
    def verdict(self) -> Line | None:
        """The last whole verdict."""
        return next((line for line in reversed(self.lines) if line.full), None)


@dataclass(frozen=True)
class WrittenReport:
    """What was written, and where a ledger is not as the search wrote it: "file: line, field: what"."""

    markdown: Path
    page: Path
    findings: tuple[str, ...] = ()


def write_report(run: Path) -> WrittenReport:
    """Writes report.md, report.html and plots/ into a run's folder. Raises LedgerError where a line is none."""
    sections = [_section(slug, folder) for slug, folder in tasks_of(run)]
    plots = run / "plots"
    plots.mkdir(parents=True, exist_ok=True)
    images: dict[str, bytes] = {}
    for section in sections:
        images[f"{section.slug}-convergence.png"] = _convergence(section)
    images["roofline.png"] = _roofline(sections)
    for name, data in images.items():
        (plots / name).write_bytes(data)
    blocks = _blocks(run, sections)
    markdown, page = run / "report.md", run / "report.html"
    write_whole(markdown, "\n\n".join(_as_markdown(block) for block in blocks) + "\n")
    write_whole(page, _page(blocks, images))
    return WrittenReport(
        markdown, page, tuple(f"{s.folder / 'ledger.jsonl'}: {one}" for s in sections for one in s.audit.findings)
    )


def _section(slug: str, folder: Path) -> SearchSection:
    path, damage, head, found = folder / "certificate.json", "", None, {}
    try:
        if path.exists():
            envelope = json.loads(path.read_text())
            head, found = ledger_head(envelope), figures(unsigned(envelope)["verdict"])
    # whatever stands in a file that somebody changed
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        damage = f"{path.name}: {error}: the ledger's end is not held against it"
    asked, lines, audit = read_audit(folder, {path.name: head} if head is not None else {})
    audit.notes += [damage] if damage else []
    return SearchSection(slug, folder, asked, tuple(lines), audit, found)


# Content: blocks are (kind, value), written twice --------------------------------------------------------------

Cell = tuple[str, str]
"""Text and what it links to ("" for none)."""
Block = tuple[str, Any]


def _blocks(run: Path, sections: Sequence[SearchSection]) -> list[Block]:
    blocks: list[Block] = [("h1", f"Kernel search {run.name}")]
    blocks += _told_by(run / "profile.json", _profile_told)
    blocks += _told_by(run / "coverage.json", _coverage_told)
    blocks.append(("h2", "Outcome"))
    if not sections:
        blocks.append(("p", "Nothing was searched."))
        return blocks
    rows = [_outcome_row(section) for section in sections]
    head = ["search", "task", "trials", "best", "over the fastest baseline", "of the roofline", "whole verdict"]
    blocks.append(("table", (head, rows)))
    blocks.append(("img", ("Roofline: each search's best", "roofline.png")))
    for section in sections:
        blocks += _section_blocks(section)
    return blocks


def _told_by(path: Path, told: Callable[[dict[str, Any]], list[Block]]) -> list[Block]:
    """What one of a run's files says; nothing where it is not there."""
    if not path.exists():
        return []
    try:
        return told(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LedgerError(f"{path}: no {path.stem} of a search ({type(error).__name__}: {error})") from error


def _coverage_told(found: dict[str, Any]) -> list[Block]:
    """Of a suite: what no family of ours computes, and so was not searched."""
    missed = found["missed"]
    count = len(found["covered"]) + len(missed)
    text = f"{len(found['covered'])} of {count} tasks have an author; they were searched."
    rows = [[(name, "coverage.json"), (why, "coverage.json")] for name, why in missed.items()]
    table: list[Block] = [("table", (["not searched", "why"], rows))] if rows else []
    return [("h2", "Coverage of the suite"), ("p", text), *table]


def _profile_told(found: dict[str, Any]) -> list[Block]:
    ms = 1e3
    cpu = "" if found.get("on_gpu", True) else "No GPU in the trace: times are the operators' own on the CPU. "
    unmapped = found.get("unmapped_s", 0.0)
    of_none = f"Of no operator: {unmapped * ms:.3f} ms a step. " if unmapped else ""
    parts = (
        f"{cpu}{of_none}{found['steps']} steps of {found['step_s'] * ms:.2f} ms: computes "
        f"{found['compute_s'] * ms:.2f} ms, exposed communication {found['communication_s'] * ms:.2f} ms, "
        f"exposed copies {found['copy_s'] * ms:.2f} ms, idle {found['idle_s'] * ms:.2f} ms. "
        f"{_peaks(found['peaks'])}"
    )
    rows = []
    for item in found["hotspots"][:_MANY]:
        roof = "–" if item["utilisation"] is None else f"{item['utilisation']:.0%}"
        rows.append(
            [
                (item["name"], "profile.json"),
                (f"{item['total_s'] * ms:.3f} ms", "profile.json"),
                (f"{item['share']:.1%}", "profile.json"),
                (roof, "profile.json"),
                (f"{item['gain']:.1%}", "profile.json"),
                (item["decision"], "profile.json"),
            ]
        )
    head = ["operation", "per step", "share", "of the roofline", "expected gain", "decision"]
    return [("h2", "Where the step's time goes"), ("p", parts), ("table", (head, rows))]


def _peaks(found: dict[str, Any]) -> str:
    rate = found["bytes_per_s"]
    return f"Peaks by {found['source']}: {rate / 1e12:.2f} TB/s." if rate else "No peaks are known."


def _outcome_row(section: SearchSection) -> list[Cell]:
    best, whole = section.best, section.verdict
    trials = sum(line.of == 0 for line in section.lines)
    link = _link(section, best)
    share = best.floor_s / best.seconds if best and best.seconds > 0 else math.nan
    return [
        (section.slug, f"tasks/{section.slug}/results.tsv"),
        (str(section.asked.get("task", "")), f"tasks/{section.slug}/run.json"),
        (str(trials), f"tasks/{section.slug}/ledger.jsonl"),
        (_time(best.seconds) if best else "–", link),
        (_ratio(best) if best else "–", link),
        (f"{share:.0%}" if math.isfinite(share) else "–", link),
        (f"{whole.status} ({whole.reason})" if whole else "none asked for", _link(section, whole)),
    ]


def _audit_blocks(section: SearchSection) -> list[Block]:
    """Whether the ledger is as the search wrote it."""
    found = section.audit
    told = "; ".join(found.notes)
    chained = len(section.lines) - found.unchained
    if not found.findings:
        text = f"Ledger: {chained} of {len(section.lines)} lines are chained and unchanged. {told}".strip()
        return [("p", text)]
    place = f"tasks/{section.slug}/ledger.jsonl"
    rows = [
        [(str(one.line), f"{place}#L{one.line}"), (one.field or "whole line", place), (one.what, place)]
        for one in found.findings
    ]
    head = "The ledger was CHANGED since the search wrote it: no figure below is proven by it."
    return [("p", f"{head} {told}".strip()), ("table", (["line", "field", "what"], rows))]


def _section_blocks(section: SearchSection) -> list[Block]:
    blocks: list[Block] = [("h2", section.slug)]
    blocks.append(("p", f"{section.asked.get('task', '')}, from {section.asked.get('origin', 'unknown')}."))
    blocks += _audit_blocks(section)
    blocks.append(("img", (f"{section.slug}: the way to the best", f"{section.slug}-convergence.png")))
    blocks.append(("h3", "Hypotheses and what the trials said"))
    firsts = [line for line in section.lines if line.of == 0 and not line.full]
    told = [line for line in firsts if line.hypothesis]
    listed = told[:_MANY]
    rows = [
        [
            (f"{line.trial}", _link(section, line)),
            (line.hypothesis, _link(section, line)),
            (_verdict_words(section, line), _link(section, line)),
        ]
        for line in listed
    ]
    blocks.append(("table", (["trial", "hypothesis (before)", "verdict (after)"], rows)))
    if len(told) > len(listed):
        blocks.append(("p", f"The first {len(listed)} of {len(told)}; all stand in results.tsv."))
    counts: dict[str, int] = {}
    for line in section.lines:
        counts[f"{line.decision}: {line.reason}"] = counts.get(f"{line.decision}: {line.reason}", 0) + 1
    # a count links to its first line, where a reader begins
    first_of = {f"{line.decision}: {line.reason}": line for line in reversed(section.lines)}
    rows = [[(key, _link(section, first_of[key])), (str(n), _link(section, first_of[key]))] for key, n in
            sorted(counts.items(), key=lambda item: -item[1])]  # fmt: skip
    blocks.append(("h3", "Decisions"))
    blocks.append(("table", (["decision", "lines"], rows)))
    best = section.best
    if best is not None:
        rows = [[(name, _link(section, best)), (_time(s), _link(section, best))] for name, s in
                sorted(best.baselines.items(), key=lambda item: item[1])]  # fmt: skip
        rows.append([("ours", _link(section, best)), (_time(best.seconds), _link(section, best))])
        blocks.append(("h3", "The best against its baselines, raced together"))
        blocks.append(("table", (["contestant", "median"], rows)))
        blocks += _certified_blocks(section)
        facts = f"GPU {best.gpu}, commit {best.commit[:12]}, container {best.container}, seed {best.seed}"
        blocks.append(("p", f"{facts}. Again: nightshift kernels replay {section.slug}:{best.trial}"))
    return blocks


def _certified_blocks(section: SearchSection) -> list[Block]:
    """Error, rates and memory of the certified verdict, a row for each raced case."""
    if not section.figures:
        return []
    place = f"tasks/{section.slug}/certificate.json"
    error, cases = section.figures["largest_error_ulp"], {one["case"]: one for one in section.figures["races"]}
    told = "no error was measured in ULP" if error is None else f"largest error over all probes {error:.3g} ULP"

    def cell(race: dict[str, Any], name: str, form: str) -> Cell:
        return ("–" if race[name] is None else form.format(race[name]), place)

    rows = [
        [
            (case, place),
            cell(one, "gb_per_s", "{:.0f} GB/s"),
            cell(one, "gflop_per_s", "{:.0f} GFLOP/s"),
            cell(one, "scratch_bytes", "{} B"),
        ]
        for case, one in cases.items()
    ]
    head = ["case", "least traffic", "least arithmetic", "memory beside inputs and outputs"]
    table: list[Block] = [("table", (head, rows))] if rows else []
    return [("h3", "The certified verdict"), ("p", f"{told[0].upper()}{told[1:]}."), *table]


def _verdict_words(section: SearchSection, line: Line) -> str:
    later = [other for other in section.lines if other.of == line.trial and not other.full]
    last = later[-1] if later else line
    if last.decision == "discard":
        return f"refused: {last.reason}"
    if last.decision == "crash":
        return f"nobody's: {last.detail[:80]}"
    held = "held: the best so far" if last.decision == "keep" else "did not hold: not better"
    return f"{held}, {_time(last.seconds)}"


def _link(section: SearchSection, line: Line | None) -> str:
    """To the line of the ledger: an editor or a forge opens it by number. To all of them where none says it."""
    return f"tasks/{section.slug}/ledger.jsonl" + (f"#L{line.trial}" if line is not None else "")


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3f} ms"


def _ratio(line: Line) -> str:
    low, point, high = line.speedup
    if not math.isfinite(point):
        return "–"
    return f"{point:.2f}× [{low:.2f}, {high:.2f}]" if math.isfinite(low) else f"{point:.2f}×"


# Two forms ------------------------------------------------------------------------------------------------------


def _as_markdown(block: Block) -> str:
    kind, value = block
    match kind:
        case "h1" | "h2" | "h3":
            return "#" * int(kind[1]) + " " + _plain(value)
        case "img":
            return f"![{_plain(value[0])}](plots/{value[1]})"
        case "table":
            head, rows = value
            cells = [[f"[{_plain(text)}]({link})" if link else _plain(text) for text, link in row] for row in rows]
            lines = ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *cells]]
            return "\n".join(lines)
        case _:
            return _plain(value)


def _plain(text: str) -> str:
    """Text that cannot end a table's cell, a link or a line."""
    # hypotheses and messages are a candidate's and a model's words
    flat = " ".join(text.split())
    for mark in ("\\", "|", "[", "]", "`", "*", "_"):
        flat = flat.replace(mark, f"\\{mark}")
    return flat.replace("<", "&lt;").replace(">", "&gt;")


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1c2733}
table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #cfd8e0;padding:.3rem .6rem;text-align:left}
th{background:#eef2f5}a{color:#0b62a4;text-decoration:none}img{max-width:100%}"""


def _page(blocks: Sequence[Block], images: dict[str, bytes]) -> str:
    body = []
    for kind, value in blocks:
        match kind:
            case "h1" | "h2" | "h3":
                body.append(f"<{kind}>{html.escape(value)}</{kind}>")
            case "img":
                data = base64.b64encode(images[value[1]]).decode()
                body.append(f'<p><img alt="{html.escape(value[0])}" src="data:image/png;base64,{data}"></p>')
            case "table":
                head, rows = value
                cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
                lines = [f"<tr>{cells}</tr>"]
                lines += ["<tr>" + "".join(f"<td>{_anchor(*cell)}</td>" for cell in row) + "</tr>" for row in rows]
                body.append("<table>" + "\n".join(lines) + "</table>")
            case _:
                body.append(f"<p>{html.escape(value)}</p>")
    title = html.escape(str(blocks[0][1]))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>\n{chr(10).join(body)}\n</body></html>\n"
    )


def _anchor(text: str, link: str) -> str:
    shown = html.escape(text)
    return f'<a href="{html.escape(link, quote=True)}">{shown}</a>' if link else shown


# Plots ----------------------------------------------------------------------------------------------------------


def _figure() -> Any:
    # without pyplot, which keeps every figure and looks for a display
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _bytes(figure: Any) -> bytes:
    out = io.BytesIO()
    # no version in the file: a report written again is the same bytes
    figure.savefig(out, format="png", dpi=110, metadata={"Software": None})
    return out.getvalue()


def _convergence(section: SearchSection) -> bytes:
    """Each timed trial, the best so far, the fastest baseline and the roofline, over the number of trials."""
    figure = _figure()
    axes = figure.add_subplot()
    count, best = 0, math.nan
    at, every, steps, bests = [], [], [], []
    for line in section.lines:
        count += line.of == 0
        if math.isfinite(line.seconds):
            at.append(count)
            every.append(line.seconds * 1e6)
        if line.decision == "keep":
            best = line.seconds
        steps.append(count)
        bests.append(best * 1e6)
    axes.plot(at, every, ".", color="#9fb4c6", label="trial")
    axes.step(steps, bests, where="post", color="#0b62a4", label="best so far")
    last = section.best
    if last is not None and last.baselines:
        name = min(last.baselines, key=lambda key: last.baselines[key])
        axes.axhline(
            last.baselines[name] * 1e6, color="#b5541c", linestyle="--", label=f"fastest baseline ({name})"
        )
    if last is not None and math.isfinite(last.floor_s):
        axes.axhline(last.floor_s * 1e6, color="#3a7d44", linestyle=":", label="roofline")
    axes.set_xlabel("trials")
    axes.set_ylabel("median time (µs)")
    if at:
        axes.set_yscale("log")
    axes.legend(loc="upper right")
    return _bytes(figure)


def _roofline(sections: Sequence[SearchSection]) -> bytes:
    """Share of the roofline that each search's best reaches, beside its fastest baseline's."""
    figure = _figure()
    axes = figure.add_subplot()
    rows = [(s.slug, s.best) for s in sections if s.best is not None and math.isfinite(s.best.floor_s)]
    for place, (_, line) in enumerate(rows):
        assert line is not None
        fastest = min(line.baselines.values(), default=math.nan)
        axes.barh(place + 0.2, 100 * line.floor_s / line.seconds, height=0.38, color="#0b62a4")
        if math.isfinite(fastest):
            axes.barh(place - 0.2, 100 * line.floor_s / fastest, height=0.38, color="#d6b08c")
    axes.set_yticks(range(len(rows)), [slug for slug, _ in rows])
    axes.axvline(100, color="#3a7d44", linestyle=":")
    axes.set_xlabel("share of the roofline (%): ours blue, fastest baseline brown")
    return _bytes(figure)
