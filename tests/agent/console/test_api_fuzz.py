"""schemathesis over the JSON API: what is generated from its description, right and wrong, never breaks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from nightshift.agent.console.api import PREFIX
from nightshift.agent.console.settings import Settings
from nightshift.agent.setup.console import build_console
from tests.agent.tenants import Cluster, forbidden, token_of

WHO = "red-approver@example.org"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("fuzz"))
    yield cluster
    cluster.store.close()


@pytest.fixture(scope="module")
def described(cluster: Cluster) -> Any:
    """The API as its own description says, over a console of two teams."""
    site = build_console(cluster.parts, Settings())
    return schemathesis.openapi.from_asgi(f"{PREFIX}/openapi.json", site, headers={"Host": "127.0.0.1"})


def _holds(case: Any) -> None:
    headers = {"Authorization": f"Bearer {token_of(WHO)}", "Host": "127.0.0.1"}
    answer = case.call_and_validate(
        headers=headers,
        excluded_checks=[
            schemathesis.specs.openapi.checks.ignored_auth,
            schemathesis.specs.openapi.checks.positive_data_acceptance,
        ],
    )
    asked = f"{case.formatted_path} {case.body!r} {case.query}"
    assert not [word for word in forbidden(WHO) if word in answer.text and word not in asked]


def _fuzz(described: Any, examples: int) -> int:
    """Calls every operation with generated cases, right ones and wrong ones; returns how many operations."""
    operations = [found.ok() for found in described.get_all_operations()]
    for operation in operations:
        for mode in schemathesis.GenerationMode:
            try:
                cases = operation.as_strategy(generation_mode=mode)
                _each(cases, examples)
            except Unsatisfiable:
                assert mode is schemathesis.GenerationMode.NEGATIVE, operation.label  # nothing can be wrong with it
    return len(operations)


def _each(cases: Any, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(cases)
    def call(case: Any) -> None:
        _holds(case)

    call()


@pytest.mark.full
def test_generated_calls_get_described_answers(described: Any) -> None:
    """No 5xx, only statuses, types and bodies that the description has, and no word of another team."""
    assert _fuzz(described, 6) == 23


@pytest.mark.full
def test_many_generated_calls_get_described_answers(described: Any) -> None:
    """The same, longer."""
    assert _fuzz(described, 20) == 23
