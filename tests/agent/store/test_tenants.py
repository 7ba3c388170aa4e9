"""A tenant sees and decides what is its own: over every route, for every person, and in Slack."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Mount
from starlette.testclient import TestClient

from nightshift.agent.approvals.access import Permission, Sight, may, sight
from nightshift.agent.approvals.visibility import OTHERS, WITHHELD, IncidentWindow
from nightshift.agent.console.api import PREFIX
from nightshift.agent.console.sessions import cookie_name
from nightshift.agent.console.settings import Settings
from nightshift.agent.notify.slack.blocks import ChatMessage
from nightshift.agent.notify.slack.card import Ticket
from nightshift.agent.notify.slack.clicks import Click, Desk, DeskParts
from nightshift.agent.notify.slack.settings import Settings as SlackSettings
from nightshift.agent.presentation.overview import by_rack
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.incident_store import NoSuchIncident
from nightshift.agent.store.records import dump
from nightshift.collectors.subject import SubjectKind
from nightshift.controllers.action import ActionKind
from tests.agent.incidents import contested
from tests.agent.tenants import (
    EVERYBODY,
    GPUS,
    NOBODY,
    NOW_S,
    PEOPLE,
    TENANTS,
    WIDE,
    Cluster,
    forbidden,
    team_of,
    token_of,
)
from tests.some import some

OPEN_TO_ALL = {"/healthz", "/readyz", "/metrics", "/sign-in", f"{PREFIX}/openapi.json"}
"""What strangers reach: it has no word of anybody's."""
NOT_THERE = "INC-999"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("tenants"))
    yield cluster
    cluster.store.close()


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Any:
    return build_console(cluster.parts, Settings(host="0.0.0.0"))


def _client(site: Any) -> TestClient:
    return TestClient(site, base_url="http://127.0.0.1", follow_redirects=False)


def _signed_in(site: Any, name: str) -> tuple[TestClient, str]:
    """A browser with a session, and its form token."""
    web = _client(site)
    assert web.post("/sign-in", data={"token": token_of(name)}).status_code == 303
    found = re.search(r'name="form" value="([0-9a-f]+)"', web.get("/sign-in").text)
    assert found is not None
    return web, found[1]


def _routes(site: Any) -> list[tuple[str, str]]:
    """(method, path) of everything that is served, the API's included; static files aside."""
    found: list[tuple[str, str]] = []
    for route in site.routes:
        if isinstance(route, APIRoute):
            found += [(method, route.path) for method in route.methods]
        elif isinstance(route, Mount) and route.path == PREFIX:
            inner = [r for r in route.routes if hasattr(r, "methods")]
            found += [(m, PREFIX + r.path) for r in inner for m in (r.methods or ()) if m != "HEAD"]  # type: ignore[attr-defined]
    assert len(found) > 25, "the enumeration sees the application's routes"
    return sorted(set(found))


def _fillings(cluster: Cluster) -> dict[str, list[str]]:
    """What each path parameter is filled with: everything that exists, and something that does not."""
    return {
        "incident_id": [*cluster.ids.values(), NOT_THERE],
        "evidence_id": ["E1", "E2", "E3", "E9"],
        "rack": [*_racks(cluster), "r-none"],
        "job": [*(s.name for s in cluster.inventory.subjects(SubjectKind.JOB, NOW_S)), "no job", "none/none"],
        "decision": ["0000000000000000", "0000000000000001", "f00d"],
        "run": ["none"],
        "uuid": [*(gpu.name for gpu in GPUS.values()), "GPU-none"],
    }


def _racks(cluster: Cluster) -> list[str]:
    """Every stretch of nodes that the front page could name."""
    inventory = cluster.inventory
    return list(
        by_rack(inventory.subjects(SubjectKind.GPU, cluster.clock.now_s()), inventory, cluster.clock.now_s())
    )


def _urls(cluster: Cluster, path: str) -> list[str]:
    path = path.replace(":path}", "}")
    names = re.findall(r"{(\w+)}", path)
    known = _fillings(cluster)
    unknown = [name for name in names if name not in known]
    assert not unknown, f"{path}: say in _fillings what {unknown} can be, so that the test reaches it"
    urls = [path.format(**dict(zip(names, v, strict=True))) for v in itertools.product(*(known[n] for n in names))]
    queries = (
        ["", "?state=all", "?state=resolved", "?state=waiting&page=2", "?q=memory", "?q=leak&severity=warning"]
        if path.endswith("/incidents")
        else [""]
    )
    return [url + query for url in urls for query in queries]


def _leaks(name: str, answer: httpx.Response, url: str) -> set[str]:
    """Forbidden words in an answer, beside those that the request itself said."""
    told = answer.text + str(answer.headers)
    return {word for word in forbidden(name) if word in told and word not in url}


def test_a_contest_and_a_model_s_sentence_name_no_other_team(tmp_path: Path) -> None:
    """The approvers of a team's incident learn that its plan is contested; another team's words, and sentences that
    rest on them, stay withheld."""
    cluster = Cluster(tmp_path)
    name, quote = cluster.ids["red"], "zebra-7: NVRM: failed to execute Booter Unload"
    contested(cluster.store, name, quote, "The reset of zebra-7 will fail.")
    wide = IncidentWindow(cluster.store, cluster.person(WIDE[1]), cluster.inventory, NOW_S).incident(name)
    red = cluster.person("red-approver@example.org")
    theirs = IncidentWindow(cluster.store, red, cluster.inventory, NOW_S).incident(name)
    cluster.store.close()
    assert wide.reading is not None
    assert wide.reading.contest is not None
    assert wide.reading.contest.quote.text == quote
    assert [sentence.text for sentence in wide.reading.sentences] == ["The unload failed."]
    assert theirs.reading is not None
    assert theirs.reading.contest is not None, "that it is contested is theirs to know"
    assert theirs.reading.sentences == ()
    assert "zebra" not in dump(theirs)
    assert "unload" not in dump(theirs).lower()


@pytest.mark.parametrize("name", some([NOBODY, *TENANTS, WIDE[0]]))
def test_no_route_shows_anybody_what_is_not_theirs(site: Any, cluster: Cluster, name: str) -> None:
    """Every page and every call, with every id there is: no word of another team's, by session and by token."""
    browser, _ = _signed_in(site, name)
    program = _client(site)
    program.headers["Authorization"] = f"Bearer {token_of(name)}"
    seen = 0
    for method, path in _routes(site):
        if method != "GET":
            continue
        for url, web in itertools.product(_urls(cluster, path), (browser, program)):
            answer = web.get(url)
            assert answer.status_code < 500 or path == "/readyz", (url, answer.text)
            assert not _leaks(name, answer, url), (url, answer.text)
            seen += 1
    assert seen > 60
    own = cluster.ids.get(team_of(name) or "both", "")
    expected = 403 if name == NOBODY else 200
    assert browser.get(f"/incidents/{own}").status_code == expected


def test_searching_finds_no_word_that_is_not_shown(site: Any, cluster: Cluster) -> None:
    """A search is no oracle: for what was withheld it finds nothing, though the stored incident says it."""
    browser, _ = _signed_in(site, "red-responder@example.org")
    found = {
        q: set(re.findall(r"/incidents/(INC-\d+)", browser.get(f"/incidents?q={q}").text))
        for q in ("zebra", "n1", "walrus")
    }
    assert found == {"zebra": set(), "n1": {cluster.ids["both"]}, "walrus": set()}


@pytest.mark.parametrize("name", TENANTS)
def test_what_is_another_teams_looks_as_if_it_did_not_exist(site: Any, cluster: Cluster, name: str) -> None:
    """The answer for another team's incident, evidence or GPU is that of an id that was never given, to the
    letter."""
    browser, _ = _signed_in(site, name)
    other = "blue" if team_of(name) == "red" else "red"
    for which in (other, "nobody"):
        there, gpu = cluster.ids[which], GPUS[which].name
        for template in ("/incidents/{}", "/incidents/{}/evidence/E1", f"{PREFIX}/incidents/{{}}",
                         f"{PREFIX}/incidents/{{}}/approvals"):  # fmt: skip
            one, none = browser.get(template.format(there)), browser.get(template.format(NOT_THERE))
            assert (one.status_code, one.text.replace(there, NOT_THERE)) == (none.status_code, none.text)
        one, none = browser.get(f"/gpus/{gpu}"), browser.get("/gpus/GPU-none")
        assert (one.status_code, one.text.replace(gpu, "GPU-none")) == (404, none.text)


def test_lists_and_counts_are_of_what_is_seen(site: Any, cluster: Cluster) -> None:
    """A team counts its own and what it shares; the cluster's people count all."""
    for name, count, gpus in (("red-responder@example.org", 2, 1), ("wide-viewer@example.org", 4, 3)):
        browser, _ = _signed_in(site, name)
        rows = browser.get(f"{PREFIX}/incidents?state=all").json()
        assert len(rows) == count
        page = browser.get("/").text
        assert f"<b>{count}</b><span>open incidents" in page
        assert f"<b>{gpus}</b><span>GPUs" in page
    records = {r["incident"] for r in _signed_in(site, TENANTS[0])[0].get(f"{PREFIX}/audit").json()}
    assert records == {cluster.ids["red"]}


def test_a_team_sees_its_own_incident_whole_but_for_what_names_others(site: Any, cluster: Cluster) -> None:
    """Its evidence, claims and plan are there; the item that names the neighbour and past incidents are not."""
    browser, _ = _signed_in(site, "red-approver@example.org")
    told = browser.get(f"{PREFIX}/incidents/{cluster.ids['red']}").json()
    assert [item["id"] for item in told["diagnosis"]["evidence"]] == ["E1"]
    window = IncidentWindow(cluster.store, cluster.person("red-approver@example.org"), cluster.inventory, NOW_S)
    diagnosis = window.incident(cluster.ids["red"]).diagnosis
    assert diagnosis is not None
    assert len(diagnosis.claims) == 1
    assert told["plan_sha256"] == cluster.plan_of("red")
    assert WITHHELD not in told["diagnosis"]["headline"]


def test_a_shared_incident_is_seen_in_part(site: Any, cluster: Cluster) -> None:
    """Hardware, fault, state, plan and the team's own signal and job; no prose, no evidence, no hash to approve."""
    browser, _ = _signed_in(site, "red-approver@example.org")
    told = browser.get(f"{PREFIX}/incidents/{cluster.ids['both']}").json()
    assert told["title"] == "Gpu lost that touches several teams' jobs"
    assert told["diagnosis"] is None
    assert {f["finding"]["subject"]["name"] for f in told["findings"]} == {"red/antelope-7", "n1"}
    assert (told["action"]["kind"], told["action"]["target"]["name"]) == ("cordon", "n1")
    assert told["action"]["blast_radius"]["jobs"] == ["red/antelope-run"]
    assert "1 jobs of other teams" in told["action"]["blast_radius"]["note"]
    assert told["plan_sha256"] != cluster.plan_of("both")
    assert told["namespaces"] == ["red", OTHERS]
    assert all(step["note"] == "" and step["by"] == "" for step in told["history"])
    assert OTHERS not in told["title"]


_VERBS = {"approve": Permission.APPROVE, "reject": Permission.REJECT, "close": Permission.CLOSE}


@pytest.mark.parametrize("which", ["red", "blue", "both", "nobody"])
def test_every_decision_is_made_by_whom_it_is_given_to(tmp_path: Path, which: str) -> None:
    """Every person × verb × door: an incident moves if and only if `may` says so, and a refusal tells nothing."""
    cluster = Cluster(tmp_path)
    site = build_console(cluster.parts, Settings(host="0.0.0.0"))
    incident_id, plan = cluster.ids[which], cluster.plan_of(which)
    body = {
        "approve": {"plan_sha256": plan},
        "reject": {"plan_sha256": plan, "reason": "no"},
        "close": {"note": "x"},
    }
    fields = {"approve": {"plan": plan}, "reject": {"plan": plan, "reason": "no"}}
    before = cluster.store.incident(incident_id)
    for name, verb in itertools.product(EVERYBODY, _VERBS):
        person = cluster.person(name)
        if may(person, _VERBS[verb], before.namespaces):
            continue
        web, form = _signed_in(site, name)
        program = {"Authorization": f"Bearer {token_of(name)}"}
        answers = [_client(site).post(f"{PREFIX}/incidents/{incident_id}/{verb}", json=body[verb], headers=program)]
        if verb in fields:
            answers.append(web.post(f"/incidents/{incident_id}/{verb}", data=fields[verb] | {"form": form}))
        hidden = sight(person, before.namespaces) is Sight.NOTHING
        for answer in answers:
            assert answer.status_code in ((403, 404) if hidden else (409, 303)), (name, verb, answer.text)
            assert not _leaks(name, answer, incident_id)
        after = cluster.store.incident(incident_id)
        assert (after.version, after.state) == (before.version, before.state), (name, verb)
    allowed = [name for name in EVERYBODY if may(cluster.person(name), Permission.APPROVE, before.namespaces)]
    assert set(allowed) == {"wide-approver@example.org", "root@example.org"} | (
        {f"{which}-approver@example.org"} if which in ("red", "blue") else set()
    )
    program = {"Authorization": f"Bearer {token_of(allowed[0])}"}
    answer = _client(site).post(f"{PREFIX}/incidents/{incident_id}/approve", json=body["approve"], headers=program)
    assert (answer.status_code, answer.json()["changed"]) == (200, True)
    cluster.store.close()


@pytest.mark.parametrize("name", EVERYBODY)
def test_the_emergency_stop_is_the_clusters(site: Any, cluster: Cluster, name: str) -> None:
    """A team's approver neither stops nor starts everybody's repairs; who may is told the same by every door."""
    program = _client(site)
    program.headers["Authorization"] = f"Bearer {token_of(name)}"
    halts = may(cluster.person(name), Permission.HALT).allowed
    assert program.post(f"{PREFIX}/halt", json={"note": "walrus"}).status_code == (200 if halts else 409)
    assert cluster.gate.halted().halted is halts
    if halts:
        viewer = _client(site)
        viewer.headers["Authorization"] = f"Bearer {token_of(TENANTS[0])}"
        assert viewer.get(f"{PREFIX}/halt").json() == {"halted": True}
        assert "walrus" not in _signed_in(site, TENANTS[0])[0].get("/").text
        assert program.post(f"{PREFIX}/resume").status_code == 200
    assert not cluster.gate.halted().halted


class _Workspace:
    """Says who a Slack user is; the directory says the rest."""

    def name_of(self, user: str, _workspace: str) -> str:
        return user


def _desk(cluster: Cluster) -> Desk:
    settings = SlackSettings(console_url="https://nightshift.example")
    return Desk(
        DeskParts(
            store=cluster.store,
            gate=cluster.gate,
            clock=cluster.clock,
            web=None,  # type: ignore[arg-type]
            settings=settings,
            directory=cluster.directory,
            suppressor=cluster.suppressor,
            members=_Workspace(),  # type: ignore[arg-type]
            wake=lambda: None,
            inventory=cluster.inventory,
        )
    )


def _slack(cluster: Cluster, name: str, what: str, value: str) -> ChatMessage | str:
    click = Click(name, "T1", what, value, "C1", lambda _: None)
    try:
        return _desk(cluster)._outcome(click)
    except NoSuchIncident as error:
        return str(error)


@pytest.mark.parametrize("name", EVERYBODY)
def test_slack_tells_nobody_what_is_not_theirs(cluster: Cluster, name: str) -> None:
    """Lists, cards, evidence, silences and refusals, asked for by every person about every incident."""
    asked = [("command", word) for word in ("incidents", "status", "silences")]
    for incident_id in (*cluster.ids.values(), NOT_THERE):
        asked += [("command", f"show {incident_id}"), ("evidence", Ticket(incident_id, "").value())]
        asked += [(what, Ticket(incident_id, "f" * 64).value()) for what in ("approve", "reject", "snooze")]
    for what, value in asked:
        told = str(_slack(cluster, name, what, value))
        assert not [word for word in forbidden(name) if word in told], (what, value, told)
    listed = str(_slack(cluster, name, "command", "incidents"))
    for which, incident_id in cluster.ids.items():
        sees = name in WIDE or (name != NOBODY and which in (team_of(name), "both"))
        assert (f"{incident_id} " in listed) is sees, which


def test_a_slack_click_on_what_needs_a_fresh_sign_in_is_told_where_to_go(cluster: Cluster) -> None:
    """The clicker alone gets the console's address; nothing is approved."""
    policy = cluster.gate.policy
    cluster.gate.policy = policy.model_copy(update={"fresh_sign_in": frozenset({ActionKind.RESTART_POD})})
    try:
        value = Ticket(cluster.ids["red"], cluster.plan_of("red")).value()
        told = str(_slack(cluster, "red-approver@example.org", "approve", value))
        assert f"https://nightshift.example/incidents/{cluster.ids['red']}" in told
        assert cluster.gate.approvals(cluster.ids["red"]) == []
    finally:
        cluster.gate.policy = policy


def test_strangers_reach_nothing_but_the_door(site: Any, cluster: Cluster) -> None:
    """Without a sign-in every route but probes and the sign-in page redirects or refuses, and says no reason."""
    web = _client(site)
    for method, path in _routes(site):
        for url in _urls(cluster, path):
            answer = web.request(method, url, data={"form": "0" * 64} if method == "POST" else None)
            told = answer.text + str(answer.headers)
            assert not [word for word in ("antelope", "zebra", "walrus") if word in told and word not in url], url
            if path not in OPEN_TO_ALL:
                assert answer.status_code in (303, 401, 403, 422), (method, url, answer.status_code)


def test_reading_is_not_open_on_loopback_where_there_are_tenants(cluster: Cluster) -> None:
    """Loopback is where a proxy stands: with teams, everybody signs in."""
    web = _client(build_console(cluster.parts, Settings()))
    assert web.get("/incidents").status_code == 303
    assert PEOPLE.owners
    assert cookie_name(secure=True).startswith("__Host-")
