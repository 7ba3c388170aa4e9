"""Training figures that trainers export: from their page and from a real Prometheus-compatible answer."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Reason
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.training.metrics import TrainingMetricsCollector

NOW = 1_795_260_000.0


def make(opened: Any, **given: Any) -> TrainingMetricsCollector:
    made: TrainingMetricsCollector = opened(TrainingMetricsCollector(TrainingMetricsCollector.Settings(**given)))
    return made


def page(step: int, loss: float = 2.0, labels: str = "") -> bytes:
    return (
        f"train_loss{labels} {loss}\ngrad_norm{labels} 1.5\ntraining_global_step{labels} {step}\n"
        f"python_info{labels} 1\ntokens_per_second{labels} 1e5\n"
    ).encode()


def test_a_step_is_told_when_the_step_moved_and_a_step_back_is_a_new_run(opened: Any, page_server: Any) -> None:
    url = page_server.at("/m")
    of = make(opened, urls=[url], jobs={url: "ml/gpt"})
    told = []
    for n, step in enumerate((10, 10, 12, 3)):
        page_server.pages["/m"] = page(step, loss=float("nan") if step == 12 else 2.0)
        told += check_collect(of, NOW + 5 * n, Inventory(), 30.0, expect_ok=True).steps
    assert [(s.subject.name, int(s.step[0])) for s in told] == [("ml/gpt", 10), ("ml/gpt", 12), ("ml/gpt", 3)]
    assert told[0].column("loss")[0] == 2.0
    assert told[0].column("tokens_per_s")[0] == 1e5
    assert math.isinf(told[1].column("loss")[0])
    assert told[0].run == told[1].run != told[2].run


def test_labels_tell_the_rank_and_without_a_step_each_look_is_one(opened: Any, page_server: Any) -> None:
    of, inventory = make(opened, urls=[page_server.at("/m")]), Inventory()
    names = []
    for n in range(2):
        page_server.pages["/m"] = (
            b'loss{namespace="ml",pod="gpt-worker-3"} 1\nloss{namespace="ml",pod="x",rank="7"} 2\n'
        )
        steps = check_collect(of, NOW + n, inventory, 30.0, expect_ok=True).steps
        names.append(sorted((s.subject.name, int(s.step[0])) for s in steps))
    assert names == [[("ml/gpt#3", 0), ("ml/x#7", 0)], [("ml/gpt#3", 1), ("ml/x#7", 1)]]
    assert inventory.above(Subject(SubjectKind.RANK, "ml/gpt#3"), SubjectKind.JOB, NOW + 1) is not None


def test_a_prometheus_api_is_asked_for_the_same_names(opened: Any, page_server: Any) -> None:
    labels = {"namespace": "ml", "pod": "gpt-1"}
    rows = [
        {"metric": {"__name__": name, **labels}, "value": [NOW, value]}
        for name, value in (("train_loss", "1.25"), ("global_step", "40"), ("eval_loss", "9"))
    ]
    answer = {"status": "success", "data": {"resultType": "vector", "result": rows}}
    page_server.pages["/api/v1/query"] = json.dumps(answer).encode()
    (series,) = check_collect(make(opened, api=page_server.url), NOW, Inventory(), 30.0, expect_ok=True).steps
    assert (series.subject.name, int(series.step[0]), series.column("loss")[0]) == ("ml/gpt#1", 40, 1.25)
    assert series.t_s[0] == NOW


def test_hostile_labels_are_refused_and_a_page_of_something_else_is_told(opened: Any, page_server: Any) -> None:
    page_server.pages["/m"] = (
        f'loss{{namespace="a\\nb",pod="p"}} 1\nloss{{namespace="{"x" * 900}",pod="p"}} 2\n'.encode()
    )
    of = make(opened, urls=[page_server.at("/m")])
    (status,) = check_collect(of, NOW, Inventory(), 30.0, expect_ok=False).sources
    assert status.rejected == {Reason.MALFORMED: 2}
    page_server.pages["/m"] = b"up 1\n"
    (status,) = check_collect(of, NOW, Inventory(), 30.0, expect_ok=False).sources
    assert status.reason is Reason.NOT_FOUND


def test_settings_that_ask_nobody_are_refused() -> None:
    with pytest.raises(ValueError, match="name urls or api"):
        TrainingMetricsCollector.Settings()
    with pytest.raises(ValueError, match="not namespace/name"):
        TrainingMetricsCollector.Settings(urls=["http://a/m"], jobs={"http://a/m": "gpt"})


def test_a_faulty_page_is_told(
    opened: Any, faulty: tuple[Any, str, set[str], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.training.metrics.MAX_BYTES", 100_000)
    served, path, reasons, timeout_s = faulty
    (status,) = check_collect(
        make(opened, urls=[served.at(path)]), NOW, Inventory(), timeout_s, expect_ok=False
    ).sources
    assert str(status.reason) in reasons
