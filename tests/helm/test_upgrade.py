"""What an upgrade brings along: values of earlier releases render with this chart, or are refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.chart import CHART, SETS, Object, helm_python, kubernetes_validate, objects, render

PREVIOUS = sorted((Path(__file__).parent / "previous").glob("*.yaml"))
NEW_SINCE = {
    "first": ("repair", "powerLeases", "publicUrl"),
    "before-scheduling": ("scheduling",),
    "before-power": ("power",),
}


def _values(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


@pytest.mark.parametrize("path", PREVIOUS, ids=lambda path: path.stem)
def test_every_value_of_an_earlier_release_still_renders_valid_objects(path: Path) -> None:
    """As with a values file that was copied whole, or `--reset-then-reuse-values`: no key was removed or renamed
    without a word, and what is made is what the defaults make now."""
    made = objects(_values(path))
    for item in made:
        kubernetes_validate.validate(json.loads(json.dumps(item)), "1.33", strict=True)
    names = {(item["kind"], item["metadata"]["name"]) for item in made}
    assert names == {(item["kind"], item["metadata"]["name"]) for item in objects()}


@pytest.mark.parametrize("path", PREVIOUS, ids=lambda path: path.stem)
def test_defaults_of_an_earlier_release_are_refused_with_the_keys_that_are_missing(
    path: Path, tmp_path: Path
) -> None:
    """Plain `--reuse-values` leaves the chart without its new defaults: a refusal by name, no nil pointer."""
    chart = tmp_path / "nightshift"
    shutil.copytree(CHART, chart)
    (chart / "values.yaml").write_text(path.read_text())
    with helm_python.Chart.load(chart) as old, pytest.raises(helm_python.HelmError) as refused:
        old.render(values={}, name="nightshift", namespace="ops")
    assert "nil pointer" not in str(refused.value)
    for name in NEW_SINCE[path.stem]:
        assert name in str(refused.value)


FIXED = {
    "Job": (("spec", "template"), ("spec", "backoffLimit")),
    "StatefulSet": tuple(
        ("spec", name) for name in ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates")
    ),
    "DaemonSet": (("spec", "selector"),),
    "Service": (("spec", "clusterIP"),),
    "ClusterRoleBinding": (("roleRef",),),
    "RoleBinding": (("roleRef",),),
    "PriorityClass": (("value",), ("preemptionPolicy",)),
}
"""What the API server does not let change of an object that stands."""


def _changed(before: list[Object], after: list[Object]) -> set[str]:
    """What an upgrade would be refused for."""
    names = {(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]): item for item in before}
    found = set()
    for item in after:
        stands = names.get((item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]))
        for way in FIXED.get(item["kind"], ()) if stands is not None else ():
            one, other = stands, item
            for key in way:
                one, other = one.get(key, {}), other.get(key, {})
            if one != other:
                found.add(f"{item['kind']} {item['metadata']['name']}: {'.'.join(way)}")
    return found


@pytest.mark.parametrize("name", ["kernel worker", "node agent, an authority of its own", "three replicas"])
def test_a_newer_chart_changes_nothing_that_cannot_change(name: str, tmp_path: Path) -> None:
    """Else `helm upgrade` fails half-way, or a rollback does."""
    chart = tmp_path / "nightshift"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text()) | {"version": "9.8.7", "appVersion": "9.8.7"}
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about))
    with helm_python.Chart.load(chart) as newer:
        made = newer.render(values=SETS[name], name="nightshift", namespace="ops")
    after = [
        item for path, text in made.items() if path.endswith(".yaml") for item in yaml.safe_load_all(text) if item
    ]
    assert any("9.8.7" in json.dumps(item) for item in after)
    assert _changed(objects(SETS[name]), after) == set()


@pytest.mark.parametrize(
    ("before", "more"),
    [
        ({"kernelWorker": {"enabled": True}}, {"nodeSelector": {"gpu": "h200"}}),
        (
            {"kernelWorker": {"enabled": True}},
            {"priorityClassName": "low", "gpuResource": "nvidia.com/mig-1g.10gb"},
        ),
        ({"node": {"enabled": True, "tls": {"mode": "own"}}}, {"tls": {"mode": "own", "own": {"days": 7}}}),
    ],
)
def test_other_values_make_another_job_than_the_one_that_stands(before: Object, more: Object) -> None:
    (part,) = before
    assert _changed(objects(before), objects({part: before[part] | more})) == set()


def test_other_values_change_nothing_that_cannot_change() -> None:
    """Only whether there is a volume at all: then a person deletes the StatefulSet, and its pods stay."""
    made = {name: objects(values) for name, values in SETS.items() if "volume" not in name}
    assert set().union(*(_changed(made["defaults"], after) for after in made.values())) == set()


def test_a_key_that_this_release_does_not_know_is_refused_by_its_name() -> None:
    """Such as one that an earlier or later release has."""
    with pytest.raises(helm_python.HelmError, match="'schedulerr' not allowed"):
        render({"schedulerr": {"enabled": True}})
