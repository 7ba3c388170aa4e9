"""Hostile and damaged input against every collector of pages: bounded, escaped names, counted, never raised."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.collectors.check import check_collect
from nightshift.collectors.subject import MAX_NAME_CHARS, Inventory
from nightshift.collectors.telemetry.cadvisor import CadvisorCollector
from nightshift.collectors.telemetry.dcgm_exporter import DcgmExporterCollector
from nightshift.collectors.telemetry.inference import InferenceCollector
from nightshift.collectors.telemetry.node_exporter import NodeExporterCollector
from nightshift.collectors.training.metrics import TrainingMetricsCollector

NOW = 1_795_260_000.0
PAGES: dict[Any, tuple[str, ...]] = {
    DcgmExporterCollector: (
        'DCGM_FI_DEV_FB_USED{{UUID="{0}",Hostname="n1",gpu="0",modelName="{0}",pci_bus_id="{0}"}} 1',
        'DCGM_FI_DEV_POWER_USAGE{{UUID="GPU-1",Hostname="{0}",gpu="{0}",namespace="{0}",pod="{0}"}} 2',
        'DCGM_FI_DEV_FB_USED{{UUID="GPU-1",Hostname="n1",gpu="0",GPU_I_ID="{0}"}} 1',
        'DCGM_FI_DEV_GPU_TEMP{{UUID="GPU-2",Hostname="n1",gpu="1"}} 60',
    ),
    CadvisorCollector: (
        'container_memory_rss{{container="{0}",pod="p",namespace="ml"}} 1',
        'container_memory_rss{{container="c",pod="{0}",namespace="{0}"}} 1',
        'container_memory_rss{{container="c",pod="p",namespace="ml"}} 5',
    ),
    NodeExporterCollector: (
        'node_uname_info{{nodename="n1",release="{0}"}} 1',
        'node_network_receive_bytes_total{{device="{0}"}} 1',
        'node_filesystem_avail_bytes{{device="/dev/x",fstype="{0}",mountpoint="{0}"}} 1',
        'node_infiniband_state_id{{device="mlx5_0",port="{0}"}} 4',
        "node_time_seconds 1.79526e+09",
    ),
    InferenceCollector: (
        'vllm:num_requests_running{{model_name="{0}"}} 1',
        'vllm:time_to_first_token_seconds_bucket{{le="{0}",model_name="m"}} 1',
        'vllm:num_requests_waiting{{model_name="m",engine="{0}"}} 3',
    ),
    TrainingMetricsCollector: (
        'train_loss{{namespace="{0}",pod="{0}"}} 1',
        'train_loss{{namespace="ml",pod="p-0",rank="{0}"}} 2',
    ),
}
LOUD = {
    "ten megabytes": "x" * 10_000_000,
    "long": "y" * 5_000,
    "control characters": "a\x00b\x1b[31mc\x7f",
    "escaped newlines": "a\\nb",
    "markup": "<script>alert('1')</script>",
    "unicode": "\u202egpu\u2066" + "\U0001f525" * 300,
    "path": "../../etc/passwd",
    "empty": "",
}


@pytest.mark.parametrize("loud", LOUD)
@pytest.mark.parametrize("plugin", PAGES, ids=lambda plugin: plugin.plugin)
def test_hostile_labels_are_bounded_printable_and_counted(
    plugin: Any, loud: str, opened: Any, page_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stands in a label: names stay short and printable, facts too, and no look takes long."""
    monkeypatch.setattr("nightshift.collectors.telemetry.pages.MAX_BYTES", 2**28)
    monkeypatch.setattr("nightshift.collectors.training.metrics.MAX_BYTES", 2**28)
    page_server.pages["/m"] = "".join(line.format(LOUD[loud]) + "\n" for line in PAGES[plugin]).encode()
    of, inventory = opened(plugin(plugin.Settings(urls=[page_server.at("/m")]))), Inventory()
    began_s = time.process_time()
    batch = check_collect(of, NOW, inventory, 60.0)
    assert time.process_time() - began_s < 20.0
    names = {subject.name for frame in batch.frames for subject in frame.index.subjects}
    names |= {steps.subject.name for steps in batch.steps}
    names |= {one.name for m in inventory.memberships() for one in (m.child, m.parent)}
    for subject in {one for m in inventory.memberships() for one in (m.child, m.parent)}:
        names |= set(inventory.facts(subject).values()) - {""}
    assert all(len(name) <= MAX_NAME_CHARS and name.isprintable() for name in names)
    if loud in ("ten megabytes", "long"):
        assert sum(batch.sources[0].rejected.values()) >= 1


@pytest.fixture
def collectors(opened: Any, page_server: Any) -> Callable[[Any], Any]:
    made: dict[Any, Any] = {}

    def of(plugin: Any) -> Any:
        if plugin not in made:
            made[plugin] = opened(plugin(plugin.Settings(urls=[page_server.at("/m")])))
        return made[plugin]

    return of


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80, deadline=None)
@given(data=st.data())
def test_a_damaged_page_never_raises(collectors: Any, page_server: Any, data: st.DataObject) -> None:
    """Bytes changed, cut out and put in anywhere, look after look by the same collector."""
    plugin = data.draw(st.sampled_from(list(PAGES)))
    page = "".join(line.format("name") + "\n" for line in PAGES[plugin]).encode()
    for _ in range(data.draw(st.integers(1, 3))):
        at, until = sorted((data.draw(st.integers(0, len(page))), data.draw(st.integers(0, len(page)))))
        page = page[:at] + data.draw(st.binary(max_size=12)) + page[min(until, at + 30) :]
    page_server.pages["/m"] = page
    check_collect(collectors(plugin), NOW, Inventory(), 30.0)
