"""The incidents as problems of AIOpsLab (microsoft/AIOpsLab) and of SREGym (SREGym/SREGym).

Both run agents against a Kubernetes cluster. A problem here is a pod that writes what the incident's source wrote;
the agent reads it by `kubectl logs`, and submits. `export` writes a folder with `incidents.json` and one Python
module; the module's `register(registry)` adds every problem to the benchmark's own registry. Nothing of either
benchmark is copied: the module subclasses its classes where it is loaded.
"""

# ruff: noqa: SIM905 -- a table of words
from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.rca_evals.answers import GOOD
from benchmarks.rca_evals.cases import Case
from benchmarks.rca_evals.causes import CAUSES
from benchmarks.rca_evals.recording import record

NAMESPACE, IMAGE = "gpu-incidents", "busybox:1.36"
MAX_LOG = 700_000
"""Characters of a log in a ConfigMap, which may hold a MiB."""
# AIOpsLab's two labels of an analysis, by the family of a cause.
_LEVEL = {
    **dict.fromkeys("bus gpu_memory nvlink pcie host_memory cpu heat power network".split(), "Hardware"),
    **dict.fromkeys(
        "driver service gpu_hang iommu kernel storage filesystem remote space node".split(), "Operating System"
    ),
    **dict.fromkeys("k8s image volume runtime host_oom limit".split(), "Virtualization"),
}
_TYPE = {
    **dict.fromkeys(
        "network storage filesystem remote space nvlink pcie bus volume collective rendezvous".split(),
        "Network/Storage Issue",
    ),
    **dict.fromkeys("app job numerics leak gpu_oom shm rate stall".split(), "Code Defect"),
    **dict.fromkeys("driver image runtime limit service".split(), "Misconfiguration"),
}


def export(form: str, chosen: Sequence[Case], folder: Path) -> int:
    """Writes the problems; returns how many."""
    problems = [_problem(case, number) for number, case in enumerate(chosen) if case.report is not None]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "incidents.json").write_text(json.dumps(problems, indent=1) + "\n")
    (folder / "gpu_incidents.py").write_text(_COMMON + {"aiopslab": _AIOPSLAB, "sregym": _SREGYM}[form])
    return len(problems)


def _problem(case: Case, number: int) -> dict[str, Any]:
    recording, cause = record(case), CAUSES[case.cause]
    description = GOOD[case.cause][0].replace("$place", recording.place)
    return {
        "id": f"gpu-incident-{number:03d}",
        "source": case.name,
        "cause": case.cause,
        "place": recording.place,
        "places": list(recording.truth.places),
        "description": description,
        "system_level": _LEVEL.get(cause.family, "Application"),
        "fault_type": _TYPE.get(cause.family, "Dependency Problem"),
        "manifest": _manifest(f"gpu-incident-{number:03d}", recording.file, recording.text[-MAX_LOG:]),
    }


def _manifest(name: str, file: str, text: str) -> dict[str, Any]:
    """A pod that writes the log and waits, and the ConfigMap that holds it."""
    labels = {"app": name, "io.kompose.service": name}
    about = {"name": name, "namespace": NAMESPACE, "labels": labels}
    container = {
        "name": "source",
        "image": IMAGE,
        "command": ["sh", "-c", f"cat /incident/{file}; sleep infinity"],
        "volumeMounts": [{"name": "incident", "mountPath": "/incident"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": about,
        "spec": {"containers": [container], "volumes": [{"name": "incident", "configMap": {"name": name}}]},
    }
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": {file: text}}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    return {"apiVersion": "v1", "kind": "List", "items": [space, held, pod]}


_COMMON = '''\
"""GPU incidents of Nightshift's evaluation, as problems. Written by `python -m benchmarks.rca_evals export`."""

import json
import subprocess
from pathlib import Path

INCIDENTS = {one["id"]: one for one in json.loads((Path(__file__).parent / "incidents.json").read_text())}
NAMESPACE = "gpu-incidents"


def kubectl(*words, given=""):
    done = subprocess.run(["kubectl", *words], input=given, capture_output=True, text=True, check=True)
    return done.stdout


class Source:
    """What both benchmarks ask of an application: there is none beside the pod of the incident."""

    def __init__(self, incident):
        self.incident = incident
        self.name, self.namespace = "gpu-cluster", NAMESPACE
        self.helm_configs, self.helm_deploy = {}, False

    def get_app_summary(self):
        return (
            "Service Name: gpu-cluster\\nNamespace: " + NAMESPACE + "\\nDescription: an alert fired on a GPU"
            " cluster. The log of its source is the log of the pod " + self.incident["id"] + "."
        )

    def deploy(self):
        """The incident's pod is the fault itself."""

    def delete(self):
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")

    cleanup = delete

    def start_workload(self):
        """The log is written already."""


def inject(incident):
    kubectl("apply", "-f", "-", given=json.dumps(incident["manifest"]))
    kubectl("wait", "--for=condition=Ready", "pod/" + incident["id"], "-n", NAMESPACE, "--timeout=120s")


def recover(incident):
    kubectl("delete", "pod,configmap", incident["id"], "-n", NAMESPACE, "--ignore-not-found")
'''
_AIOPSLAB = '''

from aiopslab.orchestrator.tasks.analysis import AnalysisTask  # noqa: E402


class GpuIncidentAnalysis(AnalysisTask):
    """Root cause analysis: the agent submits system_level and fault_type."""

    def __init__(self, incident):
        self.incident, self.namespace = incident, NAMESPACE
        super().__init__(Source(incident))

    def inject_fault(self):
        inject(self.incident)

    def recover_fault(self):
        recover(self.incident)

    def start_workload(self):
        """The log is written already."""

    def eval(self, soln, trace, duration):
        super().eval(soln, trace, duration)
        right = isinstance(soln, dict)
        for key in ("system_level", "fault_type"):
            hit = right and str(soln.get(key, "")).strip().lower() == self.incident[key].lower()
            self.add_result(key + "_correct", hit)
        self.results["success"] = self.results["system_level_correct"] and self.results["fault_type_correct"]
        return self.results


def register(registry):
    """Adds every incident to a ProblemRegistry."""
    for name, incident in INCIDENTS.items():
        registry.PROBLEM_REGISTRY[name + "-analysis-1"] = lambda incident=incident: GpuIncidentAnalysis(incident)
'''
_SREGYM = '''

from sregym.conductor.oracles.llm_as_a_judge.llm_as_a_judge_oracle import LLMAsAJudgeOracle  # noqa: E402
from sregym.conductor.problems.base import Problem  # noqa: E402
from sregym.utils.decorators import mark_fault_injected  # noqa: E402


class GpuIncident(Problem):
    """Diagnosis only: what was broken is recorded, so there is nothing to repair."""

    run_default_workload = False

    def __init__(self, incident):
        super().__init__(app=Source(incident), namespace=NAMESPACE)
        self.incident = incident
        self.root_cause = self.build_structured_root_cause(
            component=incident["place"], namespace=NAMESPACE, description=incident["description"]
        )
        self.diagnosis_oracle = LLMAsAJudgeOracle(problem=self, expected=self.root_cause)

    @mark_fault_injected
    def inject_fault(self):
        inject(self.incident)

    @mark_fault_injected
    def recover_fault(self):
        recover(self.incident)


def register(registry):
    """Adds every incident to a ProblemRegistry."""
    for name, incident in INCIDENTS.items():
        registry.PROBLEM_REGISTRY[name] = lambda incident=incident: GpuIncident(incident)
'''
