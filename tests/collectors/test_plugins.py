"""Every collector plug-in keeps the contract: declared, bounded, honest when its source is away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nightshift.collectors.check import check_collect, check_declaration
from nightshift.collectors.plugins import ALL
from nightshift.collectors.subject import Inventory

AWAY: dict[str, Callable[[Path], dict[str, Any]]] = {
    "dcgm_exporter": lambda _: {"urls": ["http://127.0.0.1:9/metrics"]},
    "cadvisor": lambda _: {"urls": ["http://127.0.0.1:9/metrics"]},
    "node_exporter": lambda _: {"urls": ["http://127.0.0.1:9/metrics"]},
    "equipment": lambda _: {"urls": ["http://127.0.0.1:9/metrics"]},
    "redfish": lambda _: {"urls": ["http://127.0.0.1:9"]},
    "alertmanager": lambda _: {"url": "http://127.0.0.1:9"},
    "topology": lambda folder: {"path": folder / "absent"},
    "tensorboard": lambda folder: {"directory": folder / "absent"},
    "training_metrics": lambda _: {"urls": ["http://127.0.0.1:9/metrics"]},
    "inference": lambda _: {"urls": ["http://127.0.0.1:9/metrics"]},
    "node_log": lambda _: {"urls": ["http://127.0.0.1:9/kernel-log"]},
    "node_agents": lambda folder: {
        "agents": {"access": {"kubeconfig": folder / "absent"}, "namespace": "n", "selector": "a=b"}
    },
    "prometheus": lambda _: {"url": "http://127.0.0.1:9"},
    "kernel_log": lambda folder: {"source": "kmsg", "path": folder / "absent"},
    "kineto": lambda folder: {"path": folder / "absent"},
    "kubernetes": lambda folder: {"access": {"kubeconfig": folder / "absent"}},
    "kubernetes_events": lambda folder: {"access": {"kubeconfig": folder / "absent"}},
    "nvml": lambda _: {"node": "n1"},
    "slurm": lambda folder: {"access": {"commands": folder / "absent"}},
    "recording": lambda folder: {"path": folder / "absent"},
    "training_logs": lambda folder: {"directory": str(folder / "absent")},
}
"""Settings of a source that is not there, per plug-in."""


def test_every_plugin_is_checked() -> None:
    assert {plugin.plugin for plugin in ALL} == set(AWAY)
    assert len(ALL) == len(AWAY)


@pytest.mark.parametrize("plugin", ALL, ids=lambda plugin: plugin.plugin)
def test_it_declares_itself(plugin: Any) -> None:
    check_declaration(plugin)


@pytest.mark.parametrize("plugin", ALL, ids=lambda plugin: plugin.plugin)
def test_a_source_that_is_away_is_a_status_with_a_reason_and_no_value(
    plugin: Any, tmp_path: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)  # on a machine that has one
    collector = opened(plugin(plugin.Settings(**AWAY[plugin.plugin](tmp_path))))
    inventory = Inventory()
    for now_s in (100.0, 105.0, 50.0):  # the clock may even go back
        check_collect(collector, now_s, inventory, 30.0, expect_ok=False)
