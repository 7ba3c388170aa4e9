"""The chart under values that are odd but legal, and under values that contradict each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.agent.settings import load
from tests.helm.chart import PG, SETS, helm_python, kubernetes_validate, objects, render

EVERYTHING: dict[str, Any] = {
    **SETS["power acts"],
    **PG,
    "replicas": 2,
    "election": {"by": "kubernetes"},
    "actions": ["kernel_job", "reset_gpu", "drain"],
    "repair": {"image": {"repository": "cuda"}},
    "kernelSearch": {"signerSecret": "signer"},
    "kernelWorker": {"enabled": True},
    "monitoring": SETS["monitoring"]["monitoring"],
    "rbac": {"namespaces": ["1234", "train"]},
}
DIGITS: dict[str, Any] = {
    "priorityClassName": "1",
    "global": {"imagePullSecrets": ["123"]},
    "image": {"repository": "12", "tag": "30"},
    "console": {
        "existingSecret": "12",
        "ingress": {"enabled": True, "host": "*.example.org", "className": "1", "tlsSecret": "12"},
    },
    "store": {"postgresql": {"existingSecret": "12", "key": "1"}, "persistence": {"storageClass": "1"}},
    "extraCA": {"configMap": "12", "key": "1"},
    "serviceAccount": {"name": "12"},
    "secretMounts": [{"name": "1", "mountPath": "/1"}],
    "node": {
        "enabled": True,
        "runtimeClassName": "1",
        "priorityClassName": "1",
        "tls": {"mode": "secret", "existingSecret": "1", "clientSecret": "1"},
    },
    "kernelWorker": {
        "enabled": True,
        "queue": "1",
        "existingClaim": "1",
        "priorityClassName": "1",
        "runtimeClassName": "1",
    },
}
LONGEST = {"Job": 63, "CronJob": 52, "Service": 63, "StatefulSet": 52}
"""Of names (characters): a Job's becomes a label, a CronJob's its Jobs' beginning, a StatefulSet's a label with a
hash behind it."""


def _valid(values: dict[str, Any], **release: str) -> Iterator[dict[str, Any]]:
    for item in objects(values, **release):
        if item["kind"] not in ("ServiceMonitor", "PrometheusRule"):
            kubernetes_validate.validate(json.loads(json.dumps(item)), "1.33", strict=True)
        yield item


@pytest.mark.parametrize(
    ("values", "release"),
    [
        (EVERYTHING, {"namespace": "1234"}),
        (EVERYTHING, {"namespace": "true"}),
        (EVERYTHING, {"namespace": "1e3", "name": "null"}),
        (DIGITS, {}),
    ],
    ids=["a number", "a truth", "nothing", "everywhere"],
)
def test_names_that_yaml_would_read_as_something_else_stay_names(
    values: dict[str, Any], release: dict[str, str]
) -> None:
    """Kubernetes allows a namespace 1234, and a Secret of that name; a label or a name has to be a string."""
    assert len(list(_valid(values, **release))) >= 10


@pytest.mark.parametrize("name", ["a" * 53, "a" * 40, "nightshift-" + "a" * 42, "a-" * 24 + "-a"])
def test_the_longest_release_name_makes_names_that_kubernetes_takes(name: str, tmp_path: Path) -> None:
    """Of every kind; two kinds' accounts and Secrets still meet, and the program reads its configuration."""
    made = list(_valid(EVERYTHING, name=name, namespace="n" * 63))
    for item in made:
        own = item["metadata"]["name"]
        assert len(own) <= LONGEST.get(item["kind"], 253), own
        assert not own.endswith("-"), own
    accounts = {item["metadata"]["name"] for item in made if item["kind"] == "ServiceAccount"}
    for item in made:
        if item["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            assert {one["name"] for one in item["subjects"]} <= accounts
    path = tmp_path / "nightshift.yaml"
    path.write_text(next(i for i in made if i["kind"] == "ConfigMap")["data"]["nightshift.yaml"])
    assert load(path, {}).power.act


@pytest.mark.parametrize("name", ["1234", "my.nightshift"])
def test_a_release_name_that_no_service_can_bear_is_refused_before_anything_is_made(name: str) -> None:
    with pytest.raises(helm_python.HelmError, match=f"release name {name}: Services are named after it"):
        render({}, name=name)


def test_two_weeks_stay_a_whole_number() -> None:
    """Helm reads numbers as floats, and prints them from a million on as 1e+06, which no integer field takes."""
    times = {"ttlSecondsAfterFinished": 1209600, "activeDeadlineSeconds": 1000000}
    values = {"kernelWorker": {"enabled": True, **times}, "terminationGracePeriodSeconds": 1000000}
    made = {item["kind"]: item["spec"] for item in _valid(values) if "spec" in item}
    assert {name: made["Job"][name] for name in times} == times
    assert made["StatefulSet"]["template"]["spec"]["terminationGracePeriodSeconds"] == 1000000


def test_one_secret_is_mounted_twice_and_its_name_may_have_dots() -> None:
    """Each mount is a volume of its own, by a name that a volume may have."""
    names = ["grafana", "wildcard.example.org-tls", "grafana"]
    mounts = [{"name": name, "mountPath": f"/etc/{i}"} for i, name in enumerate(names)]
    (agent,) = (i for i in _valid({"secretMounts": mounts}) if i["kind"] == "StatefulSet")
    spec = agent["spec"]["template"]["spec"]
    volumes = {v["name"]: v.get("secret", {}).get("secretName") for v in spec["volumes"]}
    assert len(volumes) == len(spec["volumes"])
    assert not any("." in name for name in volumes)
    at = {m["mountPath"]: volumes.get(m["name"]) for m in spec["containers"][0]["volumeMounts"]}
    assert [at[f"/etc/{i}"] for i in range(3)] == names


def test_an_empty_list_lets_nobody_in() -> None:
    """An empty `from` in a NetworkPolicy is everybody; an empty networkPolicy.ingressFrom is nobody."""
    values = {"networkPolicy": {"ingressFrom": []}, "node": {"enabled": True}}
    made = [item for item in _valid(values) if item["kind"] == "NetworkPolicy"]
    assert [item["spec"]["ingress"] for item in made] == [[], []]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a port beside the port": (
        {"config": {"console": {"port": 9000}}},
        r"config\.console\.port: say it in console\.port",
    ),
    "a console that no probe reaches": ({"config": {"console": {"host": "127.0.0.1"}}}, r"config\.console\.host"),
    "other keys than the mounted ones": (
        {"config": {"console": {"secrets_dir": "/x"}}},
        r"config\.console\.secrets_dir: say it in console\.existingSecret",
    ),
    "scheduling that acts while observing": (
        {"scheduling": {"enabled": True, "settings": {"act": True}}},
        r"scheduling\.settings\.act: say it in scheduling\.act",
    ),
    "kinds without their rights": (
        {"scheduling": {"enabled": True, "settings": {"kinds": ["RayJob"]}}},
        r"scheduling\.settings\.kinds: say it in scheduling\.kinds",
    ),
    "scheduling that acts switched off": (
        {"mode": "act", "scheduling": {"act": True}},
        r"scheduling\.act: needs scheduling\.enabled",
    ),
    "actions without their rights": (
        {"mode": "act", "actions": ["cordon"], "actuatorSettings": {"actions": ["drain"]}},
        r"actuatorSettings\.actions: say it in actions",
    ),
    "namespaces without their rights": (
        {"mode": "act", "rbac": {"namespaces": ["a"]}, "actuatorSettings": {"namespaces": ["b"]}},
        r"actuatorSettings\.namespaces: say it in rbac\.namespaces",
    ),
    "another actuator": ({"mode": "act", "actuatorSettings": {"type": "simulated"}}, r"actuatorSettings\.type"),
    "repairs where nothing is granted": (
        {"repair": {"settings": {"namespace": "other"}}},
        r"repair\.settings\.namespace: the chart sets it",
    ),
    "searches where nothing is granted": (
        {"kernelSearch": {"settings": {"namespace": "other"}}},
        r"kernelSearch\.settings\.namespace: the chart sets it",
    ),
    "two addresses": (
        {"sources": {"prometheus": {"url": "http://a", "settings": {"url": "http://b"}}}},
        r"sources\.prometheus\.settings\.url: say it in sources\.prometheus\.url",
    ),
    "a label that selects": (
        {"podLabels": {"app.kubernetes.io/component": "x"}},
        r"podLabels\.app\.kubernetes\.io/component: the chart sets it",
    ),
    "no image": ({"image": {"repository": ""}}, "/image/repository"),
    "a network that is none": (
        {"networkPolicy": {"apiServerCIDRs": ["banana/99"]}},
        "/networkPolicy/apiServerCIDRs/0",
    ),
    "an address for a registry": ({"global": {"imageRegistry": "https://mirror/"}}, "/global/imageRegistry"),
    "a tag that is none": ({"image": {"tag": "a b"}}, "/image/tag"),
    "an update that never begins": ({"node": {"enabled": True, "maxUnavailable": "0%"}}, "/node/maxUnavailable"),
    "a schedule that is none": (
        {"node": {"enabled": True, "tls": {"mode": "own", "own": {"schedule": "now and then"}}}},
        "/node/tls/own/schedule",
    ),
    "a certificate that outlives its authority": (
        {"node": {"enabled": True, "tls": {"mode": "own", "own": {"days": 400, "authorityDays": 365}}}},
        r"node\.tls\.own\.days",
    ),
    "an address with a space": ({"sources": {"prometheus": {"url": "http:// x"}}}, "/sources/prometheus/url"),
}


@pytest.mark.parametrize(("values", "said"), REFUSED.values(), ids=REFUSED)
def test_values_that_contradict_each_other_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm_python.HelmError, match=said):
        render(values)


@pytest.mark.parametrize("registry", ["mirror", "mirror.local:5000", "[fd00::5]:5000/team-a/all", "10.0.0.1/x/"])
def test_a_mirror_is_named_as_images_name_it_and_a_schedule_as_cron_does(registry: str) -> None:
    own = {"mode": "own", "own": {"schedule": "@daily"}}
    made = list(_valid({"global": {"imageRegistry": registry}, "node": {"enabled": True, "tls": own}}))
    images = {
        c["image"] for i in made if i["kind"] == "DaemonSet" for c in i["spec"]["template"]["spec"]["containers"]
    }
    assert all(image.startswith(f"{registry.rstrip('/')}/nightshift/agent:") for image in images)
    assert "@daily" in [item["spec"]["schedule"] for item in made if item["kind"] == "CronJob"]


def test_agent_and_node_agents_listen_on_both_families() -> None:
    """A pod of an IPv6 cluster has no other address, and its probes come to that."""
    made = objects({"node": {"enabled": True}})
    (config,) = (item for item in made if item["kind"] == "ConfigMap")
    assert yaml.safe_load(config["data"]["nightshift.yaml"])["console"]["host"] == "::"
    (daemon,) = (item for item in made if item["kind"] == "DaemonSet")
    assert "--host=::" in daemon["spec"]["template"]["spec"]["containers"][0]["args"]
