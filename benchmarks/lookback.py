"""How long a look-back takes, and what it asks of the server: `python -m benchmarks.lookback` (needs Prometheus).

A real Prometheus is backfilled with ten days of two nodes of eight GPUs (six metrics, one sample in two minutes) in
which one rank leaks on the eighth day and its node is cordoned; then `nightshift lookback` is run on it as a
newcomer would, with its default rests. Reported are its CPU time, the server's time, and whether the leak was told
before.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from benchmarks.report import write

DAYS, EVERY_S, PORT = 10.0, 120, 39195
LEAK_FROM_S = 7.2 * 86400.0
LEVELS = {
    "DCGM_FI_DEV_POWER_USAGE": 600.0,
    "DCGM_FI_DEV_GPU_UTIL": 96.0,
    "DCGM_FI_DEV_SM_CLOCK": 1980.0,
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 0.0,
}


def lines(start_s: int, end_s: int) -> Iterator[str]:
    stamps = range(start_s, end_s, EVERY_S)
    for name in ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", *LEVELS):
        yield f"# TYPE {name} gauge\n"
        for node in ("n1", "n2"):
            for g in range(8):
                labels = f'UUID="GPU-{node}-{g}",gpu="{g}",Hostname="{node}",namespace="ml",pod="{node}-{g}"'
                for t in stamps:
                    leaked = 40.0 * max(0.0, t - start_s - LEAK_FROM_S) / 60.0 if (node, g) == ("n1", 3) else 0.0
                    base = {"DCGM_FI_DEV_FB_USED": 40_000 + leaked, "DCGM_FI_DEV_FB_FREE": 100_000 - leaked}
                    value = base.get(name, LEVELS.get(name, 0.0)) + (t // EVERY_S) % 3
                    yield f"{name}{{{labels}}} {max(value, 0.0):.0f} {t}\n"
    yield "# TYPE kube_node_spec_unschedulable gauge\n"
    for node in ("n1", "n2"):
        for t in stamps:
            out = int(node == "n1" and t - start_s > 8 * 86400)
            yield f'kube_node_spec_unschedulable{{node="{node}"}} {out} {t}\n'
    yield "# EOF\n"


def serve(home: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    (home / "prometheus.yml").write_text("scrape_configs: []")
    command = [
        "prometheus",
        f"--config.file={home}/prometheus.yml",
        f"--storage.tsdb.path={home}/data",
        "--storage.tsdb.retention.time=30d",
        f"--web.listen-address=127.0.0.1:{PORT}",
    ]
    server = subprocess.Popen(command, stdout=log, stderr=log)
    for _ in range(300):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/-/ready", timeout=1):
                return server
        except OSError:
            time.sleep(0.1)
    server.kill()
    raise SystemExit("Prometheus does not get ready")


def main() -> None:
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        raise SystemExit("prometheus and promtool are needed")
    end_s = int(time.time() // 7200 * 7200)
    start_s = int(end_s - DAYS * 86400)
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "wb") as log:
        home = Path(folder)
        with open(home / "past.om", "w", encoding="utf-8") as page:
            page.writelines(lines(start_s, end_s))
        backfill = [
            "promtool",
            "tsdb",
            "create-blocks-from",
            "openmetrics",
            str(home / "past.om"),
            str(home / "data"),
        ]
        subprocess.run(backfill, check=True, capture_output=True)
        server = serve(home, log)
        try:
            command = [
                sys.executable,
                "-m",
                "nightshift.agent",
                "lookback",
                "--prometheus",
                f"http://127.0.0.1:{PORT}",
            ]
            began_s = time.monotonic()
            done = subprocess.run([*command, "--days", str(DAYS), "--json"], check=True, capture_output=True)
            wall_s = time.monotonic() - began_s
        finally:
            server.terminate()
            server.wait()
    told = json.loads(done.stdout)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    (cordon,) = (event for event in told["own_events"] if event["node"] == "n1")
    write(
        "lookback",
        {
            "days": DAYS,
            "gpus": told["gpus"],
            "samples": told["samples"],
            "queries": told["queries"],
            "wall_s": wall_s,
            "cpu_s_with_prometheus": usage.ru_utime + usage.ru_stime,
            "server_busy_s": told["server_busy_s"],
            "rested_s": told["rested_s"],
            "incidents": [seen["fault"] for seen in told["incidents"]],
            "lead_before_cordon_h": None if cordon["lead_s"] is None else cordon["lead_s"] / 3600.0,
            "false_pages_per_week": told["false_pages_per_week"],
            "blind": len(told["blind"]),
        },
    )


if __name__ == "__main__":
    main()
