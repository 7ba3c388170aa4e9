"""What was recorded is found again by the daemon's own pipeline, quickly, and nothing is carried out."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import yaml

from nightshift.agent.replay import record
from nightshift.agent.settings import Settings
from nightshift.collectors.frame import Frame, Instant, LogRecord, SeriesIndex, SourceStatus
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.recording import RecordingWriter, read
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from tests.agent.fleet import Exporter, values
from tests.agent.forks import nightshift
from tests.conftest import PrometheusFactory

START_S = 1_780_000_000.0
NODE, GPU = Subject(SubjectKind.NODE, "n1"), Subject(SubjectKind.GPU, "GPU-1")
SOURCE = Subject(SubjectKind.SOURCE, "node_log http://n1")


@pytest.fixture
def night(tmp_path: Path) -> Path:
    """Ten minutes of one GPU, which falls off the bus (Xid 79) after five."""
    path = tmp_path / "night.jsonl.gz"
    inventory = Inventory()
    inventory.observe(GPU, NODE, START_S)
    writer = RecordingWriter(path, 5.0)
    index = SeriesIndex(SubjectKind.GPU, (GPU,))
    for number in range(120):
        at_s = START_S + 5.0 * number
        frame = Frame(
            at_s, index, ("gpu_power_w",), np.array([[400.0]]), np.array([[at_s]]), np.zeros(1, dtype=np.int64)
        )
        text = "NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus."
        event = KernelEvent(
            KernelEventKind.XID, LogRecord(Instant(at_s), SOURCE.name, NODE, text, 7), NODE, code=79, gpu=GPU
        )
        events = (event,) if number == 60 else ()
        logs = tuple(e.record for e in events)
        writer.add(
            Tick(at_s, {frame.kind: frame}, (), logs, events, (SourceStatus(SOURCE, at_s, ok=True),)), inventory
        )
    writer.close()
    return path


def test_a_recorded_fault_is_found_with_its_evidence(night: Path) -> None:
    """One incident with the quoted line, dated by the recording's clock; there is a plan and nobody who acts."""
    done = nightshift("replay", str(night), "--json")
    assert done.returncode == 0, done.stderr
    (incident,) = json.loads(done.stdout)
    assert incident["opened_s"] == START_S + 300.0
    assert incident["diagnosis"]["cause"] in ("xid", "gpu_lost")
    assert "fallen off the bus" in json.dumps(incident["diagnosis"]["claims"])
    assert incident["state"] not in ("approved", "acting", "confirming")


def test_what_is_recorded_from_live_sources_is_a_recording(tmp_path: Path) -> None:
    """`record` keeps the GPUs of a live exporter, tick by tick."""
    enough = threading.Event()

    class Counting(Exporter):
        served = 0

        def page(self) -> bytes:
            self.served += 1
            if self.served == 4:
                enough.set()
            return super().page()

    exporter = Counting()
    path = tmp_path / "live.jsonl.gz"
    settings = Settings(**values(tmp_path / "state", exporter, tick_s=0.05))
    ticks = record(settings, path, 60.0, enough)
    exporter.close()
    kept = list(read(path))
    assert len(kept) == ticks >= 2
    assert len(kept[-1].tick.frames[SubjectKind.GPU].index) == 2


def test_a_replay_says_what_it_needs(tmp_path: Path) -> None:
    """Neither source, both, a bad time and a file that is no recording are each one sentence."""
    config = tmp_path / "n.yaml"
    config.write_text(yaml.safe_dump({"state_dir": str(tmp_path)}))
    (tmp_path / "x.gz").write_bytes(b"nothing")
    for arguments, words in (
        ([], "either a recording or"),
        (["--prometheus", "http://127.0.0.1:1", "--from", "noon", "--to", "2026-01-01"], "is not an ISO 8601 time"),
        ([str(tmp_path / "x.gz")], "x.gz:1"),
    ):
        done = nightshift("replay", *arguments, config=config)
        assert done.returncode == 2, done.stderr
        assert words in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


def _leak_in_openmetrics(start_s: int) -> str:
    """Forty minutes of a job on eight GPUs at 15 s; from the tenth minute rank 3 keeps 60 MiB per scrape."""
    lines = []
    for metric, base in (("DCGM_FI_DEV_FB_USED", 40_000), ("DCGM_FI_DEV_FB_FREE", 100_000)):
        lines.append(f"# TYPE {metric} gauge")
        for rank in range(8):
            labels = f'UUID="GPU-{rank}",gpu="{rank}",Hostname="n1",namespace="ml",pod="train-{rank}",container="c"'
            for step in range(160):
                kept = 60 * max(0, step - 40) if rank == 3 else 0
                value = base + 40 * (step % 3) + (kept if base == 40_000 else -kept)
                lines.append(f"{metric}{{{labels}}} {value} {start_s + 15 * step}")
    return "\n".join([*lines, "# EOF\n"])


@pytest.mark.full
def test_a_prometheus_range_is_replayed_through_the_same_pipeline(
    prometheus_server: PrometheusFactory, tmp_path: Path
) -> None:
    """A leak of hours ago, read back from a real Prometheus: one incident, on the GPU that leaked, nothing done."""
    start_s = int(time.time() // 60 * 60) - 3 * 3600
    page = tmp_path / "past.om"
    page.write_text(_leak_in_openmetrics(start_s))
    server = prometheus_server("scrape_configs: []")
    server.stop()
    data = next(part.partition("=")[2] for part in server.command if part.startswith("--storage.tsdb.path="))
    backfill = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(page), data]
    subprocess.run(backfill, check=True, capture_output=True)
    server.start()
    config = tmp_path / "n.yaml"
    config.write_text(yaml.safe_dump({"state_dir": str(tmp_path), "tick_s": 15}))
    first, last = (datetime.fromtimestamp(start_s + s, UTC).isoformat() for s in (0, 2385))
    done = nightshift("replay", "--prometheus", server.url, "--from", first, "--to", last, "--json", config=config)
    assert done.returncode == 0, done.stderr
    (incident,) = json.loads(done.stdout)
    assert incident["diagnosis"]["cause"] == "gpu_memory_leak"
    assert {found["finding"]["subject"]["name"] for found in incident["findings"]} == {"GPU-3"}
    assert 600 < incident["opened_s"] - start_s < 1500
    assert incident["state"] not in ("approved", "acting", "confirming")
