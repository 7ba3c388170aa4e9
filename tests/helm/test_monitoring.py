"""Alerts, dashboards and counters against what is really exported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.agent.metrics import Metrics
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.telemetry.metrics import METRICS, MetricType
from tests.conftest import absent
from tests.helm.chart import CHART, objects

ALERTS = CHART / "files/alerts.yaml"
COUNTERS = CHART / "files/dcgm-counters.csv"
DASHBOARDS = sorted((CHART / "files/dashboards").glob("*.json"))
UNITS = Path(__file__).with_name("alerts_test.yaml")
DCGM_LABELS = {"gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname"}
FROM_PROMETHEUS = {"instance", "job", "le"}


def promtool(*arguments: str | Path) -> str:
    command = shutil.which("promtool")
    if command is None:
        absent("promtool (package prometheus)")
    done = subprocess.run([command, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def exported() -> dict[str, set[str]]:
    """Metric → its labels: ours from the daemon's registry, the GPUs' from the counters file."""
    metrics = Metrics("1")
    found: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        instrument = next((m for m in vars(metrics).values() if getattr(m, "_name", None) == family.name), None)
        labels = set(getattr(instrument, "_labelnames", ())) or {"version"} & {"version"}
        names = {sample.name for sample in family.samples} | {family.name}
        if family.type == "counter":
            names.add(f"{family.name}_total")
        if family.type == "histogram":
            names |= {f"{family.name}_bucket", f"{family.name}_sum", f"{family.name}_count"}
        found |= dict.fromkeys(names, labels)
    return found | dict.fromkeys(counters(), DCGM_LABELS)


def counters() -> dict[str, str]:
    rows = [line.split(",", 2) for line in COUNTERS.read_text().splitlines() if line and not line.startswith("#")]
    assert all(len(row) == 3 for row in rows)
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0].strip(): row[1].strip() for row in rows}


def check_query(query: str) -> None:
    """Names of metrics and labels that we, or Prometheus, export; and values of `state` that exist."""
    known = exported()
    names = re.findall(r"\b(?:nightshift|DCGM|process)_\w+", re.sub(r'"[^"]*"', '""', query))
    assert names, query
    allowed = FROM_PROMETHEUS.union(*(known[name] for name in names))
    for group in re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", query):
        assert {label.strip() for label in group.split(",")} <= allowed, query
    for label, value in re.findall(r'(\w+)=~?"([^"]*)"', query):
        assert label in allowed, query
        if label == "state" and "nightshift_incidents" in query:
            assert set(value.split("|")) <= {str(state) for state in IncidentState}, query


def queries() -> list[tuple[str, str]]:
    return [
        (f"{path.stem}: {panel['title']}", target["expr"])
        for path in DASHBOARDS
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
    ]


def test_alerts_are_valid_and_name_what_is_exported() -> None:
    """promtool accepts the file; each alert has severity, summary and description, and asks for existing
    metrics."""
    promtool("check", "rules", ALERTS)
    for rule in rules():
        check_query(rule["expr"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_each_alert_fires_when_it_should_and_not_otherwise(tmp_path: Path) -> None:
    """promtool's unit tests hold; each alert is seen both firing and quiet."""
    (tmp_path / "alerts.yaml").write_text(ALERTS.read_text())
    (tmp_path / "units.yaml").write_text(UNITS.read_text())
    promtool("test", "rules", tmp_path / "units.yaml")
    asked = [test for unit in yaml.safe_load(UNITS.read_text())["tests"] for test in unit["alert_rule_test"]]
    for rule in rules():
        mine = [bool(test["exp_alerts"]) for test in asked if test["alertname"] == rule["alert"]]
        assert set(mine) == {True, False}, rule["alert"]


def test_each_alert_has_a_runbook() -> None:
    page = (CHART.parents[1] / "docs/runbooks/README.md").read_text()
    assert re.findall(r"^## (Nightshift\w+)$", page, re.M) == [rule["alert"] for rule in rules()]


def test_the_operators_rules_are_the_files_with_their_runbooks() -> None:
    """The PrometheusRule holds the same alerts; with an address, each leads to its section."""
    values = {"monitoring": {"prometheusRule": {"enabled": True, "runbookUrl": "https://r"}}}
    (made,) = objects(values, "PrometheusRule")
    for ours, theirs in zip(rules(), made["spec"]["groups"][0]["rules"], strict=True):
        assert theirs["annotations"].pop("runbook_url") == f"https://r#{ours['alert'].lower()}"
        assert theirs == ours


@pytest.mark.parametrize(("panel", "query"), queries(), ids=[name for name, _ in queries()])
def test_dashboards_ask_for_what_is_exported(panel: str, query: str) -> None:
    """Every query names metrics and labels that exist."""
    check_query(query)


def test_dashboards_are_valid_promql(tmp_path: Path) -> None:
    """promtool parses every query, with Grafana's variables filled in."""
    assert len(queries()) > 30
    group = [{"record": f"q{n}", "expr": query.replace("$host", ".*")} for n, (_, query) in enumerate(queries())]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": group}]}))
    promtool("check", "rules", path)


def test_dashboards_are_importable() -> None:
    """Unique panels within the grid, one data source variable, no address of ours."""
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        cells: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert at["x"] + at["w"] <= 24
            assert not mine & cells, panel["title"]
            cells |= mine
            assert panel["datasource"]["uid"] == "${datasource}"
    values = {"monitoring": {"dashboards": {"enabled": True}}}
    made = {k: v for c in objects(values, "ConfigMap") for k, v in c["data"].items() if k.endswith(".json")}
    assert {name: json.loads(text) for name, text in made.items()} == {
        path.name: json.loads(path.read_text()) for path in DASHBOARDS
    }


def test_the_counters_hold_all_that_detectors_read() -> None:
    """Every GPU and NVLink series that collectors read from DCGM stands in the file, with its type; so do the
    rows that dcgm-exporter's default file leaves out."""
    rows = counters()
    # not in the file: an exporter whose DCGM does not know the field would not start with it
    optional = {
        "gpu_recovery_action",
        *(f"gpu_ecc_{what}_{unit}_total" for what in ("sbe", "dbe") for unit in ("dram", "sram")),
    }
    for metric in METRICS:
        if metric.name in optional:
            continue
        if metric.kind is SubjectKind.GPU and metric.exported_as.startswith("DCGM_"):
            wanted = "counter" if metric.type is MetricType.COUNTER else "gauge"
            assert rows[metric.exported_as] == wanted, metric.exported_as
        if metric.kind is SubjectKind.LINK:
            assert all(f"{metric.exported_as}_L{lane}" in rows for lane in range(18)), metric.exported_as
    for stem in ("ECC_SBE_VOL", "ECC_DBE_VOL", "ECC_SBE_AGG", "ECC_DBE_AGG"):
        assert rows[f"DCGM_FI_DEV_{stem}_TOTAL"] == "counter"
    assert {"DCGM_FI_DEV_POWER_VIOLATION", "DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_PROF_SM_ACTIVE"} <= set(rows)
    assert set(rows.values()) == {"counter", "gauge", "label"}
