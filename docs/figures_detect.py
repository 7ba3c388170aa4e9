"""The detectors' tables of figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from figure_rows import Row, Table, number, percent

_RIVALS = "results/rivals, CPU seconds per tick/"
MONTHS = 16
_SLOW = ("slow_compute_rank1", "slow_data_rank3")


def _tick(value: Any) -> str:
    return (
        f"{value['median_s']:.3f} s, {value['worst_s']:.2f} s (first {value['first_tick_s']:.2f} s); "
        f"{value['ns_per_sample']:.0f} ns per sample"
    )


def _accused(value: Any) -> str:
    def ranks(found: list[int]) -> str:
        return " ".join(map(str, found[:6])) + (f" and {len(found) - 6} more" if len(found) > 6 else "") or "none"

    rival = ranks(value["level over the job's median"])
    blind = value.get("nightshift, stages unknown")
    untold = "" if blind is None else f", stages not told: {ranks(blind)}"
    return f"named {ranks(value['nightshift'])} (slow: {value['slow']}){untold}; by level over the median: {rival}"


def _missed_faults(runs: Any) -> str:
    return ", ".join(row["fault"] for run in runs.values() for row in run["faults"] if not row["found"]) or "none"


def _delays(runs: Any) -> str:
    rows = [row for run in runs.values() for row in run["faults"] if row["found"]]
    return ", ".join(f"{row['fault']} {row['delay_s']:.0f}" for row in rows)


def _claims(rows: Any) -> str:
    """Detectors whose rate these days cannot tell, in one cell."""
    return "; ".join(
        f"{row['detector']} {row['realised']} in {row['healthy_series_days']:.2g} of "
        f"{row['days_needed_to_measure']:,.0f} days: {row['verdict']}"
        for row in rows
    )


def _months(row: Any) -> str:
    """One kind of fleet over half a year, before there were lanes."""
    low, high = row["worst_fleet_interval"]
    days = row["independent_series_days"]
    return (
        f"{row['noise']}, {row['gpus']} GPUs{f' ({days:.0f} series-days)' if days else ''}, {row['confirmed']}: "
        f"{row['false_alarms_per_week']:.3g} false alarms a week; pages {row['worst_fleet_per_week']:.2f} "
        f"({low:.2f} to {high:.2f}); faults that paged {100 * row['faults_that_paged']:.0f} %"
    )


def _reached(*kinds: str) -> Callable[[Any], str]:
    """Share of true faults of each kind that reached their lane, and of how many."""

    def show(row: Any) -> str:
        found = {kind: row["faults"].get(kind) for kind in kinds}
        return "; ".join(
            f"{f'{kind}: ' if len(kinds) > 1 else ''}{percent(of['share'])} of {of['faults']:,}"
            for kind, of in found.items()
            if of
        )

    return show


def _costly(row: Any) -> str:
    """Faults that cost a page and were measured there, by detector; what was never measured is a ticket."""
    by = {name.removeprefix("costly "): of for name, of in row["faults"].items() if name.startswith("costly ")}
    sums = {name: by.pop(name) for name in _STRENGTHS if name in by}
    faults = sum(of["faults"] for of in sums.values())
    paged = sum(of["share"] * of["faults"] for of in sums.values())
    parts = ", ".join(f"{name} {percent(of['share'])} of {of['faults']}" for name, of in {**by, **sums}.items())
    never = row["faults"].get("costly, not measured", {"faults": 0})["faults"]
    also = f"; not measured, so tickets at first: {never}, {row['costly_not_measured_that_paged']} paged"
    also += f"; leaks without an alarm: {row['leaks_without_an_alarm']}"
    return (f"{percent(paged / faults)} of {faults} ({parts})" if faults else "none drawn") + also


def _shifts(row: Any) -> str:
    shared = f"median {row['shift_pages_median']}, 95th percentile {row['shift_pages_p95']}"
    alone = "" if row["persons"] == 1 else " (one person alone: {}, {})".format(*row["shift_pages_of_one_person"])
    return f"**on call: {row['persons']}**; each {shared}{alone}; {row['pages_per_week']:.2f} pages a week"


def _false_pages(row: Any) -> str:
    low, high = row["worst_fleet_interval"]
    share = row["false_pages_per_week"] / max(row["pages_per_week"], 1e-9)
    by = ", ".join(f"{name} {count}" for name, count in row["false_pages_by_detector"].items() if count)
    return (
        f"{row['false_pages_per_week']:.2f} a week, {percent(share)} of pages ({by}; worst fleet {low:.2f} to "
        f"{high:.2f}); {row['false_alarms_per_week']:,.0f} false alarms a week"
    )


def _all_open(row: Any) -> str:
    return f"{row['alarms_without_incident']} alarms without an incident"


def _week(value: Any) -> str:
    opened = f"{value['opened']} of {value['faults']} faults opened, {value['incidents']} incidents"
    called = f"{value['second_person_called']} called the second person, {value['team_called']} the team"
    return f"seed {value['seed']}: {opened}; of {value['pages']} pages {called}"


def _night(value: Any) -> str:
    own = [row for row in value["page_lane"] if row["repaired_by_policy"]]
    others = [row for row in value["page_lane"] if not row["repaired_by_policy"]]
    paged, other = (sum(row["paged_after_s"] is not None for row in rows) for rows in (own, others))
    said = sum(row["ticket_gave_the_reason"] for row in own)
    return (
        f"seed {value['seed']}: {value['faults']} faults, {value['missed']} missed; repaired automatically "
        f"{len(own)}: {paged} paged, {said} tickets gave the reason; others {len(others)}: {other} paged"
    )


_STRENGTHS = ("1-1.5", "1.5-3", "3-")
_LANES = (
    ("facts and near-facts that page at once", _reached("proven"), "100 %"),
    ("faults that cost a page, and page at once", _costly, "≥ 95 %"),
    ("other faults that are at least a ticket at once", _reached(*(f"other {s}" for s in _STRENGTHS)), "≥ 95 %"),
    ("pages per 12-hour shift and person", _shifts, "median ≤ 1, 95th percentile ≤ 2"),
    ("opened as incidents at once", _all_open, "0"),
    ("false pages", _false_pages, "≤ 2 a week; 10,000 GPUs: or ≤ 5 % of pages"),
)
_FLEETS = (
    ("16 GPUs", 0),
    ("190 GPUs", 1),
    ("1,000 GPUs", 2),
    ("10,000 GPUs", 3),
    ("190 GPUs, no one answers", 4),
)
_MAD = (("straggler", 5), ("hang", 6))


def _others(row: Any) -> str:
    of = row["page_lane_of_other_detectors"]
    seeds = ", ".join(map(str, row["seeds"]))
    return f"{percent(of['share'])} of {of['faults']} (seeds {seeds}, commit {row['commit']})"


def _judged(value: Any) -> str:
    return f"{value['right']} of {value['judged']}"


_SETS = (
    "development (64 runs)",
    "tuning: varied runs, seed 41",
    "tuning: varied runs, seed 2028",
    "tuning: varied runs, seed 2029",
    "tuning: varied runs, seed 3001",
    "tuning: runs, seed 5001",
    "tuning: varied runs, seed 5002",
    "unseen: varied runs, seed 7001",
)
_LEAK_METHODS = ("nightshift", "static 90 %", "predict_linear 4 h", "linear backward regression", "Precog's method")


def _found(value: Any) -> str:
    return (
        f"{value['found']} of {value['diverged']}; benign alarmed {value['benign_alarmed']} of {value['benign']}; "
        f"median delay {number(' steps', 1.0, 0)(value['median_delay_steps'])}, "
        f"{value['within_15_steps']} within 15"
    )


def _leak(value: Any) -> str:
    low, high = value["false_interval"]
    return (
        f"recall {percent(value['recall'])}; {value['false_per_1000_series_days']:.0f} false alarms per 1,000 "
        f"series-days [{low:.0f}–{high:.0f}]"
    )


_ECC = "results/Calchas HBM, odd devices"
_AGAIN = f"{_ECC}/strata/more than one uncorrected error within a day"


def _stratum(value: Any) -> str:
    share, low, high = value["stated"]
    return (
        f"stated {percent(share)} [{percent(low)}–{percent(high)}]; followed {_ranged(value['share'], 100.0)} % on "
        f"{value['share']['devices']} devices: {'within' if value['share_within'] else 'outside'}; "
        f"{_ranged(value['devices_within'], 100.0)} % of the devices within"
    )


def _again(value: Any) -> str:
    share, low, high = value["stated"]
    mean, least, most = value["mean, low, high on a device not seen"]
    return (
        f"stated {percent(share)} [{percent(low)}–{percent(high)}]; "
        f"followed {value['followed']} of {value['moments']} ({value['devices']} devices); "
        f"on an average device {percent(mean)} [{percent(least)}–{percent(most)}]"
    )


def _brier(value: Any) -> str:
    return "; ".join(f"{name} {by_moments:.3f}, {by_device:.3f}" for name, (by_moments, by_device) in value.items())


def _warned(value: Any) -> str:
    return (
        f"precision {value['right']} of {value['said']} ({percent(value['precision'])} "
        f"[{percent(value['precision_interval'][0])}–{percent(value['precision_interval'][1])}], "
        f"{value['devices']} devices); next errors warned of {value['warned']} of {value['next_errors']}"
    )


def _walks(value: Any) -> str:
    least, kinds = value["walks per detector, at least"], len(value["detectors"])
    return f"{value['walks']:,} of {kinds} detectors, {least:,} or more each; {value['failed']} broken"


def _alone(rows: Any) -> str:
    problems = sum(len(row["problems, each alone"]) for row in rows.values())
    clauses, states = (
        sum(row[name] for row in rows.values()) for name in ("clauses, each alone", "states of earlier versions")
    )
    return f"{clauses} checks, {states} saved states of earlier versions; {problems} broken"


def _clauses(rows: Any) -> str:
    words = dict.fromkeys(word for row in rows.values() for word in row["walked"])
    return "; ".join(f"{word} {sum(row['walked'].get(word, 0) for row in rows.values()):,}" for word in words)


def _costliest(rows: Any) -> str:
    name, row = max(rows.items(), key=lambda item: float(item[1]["CPU ns per sample, everything broken, 8 GPUs"]))
    return f"{row['CPU ns per sample, everything broken, 8 GPUs']:,} ns per sample ({name})"


def _held(value: Any) -> str:
    low, high = value["interval"]
    return (
        f"stated {value['stated_per_1000_series_days']:.3g}, realised {value['realised_per_1000_series_days']:.0f} "
        f"[{low:.0f}–{high:.0f}]: {value['realised']} where {value['expected']:.2g} were expected in "
        f"{value['healthy_series_days']:.1f} days; {value['verdict']}"
    )


def _ranged(value: Any, scale: float = 1.0) -> str:
    """A figure with its interval over devices."""
    low, high = (scale * end for end in value["interval"])
    return f"{scale * value['value']:.3g} [{low:.3g}–{high:.3g}]"


def _recalled(value: Any) -> str:
    shapes = ", ".join(f"{name} {percent(share)}" for name, share in value["by_shape"].items())
    return f"{_ranged(value, 100.0)} % of {value['leaks']} leaks on {value['devices']} pods ({shapes})"


def _false(value: Any) -> str:
    said = f"{_ranged(value)} per 1,000 series-days of {value['devices']} devices"
    if "alarms" not in value:
        return said
    return f"{said}; {value['alarms']} in {value['series_days']:.0f} days, {value['pages']} near-facts"


def _leads(value: Any) -> str:
    soon = _ranged(value["two_minutes_before_the_limit"], 100.0)
    return (
        f"{soon} % of {value['leaks']} at least two minutes before "
        f"the limit; median {value['median_lead_s']:.0f} s, least {value['least_lead_s']:.0f} s; "
        f"{value['false_before_the_leak']} alarms before the leak"
    )


def _calibrated(value: Any) -> str:
    low, high = value["count_interval_per_1000"]
    realised = 1000.0 * value["alarms"] / value["series_days"]
    return (
        f"states {value['stated_per_1000']:.0f} per 1,000 series-days after "
        f"{value['calibrated_on_series_days']:.0f} of them (shipped: {value['shipped_states_per_1000']:.0f}); "
        f"the next week {realised:.0f} [{low:.0f}–{high:.0f}]: "
        f"{value['alarms']} where {value['expected']:.0f} were expected"
    )


def _sessions(value: Any) -> str:
    return f"{value['alarms']} alarms in {value['series_days']:.2f} series-days ({value['sessions']} sessions)"


def _learnt(value: Any) -> str:
    return (
        f"recall {_ranged(value['recall_at_one_ticket_a_week'], 100.0)} %; "
        f"{_ranged(value['realised_per_1000_days'])} false alarms per 1,000 days where "
        f"{value['stated_per_1000_days']:.0f} are stated; VUS-PR {value['vus_pr']:.2f}"
    )


def _gradients(value: Any) -> str:
    if (healthy := value.get("runs_with_a_name")) is not None:
        return f"{healthy['value'] * healthy['devices']:.0f} of {healthy['devices']} runs named"
    found, delays = value["named_alone_within_50_steps"], value["steps_to_the_name"]
    slowest = max((delay for delay in delays if delay is not None), default=float("nan"))
    return f"{found['value'] * found['devices']:.0f} of {found['devices']} within 50 steps; slowest {slowest:.0f}"


def _hangs(value: Any) -> str:
    delays_s = value["delay_s"].values()
    ended = value["alarms_where_the_job_ended"]
    return f"{len(delays_s)} found, {max(delays_s):.0f} s at most; {ended} alarms where the job ended"


def _loaders(value: Any) -> str:
    """Each intermittent loader, and the names in healthy phases."""
    said = [
        f"{name}: {row['named_within_300_s'][0]} of {row['named_within_300_s'][1]} named within 300 s, others "
        f"{row['others_named']}, slowest {row['slowest_s']:.0f} s"
        if "slowest_s" in row
        else f"{name}: {len(row['named'])} named"
        for name, row in value.items()
    ]
    return "; ".join(said)


def _restarts(value: Any) -> str:
    false = sum(row["false_alarms"] for row in value.values())
    found, of = (sum(row["true_faults_found"][n] for row in value.values()) for n in (0, 1))
    return f"{len(value)} kinds of log: {false} false alarms; {found} of {of} true faults found"


def _warm_ups(value: Any) -> str:
    named = [x for row in value["true_jumps_named"].values() for x in row]
    return f"{value['warm_ups']} warm-ups, {value['blamed']} blamed; {sum(named)} of {len(named)} true jumps named"


def _public_logs(value: Any) -> str:
    return (
        f"{value['alarmed']} of {value['logs']} readable logs alarmed (of {value['of']}), "
        f"{value['alarmed_after_a_restart']} after a restart"
    )


_FALSE = "false alarms per 1,000 days"
_PODS = "GenTD26 pods"
_UNFITTED = (_PODS, "Bitbrains VMs with a tide", "Bitbrains VMs lifted to 97 %")
_LEARNT = (
    "mixture of normals (ours, removed)",
    "Mahalanobis",
    "IsolationForest",
    "static z",
    "autoencoder (USAD-like)",
    "its own last six hours",
)

TABLES = (
    Table(
        "Loss divergence",
        "detect_loss",
        "python -m benchmarks.detect_loss",
        tuple(
            Row(f"{who}, {runs}", f"results/{runs}/{who}", _found, goal)
            for runs in _SETS
            for who, goal in (
                ("nightshift", "≥ 95 %, 0 benign, ≤ 15 steps"),
                ("rolling z > 3", ""),
                ("1.2 x mean(300) sustained 20", ""),
                ("log-CUSUM", ""),
                ("bound: told the onset", ""),
            )
        ),
        "Seed 7001 was made and scored once, after the last change of the detector; all other sets were looked at "
        "while it was made. Varied runs hold as many faults that grow slowly as sudden ones. The bound knows the "
        "onset, and that it is a fault, and waits for four standard errors of the loss: what it sees late, "
        "none can tell within 15 steps.",
    ),
    Table(
        "Memory leaks injected into real pod memory",
        "detect_leak",
        "python -m benchmarks.detect_leak",
        tuple(
            Row(who, f"results/{who}", _leak, "≥ 90 % at ≤ 10" if who == "nightshift" else "")
            for who in _LEAK_METHODS
        ),
        "72 healthy series-days; telling a rate of 10 per 1,000 from its double needs 1,600, so the rate "
        "is extrapolated. The shapes were chosen on these pods, with other leaks.",
    ),
    Table(
        "Memory leaks on devices that no choice was made on",
        "held_out_leak",
        "python -m benchmarks.detect_held_out --data FOLDER --only leak",
        (
            *(
                Row(f"leaks found, {_PODS}, {who}", f"results/{_PODS}, leaks found/{who}", _recalled, goal)
                for who in _LEAK_METHODS
                for goal in ("≥ 93 %" if who == "nightshift" else "",)
            ),
            *(
                Row(f"false alarms, {where}, {who}", f"results/{where}, {_FALSE}/{who}", _false, goal)
                for where in _UNFITTED
                for who in _LEAK_METHODS
                for goal in ("≤ 112" if who == "nightshift" else "",)
            ),
            Row(
                "false alarms, drawn on Alibaba 2018's mean tide, nightshift",
                f"results/drawn on Alibaba 2018's mean tide, {_FALSE}/nightshift",
                _false,
                "≤ 112, ≤ 2 page",
            ),
            *(
                Row(f"{drawn}, {who}", f"results/{drawn}/{who}", _leads)
                for drawn in ("fast leaks, drawn, 15 s apart", "fast leaks, drawn, 60 s apart")
                for who in ("nightshift", "five-minute regression")
            ),
        ),
        "Names with an odd md5. Intervals (90 %) are over devices. *Page* counts leaks that are about to fill a "
        "hard limit, which page outside the budget.",
    ),
    Table(
        "Memory leaks: calibrated on a week of the same machines, counted in the next",
        "held_out_calibrated",
        "python -m benchmarks.detect_held_out --data FOLDER --only calibrated",
        tuple(
            Row(fleet, f"results/{fleet}", _calibrated, "≤ 2 × stated")
            for fleet in (
                "Bitbrains VMs with a tide",
                "Bitbrains VMs lifted to 97 %",
                "drawn on Alibaba 2018's mean tide",
            )
        ),
        "Names with an odd md5; the tail is fitted as `nightshift calibrate` does it. No other detector has two "
        "public weeks of the same machines. Intervals are of a count.",
    ),
    Table(
        "False alarms on public telemetry of H100 nodes at work",
        "held_out_gpus",
        "python -m benchmarks.detect_held_out --data FOLDER --only gpus",
        tuple(
            Row(name, f"results/H100 nodes at work/{name}", _sessions, "0") for name in ("throttle", "memory_leak")
        ),
        "Eight GPUs a node, five minutes a session: far too short to measure a rate.",
    ),
    Table(
        "A detector trained on a fleet, which was removed, and its peers",
        "held_out_learned",
        "python -m benchmarks.detect_held_out --data FOLDER --only learned",
        tuple(Row(who, f"results/GenTD26 pods/{who}", _learnt) for who in _LEARNT),
        "Injected faults on pods with odd names, at one false ticket a week. "
        "[Decision 038](../decisions/038-no-learned-detector.md).",
    ),
    Table(
        "A rank with gradients of its own, in runs that are trained here",
        "held_out_gradients",
        "python -m benchmarks.detect_held_out --data FOLDER --only gradients",
        (
            *(
                Row(f"healthy, {kind}", f"results/healthy, trained here: {kind}", _gradients, "0")
                for kind in ("dealt at random", "dealt by size", "learning rate falls", "a batch of noise for all")
            ),
            *(
                Row(f"50 times as large, {step}", f"results/x50 in {step}, trained here", _gradients, "all")
                for step in ("every 1. step", "every 5. step")
            ),
        ),
        "Two and four ranks of a small language model, three seeds each. No public set has norms by rank.",
    ),
    Table(
        "Hangs and loaders on other histories",
        "held_out_progress",
        "python -m benchmarks.detect_held_out --data FOLDER --only progress",
        (
            Row("hangs, GPUs that once held 0 to 140 GiB", "results/hangs", _hangs, "6 within 190 s"),
            Row("intermittent loaders", "results/loaders", _loaders, "≤ 300 s of data; 0 false names"),
        ),
    ),
    Table(
        "Loss divergence: restarts, warm-ups, public logs",
        "held_out_loss",
        "python -m benchmarks.detect_held_out --data FOLDER --only loss",
        (
            Row("a second run in the same log", "results/restarts", _restarts, "0 false"),
            Row("warm-ups", "results/warm_ups", _warm_ups, "none blamed"),
            Row("public logs, odd names", "results/public_logs_odd", _public_logs, "0"),
        ),
    ),
    Table(
        "HBM errors: the next uncorrected one within 24 h",
        "held_out_ecc",
        "python -m benchmarks.detect_held_out --data FOLDER --only ecc",
        (
            *(Row(stratum, f"{_ECC}/stated share/{stratum}", _stratum, "within the interval")
              for stratum in ("corrected errors only", "an uncorrected error")),
            Row("more than one within a day", _AGAIN, _again),
            *(
                Row(who, f"{_ECC}/with lines/{who}", _warned)
                for who in (
                    "nightshift, critical",
                    "nightshift, more than one within a day",
                    "imminent, as it was",
                    "any uncorrected error now",
                    "constant: always",
                    "2 or more UER within a day",
                )
            ),
            Row("Brier score", f"{_ECC}/Brier score, by moments and by devices", _brier),
        ),
        "51 devices of one public set; right is another uncorrected error, found by scrubbing or read, within "
        "24 h. The score is of the devices with an odd md5 of the name; the fit was on the others. Stated is the "
        "share on a device that was not seen, with the interval of one device. It is wide, because devices differ. "
        "No word says imminent: the row shows the earlier rule. A constant has the better Brier "
        "score by moments, since three devices hold most of them; by devices it has not.",
    ),
    Table(
        "False alarms: stated against realised on held-out telemetry",
        "budget",
        "python -m benchmarks.budget",
        (
            *(Row(f"memory leak on other pods, rung {n + 1} of five", f"results/memory_leak/{n}", _held,
                  "≤ 2 × stated") for n in range(5)),
            Row("memory leak as it is shipped, other pods", "results/memory_leak/5", _held, "≤ 2 × stated"),
            *(Row(f"memory leak on other pods, later, rung {n + 1}", f"results/memory_leak/{6 + n}", _held,
                  "≤ 2 × stated") for n in range(2)),
            Row("rolling z > 5 (nominal: a normal's)", "results/rival", _held),
            Row("the other detectors, alarms on healthy telemetry", "results/statistical", _claims, "≤ 2 × stated"),
        ),
        "At a fifth of its strength the leak detector is so quiet that its tail ends below what these days can "
        "measure, and rungs above it are the same. The shipped calibration was fitted before climbs were narrowed. "
        "Rates per 1,000 series-days; the interval is Garwood's. What has fewer held-out days than 16 / rate is "
        "extrapolated by the tail that is named, or not measurable.",
    ),
    Table(
        "Who is paged for what, over 26 weeks of a fleet without history",
        "lane_months",
        "python -m benchmarks.lane_months",
        (
            *(Row(f"{fleet}: {what}", f"results/rows/{n}", show, goal)
              for what, show, goal in _LANES for fleet, n in _FLEETS),
            *(Row(f"1,000 GPUs, {mad} alarms 100 times as often: faults of others in the page lane that page",
                  f"results/rows/{n}", _others, "≥ 90 %") for mad, n in _MAD),
        ),
        "Default settings; three fleets of seeds that no rule was chosen on, at 10,000 GPUs one. 6.5 faults per "
        "1,000 node-days, strengths from 1 to 10; leaks are replayed by the detector. "
        "False alarms at the upper 90 % end of what healthy telemetry of "
        "each population showed, elsewhere at the claim. Pages are shared by job or node. The rota is the smallest "
        "that keeps the bar: of a large fleet's pages nearly all are true faults, which no rule may withhold.",
    ),
    Table(
        "A week in which no one answers",
        "unanswered_week",
        "python -m benchmarks.unanswered_week",
        tuple(Row(f"1,000 GPUs, week {n + 1}", f"results/weeks/{n}", _week, "all open, all called")
              for n in range(3)),
        "The daemon with its store and a stand-in for Slack; the same faults as above, and none is repaired.",
    ),
    Table(
        "Nights on which policy approves what repairs",
        "repaired_nights",
        "python -m benchmarks.repaired_nights",
        tuple(Row(f"night {n + 1}", f"results/nights/{n}", _night, "repaired: 0 pages, all with the reason")
              for n in range(2)),
        "The demo with stand-ins for PagerDuty and Slack. Every kind that may be automatic is; a person approves "
        "the others. Counted are the incidents in the page lane.",
    ),
    Table(
        "The same promise before there were lanes",
        "budget_months",
        "the benchmark of the rule before decision 039",
        tuple(Row(f"noise {n + 1}", f"results/rows/{n}", _months, "≤ 2") for n in range(MONTHS)),
        "False pages per week of the worst of three fleets over 26 weeks, with Garwood's interval. Beside it, the "
        "share of true faults (two a week, of strength 1 to 10) that paged at once.",
    ),
    Table(
        "The contract of detectors",
        "detect_contract",
        "python -m benchmarks.detect_contract",
        (
            Row("walks: random mixtures of all that telemetry does", "results", _walks, "0 broken"),
            Row("each clause alone", "results/detectors", _alone, "0 broken"),
            Row("walks in which a clause was at stake", "results/detectors", _clauses),
            Row("the costliest detector on eight GPUs, everything broken", "results/detectors", _costliest),
        ),
        "A walk is named by its seed; missing, late, repeated, reordered, reset, swapped, joining, leaving, "
        "constant, frozen and absurd values, leaping clocks and a restart from a snapshot come together in it. "
        "Memory leak, hang, stall, straggler and interconnect changed after these walks: theirs are not counted.",
    ),
    Table(
        "All detectors on one core",
        "detect_speed",
        "python -m benchmarks.detect_speed --rivals",
        (
            *(
                Row(f"tick of {size} GPUs × 24 metrics, CPU: median, worst", f"results/nightshift/{n}", _tick, goal)
                for n, (size, goal) in enumerate((("1,000", ""), ("10,000", ""), ("100,000", "≤ 1.0 s")))
            ),
            Row("state at 100,000 GPUs", "results/nightshift/2/state_bytes", number(" MiB", 2**-20, 0), "≤ 3 GiB"),
            Row("the same stream through River's half-space trees, a tick", _RIVALS + "River half-space trees",
                number(" s")),
            Row("… PyOD's isolation forest, scoring only", _RIVALS + "PyOD isolation forest, scoring only",
                number(" s")),
        ),
        "CPU time of every detector and the alarm budget together. The first tick, which places every GPU, is told "
        "apart.",
    ),
    Table(
        "A look-back over ten days of a Prometheus (16 GPUs, a leak on the eighth day)",
        "lookback",
        "python -m benchmarks.lookback",
        (
            Row("from the command to the answer", "results/wall_s", number(" s", 1, 0), "minutes"),
            Row("queries, samples", "results", lambda d: f"{d['queries']:,}, {d['samples']:,}"),
            Row("the server's own time, and the rest between", "results",
                lambda d: f"{d['server_busy_s']:.1f} s, {d['rested_s']:.1f} s"),
            Row("the leak told before the node was cordoned", "results/lead_before_cordon_h", number(" h", 1, 1)),
            Row("false pages per week", "results/false_pages_per_week", number()),
        ),
    ),
    Table(
        "A gang of four H200s, recorded with faults that were made in it",
        "gang_replay",
        "python -m benchmarks.gang_replay tests/recordings/gang_h200x4 --stretch 6",
        (
            Row("faults of which the rank is named", "results",
                lambda d: f"{d['found_right_rank']} of {d['faults']}", "≥ 11 of 12"),
            Row("not found", "results/runs", _missed_faults),
            Row("alarms in healthy or benign phases", "results/benign_alarms", number("", 1.0, 0), "0"),
            Row("seconds from the first step at fault", "results/runs", _delays),
            Row("the accounts against wall time × GPUs, off by at most", "results/accounts_off", percent, "0 %"),
        ),
        "Each recorded second is replayed as six, since detectors wait for minutes. The seconds are of the replay. "
        "4.5 healthy minutes were recorded.",
    ),
    Table(
        "Stragglers",
        "detect_straggler",
        "python -m benchmarks.detect_straggler",
        (
            *(Row(phase, f"results/{phase}", _accused, "the slow rank") for phase in _SLOW),
            *(Row(f"ByteDance {name}", f"results/ByteDance {name} (imbalance only)", _accused, "none")
              for name in ("SE", "ST")),
        ),
    ),
)  # fmt: skip
