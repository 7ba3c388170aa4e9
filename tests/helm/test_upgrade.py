"""What an upgrade brings along: values of earlier releases render with this chart, or are refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.chart import CHART, helm_python, kubernetes_validate, objects, render

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


def test_a_key_that_this_release_does_not_know_is_refused_by_its_name() -> None:
    """Such as one that an earlier or later release has."""
    with pytest.raises(helm_python.HelmError, match="'schedulerr' not allowed"):
        render({"schedulerr": {"enabled": True}})
