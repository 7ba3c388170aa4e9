"""The chart, rendered by Helm's own engine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from nightshift.agent.approvals.kernel_gate import search
from nightshift.controllers.actuators.kube_kernel_jobs import KernelJobSettings, job_of

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/nightshift"
Object = dict[str, Any]


def absent(what: str) -> NoReturn:
    """Ends the tests because a part is missing: a skip for a person, a failure in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is not installed: pip install '.[test]'")
    pytest.skip(f"{what} is not installed: pip install '.[test]'", allow_module_level=True)


try:
    import helm_python
    import kubernetes_validate
except ImportError as missing:
    absent(str(missing.name))

__all__ = [
    "CHART",
    "PG",
    "ROOT",
    "SETS",
    "Object",
    "containers",
    "helm_python",
    "kubernetes_validate",
    "objects",
    "render",
]

PG = {"store": {"postgresql": {"existingSecret": "db"}}, "console": {"existingSecret": "console"}}
PROMETHEUS = {"sources": {"prometheus": {"url": "http://prometheus.monitoring:9090"}}}
ALL_MONITORING = {
    "serviceMonitor": {"enabled": True, "labels": {"release": "kps"}},
    "prometheusRule": {"enabled": True, "runbookUrl": "https://example.org/runbooks"},
    "dashboards": {"enabled": True, "annotations": {"grafana_folder": "GPUs"}},
    "dcgmCounters": {"enabled": True},
}
SETS: dict[str, Object] = {
    "defaults": {},
    "prometheus": PROMETHEUS,
    "act": {"mode": "act", **PROMETHEUS},
    "act, easily undone": {
        "mode": "act",
        "actions": ["cordon", "uncordon"],
        "config": {"drain": {"grace_s": 30}},
    },
    "act, with repairs": {
        "mode": "act",
        "actions": ["reset_gpu", "reboot_node", "cordon"],
        "node": {"enabled": True},
        "repair": {
            "image": {"repository": "nvidia/cuda", "tag": "13.0.2-base-ubuntu24.04"},
            "checkImage": {"registry": "nvcr.io", "repository": "nvidia/cloud-native/dcgm", "tag": "4.4.1"},
            "checkCommand": ["dcgmi", "diag", "-r", "2"],
            "settings": {"job_timeout_s": 1200},
        },
    },
    "act, with kernel searches": {
        "mode": "act",
        "actions": ["kernel_job"],
        "networkPolicy": {"enabled": True},
        "kernelSearch": {"signerSecret": "kernel-signer", "settings": {"queue": "spare"}},
        "config": {"kernels": {"namespaces": ["research-*"], "weekly_gpu_hours": 8}},
    },
    "scheduling in shadow": {"scheduling": {"enabled": True, "kueue": True}},
    "scheduling acts": {
        "mode": "act",
        "scheduling": {"enabled": True, "act": True, "kinds": ["Job", "JobSet"], "settings": {"slope_w": 3000}},
    },
    "power in shadow": {
        "power": {
            "enabled": True,
            "racks": {"row-3": {"nodes": ["node-1", "node-2"], "budget_w": 14000, "host_w": 1800}},
            "settings": {"shield": {"slowdown": 0.03}},
        }
    },
    "power acts": {
        "mode": "act",
        "actions": ["suggest_scaling"],
        "node": {"enabled": True, "powerLeases": {"enabled": True, "fallbackWatts": 350}, "tls": {"mode": "own"}},
        "power": {"enabled": True, "act": True, "racks": {"row-3": {"nodes": ["node-1"], "budget_w": 7000}}},
    },
    "power acts, cert-manager": {
        "mode": "act",
        "node": {
            "enabled": True,
            "powerLeases": {"enabled": True, "fallbackWatts": 350},
            "tls": {"mode": "certManager", "clientSecret": "client-tls", "certManager": {"issuer": "nightshift"}},
        },
        "power": {"enabled": True, "act": True, "racks": {"row-3": {"nodes": ["node-1"], "budget_w": 7000}}},
    },
    "act in two namespaces": {"mode": "act", "rbac": {"namespaces": ["train", "serve"]}},
    "three replicas": {"replicas": 3, **PG},
    "two replicas by a Lease": {"replicas": 2, "election": {"by": "kubernetes"}, **PG},
    "postgresql, one replica": {"store": {"postgresql": {"existingSecret": "db", "key": "dsn"}}},
    "single sign-on": {
        "console": {
            "ingress": {"enabled": True, "host": "nightshift.example", "tlsSecret": "tls"},
            "oidc": {
                "issuer": "https://id.example/realms/main",
                "existingSecret": "oidc",
                "settings": {"groups_claim": "realm_access.roles"},
            },
        },
        "config": {"people": {"groups": {"sre": "approver"}}},
    },
    "no volume": {"store": {"persistence": {"enabled": False}}},
    "monitoring": {"monitoring": ALL_MONITORING},
    "node agent": {"node": {"enabled": True, "runtimeClassName": "nvidia"}, "monitoring": ALL_MONITORING},
    "node agent, kmsg, one secret": {
        "node": {
            "enabled": True,
            "kernelLog": "kmsg",
            "tls": {"mode": "secret", "existingSecret": "node-tls", "clientSecret": "client-tls"},
        }
    },
    "node agent, an authority of its own": {"node": {"enabled": True, "tls": {"mode": "own"}}},
    "node agent, cert-manager": {
        "node": {
            "enabled": True,
            "kernelLog": "none",
            "tls": {"mode": "certManager", "clientSecret": "client-tls", "certManager": {"issuer": "nightshift"}},
        }
    },
    "node agent, power leases": {
        "node": {
            "enabled": True,
            "powerLeases": {"enabled": True, "fallbackWatts": 450},
            "tls": {"mode": "certManager", "clientSecret": "client-tls", "certManager": {"issuer": "nightshift"}},
        }
    },
    "air-gapped": {
        "global": {"imageRegistry": "registry.local:5000", "imagePullSecrets": ["mirror"]},
        "image": {"registry": "ghcr.io", "digest": "sha256:" + "a" * 64},
        "proxy": {"http": "http://proxy:3128", "https": "http://proxy:3128", "noProxy": "10.0.0.0/8"},
        "extraCA": {"configMap": "corporate-ca"},
        "node": {"enabled": True},
        "kernelWorker": {"enabled": True},
    },
    "kernel worker": {
        "kernelWorker": {
            "enabled": True,
            "queue": "kernels",
            "existingClaim": "verdicts",
            "priorityClassName": "low",
            "runtimeClassName": "nvidia",
            "nodeSelector": {"gpu": "h200"},
        }
    },
    "ingress": {
        "console": {
            "port": 9000,
            "ingress": {"enabled": True, "host": "nightshift.example", "className": "nginx", "tlsSecret": "tls"},
            "service": {"annotations": {"a": "b"}},
        }
    },
    "everything of the configuration": {
        "cluster": "prod-1",
        "log": {"level": "debug", "format": "text"},
        "sources": {
            "kubernetes": {"enabled": True, "settings": {"rack_label": "rack"}},
            "prometheus": {"url": "https://p:9090", "settings": {"http": {"bearer_token_file": "/etc/p/token"}}},
            "extra": [{"type": "node_log", "urls": ["http://n1:9400/kernel-log"]}],
        },
        "secretMounts": [{"name": "p-token", "mountPath": "/etc/p"}],
        "config": {
            "tick_s": 10,
            "guard": {"cluster_fraction": 0.05, "opt_out": ["node:login-*"]},
            "approval": {"kinds": {"drain": "two"}},
            "detectors": {"disabled": ["ecc"]},
            "console": {"session_s": 3600},
        },
    },
    "people are paged": {
        "secretMounts": [{"name": "nightshift-pager", "mountPath": "/etc/nightshift/pager"}],
        "networkPolicy": {"extraEgress": [{"ports": [{"port": 443, "protocol": "TCP"}]}]},
        "config": {
            "outlets": {
                "pages": [{"outlet": "pagerduty", "severities": ["critical"]}, {"outlet": "nobody"}],
                "failover": {"to": "opsgenie", "after_s": 60},
                "pagerduty": {
                    "routing_key_file": "/etc/nightshift/pager/pagerduty-key",
                    "webhook_secret_file": "/etc/nightshift/pager/pagerduty-webhook",
                },
                "opsgenie": {"api_key_file": "/etc/nightshift/pager/opsgenie-key"},
                "alertmanager": {"urls": ["http://alertmanager-0:9093"]},
            },
            "guard": {
                "maintenance": [
                    {
                        "subjects": ["node:gpu-r12-*"],
                        "start_s": 1795255200,
                        "end_s": 1795262400,
                        "owner": "facilities",
                        "every": "week",
                    }
                ]
            },
        },
    },
    "where pods go": {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "infra"},
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "networkPolicy": {"extraEgress": [{"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}]}]},
    },
    "nothing optional": {
        "sources": {"kubernetes": {"enabled": False, "events": False}},
        "serviceAccount": {"create": False},
        "networkPolicy": {"enabled": False},
        "tests": {"enabled": False},
    },
}
"""Values that people install with; each is rendered and checked as a whole."""


def render(values: Object | None = None, *, name: str = "nightshift", namespace: str = "ops") -> dict[str, str]:
    """Template → text. Raises what Helm raises."""
    return dict(_rendered(json.dumps(values or {}), name, namespace))


@cache
def _rendered(values: str, name: str, namespace: str) -> dict[str, str]:
    with helm_python.Chart.load(CHART) as chart:
        found: dict[str, str] = chart.render(values=json.loads(values), name=name, namespace=namespace)
    return {path.removeprefix("nightshift/templates/"): text for path, text in found.items()}


def objects(values: Object | None = None, kind: str | None = None, **release: str) -> list[Object]:
    """Every object that a release would make."""
    found = [
        item
        for path, text in render(values, **release).items()
        if path.endswith(".yaml")
        for item in yaml.load_all(text, Loader=yaml.CSafeLoader)
        if item is not None
    ]
    return [item for item in found if kind is None or item["kind"] == kind]


def containers(values: Object | None = None) -> Iterator[tuple[str, Object, Object]]:
    """(object's name, pod spec, container) of everything that runs."""
    for item in objects(values):
        spec = item["spec"] if item["kind"] == "Pod" else item.get("spec", {}).get("template", {}).get("spec")
        for container in [*(spec or {}).get("initContainers", []), *(spec or {}).get("containers", [])]:
            yield f"{item['kind']} {item['metadata']['name']}", spec, container


def search_pod(values: dict[str, Any]) -> dict[str, Any]:
    """The pod that the agent makes of these values for an approved search."""
    config = yaml.safe_load(objects(values, "ConfigMap")[0]["data"]["nightshift.yaml"])
    (actuator,) = (one for one in config["actuators"] if one.pop("type") == "kubernetes_kernels")
    action = search("c", "lab/gpt", "x", "hot", 1.0, "low", 0.0, {"kernel": "gelu", "case": "float16 n=8"})
    template: dict[str, Any] = job_of(action, KernelJobSettings(**actuator))["spec"]["template"]
    return template
