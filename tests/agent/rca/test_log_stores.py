"""Lines of Loki and Elasticsearch become evidence; a store that refuses or is away is named, never "nothing"."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from nightshift.agent.rca.bundle import Bundle
from nightshift.agent.rca.log_stores import LogStores, LogStoreSettings
from nightshift.agent.rca.lookup import Lookup
from nightshift.collectors.history import History
from nightshift.collectors.http import HttpSettings
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from tests.agent.rca.log_store_stand_in import LogStoreStandIn, served

AT_S = 1_790_000_000.0
POD, NODE = Subject(SubjectKind.POD, "ml/a-0"), Subject(SubjectKind.NODE, "n1")
RANK = Subject(SubjectKind.RANK, "ml/a#0")
ODD = 'quotes " and \\ and (brackets'
LINES = [
    (AT_S, {"namespace": "ml", "pod": "a-0", "node": "n1"}, "NCCL watchdog TIMEOUT"),
    (AT_S + 5, {"namespace": "ml", "pod": "a-0", "node": "n1"}, ODD),
    (AT_S + 6, {"namespace": "other", "pod": "b-0", "node": "n1"}, "a secret of others"),
    (AT_S + 9999, {"namespace": "ml", "pod": "a-0", "node": "n1"}, "much later"),
]


def inventory() -> Inventory:
    made = Inventory()
    made.observe(POD, NODE, 0.0)
    made.observe(RANK, POD, 0.0)
    return made


@pytest.fixture
def store() -> LogStoreStandIn:
    return LogStoreStandIn(list(LINES))


@pytest.fixture(params=["loki", "elasticsearch"])
def stores(request: pytest.FixtureRequest, store: LogStoreStandIn) -> Iterator[LogStores]:
    with served(store) as url:
        yield LogStores([setting(request.param, url)], inventory())


def setting(kind: str, url: str, **more: Any) -> LogStoreSettings:
    connection = HttpSettings(headers={"X-Scope-OrgID": "ops"})  # type: ignore[dict-item]
    return LogStoreSettings.model_validate({"type": kind, "url": url, "connection": connection, **more})


@pytest.mark.parametrize("subject", [POD, RANK])
def test_lines_of_a_pod_in_the_range_and_with_the_text(stores: LogStores, subject: Subject) -> None:
    found, problems = stores.lines(subject, AT_S - 60, AT_S + 60)
    assert ([record.text for record in found], problems) == (["NCCL watchdog TIMEOUT", ODD], [])
    assert found[0].at.t_s == AT_S
    assert [r.text for r in stores.lines(subject, AT_S - 60, AT_S + 60, "timeout")[0]] == ["NCCL watchdog TIMEOUT"]
    assert [r.text for r in stores.lines(subject, AT_S - 60, AT_S + 60, ODD)[0]] == [ODD]


def test_a_node_has_all_lines_but_for_a_team(stores: LogStores) -> None:
    assert len(stores.lines(NODE, AT_S - 60, AT_S + 60)[0]) == 3
    assert stores.of_pods_only().lines(NODE, AT_S - 60, AT_S + 60) == ([], [])
    assert stores.lines(Subject(SubjectKind.GPU, "GPU-1"), AT_S, AT_S + 1) == ([], [])


@pytest.mark.parametrize("text", ['"} |= "', "`", '" or 1', "\\", "\x00\n", "x" * 5000])
def test_what_is_looked_for_cannot_write_a_query(stores: LogStores, store: LogStoreStandIn, text: str) -> None:
    found, problems = stores.lines(POD, AT_S - 60, AT_S + 60, text)
    assert problems == []
    assert all(record.text == ODD for record in found)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"overloaded"),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b'{"data": 1}'),
        (429, b"too many outstanding requests"),
    ],
)
def test_a_store_that_fails_is_named_and_is_not_nothing(
    stores: LogStores, store: LogStoreStandIn, status: int, body: bytes
) -> None:
    store.broken = status, body
    lookup = Lookup(Bundle((), {}), History(), inventory(), AT_S, AT_S + 60, stores=stores)
    told = lookup.call("logs", {"subject": str(POD), "start_s": AT_S - 60, "end_s": AT_S + 60})
    assert told.startswith("nothing was found\nno data from ")


def test_the_lines_are_evidence_of_their_store(stores: LogStores) -> None:
    lookup = Lookup(Bundle((), {}), History(), inventory(), AT_S, AT_S + 60, stores=stores)
    told = json.loads(lookup.call("logs", {"subject": str(POD), "start_s": AT_S - 60, "end_s": AT_S + 60}))
    assert told["source"].startswith(stores.settings[0].type)
    assert "NCCL watchdog TIMEOUT" in told["content"]


def test_what_the_real_ones_refuse_is_said(store: LogStoreStandIn) -> None:
    with served(store) as url:
        keyless = LogStoreSettings(type="loki", url=url)
        assert "401" in LogStores([keyless], inventory()).lines(POD, AT_S, AT_S + 1)[1][0]
        gone = setting("elasticsearch", url, index="gone")
        assert "404" in LogStores([gone], inventory()).lines(POD, AT_S, AT_S + 1)[1][0]
    (problem,) = LogStores([setting("loki", url)], inventory()).lines(POD, AT_S, AT_S + 1)[1]
    assert problem.startswith(f"loki {url}: ")


@pytest.mark.parametrize(
    "wrong", [{"index": "a/b"}, {"fields": {"pod": 'x"}'}}, {"url": "nowhere"}, {"type": "splunk"}]
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LogStoreSettings.model_validate({"type": "loki", "url": "http://loki:3100", **wrong})
