"""Runs every command block of the README, the docs and the guides beside them as printed, page by page.

    python -m benchmarks.doc_commands [--only PAGE]

Each page's lines run in one shell, in their order, in a folder that has what the page says it has: a configuration,
a store with eight incidents of which INC-7 waits, a trace, keys' names. Addresses are replaced by this machine's: a
real Prometheus, a node's pages, our own API server with the chart's objects for `kubectl` (and what `kubectl exec`
would run in the pod runs here), a console with a token for `curl`. A line is right where it
ends with 0, or with the answer that it has to give on this stage. What this machine cannot run is listed with the
reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import RESULTS, write
from examples.demo.serving import KERNEL_LOG, NodeServer
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.setup.console import build_console
from nightshift.version import ROOT, commit
from tests.agent.story import TOKEN, Story
from tests.helm.chart import objects
from tests.processes import free_port

ELSEWHERE: Mapping[str, str] = {
    r"make test": "CI runs it (.ci/run)",
    r"python -m benchmarks\.kernels_policy": "minutes of training: results/kernels_policy.json is its run",
    r"make (setup|demo)": "benchmarks/first_night.py and tests/examples/test_demo_once.py run it",
    r"\. \.venv/bin/activate": "benchmarks/first_night.py makes the environment",
    r"helm ": "tests/helm/test_docs.py renders it, test_release.py installs it, by Helm's own library",
    r"export NIGHTSHIFT_CONFIG=FOLDER": "tests/examples/test_demo_once.py sets it and runs all thirty tasks",
    r"sh deploy/debian-base|.*buildah|skopeo|container=": "tests/test_images.py builds and pushes by these tools",
    r".*rca_evals (live|table|feedback|export|holmes)": "tests/agent/test_rca_evals.py: a scripted model answers",
    r".*rca_evals replay": "results/rca_evals.json is its run; the cases are other projects'",
    r".*rca_evals beside": "results/rca_beside_holmes.json is its run",
    r"nightshift policy (train|evaluate|ship|shadow|promote) cache": "tests/agent/cli/test_cache_policy.py runs it",
    r"nightshift policy ship power": "tests/agent/control/test_policy_path.py runs it",
    r"nightshift kernels promote": "tests/agent/kernels/test_kernel_evidence.py: a certificate that an H200 made",
    r"NIGHTSHIFT_TEST_KUBECONFIG": "CI runs these tests against the server in the page's first line",
}
"""Lines that another check runs."""
NEEDS: Mapping[str, str] = {
    r".*docker buildx|cosign": "docker's buildx and cosign; tests/test_images.py builds the same files by buildah",
    r".*(benchmarks\.incidents|holmes/bin)": "a language model",
    r"nightshift kernels optimize": "a GPU; tests/kernels/loop/test_optimise.py runs it on a processor",
    r"exec nightshift preflight": "a GPU; results/preflight.json is its run on an H200",
    r"nightshift policy evaluate power": "data that people download",
    r"(sacctmgr|install -D|cd /usr/local|for name in)": "root on a Slurm node; "
    "tests/controllers/actuators/test_slurm_site.py does the same on a Slurm of its own",
    r"kubectl .*(port-forward|create job)": "a kubelet: our API server runs no pods",
}
"""Lines that this machine cannot run, and why. A pattern that matches no line fails the check of the results."""
SERVES = re.compile(r"nightshift (run|node)\b|kubernetes_api")
SERVES_S = 25
GUIDES = ("README.md", "CONTRIBUTING.md", "deploy/README.md")
MARK = "@@ended"
_SAID = 300
ANSWERS: Mapping[str, str] = {
    r"nightshift (policy|kernels) (approve|explain|undo)": "there is no such|no policy of kind",
    r"nightshift rma": "no incident is about GPU",
    r"nightshift resume INC-7": "no action with an unknown outcome",
    r"nightshift ask": "no daemon takes it",
    r"nightshift investigate pod": "no pod .* is known",
    r"nightshift calibrate": "nothing that a detector watches was found",
    r".*nightshift doctor": "0 samples",
    r"nightshift node --power-leases": "NVML Shared Library Not Found",
    r"nightshift audit verify --anchors": "No such file or directory",
}
"""What a line answers here, with an exit code above 0: the page's name or state is not one of this stage."""
PASTED = ("README.md", "docs/how-to/first-incident.md")
"""Their commands run beside the daemon that one of them starts (`tests/end_to_end/test_readme.py`)."""


@dataclass(frozen=True)
class DocLine:
    """One command of a page."""

    page: str
    text: str

    def reason(self, table: Mapping[str, str]) -> str:
        if table is ELSEWHERE and self.page in PASTED and self.text.startswith("nightshift "):
            return "tests/end_to_end/test_readme.py pastes it"
        return next((why for pattern, why in table.items() if re.match(pattern, self.text)), "")


def doc_lines() -> list[DocLine]:
    """Every command of every block, in order."""
    found = []
    for page in [*(ROOT / name for name in GUIDES), *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = re.findall(r"^```(console|sh)\n(.*?)^```", page.read_text(), re.M | re.S)
        for language, block in blocks:
            for line in block.splitlines():
                text = line[2:] if language == "console" and line[:2] in ("$ ", "# ") else ""
                text = line if language == "sh" and line and line[0] != "#" else text
                if text:
                    text = re.sub(r"\s{2,}#.*", "", text)
                    found.append(DocLine(str(page.relative_to(ROOT)), text))
    return found


class Stage:
    """What the pages speak of, on this machine."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.nodes = [NodeServer(f"gpu-n{number}") for number in (1, 2)]
        for node in self.nodes:
            stack.callback(node.close)
        self.prometheus = f"http://127.0.0.1:{free_port()}"
        self._prometheus()
        self.kubeconfig = folder / "kubeconfig"
        self._start([sys.executable, "-m", "tests.kubernetes_api", str(self.kubeconfig)], ROOT)
        self._wait(self.kubeconfig.exists)
        self._kubernetes()
        story = Story(folder)
        server = Server(build_console(story.parts, Settings()), "127.0.0.1", 0)
        server.start()
        stack.callback(story.store.close)
        stack.callback(server.stop)
        self.console = server.url
        self.environment = {
            **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1",
            "KUBECONFIG": str(self.kubeconfig), "NIGHTSHIFT_CONSOLE__PORT": str(free_port()),
            "NIGHTSHIFT_CONFIG": "nightshift.yaml", "PYTHONPATH": str(ROOT),
        }  # fmt: skip

    def _start(self, command: list[str], folder: Path) -> None:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def stop() -> None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)

        self._stack.callback(stop)

    def _wait(self, there: Any) -> None:
        for _ in range(300):
            if there():
                return
            time.sleep(0.2)
        raise RuntimeError("a server of the stage did not start")

    def _prometheus(self) -> None:
        home = self.folder / "prometheus"
        home.mkdir()
        (home / "prometheus.yml").write_text("scrape_configs: []\n")
        binary, address = shutil.which("prometheus") or "prometheus", self.prometheus.removeprefix("http://")
        flags = (f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data")
        self._start([binary, *flags, f"--web.listen-address={address}", "--log.level=error"], home)

    def _kubernetes(self) -> None:
        """The namespace and the chart's objects."""
        chosen = [item for item in objects({}) if item["kind"] in ("StatefulSet", "Service", "ConfigMap")]
        claim = {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "state-nightshift-0", "namespace": "ops"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
        }  # fmt: skip
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ops"}}
        team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
        pod = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
        job = {
            "apiVersion": "batch/v1", "kind": "Job", "spec": {"template": pod, "suspend": True},
            "metadata": {"name": "train", "namespace": "team"},
        }  # fmt: skip
        path = self.folder / "chart.yaml"
        path.write_text(yaml.safe_dump_all([space, team, *chosen, claim, job]))
        command = ["kubectl", "--kubeconfig", str(self.kubeconfig), "create", "--validate=false", "-f", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"kubectl create: {done.stderr[-2000:]}")

    def place(self, name: str) -> Path:
        """A page's folder: a configuration, a store with eight incidents, and the files that pages name."""
        place = self.folder / name
        place.mkdir()
        story = Story(place)
        for number in range(8):
            story.tell(f"Host memory leak on sft-12-{number}")
        story.store.close()
        (place / "training").mkdir()
        log = self.nodes[0].url + KERNEL_LOG
        values = {
            "cluster": "prod-1", "state_dir": str(place / "state"), "store": {"url": f"sqlite:///{place}/story.db"},
            "sources": [
                {"type": "prometheus", "url": self.prometheus}, {"type": "node_log", "urls": [log]},
                {"type": "training_logs", "directory": str(place / "training")},
            ],
        }  # fmt: skip
        (place / "nightshift.yaml").write_text(yaml.safe_dump(values))
        (place / "ci-token").write_text(TOKEN)
        shutil.copy(ROOT / "tests/recordings/h200_train_trace.json.gz", place / "trace.json.gz")
        return place

    def here(self, text: str) -> str:
        """A line with this machine's addresses."""
        for theirs, ours in (
            ("http://prometheus.monitoring:9090", self.prometheus),
            ("http://prometheus:9090", self.prometheus),
            ("kubectl --namespace ops exec nightshift-0 -- ", ""),
            ("--days 14", "--days 1"),
            ("/tmp/kubeconfig", "kubeconfig"),
            (" &", ""),
            ("https://nightshift.example", self.console),
            ("--namespace TEAM annotate job NAME", "--namespace team annotate job train"),
        ):
            text = text.replace(theirs, ours)
        return f"timeout -s INT {SERVES_S} env {text}" if SERVES.search(text) else text


def run_page(stage: Stage, name: str, lines: list[DocLine]) -> Iterator[tuple[DocLine, int, str]]:
    """(line, exit code, what it said) of a page's lines in one shell."""
    script = "".join(f"{stage.here(line.text)}\nprintf '\\n{MARK} %s\\n' $?\n" for line in lines)
    place = stage.place(name)
    (place / "page.sh").write_text(script)
    done = subprocess.run(
        ["bash", "page.sh"], cwd=place, env=stage.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, timeout=1800, check=False,
    )  # fmt: skip
    parts = re.split(rf"^{MARK} (\d+)\n", done.stdout, flags=re.M)
    if len(parts) != 2 * len(lines) + 1:
        raise RuntimeError(f"{name}: {len(parts) // 2} of {len(lines)} lines ended: {done.stdout[-2000:]}")
    for line, said, code in zip(lines, parts[::2], parts[1::2], strict=False):
        yield line, int(code), said


def is_right(text: str, code: int, said: str) -> bool:
    """Ended well, was ended by its time where it serves, or gave the answer that it has to give here."""
    if code == 0 or (code == 124 and SERVES.search(text)):
        return True
    return any(re.match(pattern, text) and re.search(words, said) for pattern, words in ANSWERS.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Run only pages with this in their path; keep the other rows")
    options = parser.parse_args()
    every = doc_lines()
    rows: list[dict[str, Any]] = []
    if options.only:
        before = json.loads((RESULTS / "doc_commands.json").read_text())["results"]["rows"]
        rows = [row for row in before if not re.search(options.only, row["page"])]
    todo: dict[str, list[DocLine]] = {}
    for line in every:
        other, need = line.reason(ELSEWHERE), line.reason(NEEDS)
        if not re.search(options.only, line.page):
            continue
        if other or need:
            how = "elsewhere" if other else "not run"
            rows.append({"page": line.page, "line": line.text, "how": how, "why": other or need})
        else:
            todo.setdefault(line.page, []).append(line)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stage = Stage(Path(folder), stack)
        for page, lines in todo.items():
            for line, code, said in run_page(stage, re.sub(r"\W", "-", page), lines):
                row = {"page": page, "line": line.text, "how": "run", "exit": code, "commit": commit()}
                rows.append(row | ({"said": said.strip()[-_SAID:]} if code else {}))
                if not is_right(line.text, code, said):
                    print(f"{page}: {line.text}: {code}: {said[-1500:]}", file=sys.stderr, flush=True)
    ran = [row for row in rows if row["how"] == "run"]
    for row in ran:
        row["right"] = is_right(row["line"], row["exit"], row.get("said", ""))
    count = Counter(row["how"] for row in rows)
    results = {
        "commit": commit(), "lines": len(every), "run": len(ran), "right": sum(row["right"] for row in ran),
        "ended_well": sum(row["exit"] == 0 for row in ran), "elsewhere": count["elsewhere"],
        "not_run": count["not run"], "rows": sorted(rows, key=lambda row: str(row["page"])),
    }  # fmt: skip
    write("doc_commands", results)


if __name__ == "__main__":
    main()
