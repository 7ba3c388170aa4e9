"""The whole loop once, by the daemon: from a hot kernel in a job's trace to a kernel in the job, and out again.

    python -m benchmarks.kernels_daemon_loop --out FOLDER                  # one GPU; at most 420 s
    python -m benchmarks.kernels_daemon_loop --device cpu --out FOLDER     # a rehearsal on Triton's interpreter

`nightshift run` is a process of its own with SQLite. A Llama of Hugging Face trains in eager mode
(`benchmarks.kernels_daemon_job`). The chain takes the product's own interfaces: the profiler's folder, the jobs'
logs, a search as a Job of the cluster, Slack's messages and signed clicks, the registry's folder, the console.
This program plays what surrounds the product: the API server of `tests.kubernetes_api` with one kubelet, which runs
the container's command on this machine's GPU and ends it at its deadline; Slack; a person who clicks; the scheduler
that starts the job. What it only simulates is in the record's `simulated`.

FOLDER/kernels_daemon_loop.json is the record. FOLDER/kernel_loop/ is the recording that `make test` replays
(tests/agent/kernels/test_kernel_loop_replayed.py); copy it to tests/recordings/.
"""

from __future__ import annotations

import argparse
import gzip
import html
import importlib.metadata
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import yaml

from examples.slack_stand_in.server import StandIn
from examples.slack_stand_in.workspace import TEAM
from nightshift.agent.console.sign_in import operator_token
from nightshift.collectors.seal import Signer
from nightshift.kernels.certification.envelope import certificate_sha256, read
from nightshift.kernels.loop import progress_lines
from nightshift.version import ROOT, commit
from tests.kubernetes_api.server import ApiServer

NAMESPACE, CHANNEL, ANN = "ops", "C1", "U1ANN"
POD = "llama-0"
JOB = "lab/llama"
OTHER_DRIVER = "999.99.99"
ROWS = 16
"""Of a rehearsal."""
PACKAGES = ("torch", "triton", "transformers")
REHEARSED = {"gpu": "rehearsed GPU", "capability": "none", "driver": "000.00.00", "cuda": "none"}
SIMULATED = ("the driver's change: the job's log line says driver=999.99.99",)
OF_A_REHEARSAL = (
    "the trace: tests/recordings/h200_train_trace.json.gz stands for the job's, with its shapes cut to 16 rows",
    "the certificates: searched on the interpreter, signed again with an invented GPU and race",
    "the canary's clock: it counts steps",
)


class NotInTime(Exception):
    """A link of the chain that did not come. The message names it."""


@dataclass
class Record:
    """What happened, step by step; written after each."""

    path: Path
    values: dict[str, Any]
    began_s: float = field(default_factory=time.monotonic)

    def step(self, name: str, **evidence: Any) -> None:
        at_s = round(time.monotonic() - self.began_s, 1)
        self.values["steps"].append({"step": name, "at_s": at_s, **evidence})
        print(f"{at_s:6.1f} s  {name}", flush=True)
        self.write()

    def write(self) -> None:
        self.path.write_text(json.dumps(self.values, indent=1, default=str) + "\n")


class Kubelet:
    """Runs the pods of kernel searches as processes of this machine, one after another, up to their deadlines."""

    def __init__(self, server: ApiServer, folder: Path, device: str, signer: Signer) -> None:
        self._server, self._folder, self._device, self._signer = server, folder, device, signer
        self._pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._process: subprocess.Popen[str] | None = None
        self.gpu_s = 0.0
        self.commands: list[list[str]] = []
        self.logs: list[str] = []
        self.troubles: list[str] = []

    def __enter__(self) -> Kubelet:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._kill()
        self._thread.join(30.0)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self._server.admin_token}"}
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        answer = httpx.request(method, self._server.url + path, headers=headers, json=body, timeout=30.0)
        answer.raise_for_status()
        return answer.json()

    def _work(self) -> None:
        while not self._ended.wait(0.5):
            try:
                for pod in self._ask("GET", self._pods)["items"]:
                    if not (pod.get("status") or {}).get("startTime"):
                        self._run(pod)
            except Exception as error:  # noqa: BLE001  told in the record
                self.troubles.append(f"{type(error).__name__}: {error}")

    def _run(self, pod: Any) -> None:
        name, spec = pod["metadata"]["name"], pod["spec"]
        self._say(name, {"phase": "Running", "startTime": _now()})
        command = self._command(spec["containers"][0]["args"])
        self.commands.append(command)
        began = time.monotonic()
        log: list[str] = []
        environment = _environment(self._device) | {"TRITON_CACHE_DIR": str(self._folder / "work/triton")}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        deadline = threading.Timer(
            float(spec["activeDeadlineSeconds"]) if self._device != "cpu" else 600.0, self._kill
        )
        deadline.start()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            log.append(self._heard(line.rstrip("\n")))
            self._server.logs[NAMESPACE, name] = "".join(f"{one}\n" for one in log)
        code = self._process.wait()
        deadline.cancel()
        self.gpu_s += time.monotonic() - began
        self.logs += log
        state = {"terminated": {"exitCode": code, "finishedAt": _now(), "message": ""}}
        container = {
            "name": "search", "state": state, "ready": False, "restartCount": 0, "image": "", "imageID": "",
        }  # fmt: skip
        self._say(name, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [container]})

    def _command(self, args: list[str]) -> list[str]:
        """The container's command with its mounts as folders; a rehearsal's on the CPU, one trial each."""
        mounts = {"/work/": f"{self._folder}/work/", "/keys/": f"{self._folder}/keys/"}
        found = [next((to + one.removeprefix(of) for of, to in mounts.items() if one.startswith(of)), one)
                 for one in args]  # fmt: skip
        if self._device == "cpu":
            found = ["cpu" if one == "cuda" else one for one in found]
            found += ["--trials", "1", "--minutes", "2"]
        return [*NIGHTSHIFT, *found]

    def _heard(self, line: str) -> str:
        """What the pod prints; in a rehearsal a certificate as a GPU's judge would have signed it."""
        heard = progress_lines.hear(line)
        if self._device != "cpu" or not heard.certificates:
            return line
        return progress_lines.certificate("rehearsed", rehearsed(heard.certificates[0], self._signer))

    def _say(self, name: str, status: Any) -> None:
        self._ask("PATCH", f"{self._pods}/{name}/status", {"status": status})

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def rehearsed(envelope: Any, signer: Signer) -> dict[str, Any]:
    """A certificate of the interpreter, as if a GPU had raced it at the plan's case."""
    from nightshift.kernels.candidate import Candidate
    from nightshift.kernels.certification.certificate import issue
    from nightshift.kernels.ops.problems import named
    from nightshift.kernels.problem import Case
    from tests.kernel_certificates import gpu_verdict

    predicate, _ = read(envelope, {signer.key_id: signer.public})
    problem, case = predicate["problem"]["name"], Case.of("float32", m=ROWS, n=1024)
    versions = {name: importlib.metadata.version(name) for name in ("torch", "triton")}
    candidate = Candidate.from_json(predicate["candidate"])
    verdict = gpu_verdict(candidate, problem, case, environment={**REHEARSED, **versions})
    return issue(verdict, candidate, named(problem), signer, predicate["issued_at"], predicate["commit"])


def rehearse_trace(path: Path) -> None:
    """The recorded trace with as few rows as a job on the interpreter has; its times stay."""

    def cut(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        rows = {(16, 512): [2, ROWS // 2], (8192,): [ROWS]}
        for shape, fewer in rows.items():
            if tuple(value[: len(shape)]) == shape and len(value) > len(shape):
                return [*fewer, *value[len(shape) :]]
        return [cut(one) for one in value]

    held = json.loads(gzip.decompress((ROOT / "tests/recordings/h200_train_trace.json.gz").read_bytes()))
    for event in held["traceEvents"]:
        arguments = event.get("args") or {}
        arguments.pop("Input Strides", None)
        if "Input Dims" in arguments:
            arguments["Input Dims"] = cut(arguments["Input Dims"])
    partial = path.with_suffix(".partial")
    partial.write_bytes(gzip.compress(json.dumps(held).encode(), 9, mtime=0))
    partial.replace(path)


NIGHTSHIFT = [sys.executable, "-c", "from nightshift.agent.__main__ import app; app()"]


def _environment(device: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    found = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return found | ({"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Loop:
    """The daemon, what surrounds it, and the chain."""

    def __init__(self, given: argparse.Namespace, folder: Path, record: Record) -> None:
        self.given, self.folder, self.record = given, folder, record
        self.registry, self.logs, self.traces = folder / "registry", folder / "pods", folder / "profiles"
        for one in (self.logs, self.traces / "lab", folder / "keys", folder / "work", self.registry):
            one.mkdir(parents=True)
        self.signer = Signer.generate()
        (folder / "keys/signer.key").write_text(self.signer.to_bytes().hex() + "\n")
        (folder / "keys/signer.key").chmod(0o600)
        (folder / "keys/signer.pub").write_text(self.signer.public.public_bytes_raw().hex() + "\n")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.configuration = folder / "nightshift.yaml"
        self.daemon: subprocess.Popen[bytes] | None = None
        self.processes: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Loop:
        with ExitStack() as stack:
            self.slack = stack.enter_context(StandIn(sockets=False))
            self.server = stack.enter_context(ApiServer())
            self.kubelet = stack.enter_context(Kubelet(self.server, self.folder, self.given.device, self.signer))
            stack.callback(self._end)
            self.kubelet._ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            self._configure()
            with (self.folder / "daemon.log").open("wb") as log:
                self.daemon = subprocess.Popen(
                    [*NIGHTSHIFT, "run", "--config", str(self.configuration)],
                    cwd=ROOT, env=_environment(self.given.device), stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip
            self._ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def _end(self) -> None:
        for process in (self.daemon, *self.processes):
            if process is not None and process.poll() is None:
                process.terminate()
                try:
                    process.wait(20.0)
                except subprocess.TimeoutExpired:
                    process.kill()

    def _configure(self) -> None:
        folder = self.folder
        for name, text in (("bot-token", "xoxb-loop"), ("signing-secret", self.slack.signing_secret)):
            (folder / name).write_text(text)
        (folder / "kubeconfig").write_text(yaml.safe_dump(self.server.kubeconfig()))
        self.slack.workspace.channels[CHANNEL] = []
        self.slack.workspace.add_user(ANN, "ann@lab.example")
        hours = self.given.search_s / 3600.0
        values = {
            "cluster": "loop", "state_dir": str(folder / "state"), "tick_s": 2.0,
            "log": {"format": "json"},
            "console": {"port": self.port},
            "kubernetes": {"own": {"kubeconfig": str(folder / "kubeconfig")}},
            "sources": [
                {"type": "training_logs", "directory": str(self.logs)},
                {"type": "kineto", "path": str(self.traces)},
            ],
            "actuators": [
                {"type": "kubernetes_kernels", "access": "own", "image": "registry.invalid/worker:1",
                 "namespace": NAMESPACE, "signer_secret": "kernel-signer"},
            ],
            "kernels": {
                "namespaces": ["lab"], "search_gpu_hours": hours, "weekly_gpu_hours": 4 * hours,
                "trusted_keys": [str(folder / "keys/signer.pub")], "registry": str(self.registry),
            },
            "slack": {
                "enabled": True, "mode": "http", "bot_token_file": str(folder / "bot-token"),
                "signing_secret_file": str(folder / "signing-secret"), "workspace": TEAM, "channel": CHANNEL,
                "api_url": self.slack.api_url,
            },
            "people": {"roles": {"ann@lab.example": "admin"}},
        }  # fmt: skip
        self.configuration.write_text(yaml.safe_dump(values))
        self.record.values["configuration"] = {
            "kernels": values["kernels"] | {"registry": "…", "trusted_keys": "…"}
        }

    # What is seen from outside ------------------------------------------------------------------------------------

    def wait(self, look: Callable[[], Any], what: str, limit_s: float) -> Any:
        end = time.monotonic() + limit_s
        while not (found := look()):
            if time.monotonic() > end:
                raise NotInTime(f"{what}: not within {limit_s:.0f} s")
            if self.daemon is not None and self.daemon.poll() is not None:
                raise NotInTime(f"{what}: the daemon ended: {self.events()[-3:]}")
            time.sleep(0.3)
        return found

    def events(self, *names: str) -> list[dict[str, Any]]:
        """The daemon's log lines, of these events or all."""
        found = []
        for line in (self.folder / "daemon.log").read_text(errors="replace").splitlines():
            try:
                one = json.loads(line)
            except ValueError:
                one = {"event": line}
            if not names or one.get("event") in names:
                found.append(one)
        return found

    def command(self, *words: str) -> str:
        """The answer of a `nightshift` command."""
        done = subprocess.run(
            [*NIGHTSHIFT, *words], cwd=ROOT, env=_environment(self.given.device), capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        return done.stdout

    def messages(self, prefix: str) -> list[dict[str, Any]]:
        """The channel's messages with a button for a plan of this name."""
        return [one for one in self.slack.workspace.messages(CHANNEL) if any(
            json.loads(button["value"]).get("k", "").startswith(prefix) for button in buttons(one)
        )]  # fmt: skip

    def click(self, message: dict[str, Any], what: str = "approve", **more: Any) -> Any:
        return self.slack.click(ANN, CHANNEL, message["ts"], what, to=f"{self.url}/slack/events", **more)

    def kernels(self) -> list[dict[str, Any]]:
        """The registry's kernels by their folders, as any program may read them."""
        found = []
        for path in sorted(self.registry.glob("kernels/*/history.jsonl")):
            moves = [json.loads(line) for line in path.read_text().splitlines()]
            found.append({"certificate": path.parent.name, "state": moves[-1]["state"], "why": moves[-1]["why"]})
        return found

    def page(self) -> str:
        """What a person reads on the console's page Kernels."""
        with httpx.Client(base_url=self.url, timeout=20.0) as web:
            web.post("/sign-in", data={"token": operator_token(self.folder / "state", None)})
            text = web.get("/kernels").text
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())

    # The job ------------------------------------------------------------------------------------------------------

    def job(self, name: str, *words: str, limit_s: float = 150.0) -> dict[str, Any]:
        """One start of the job, as its scheduler makes it: its log is the pod's. What it says at its end."""
        path = self.logs / f"lab_{POD}_main.log"
        before = path.stat().st_size if path.exists() else 0
        environment = _environment(self.given.device)
        environment |= {"NIGHTSHIFT_KERNEL_REGISTRY": str(self.registry)}
        environment["PYTHONPATH"] = f"{self.registry}{os.pathsep}{environment['PYTHONPATH']}"
        with path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.kernels_daemon_job", "--device", self.given.device, *words],
                cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.processes.append(process)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise NotInTime(f"the job's {name} start: it ran longer than {limit_s:.0f} s") from None
        text = path.read_text(errors="replace")[before:]
        found = re.findall(r"^job result: (.*)$", text, re.MULTILINE)
        if code or not found:
            raise NotInTime(f"the job's {name} start ended with {code}: {text[-1500:]}")
        said = [line for line in text.splitlines() if line.startswith("nightshift kernels:")]
        self.record.values["job_lines"].append({"start": name, "lines": said})
        return dict(json.loads(found[-1]))


def buttons(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for block in message.get("blocks") or ():
        if block["type"] == "actions":
            yield from block["elements"]


def text_of(message: dict[str, Any]) -> list[str]:
    """A message's lines, without their marks."""
    lines: list[str] = []

    def walk(value: Any) -> str:
        if isinstance(value, list):
            return "".join(map(walk, value))
        if not isinstance(value, dict):
            return ""
        if value.get("type") == "rich_text_section":
            lines.append(walk(value.get("elements") or []))
            return ""
        own = value["text"] if isinstance(value.get("text"), str) else ""
        return own + walk(value.get("elements") or [])

    walk(message.get("blocks") or [])
    return [line.strip() for line in lines if line.strip()]


def chain(loop: Loop) -> None:
    """Every link, in order. Raises NotInTime with the first that does not come."""
    record, given = loop.record, loop.given
    slow = 3.0 if given.device == "cpu" else 1.0
    file = loop.registry / "nightshift_kernels.py"
    loop.wait(file.exists, "the job's file, before any kernel", 60.0 * slow)
    record.step("daemon started; the job's file is there, without a kernel", url=loop.url)

    trace = loop.traces / f"lab/{POD}_1.pt.trace.json.gz"
    words = [] if given.device == "cpu" else ["--trace", str(trace)]
    first = loop.job("first", "--steps", str(given.steps), *words, limit_s=120.0 * slow)
    if given.device == "cpu":
        rehearse_trace(trace)
    record.step("job trained with torch, and wrote its trace", **first)

    (message,) = loop.wait(lambda: loop.messages("kernel/search/"), "the search's proposal in Slack", 90.0 * slow)
    told = {"slack": text_of(message), "daemon": loop.events("kernel search proposed", "kernel search skipped")}
    record.step("hot kernel seen, search proposed in Slack", **told)
    forged = loop.click(message, secret="not the workspace's")
    answer = loop.click(message)
    record.step("search approved by a click", forged_click=forged.status, click=answer.status)

    search = loop.wait(lambda: ended_search(loop), "the search's end", given.search_s * slow + 300.0)
    record.values["search"] = search | {"command": loop.kubelet.commands, "pod_gpu_s": round(loop.kubelet.gpu_s, 1)}
    record.step("search ended", gpu_s=round(loop.kubelet.gpu_s, 1), allowed_gpu_s=given.search_s,
                trials=search["trials"], outcomes=outcomes(loop), certificates=search["certificates"],
                refused=search["refused"])  # fmt: skip
    record.values["certificates"] = certificates(loop)
    faster = [one["certificate"] for one in record.values["certificates"] if one["verdict"] == "faster"]
    if not faster:
        raise NotInTime("no certificate is *faster*: nothing to promote")

    def posted() -> list[dict[str, Any]] | None:
        found = [one for name in faster for one in loop.messages(f"kernel/{name[:16]}/")]
        return found if len(found) == len(faster) else None

    promotions = loop.wait(posted, "the promotions in Slack", 60.0 * slow)
    texts = [text_of(one) for one in promotions]
    clicks = [loop.click(one).status for one in promotions]
    record.step("certificates posted to Slack, promotions approved by clicks", slack=texts, clicks=clicks)
    loop.wait(lambda: [one["state"] for one in loop.kernels()].count("canary") == len(promotions),
              "the registry's canaries", 90.0 * slow)  # fmt: skip
    loop.wait(lambda: len(loop.events("job file written")) > 1, "the job's file with its kernels", 60.0 * slow)
    record.step("daemon promoted them and wrote the job's file", registry=loop.kernels(),
                daemon=loop.events("kernel promoted", "job file written"))  # fmt: skip

    second = loop.job("second", "--canary", "--steps", str(given.steps), limit_s=240.0 * slow)
    record.step("job took them up at its next start; its canary decided", **second)
    record.values["gain"] = {"of_the_canary": second["canary"], "step_s_torch": first["step_s"],
                             "step_s_with_kernels": second["step_s"]}  # fmt: skip
    if second["used"]:
        gain = loop.wait(
            lambda: re.search(rf"{JOB}: torch alone[^|]*? in \d+ steps", loop.page()), "the gain", 90.0
        )
        record.values["gain"]["counted"] = gain[0]
        record.step("daemon counted the gain", console=gain[0])
    else:
        record.step("the canary kept no kernel: no gain to count")

    third = loop.job("third", "--driver", OTHER_DRIVER, "--steps", str(given.steps), "--until-demoted",
                     str(120.0 * slow), limit_s=200.0 * slow)  # fmt: skip
    loop.wait(lambda: all(one["state"] == "demoted" for one in loop.kernels()), "the demotion", 90.0 * slow)
    record.step("driver's string changed (simulated); daemon demoted them, the job went on with torch",
                registry=loop.kernels(), daemon=loop.events("kernel demoted"), **third)  # fmt: skip
    loop.wait(
        lambda: loop.events("job file written")[-1]["kernels"] == 0, "the job's file without them", 60.0 * slow
    )
    again = [text_of(one) for one in loop.messages("kernel/search/")]
    record.step("job's file written without them, a search to certify again waits", slack=again)

    fourth = loop.job("fourth", "--steps", str(given.steps), limit_s=120.0 * slow)
    if fourth["used"] or fourth["places"]:
        raise NotInTime(f"the fourth start uses {fourth['used']}")
    record.step("job's next start computes with torch", **fourth)
    record.values["whole"] = True


def ended_search(loop: Loop) -> dict[str, Any] | None:
    try:
        found = json.loads(loop.command("kernels", "searches", "--json", "--config", str(loop.configuration)))
    except ValueError:
        return None
    return next((one for one in found if one["ended"]), None) or (time.sleep(3.0) if found else None)


def outcomes(loop: Loop) -> dict[str, int]:
    """How many trials of the ledger ended how."""
    trials = progress_lines.hear("\n".join(loop.kubelet.logs)).trials.values()
    return dict(Counter(f"{one.get('status')}: {one.get('reason')}" for one in trials))


def certificates(loop: Loop) -> list[dict[str, Any]]:
    """What each certificate of the pod's log says, checked by the search's key."""
    found = []
    for envelope in progress_lines.hear("\n".join(loop.kubelet.logs)).certificates:
        predicate, _ = read(envelope, {loop.signer.key_id: loop.signer.public})
        verdict = predicate["verdict"]
        found.append({
            "certificate": certificate_sha256(envelope), "problem": predicate["problem"]["name"],
            "verdict": verdict["status"], "reason": verdict["reason"], "environment": verdict["environment"],
            "races": [{"case": c["case"], "baseline": c["baseline"], "speedup": c["speedup"],
                       "candidate_s": c["candidate_s"], "baseline_s": c["baseline_s"]}
                      for c in verdict["comparisons"]],
            "judge": predicate.get("judge"),
        })  # fmt: skip
    return found


def write_recording(loop: Loop, folder: Path) -> None:
    """What the replay needs: the trace, the pod's own lines, what people saw, and what the job said."""
    folder.mkdir(parents=True, exist_ok=True)
    held = json.loads(gzip.decompress((loop.traces / f"lab/{POD}_1.pt.trace.json.gz").read_bytes()))
    for machine in ("traceName", "host_name", "hostname", "username", "trace_id"):
        held.pop(machine, None)
    (folder / "trace.json.gz").write_bytes(gzip.compress(json.dumps(held).encode(), 9, mtime=0))
    values = loop.record.values
    shown = [line for line in loop.kubelet.logs if line.startswith(progress_lines.WORD)]
    content = {
        "commit": values["commit"], "device": loop.given.device, "simulated": values["simulated"],
        "environment": values["environment"], "search_gpu_hours": loop.given.search_s / 3600.0,
        "public_key": loop.signer.public.public_bytes_raw().hex(), "pod_log": shown,
        "messages": [text_of(one) for one in loop.slack.workspace.messages(CHANNEL)],
        "job_lines": values["job_lines"], "certificates": values.get("certificates", []),
        "gain": values.get("gain", {}), "registry": loop.kernels(),
    }  # fmt: skip
    text = json.dumps(content, indent=0, sort_keys=True) + "\n"
    (folder / "loop.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def environment() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        found[name] = importlib.metadata.version(name)
    # in a process of its own: a context of this one would hold memory beside the judge's
    asked = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else 'none')"
    said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    found["gpu"] = said.stdout.strip()
    driver = Path("/sys/module/nvidia/version")
    return found | {"driver": driver.read_text().strip() if driver.exists() else "none"}


@contextmanager
def scratch(keep: Path | None) -> Iterator[Path]:
    """A folder for the daemon's state, outside of what comes back."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="kernel-loop-") as place:
        try:
            yield Path(place)
        finally:
            if keep is not None and (log := Path(place) / "daemon.log").exists():
                shutil.copyfile(log, keep / "daemon.log")
                for one in (Path(place) / "pods").glob("*.log"):
                    shutil.copyfile(one, keep / "job.log")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--search-s", type=float, default=200.0, help="GPU-seconds that the search may take")
    parser.add_argument("--steps", type=int, help="measured steps of each start of the job")
    given = parser.parse_args()
    given.steps = given.steps or (12 if given.device == "cpu" else 120)
    given.out.mkdir(parents=True, exist_ok=True)
    simulated = [*SIMULATED, *(OF_A_REHEARSAL if given.device == "cpu" else ())]
    record = Record(given.out / "kernels_daemon_loop.json", {
        "commit": commit(), "environment": environment(), "device": given.device, "mode": "eager",
        "simulated": simulated, "whole": False, "broke_at": "", "steps": [], "job_lines": [],
    })  # fmt: skip
    with scratch(given.out) as folder, Loop(given, folder, record) as loop:
        try:
            chain(loop)
        except NotInTime as error:
            record.values["broke_at"] = str(error)
            print(f"broke: {error}", flush=True)
        finally:
            record.values |= {"wall_s": round(time.monotonic() - record.began_s, 1)}
            record.values["kubelet_troubles"] = loop.kubelet.troubles[:5]
            record.values["pod_log_tail"] = loop.kubelet.logs[-15:]
            record.values["daemon_warnings"] = [
                one for one in loop.events() if one.get("level") in ("warning", "error", "critical")
            ][-20:]
            record.write()
            if record.values["whole"]:
                write_recording(loop, given.out / "kernel_loop")
    if not record.values["whole"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
