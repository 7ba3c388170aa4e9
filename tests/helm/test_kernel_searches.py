"""What the chart installs for kernel searches, and what it leaves out without them."""

from __future__ import annotations

import pytest
import yaml

from tests.helm.chart import SETS, objects, search_pod


def test_kernel_searches_are_there_only_where_they_are_asked_for() -> None:
    """A class below every other, a network that reaches nothing, and the actuator's settings; or none of them."""
    values = SETS["act, with kernel searches"]
    (priority,) = objects(values, "PriorityClass")
    assert (priority["preemptionPolicy"], priority["globalDefault"]) == ("Never", False)
    assert priority["value"] < 0
    policies = {one["metadata"]["name"]: one["spec"] for one in objects(values, "NetworkPolicy")}
    closed = policies["nightshift-kernel-search"]
    assert (closed["egress"], closed["ingress"], closed["policyTypes"]) == ([], [], ["Ingress", "Egress"])
    config = yaml.safe_load(objects(values, "ConfigMap")[0]["data"]["nightshift.yaml"])
    (actuator,) = config["actuators"]
    assert (actuator["queue"], actuator["signer_secret"]) == ("spare", "kernel-signer")
    assert config["kernels"]["priority_class"] == priority["metadata"]["name"]
    assert closed["podSelector"]["matchLabels"].items() <= search_pod(values)["metadata"]["labels"].items()
    assert objects({**values, "mode": "observe"}, "PriorityClass") == []
    with pytest.raises(Exception, match=r"kernelSearch\.signerSecret"):
        objects({"mode": "act", "actions": ["kernel_job"]}, "ConfigMap")
