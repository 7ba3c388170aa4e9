"""One incident through the product: a daemon opens it, its model is asked, and what its page then shows is read.

Nothing of the daemon is replaced but its clock. The model is whatever answers at an OpenAI-compatible endpoint: a
live server, or a scripted reader of ours. The deciding line is looked for in the first request as it was sent.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import httpx

from benchmarks.field.__main__ import START_S, Drawn, play
from benchmarks.field.report import Channel, FieldReport
from benchmarks.first_request import BESIDES, metric_of, noisy, shown_of, stands_in
from benchmarks.incidents.world import World
from benchmarks.rca_evals.cases import Case, deciding_lines, truth_of
from benchmarks.rca_evals.scorer import judge
from examples.demo.serving import CADVISOR, DCGM, KERNEL_LOG
from nightshift.agent.app import App
from nightshift.agent.clock import SteppedClock
from nightshift.agent.rca.briefing import CHARS_PER_TOKEN, ROOM_TOKENS, first_room
from nightshift.agent.rca.grounding import ground
from nightshift.agent.rca.summary import as_text, summarise
from nightshift.agent.settings import Settings
from nightshift.agent.store.diagnosis import quoted_sentences
from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.agent.store.incident_store import Store

BEFORE, NOISE = 40, 30
"""Healthy step lines before the fault, and ordinary lines with each tick around it."""
WAIT_S = 330.0
Llm = Mapping[str, Any]
Asked = Callable[[], Sequence[Mapping[str, Any]]]
"""What the endpoint was asked so far, where it is ours."""


def evaluate(
    case: Case,
    llm: Llm,
    asked: Asked = list,
    heard: Callable[[Drawn], None] = lambda _: None,
    then: Sequence[Callable[[], None]] = (),
) -> list[dict[str, Any]]:
    """One incident's row. `heard` gets the case's drawn values before anything is asked. `then`: each changes who
    answers at the endpoint; the same incidents are read again, and a row follows."""

    def read(app: App, drawn: Drawn) -> dict[str, Any]:
        app.readings.wait_idle(WAIT_S)
        rows = [_figures(case, asked, app, drawn)]
        for change in then:
            change()
            _read_again(app)
            rows.append(_figures(case, asked, app, drawn))
        return {"rows": rows}

    with tempfile.TemporaryDirectory() as folder:
        copied = shutil.copy(_empty_store(), folder)
        more = {"llm": llm, "console": {"enabled": False}, "store": {"url": f"sqlite:///{copied}"}}
        if case.report is None:
            heard(Drawn(1, case.name))
            played = _play_cluster(case, more, read)
        else:
            heard(filled(case))
            fed = partial(with_herring, case)
            played = play(case.report, 1, BEFORE, until_right=True, fed=fed, ask=read, more=more)
    head = {"case": case.name, "origin": case.origin, "cause": case.cause, "opened": bool(played["incidents"])}
    return [head | row for row in played["rows"]]


@cache
def _empty_store() -> Path:
    """A store of this version without incidents: to make one takes longer than to read an incident."""
    path = Path(tempfile.mkdtemp(prefix="rca-evals-")) / "empty.sqlite"
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    Store(f"sqlite:///{path}", SteppedClock(START_S)).close()
    return path


def _read_again(app: App) -> None:
    """As the queue does for a new diagnosis, without what was read before."""
    for row in app.store.to_read(frozenset(IncidentState)):
        incident = replace(app.store.incident(row.incident), reading=None)
        told = app.practice.advisor_of(incident).diagnose(incident)
        incident = replace(incident, diagnosis=told)
        reading, spent = app.practice.advisor_of(incident).read(incident)
        app.store.save_reading(row.incident, row.diagnosis, reading, spent.tokens, 0.0, final=True)


def filled(case: Case) -> Drawn:
    """The values that a play of this case draws: by seed and source, so they are known before."""
    assert case.report is not None
    drawn = Drawn(1, case.report.source)
    for lines in with_herring(case, case.report, BEFORE):
        for line in lines:
            drawn.fill(line)
    return drawn


def with_herring(case: Case, report: FieldReport, before: int) -> Iterator[list[str]]:
    """Ordinary lines around the fault, and the red herring in the two ticks before it."""
    last = before // 2 if report.before else 2
    for number, lines in enumerate(noisy(report, before, NOISE)):
        herring = [case.herring.line] if case.herring is not None and number in (last - 2, last - 1) else []
        yield [*herring, *lines]


def _figures(case: Case, asked: Asked, app: App, drawn: Drawn) -> dict[str, Any]:
    rows = app.store.incidents()
    incidents = [app.store.incident(row.id) for row in rows]
    if not incidents:
        return {}
    incident = incidents[-1]
    truth = truth_of(case, drawn)
    told = [_model_words(one) for one in incidents]
    # a fault that opens two incidents is read twice: either page may say it
    verdicts = [judge(words, truth) for words in told]
    best = max(range(len(incidents)), key=lambda number: verdicts[number].right)
    requests = [str(body["messages"][1]["content"]) for body in asked() if len(body["messages"]) == 2]
    requests = requests or [
        app.practice.advisor_of(one).brief(one, first_room(ROOM_TOKENS, BESIDES)).text for one in incidents
    ]
    facts = [one.reading.facts for one in incidents if one.reading is not None]
    lines = deciding_lines(case, drawn)
    found = metric_of if case.report is not None and case.report.channel is Channel.EXPORTER else stands_in
    return {
        # of a cluster's case no one line decides
        "decides": any(found(line, shown_of(text)) for line in lines for text in requests) if lines else None,
        "request_tokens": max(round((BESIDES + len(text)) / CHARS_PER_TOKEN) for text in requests),
        "shown": told[best],
        "marked": _is_marked(incidents[best]),
        "verdict": asdict(verdicts[best]),
        "unsupported": sum(len(unsupported(one)) for one in incidents),
        "tokens": int(sum(float(fact.get("model_tokens", 0.0)) for fact in facts)),
        "usd": round(sum(float(fact.get("model_usd", 0.0)) for fact in facts), 6),
        "seconds": round(sum(float(fact.get("model_s", 0.0)) for fact in facts), 3),
        "failure": next((str(fact["model_failure"]) for fact in facts if "model_failure" in fact), ""),
        "page": as_text(summarise(incident, incident.updated_s)),
    }


def _model_words(incident: Incident) -> str:
    """The model's sentences as the page shows them."""
    return "" if incident.reading is None else " ".join(one.text for one in quoted_sentences(incident.reading))


def _is_marked(incident: Incident) -> bool:
    """Whether each sentence of the model is shown with marked words."""
    said = () if incident.reading is None else quoted_sentences(incident.reading)
    return bool(said) and all(one.beyond for one in said)


def unsupported(incident: Incident) -> list[str]:
    """What the page shows of a model without its proof: a claim that does not hold over the stored evidence, a
    sentence or a contest of which the quote is not in it."""
    if incident.diagnosis is None or incident.reading is None:
        return []
    page = as_text(summarise(incident, incident.updated_s))
    stored = [item.content for item in (*incident.reading.evidence, *incident.diagnosis.evidence)]
    found = [claim.sentence for claim, _ in ground(incident.reading.claims, incident.reading.evidence).fell]
    told = [(sentence.text, sentence.quote.text) for sentence in incident.reading.sentences]
    if incident.reading.contest is not None:
        told.append((incident.reading.contest.reason, incident.reading.contest.quote.text))
    bare = [text for text, quote in told if not quote or not any(quote.encode() in content for content in stored)]
    bare += [incident.reading.account] if incident.reading.account else []
    return [text for text in (*found, *bare) if text[:60] in page]


def _play_cluster(
    case: Case, more: Mapping[str, Any], figures: Callable[[App, Drawn], dict[str, Any]]
) -> dict[str, Any]:
    """A case of the benchmark's cluster through a daemon, until its first incident has its plan."""
    assert case.cluster is not None
    with tempfile.TemporaryDirectory() as folder:
        world = World(case.cluster, Path(folder))
        urls = {node: server.url for node, server in world.nodes.items()}
        sources = [
            {"type": "dcgm_exporter", "urls": [url + DCGM for url in urls.values()]},
            {"type": "cadvisor", "urls": [url + CADVISOR for url in urls.values()]},
            {"type": "node_log", "urls": [url + KERNEL_LOG for url in urls.values()],
             "nodes": {url + KERNEL_LOG: node for node, url in urls.items()}},
            {"type": "training_logs", "directory": str(world.logs)},
        ]  # fmt: skip
        settings = Settings.model_validate(
            {"cluster": "bench", "state_dir": f"{folder}/state", "actuators": [], "sources": sources,
             **more}
        )  # fmt: skip
        clock = SteppedClock(world.now_s)
        app = App(settings, clock=clock)
        mounts = {node.url: node for node in world.nodes.values()}
        for collector in app.collection.collectors[:3]:
            # within the process: the cluster's nodes are no servers
            collector._fetcher._client = httpx.AsyncClient(mounts=mounts, trust_env=False)  # type: ignore[attr-defined]
        try:
            app.start()
            while world.elapsed_s < float(case.cluster["duration_s"]):
                world.tick()
                clock.wait_until(world.now_s)
                look = app.tick()
                if look is not None and look.decisions:
                    app.settle()
                    if app.store.incidents():
                        break
            return {"incidents": [row.id for row in app.store.incidents()], **figures(app, Drawn(1, case.name))}
        finally:
            app.stop()
