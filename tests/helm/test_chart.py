"""The chart that an SRE installs: what it renders is valid, starts as the program wants it, and takes no more
than it needs."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.agent.settings import load
from nightshift.controllers.actuators.kube_repair import AGENT_PAUSED
from tests.helm.chart import CHART, SETS, containers, helm_python, kubernetes_validate, objects, render, search_pod

KUBERNETES = ("1.29", "1.33", "1.36", "1.37")
"""The oldest version that Chart.yaml names, the newest that has a schema, and some between."""
CUSTOM = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, of which Kubernetes has no schema."""


def test_lint_has_nothing_to_say() -> None:
    """helm lint --strict, with and without everything switched on."""
    for values in ({}, SETS["node agent"], SETS["air-gapped"], SETS["act, with kernel searches"]):
        report = helm_python.lint(CHART, values, strict=True)
        assert report["errors"] == []
        assert [m for m in report["messages"] if m["severity"] > 1] == []


@functools.cache
def _is_valid(item: str) -> None:
    """Most objects are the same in many sets of values."""
    for version in KUBERNETES:
        kubernetes_validate.validate(json.loads(item), version, strict=True)


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_every_object_is_valid(values: dict[str, Any]) -> None:
    """Each object passes the schemas of several versions of Kubernetes strictly, and names are unique."""
    found = objects(values)
    assert len(found) >= 4
    for item in found:
        if item["kind"] not in CUSTOM:
            _is_valid(json.dumps(item, sort_keys=True))
    named = [(i["kind"], i["metadata"].get("namespace"), i["metadata"]["name"]) for i in found]
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_the_program_accepts_its_configuration(values: dict[str, Any], tmp_path: Path) -> None:
    """`nightshift config check` passes on what stands in the ConfigMap, and it says what the values say."""
    (config,) = (c for c in objects(values, "ConfigMap") if c["metadata"]["name"] == "nightshift")
    path = tmp_path / "nightshift.yaml"
    path.write_text(config["data"]["nightshift.yaml"])
    settings = load(path, {})
    assert settings.cluster == values.get("cluster", "cluster")
    assert bool(settings.actuators) == (values.get("mode") == "act")
    assert settings.console.port == values.get("console", {}).get("port", 8471)


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
def test_what_refers_to_what_is_there(values: dict[str, Any]) -> None:
    """Services, policies and budgets select pods that exist; accounts and mounts name what the release makes."""
    found = objects(values)
    pods = [i for i in found if i["kind"] in ("StatefulSet", "DaemonSet", "Job")]
    labels = [i["spec"]["template"]["metadata"]["labels"] for i in pods]
    if "kernel_job" in values.get("actions", ()):
        labels.append(search_pod(values)["metadata"]["labels"])
    for item in found:
        spec = item.get("spec", {})
        wanted = {
            "Service": lambda s: s["selector"],
            "NetworkPolicy": lambda s: s["podSelector"]["matchLabels"],
            "PodDisruptionBudget": lambda s: s["selector"]["matchLabels"],
            "StatefulSet": lambda s: s["selector"]["matchLabels"],
            "DaemonSet": lambda s: s["selector"]["matchLabels"],
        }.get(item["kind"])
        if wanted is not None:
            assert any(wanted(spec).items() <= have.items() for have in labels), item["metadata"]["name"]
    accounts = {i["metadata"]["name"] for i in found if i["kind"] == "ServiceAccount"} | {"default"}
    for name, spec, container in containers(values):
        assert spec.get("serviceAccountName", "default") in accounts, name
        volumes = {v["name"] for v in spec.get("volumes", [])}
        claims = {c["metadata"]["name"] for i in pods for c in i["spec"].get("volumeClaimTemplates", [])}
        assert {m["name"] for m in container.get("volumeMounts", [])} <= volumes | claims, name


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown value": ({"replica": 2}, "replica"),
    "an unknown value below": ({"store": {"sqlite": True}}, "/store"),
    "an unknown mode": ({"mode": "auto"}, "/mode"),
    "an unknown action": ({"actions": ["reboot_world"]}, "/actions"),
    "text for a number": ({"replicas": "two"}, "/replicas"),
    "no replica": ({"replicas": 0}, "/replicas"),
    "a digest that is none": ({"image": {"digest": "latest"}}, "/image/digest"),
    "a port that is none": ({"console": {"port": 70000}}, "/console/port"),
    "a size that is none": ({"store": {"persistence": {"size": "big"}}}, "/store/persistence/size"),
    "a wrong setting of the program": ({"config": {"guard": {"cluster_fracton": 0.1}}}, "/config/guard"),
    "a setting beyond its bounds": (
        {"config": {"guard": {"cluster_fraction": 2}}},
        "/config/guard/cluster_fraction",
    ),
    "a setting that the chart makes": ({"config": {"state_dir": "/x"}}, "/config"),
    "an actuator in observe mode": ({"config": {"actuators": [{"type": "kubernetes"}]}}, "/config"),
    "two replicas on SQLite": ({"replicas": 2}, "PostgreSQL"),
    "replicas with different console keys": (
        {"replicas": 2, "store": {"postgresql": {"existingSecret": "db"}}},
        "console.existingSecret",
    ),
    "a Lease over SQLite": ({"election": {"by": "kubernetes"}}, "election.by"),
    "an election by nobody": ({"election": {"by": "coin"}}, "/election/by"),
    "act without actions": ({"mode": "act", "actions": []}, "actions"),
    "a repair without an image": ({"mode": "act", "actions": ["reset_gpu"]}, "repair.image.repository"),
    "sign-on without an address": ({"console": {"oidc": {"issuer": "https://id.example"}}}, "console.publicUrl"),
    "TLS without a Secret": ({"node": {"enabled": True, "tls": {"mode": "secret"}}}, "existingSecret"),
    "TLS without a client": (
        {"node": {"enabled": True, "tls": {"mode": "secret", "existingSecret": "s"}}},
        "clientSecret",
    ),
    "cert-manager without an issuer": ({"node": {"enabled": True, "tls": {"mode": "certManager"}}}, "issuer"),
    "power leases without TLS": ({"node": {"enabled": True, "powerLeases": {"enabled": True}}}, "mutual TLS"),
    "power that acts while observing": ({"power": {"enabled": True, "act": True}}, r"power\.act.*mode: act"),
    "power that acts switched off": ({"mode": "act", "power": {"act": True}}, r"power\.act: needs power\.enabled"),
    "power without a rack": ({"mode": "act", "power": {"enabled": True, "act": True}}, r"power\.racks"),
    "power that nobody takes": (
        {"mode": "act", "power": {"enabled": True, "act": True, "racks": {"r": {"nodes": ["n"], "budget_w": 1}}}},
        r"node\.powerLeases\.enabled",
    ),
    "a rack without nodes": ({"power": {"racks": {"r": {"nodes": [], "budget_w": 1}}}}, "/power/racks/r/nodes"),
    "a wrong setting of power": ({"power": {"settings": {"shield": {"slow": 1}}}}, "/power/settings/shield"),
    "power said twice": ({"power": {"settings": {"act": True}}}, r"power\.settings\.act: say it in power\.act"),
    "power in the rest": ({"config": {"power": {"enabled": True}}}, "/config"),
    "an ingress without a host": ({"console": {"ingress": {"enabled": True}}}, "console.ingress.host"),
}


@pytest.mark.parametrize(("values", "said"), REFUSED.values(), ids=REFUSED)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    """Helm refuses before anything reaches the cluster, and its message names the value."""
    with pytest.raises(helm_python.HelmError, match=said):
        render(values)


def test_former_settings_of_an_older_release_are_still_taken() -> None:
    """An upgrade with `--reuse-values` keeps them; the program warns of each."""
    older = {"detectors": {"hang": {"ratio": 5, "strength": 2}}, "correlate": {"slack_s": 1}}
    (config,) = (c for c in objects({"config": older}, "ConfigMap") if c["metadata"]["name"] == "nightshift")
    assert yaml.safe_load(config["data"]["nightshift.yaml"])["correlate"] == {"slack_s": 1}


def test_every_value_is_described() -> None:
    """The schema has a property with a type and a description for each value, knows no other, and closes each
    level."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def walk(value: Any, part: dict[str, Any], at: str) -> int:
        assert part.get("description") or at == "", at
        if at == "config" or "properties" not in part:
            return 1
        assert part["additionalProperties"] is False, at
        assert set(part["properties"]) == set(value), at
        return sum(walk(value[k], p, f"{at}.{k}".strip(".")) for k, p in part["properties"].items())

    assert walk(values, schema, "") > 100


def test_observing_grants_no_write_verb() -> None:
    """In observe mode, the default, nothing but list and watch is granted, whatever else is switched on but an
    election by a Lease and the chart's own authority, whose rights have tests of their own."""
    for name, values in SETS.items():
        own = values.get("node", {}).get("tls", {}).get("mode") == "own"
        if values.get("mode") == "act" or "election" in values or own:
            continue
        roles = objects(values, "ClusterRole") + objects(values, "Role")
        verbs = {verb for role in roles for rule in role["rules"] for verb in rule["verbs"]}
        assert verbs <= {"list", "watch"}, name


def test_the_charts_own_authority_is_kept_by_an_account_that_may_do_just_that() -> None:
    """By name, in the release's namespace, for that Job alone: the agent reads no Secret, and its key is mounted
    nowhere; what the pods mount is what the Job makes."""
    made = objects({"node": {"enabled": True, "tls": {"mode": "own"}}})
    (role,) = (item for item in made if item["kind"] == "Role")
    names = ["nightshift-node-authority", "nightshift-node-server", "nightshift-node-client"]
    secrets = {"apiGroups": [""], "resources": ["secrets"]}
    assert role["rules"] == [
        {**secrets, "verbs": ["create"]},
        {**secrets, "verbs": ["get", "update"], "resourceNames": names},
    ]
    accounts = {
        item["kind"]: item["spec"]["template"]["spec"]["serviceAccountName"]
        for item in made
        if item["kind"] in ("StatefulSet", "DaemonSet", "Job")
    }
    assert accounts["Job"] == role["metadata"]["name"]
    assert accounts["Job"] not in (accounts["StatefulSet"], accounts["DaemonSet"])
    mounted = {
        volume["secret"]["secretName"]
        for item in made
        if item["kind"] in accounts
        for volume in item["spec"]["template"]["spec"].get("volumes", [])
        if "secret" in volume
    }
    assert mounted == set(names[1:])


def test_nothing_runs_with_more_than_it_needs() -> None:
    """Every container: read-only root, bounded memory, no escalation, no capability, no root. The exceptions are
    the node agent's user and, where /dev/kmsg is asked for, its privilege; and only the agent has a token."""
    seen = 0
    for values in SETS.values():
        kmsg = values.get("node", {}).get("kernelLog") == "kmsg"
        for name, spec, container in containers(values):
            seen += 1
            security = container["securityContext"]
            is_node = name.startswith("DaemonSet")
            assert security["readOnlyRootFilesystem"] is True, name
            assert "memory" in container["resources"]["limits"], name
            assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
            assert security["runAsNonRoot"] is not is_node, name
            assert security.get("privileged", False) is (is_node and kmsg), name
            lends = is_node and values["node"].get("powerLeases", {}).get("enabled", False)
            if lends:
                assert security["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}, name
            elif not security.get("privileged"):
                assert security["allowPrivilegeEscalation"] is False, name
                assert security["capabilities"] == {"drop": ["ALL"]}, name
            if not name.startswith("StatefulSet") and "certificates" not in name:
                assert spec["automountServiceAccountToken"] is False, name
            paths = [v for v in spec.get("volumes", []) if "hostPath" in v]
            assert all(
                m["readOnly"] for m in container.get("volumeMounts", []) if m["name"] in {p["name"] for p in paths}
            )
            assert is_node or not paths, name
    assert seen > 40


def test_without_a_source_or_action_no_token_is_mounted() -> None:
    """An agent that asks nothing of the API server has no way to."""
    (agent,) = objects(SETS["nothing optional"], "StatefulSet")
    assert agent["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert objects(SETS["nothing optional"], "ClusterRole") == []


def test_air_gapped_nothing_comes_from_elsewhere() -> None:
    """Every image comes from the mirror, by digest where one is given; proxy and authorities reach the
    processes."""
    for name, _, container in containers(SETS["air-gapped"]):
        assert container["image"].startswith("registry.local:5000/nightshift/"), name
        if not name.startswith(("Job", "DaemonSet")):
            assert container["image"].endswith("@sha256:" + "a" * 64), name
    (agent,) = objects(SETS["air-gapped"], "StatefulSet")
    env = {e["name"]: e.get("value") for e in agent["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["HTTPS_PROXY"] == "http://proxy:3128"
    assert env["NO_PROXY"].endswith(",10.0.0.0/8")
    assert env["SSL_CERT_FILE"] == "/etc/nightshift/ca/ca.crt"


def test_no_secret_is_ever_rendered() -> None:
    """Secrets are named, never made: nothing secret stands in values or in Helm's release."""
    for values in SETS.values():
        assert objects(values, "Secret") == []


def test_the_database_url_comes_from_the_secret_that_is_named() -> None:
    (agent,) = objects(SETS["postgresql, one replica"], "StatefulSet")
    env = {e["name"]: e for e in agent["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["NIGHTSHIFT_STORE__URL"]["valueFrom"] == {"secretKeyRef": {"name": "db", "key": "dsn"}}


def test_a_budget_never_holds_up_the_drain_of_a_single_replica() -> None:
    """The PodDisruptionBudget is drawn up with several replicas and not with one."""
    assert objects({}, "PodDisruptionBudget") == []
    (budget,) = objects(SETS["three replicas"], "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1


def test_the_state_outlives_pods_and_the_release() -> None:
    (agent,) = objects({}, "StatefulSet")
    assert agent["spec"]["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }
    assert agent["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "10Gi"
    (without,) = objects(SETS["no volume"], "StatefulSet")
    assert "volumeClaimTemplates" not in without["spec"]


def test_a_changed_configuration_restarts_the_agent() -> None:
    """Another configuration is another pod template; the same one is the same."""

    def checksum(values: dict[str, Any]) -> str:
        (agent,) = objects(values, "StatefulSet")
        return str(agent["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum({}) == checksum({"replicas": 1}) != checksum({"cluster": "other"})
    people = {"config": {"people": {"roles": {"ann@example.org": "approver"}}}}
    assert checksum({}) == checksum(people), "people are taken up from the changed ConfigMap, without a restart"
    (agent,) = objects({}, "StatefulSet")
    (mount,) = [
        m for m in agent["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] if m["name"] == "config"
    ]
    assert "subPath" not in mount, "a change of a ConfigMap never reaches a subPath"


def test_another_order_is_another_kernel_job() -> None:
    """A Job's pods cannot be changed, so an upgrade with other arguments makes another Job."""
    names = {
        objects({"kernelWorker": {"enabled": True, "args": args}}, "Job")[0]["metadata"]["name"]
        for args in (["kernels", "problems"], ["kernels", "judge", "x"])
    }
    assert len(names) == 2


def test_two_releases_do_not_meet() -> None:
    """Cluster-wide names carry the namespace, and the release's name where it is not the chart's."""

    def wide(**release: str) -> set[str]:
        return {i["metadata"]["name"] for i in objects({}, **release) if "namespace" not in i["metadata"]}

    assert wide(namespace="a") == {"a-nightshift"}
    assert not wide(namespace="a") & wide(namespace="b")
    assert wide(name="blue", namespace="a") == {"a-blue-nightshift"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "sources.prometheus.url="),
        (SETS["prometheus"], "--set mode=act"),
        (SETS["act"], "nightshift halt"),
        (SETS["no volume"], "end with the pod"),
        (SETS["power in shadow"], "watches power limits and orders none"),
        (SETS["power acts"], "lends power limits to the nodes of row-3; without a lease each GPU goes to 350 W"),
    ],
    ids=["no telemetry", "observing", "acting", "no volume", "power in shadow", "power"],
)
def test_the_notes_tell_the_next_step(values: dict[str, Any], said: str) -> None:
    assert said in render(values)["NOTES.txt"]


def test_repairs_are_configured_with_what_the_values_say() -> None:
    """The repair actuator gets the images, the release's namespace and the check; the other one the rest."""
    (config,) = (
        c for c in objects(SETS["act, with repairs"], "ConfigMap") if c["metadata"]["name"] == "nightshift"
    )
    plain, repair = yaml.safe_load(config["data"]["nightshift.yaml"])["actuators"]
    assert plain == {"type": "kubernetes", "actions": ["cordon"], "access": "pod"}
    assert (repair["namespace"], repair["job_timeout_s"]) == ("ops", 1200)
    assert repair["image"] == "nvidia/cuda:13.0.2-base-ubuntu24.04"
    assert repair["check_image"] == "nvcr.io/nvidia/cloud-native/dcgm:4.4.1"
    assert repair["check_command"] == ["dcgmi", "diag", "-r", "2"]


def test_the_node_agent_keeps_away_from_a_node_whose_gpu_is_reset() -> None:
    """By the label that the repair sets: an open NVML handle would prevent the reset."""
    (agent,) = objects(SETS["node agent"], "DaemonSet")
    affinity = agent["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": AGENT_PAUSED, "operator": "DoesNotExist"}]


@pytest.mark.parametrize("values", ["power acts", "power acts, cert-manager"])
def test_power_finds_the_same_agents_as_the_kernel_log_and_believes_the_same_certificates(values: str) -> None:
    """Namespace, selector, port, name and files are those of the source; the pods take leases, and
    power asks which nodes are deleted."""
    (config,) = (c for c in objects(SETS[values], "ConfigMap") if c["metadata"]["name"] == "nightshift")
    made = yaml.safe_load(config["data"]["nightshift.yaml"])
    (source,) = (s for s in made["sources"] if s["type"] == "node_agents")
    nodes = made["power"]["nodes"]
    assert nodes == {"agents": True, "connection": source["connection"]}
    assert set(made["node_agents"]) == {"namespace", "selector", "port", "certificate_name"}
    assert set(made["connections"][source["connection"]]) == {"ca_file", "certificate_file", "key_file"}
    assert made["power"]["access"] == "pod"
    (daemon,) = objects(SETS[values], "DaemonSet")
    (container,) = daemon["spec"]["template"]["spec"]["containers"]
    assert {"--power-leases", "--power-fallback-w=350"} <= set(container["args"])


@pytest.mark.parametrize(
    ("values", "name"),
    [("node agent", None), ("node agent, cert-manager", "{pod}.{namespace}.pod"),
     ("node agent, kmsg, one secret", "nightshift-node.ops.svc")],
)  # fmt: skip
def test_the_agent_reads_the_node_agents_that_the_chart_makes(values: str, name: str | None) -> None:
    """It looks for their pods' labels at their port, and expects the names that their certificates have."""
    (config,) = (c for c in objects(SETS[values], "ConfigMap") if c["metadata"]["name"] == "nightshift")
    made = yaml.safe_load(config["data"]["nightshift.yaml"])
    (source,), agents = (s for s in made["sources"] if s["type"] == "node_agents"), made["node_agents"]
    (daemon,) = objects(SETS[values], "DaemonSet")
    labels = daemon["spec"]["template"]["metadata"]["labels"]
    assert dict(part.split("=") for part in agents["selector"].split(",")).items() <= labels.items()
    assert agents["namespace"] == daemon["metadata"]["namespace"]
    assert agents.get("certificate_name") == name
    assert source.get("tls", False) is (name is not None)
    (volume,) = [v for v in daemon["spec"]["template"]["spec"]["volumes"] if v["name"] == "tls"] or [None]
    if volume is not None and "csi" in volume:
        names = volume["csi"]["volumeAttributes"]["csi.cert-manager.io/dns-names"]
        assert names == "${POD_NAME}.${POD_NAMESPACE}.pod"
