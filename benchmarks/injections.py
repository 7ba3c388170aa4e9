"""Hostile texts in everything that Nightshift reads, and what of them gets through: nothing may.

`python -m benchmarks.injections` puts each hostile text of `tests/agent/test_hostile.py` into each channel, one
by one, and writes `results/injections.json`. By `rules`: kernel log, job log, Kubernetes events and changes,
alerts (labels and annotations), findings, names, past incidents with their notes. By `look-ups`, with a model
that was taken over and repeats the text as claim, sentence, check and contest: runbooks and post-mortems, tool
servers (answers and descriptions), Loki. By `questions`: a question as it comes from a Slack thread, the
console or an agent, with such a model. By `proposals`: what an agent proposes at `/mcp`. A text is through if
it changes plan, cause or headline, leaks a secret, or is shown so that one could follow it. The checks are the
tests' own; one that fails counts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.report import write
from nightshift.version import commit
from tests.agent import test_hostile as rules
from tests.agent.console import test_mcp_server as proposals
from tests.agent.incidents import test_questions as asked
from tests.agent.rca import test_hostile_channels as look_ups
from tests.agent.tenants import Cluster

RULES = ("kernel log", "job log", "event", "finding", "name", "past", "alert")


def channels(folder: Path) -> Mapping[str, Callable[[str], None]]:
    """What checks a text in a channel, by the channel's name."""
    untouched = rules.advised(
        rules.incident(rules.BASE),
        rules.history([rules.XID_LINES[0], rules.XID_LINES[1]], every_s=60.0),
        rules.fleet(),
    )
    check = rules.test_hostile_text_changes_no_action_leaks_nothing_and_is_shown_harmless
    found: dict[str, Callable[[str], None]] = {}
    for name in RULES:
        found[f"rules: {name}"] = lambda text, name=name: check(text, name, untouched)  # type: ignore[misc]
    for name in look_ups.CHANNELS:
        found[f"look-ups: {name}"] = lambda text, name=name: look_ups.gets_nowhere(name, text, folder)  # type: ignore[misc]

    def question(text: str) -> None:
        with tempfile.TemporaryDirectory() as home:
            asked.test_hostile_text_in_a_thread_and_in_a_model_gets_nowhere(Path(home), (text,))

    cluster = Cluster(folder / "mcp")
    propose = proposals.test_hostile_text_is_refused_as_a_proposal_or_stands_as_plain_words
    found["questions"] = question
    found["proposals"] = lambda text: propose(cluster, text)
    return found


def through(check: Callable[[str], None], text: str) -> str:
    """What a text changed; empty where nothing."""
    try:
        check(text)
    except Exception as error:  # noqa: BLE001  whatever a hostile text raises is counted
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def main() -> None:
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mcp").mkdir()
        for name, check in channels(Path(folder)).items():
            began_s = time.monotonic()
            found = {f"{n:02d}": told for n, text in enumerate(rules.INJECTIONS) if (told := through(check, text))}
            rows[name] = {"texts": len(rules.INJECTIONS), "through": found}
            print(f"{name}: {len(found)} through, {time.monotonic() - began_s:.0f} s", flush=True)
    write(
        "injections",
        {
            "commit": commit(),
            "texts": len(rules.INJECTIONS),
            "channels": len(rows),
            "tried": sum(row["texts"] for row in rows.values()),
            "through": sum(len(row["through"]) for row in rows.values()),
            "by_channel": rows,
        },
    )


if __name__ == "__main__":
    main()
