"""The Helm commands of the documentation work on the chart as it is."""

from __future__ import annotations

import json
import shlex

import pytest

from nightshift.controllers.actuators.kube_queue import CONTROLLER, GATED_BY
from tests.helm.chart import ROOT, helm_python, objects
from tests.test_docs import COMMAND, commands, parse

HELM = [line for _, line in commands() if line.startswith("helm ")]
KUBECTL = [line for _, line in commands() if line.startswith("kubectl ")]
SWITCHES = {"--create-namespace", "--reset-then-reuse-values"}
OPTIONS = {"--namespace", "--set"}
DIGEST = "sha256:" + 64 * "0"
"""What the reader's shell has in `$digest`."""


@pytest.mark.parametrize("line", HELM)
def test_every_helm_command_works(line: str) -> None:
    """The chart is there, the options exist, and the values that the line sets render."""
    verb, release, *rest = shlex.split(line.replace("$digest", DIGEST))[1:]
    assert verb in ("install", "upgrade", "test", "rollback", "uninstall")
    assert release == "nightshift"
    if verb in ("install", "upgrade"):
        assert (ROOT / rest.pop(0) / "Chart.yaml").exists()
    sets = []
    while rest:
        option = rest.pop(0)
        if option in OPTIONS:
            value = rest.pop(0)
            sets += [value] if option == "--set" else []
        else:
            assert option in SWITCHES, option
    values: dict[str, object] = {}
    for given in sets:
        values = merged(values, helm_python.parse_set_string_values(given))
    found = objects(typed(values))
    assert any(item["kind"] == "StatefulSet" for item in found)


def merged(first: dict[str, object], second: dict[str, object]) -> dict[str, object]:
    for key, value in second.items():
        here = first.get(key)
        first[key] = merged(here, value) if isinstance(here, dict) and isinstance(value, dict) else value
    return first


def typed(value: object) -> object:
    """As `--set` reads: true, false and numbers are no text."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if value in ("true", "false"):
        return value == "true"
    return int(value) if isinstance(value, str) and value.isdecimal() else value


@pytest.mark.parametrize("line", KUBECTL)
def test_every_kubectl_command_names_what_the_chart_makes(line: str) -> None:
    """What is executed in the pod is a command of ours; the pod and the Service have the names that the chart
    gives. Elsewhere only what scheduling holds is looked for, and let go by hand."""
    words = shlex.split(line)
    if words[1:3] != ["--namespace", "ops"]:
        assert words[1] == "get" or words[3] == "annotate"
        assert CONTROLLER.partition("/")[0] + "/" in line or f"{GATED_BY}-" in words
        return
    names = {(item["kind"], item["metadata"]["name"]) for item in objects({})}
    if words[3] == "exec":
        assert words[4] == "nightshift-0"
        assert ("StatefulSet", "nightshift") in names
        assert words[5:7] == ["--", "nightshift"]
        parse(COMMAND, words[7:], line)
    elif words[3] == "port-forward":
        kind, _, name = words[4].partition("/")
        assert (kind.capitalize(), name) in names
    elif words[3:5] == ["create", "job"]:
        made = {
            (i["kind"], i["metadata"]["name"]) for i in objects({"node": {"enabled": True, "tls": {"mode": "own"}}})
        }
        assert ("CronJob", words[6].partition("/")[2]) in made
    elif words[3:5] == ["delete", "statefulset"]:
        assert ("StatefulSet", words[5]) in names
        assert words[6:] == ["--cascade=orphan"], "its pods stay"
    elif words[3:5] == ["patch", "pvc"]:
        (agent,) = objects({}, "StatefulSet")
        (claim,) = agent["spec"]["volumeClaimTemplates"]
        assert words[5] == f"{claim['metadata']['name']}-{agent['metadata']['name']}-0"
        assert json.loads(words[7])["spec"].keys() <= claim["spec"].keys()
    else:
        assert words[3:5] == ["create", "secret"]


def test_the_documentation_has_such_commands() -> None:
    assert len(HELM) >= 8
    assert len(KUBECTL) >= 4
