"""Container and node memory from cAdvisor's and node-exporter's pages."""

from __future__ import annotations

import math
from typing import Any

from nightshift.collectors.check import check_collect
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.cadvisor import CadvisorCollector

NOW = 1_795_260_000.0
BOX = Subject(SubjectKind.CONTAINER, "ml/job-2/trainer")


def labels(container: str = "trainer", pod: str = "job-2", cgroup: str = "/a") -> str:
    return f'{{container="{container}",id="{cgroup}",image="i",name="x",namespace="ml",pod="{pod}"}}'


def test_containers_are_rows_and_sums_pauses_and_missing_limits_are_not(opened: Any, page_server: Any) -> None:
    stamp = int(NOW * 1000) - 2000
    page_server.pages["/c"] = (
        "# TYPE container_memory_rss gauge\n"
        f"container_memory_rss{labels()} 1.5e+09 {stamp}\n"
        f"container_memory_rss{labels(container='')} 9e+09 {stamp}\n"
        f"container_memory_rss{labels(container='POD')} 5 {stamp}\n"
        f"container_spec_memory_limit_bytes{labels()} 0 {stamp}\n"
        f"container_oom_events_total{labels()} 3 {stamp}\n"
    ).encode()
    of = opened(CadvisorCollector(CadvisorCollector.Settings(urls=[page_server.at("/c")])))
    inventory = Inventory()
    (frame,) = check_collect(of, NOW, inventory, 30.0, expect_ok=True).frames
    assert frame.index.subjects == (BOX,)
    assert frame.value(BOX, "container_memory_anonymous_bytes") == 1.5e9
    assert frame.times_s("container_memory_anonymous_bytes")[0] == NOW - 2
    assert math.isnan(frame.value(BOX, "container_memory_limit_bytes"))
    assert inventory.above(BOX, SubjectKind.RANK, NOW) is None
    assert inventory.above(BOX, SubjectKind.JOB, NOW) == Subject(SubjectKind.JOB, "ml/job")


def test_after_a_restart_the_newer_cgroup_counts(opened: Any, page_server: Any) -> None:
    old, new = int(NOW * 1000) - 60_000, int(NOW * 1000) - 1000
    page_server.pages["/c"] = (
        f"container_memory_rss{labels(cgroup='/new')} 100 {new}\n"
        f"container_memory_rss{labels(cgroup='/old')} 999 {old}\n"
    ).encode()
    of = opened(CadvisorCollector(CadvisorCollector.Settings(urls=[page_server.at("/c")])))
    batch = check_collect(of, NOW, Inventory(), 30.0, expect_ok=True)
    assert batch.frames[0].value(BOX, "container_memory_anonymous_bytes") == 100
    assert not batch.sources[0].rejected


def test_the_sum_over_all_cpus_counts_where_each_is_told_too(opened: Any, page_server: Any) -> None:
    rows = [
        f'container_cpu_usage_seconds_total{{container="trainer",namespace="ml",pod="job-2",cpu="{cpu}"}} {used}'
        for cpu, used in (("cpu00", 4), ("cpu01", 5), ("total", 9))
    ]
    page_server.pages["/c"] = ("\n".join(rows) + "\n").encode()
    of = opened(CadvisorCollector(CadvisorCollector.Settings(urls=[page_server.at("/c")])))
    batch = check_collect(of, NOW, Inventory(), 30.0, expect_ok=True)
    assert batch.frames[0].value(BOX, "container_cpu_s_total") == 9
    assert not batch.sources[0].rejected


def test_node_exporter_names_its_node(opened: Any, page_server: Any) -> None:
    page_server.pages["/n"] = (
        b'node_uname_info{nodename="gpu-7",sysname="Linux"} 1\n'
        b"node_memory_MemTotal_bytes 2.1e+12\nnode_memory_MemAvailable_bytes 1.9e+12\n"
    )
    of = opened(CadvisorCollector(CadvisorCollector.Settings(urls=[page_server.at("/n")])))
    (frame,) = check_collect(of, NOW, Inventory(), 30.0, expect_ok=True).frames
    assert frame.value(Subject(SubjectKind.NODE, "gpu-7"), "node_memory_available_bytes") == 1.9e12


def test_a_node_without_pods_is_no_lost_source(opened: Any, page_server: Any) -> None:
    page_server.pages["/c"] = b"# HELP container_memory_rss x\n# TYPE container_memory_rss gauge\n"
    of = opened(CadvisorCollector(CadvisorCollector.Settings(urls=[page_server.at("/c")])))
    check_collect(of, NOW, Inventory(), 30.0, expect_ok=True)
