"""Lines of a job: whatever they hold, reading them never raises, and only records are records."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.agent.goodput.accounts import Account
from nightshift.agent.goodput.records import (
    MarkEdge,
    ProcessBegins,
    StatedFlops,
    StepBegins,
    judged,
    read_mfu,
    read_record,
)

ANY = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["step_count", "step_start_time", "job_start_time", "tpu_init_end_time", "custom_badput_event_type",
     "custom_badput_event_start_time", "data_loading_start_time", "flops_per_step"]
)  # fmt: skip


@given(st.dictionaries(KEYS, ANY), st.booleans(), st.text(max_size=10))
def test_reading_never_raises(fields: dict[str, object], nested: bool, around: str) -> None:
    payload: dict[str, object] = {"job_name": "llm", **fields}
    read_record(around + json.dumps({"jsonPayload": payload} if nested else payload) + around)
    read_record(around + '{"job_name"' + around)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"step_count": 3, "step_start_time": 5.5}, StepBegins(3, 5.5)),
        ({"job_start_time": 5.5}, ProcessBegins(5.5)),
        ({"tpu_init_end_time": 5.5}, MarkEdge("tpu_init", Account.INITIALISING, 5.5, False)),
        ({"training_prep_start_time": 1}, MarkEdge("training_prep", Account.INITIALISING, 1.0, True)),
        ({"data_loading_start_time": 1}, MarkEdge("data_loading", Account.DATA_WAIT, 1.0, True)),
        ({"flops_per_step": 1e15}, StatedFlops(1e15)),
        ({"step_count": -1, "step_start_time": 5.5}, None),
        ({"step_count": True, "step_start_time": 5.5}, None),
        ({"flops_per_step": float("inf")}, None),
    ],
)
def test_records_of_the_library(fields: dict[str, object], expected: object) -> None:
    assert read_record("INFO " + json.dumps({"job_name": "llm", **fields})) == expected


@pytest.mark.parametrize(
    ("kind", "account"),
    [
        ("checkpoint_save", Account.CHECKPOINTING),
        ("checkpoint_restore", Account.INITIALISING),
        ("eval_step", Account.UNEXPLAINED),
    ],
)
def test_custom_events_by_their_words(kind: str, account: Account) -> None:
    fields = {"custom_badput_event_type": kind, "custom_badput_event_end_time": 9.0}
    edge = read_record(json.dumps({"job_name": "llm", **fields}))
    assert isinstance(edge, MarkEdge)
    assert edge.account is account
    assert not edge.begins


def test_a_job_that_lies_about_its_flops_is_refused() -> None:
    assert judged(0.4, 0.42).refused == ""
    assert "active 10 %" in judged(0.4, 0.1).refused
    assert "more than the GPU can do" in judged(1.4, 0.99).refused
    assert "not verified" in judged(0.4, float("nan")).refused


def test_mfu_of_step_lines() -> None:
    assert read_mfu("iter 100: loss 2.3456, time 123.45ms, mfu 12.3%") == pytest.approx(0.123)
    assert read_mfu('{"mfu": 0.5}') == 0.5
    assert read_mfu("loss 2.3") is None
