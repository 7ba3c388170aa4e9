"""The tables of figures of what people meet: Slack, the console, incidents diagnosed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from figure_rows import Row, Table, count, number, percent


def _reliable(value: Any) -> str:
    """Right of shown per level, and what is stated for the level."""
    said = []
    for level, row in value.items():
        stated = f" (stated {percent(row['stated'])})" if "stated" in row else ""
        said.append(f"{level} {row['right']} of {row['shown']}{stated}")
    return "; ".join(said)


RCA_EVALS = Table(
    "Root causes in free text, read by scripted readers",
    "rca_evals",
    "python -m benchmarks.rca_evals replay",
    (
        Row("incidents: public reports rewritten, drawn, of a small cluster", "results/by_origin",
            lambda n: f"{n['public']}, {n['drawn']}, {n['cluster']}", "≥ 150"),
        Row("deciding line in the first request", "results",
            lambda r: f"{r['deciding_line_in_first_request']} of {r['with_a_deciding_line']}", "≥ 98 %"),
        Row("tokens of the largest first request, at 3 characters each", "results/request_tokens_most",
            number("", 1, 0), "≤ 8,000"),
        Row("the scorer tells the good reader from the bad one", "results/told_apart_share", percent, "≥ 95 %"),
        Row("answers that were written after the scorer, read rightly at first", "results",
            lambda r: f"{r['held_out_read_rightly_at_first']} of {r['held_out_answers']}"),
        Row("good reader: right as shown on the page", "results/readers/good",
            lambda r: f"{r['right']} of {r['opened']}"),
        Row("bad reader: right as shown on the page", "results/readers/bad",
            lambda r: f"{r['right']} of {r['opened']}", "0"),
        Row("bad reader: answers shown; of these with marked words", "results/readers/bad",
            lambda r: f"{r['shown']}; {r['shown_marked']}"),
        Row("unsupported sentences shown, both readers", "results/readers",
            lambda r: str(r["good"]["unsupported"] + r["bad"]["unsupported"]), "0"),
    ),
    "Both readers are scripts: their answers were written by hand, and no language model was asked. So no figure "
    "here is one of a model. A sentence counts as supported if its quote stands in the stored evidence.",
)  # fmt: skip
MODEL_BESIDE = Table(
    "A language model that thinks for 300 s, beside the plan",
    "model_beside",
    "python -m benchmarks.model_beside",
    (
        Row("time to plan with it, less the time without (medians)", "results/difference_of_medians_s",
            number(" s", 1, 3), "± 0.2 s"),
        Row("approvals refused for it", "results/approvals_refused", number("", 1, 0), "0"),
    ),
)  # fmt: skip


def _at_first(kind: str, *fields: str) -> Callable[[Any], str]:
    """So many sentences of the batches over new lines, at the first try."""

    def said(batches: Any) -> str:
        fresh = [batch for batch in batches.values() if "right_unmarked" in batch["at_first"]]
        total = sum(batch[kind] for batch in fresh)
        counts = [str(sum(batch["at_first"][field] for batch in fresh)) for field in fields]
        return f"{' → '.join(counts)} of {total}"

    return said


TRAPS = Table(
    "A model's sentences over public lines that no test had used, each batch at its first try",
    "sentence_traps",
    "python -m benchmarks.sentence_traps",
    (
        Row("right sentences shown, by the rules before → now", "results/batches",
            _at_first("right", "earlier_right", "right"), "≥ 90 %"),
        Row("wrong sentences shown with no word marked, before → now", "results/batches",
            _at_first("wrong", "earlier_wrong", "wrong_unmarked"), "≤ 5 %"),
        Row("wrong sentences shown, marked or not, before → now", "results/batches",
            _at_first("wrong", "earlier_wrong", "wrong")),
        Row("the last batch alone: right shown, wrong shown with no word marked", "results/batches/eighth",
            lambda b: (
                f"{b['at_first']['right']} of {b['right']}, {b['at_first']['wrong_unmarked']} of {b['wrong']}"
            )),
    ),
    "All are written manually; no language model was asked. A batch was committed before any rule ran on it. "
    "Between two batches the rules changed, so the last batch is nearest to what a new incident meets.",
)  # fmt: skip
SENTENCES = Table(
    "Numbers in sentences, evaluated again from their evidence",
    "sentence_figures",
    "python -m benchmarks.sentence_figures",
    (
        Row("part; incidents; numbers in their sentences", "results",
            lambda r: f"{r['part']}; {r['incidents']:,}; {r['numbers']:,}", "all"),
        Row("numbers of claims that the evidence contradicts", "results/claims_contradicted",
            number("", 1, 0), "0"),
        Row("numbers of claims that no evidence proves", "results/claims_unproven", number("", 1, 0), "0"),
        Row("wrong numbers planted in claims, and found", "results",
            lambda r: f"{r['planted_found']} of {r['planted']}", "all"),
    ),
    "The checker shares no code with the product. Part `drawn`: faults, noise, gaps, windows and clocks are drawn, "
    "and the rules diagnose them. The demo and the recordings are other parts of it, not run to their end.",
)  # fmt: skip

TABLES = (
    RCA_EVALS,
    TRAPS,
    SENTENCES,
    MODEL_BESIDE,
    Table(
        "People in Slack",
        "chat",
        "python -m benchmarks.chat",
        (
            Row("opened to its first message, p95", "results/opened_to_first_message_s/p95", number(" s"), "≤ 2 s"),
            Row("click to action done, p95", "results/click_to_action_done_s/p95", number(" s"), "start ≤ 1 s"),
            Row("messages for a storm of 10,000 findings", "results/storm/messages", number("", 1, 0), "≤ 10"),
            Row("incidents lost in it", "results/storm/lost", number("", 1, 0), "0"),
        ),
    ),
    Table(
        "The console over 10,000 GPUs and 10,000 open incidents",
        "console",
        "python -m benchmarks.console",
        (
            Row("first paint of a first visit, all seventeen pages: median; p95",
                "results/first visits of all pages/first_paint_ms",
                lambda f: f"{f['median']:.0f} ms; {f['p95']:.0f} ms", "≤ 300 ms"),
            *(
                Row(f"{name}: CPU time of the server, median; p95", f"results/{name}/cpu_ms",
                    lambda f: f"{f['median']:.0f} ms; {f['p95']:.0f} ms")
                for name in ("fleet", "jobs", "power", "search", "incident")
            ),
            *(
                Row(f"{name}: first paint; first byte (medians)", f"results/{name}",
                    lambda f: f"{f['first_paint_ms']['median']:.0f} ms; {f['first_byte_ms']['median']:.0f} ms")
                for name in ("fleet", "rack", "incidents", "search", "incident", "goodput")
            ),
            Row("the fleet's first paint of a later visit, median; p95",
                "results/fleet, later visit/first_paint_ms",
                lambda f: f"{f['median']:.0f} ms; {f['p95']:.0f} ms", "≤ 300 ms"),
            Row("first paint after a time without visitors", "results/nothing_kept/first_paint_ms",
                number(" ms", 1, 0)),
            Row("transferred on a first visit, compressed", "results/fleet/transferred_bytes",
                number(" KB", 1e-3, 0), "≤ 150 KB"),
            Row("load average of the machine when it began (2 cores)", "results/load_average_at_start",
                number("", 1, 1)),
        ),
        "Chromium, the console and other work shared two cores: times of a busy machine bound those of a quiet one "
        "from above.",
    ),
    Table(
        "Commands of the README, the guides and the docs, as printed",
        "doc_commands",
        "python -m benchmarks.doc_commands",
        (
            Row("lines", "results/lines", number("", 1, 0)),
            Row("run here; of these right", "results", lambda f: f"{f['run']}; {f['right']}", "all"),
            Row("run by another check, which the result names", "results/elsewhere", number("", 1, 0)),
            Row("not run, each with what it needs", "results/not_run", number("", 1, 0), "0"),
        ),
    ),
    Table(
        "From a fresh clone to the first incident of the demo",
        "first_night",
        "python -m benchmarks.first_night",
        (
            Row("`make setup`, wheels at hand: wall; CPU", "results/setup",
                lambda f: f"{f['wall_s']:.0f} s; {f['cpu_s']:.0f} s", "≤ 75 s"),
            Row("`make demo` to its first incident: wall; CPU", "results/first_incident",
                lambda f: f"{f['wall_s']:.0f} s; {f['cpu_s']:.0f} s", "≤ 15 s"),
            Row("packages of the core", "results/core/packages", number("", 1, 0), "≤ 60"),
            Row("size of the core", "results/core/megabytes", number(" MB", 1, 0), "≤ 350 MB"),
            Row("load average of the machine when it began (2 cores)", "results/load_average_at_start",
                number("", 1, 1)),
        ),
    ),
    Table(
        "Incidents, diagnosed and repaired without a language model",
        "incidents",
        "python -m benchmarks.incidents",
        tuple(
            row
            for half in ("written", "drawn")
            for row in (
                Row(f"{half} half: cases; faults; no-ops", f"halves/{half}",
                    lambda h: f"{h['cases']}; {h['faults']}; {h['no_ops']}", "≥ 60 cases in both"),
                Row(f"{half}: detected", f"halves/{half}/detected", percent, "100 %"),
                Row(f"{half}: located (more than it: its share)", f"halves/{half}/located", percent, "≥ 90 %"),
                Row(f"{half}: cause", f"halves/{half}/caused", percent, "≥ 80 %"),
                Row(f"{half}: mitigated, by the cluster's state", f"halves/{half}/mitigated", percent, "≥ 85 %"),
                Row(f"{half}: no-ops acted on; unneeded actions", f"halves/{half}",
                    lambda h: f"{h['no_ops_acted_on']}; {h['unneeded_actions']}", "none"),
                Row(f"{half}: incidents beyond the faults", f"halves/{half}/extra_incidents", count),
                Row(f"{half}: claims shown; of them not grounded", f"halves/{half}",
                    lambda h: f"{h['claims_shown']}; {h['ungrounded_claims_shown']}", "none not grounded"),
                Row(f"{half}: onset to incident, median", f"halves/{half}/median_delay_s", number(" s", 1, 0)),
                Row(f"{half}: right at high, medium, low confidence", f"halves/{half}/confidence", _reliable),
            )
        ),
        "The drawn half was drawn after the rules were frozen (the commit stands in the file), and run once. "
        "Signals are simulated; collectors, detectors, correlation, rules, playbooks, guard are production's.",
    ),
)  # fmt: skip
