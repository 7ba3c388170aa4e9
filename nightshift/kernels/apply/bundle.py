"""Writes the file for the job: the parts of `kernels.apply.job` joined, with kernels checked as they go in."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nightshift.kernels.apply.job import PARTS
from nightshift.kernels.apply.job.names import COMPILED_ALONE
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.certification.envelope import CertificateError, certificate_sha256, read
from nightshift.kernels.loop.ledger import write_whole

FILE = "nightshift_kernels.py"
_JOB = "nightshift.kernels.apply.job."
_FORMULAS = ("nightshift.kernels.ops.", "nightshift.kernels.cute")
_PLACE = "KERNELS: list[dict[str, Any]] = []\n"


def kernel_record(envelope: Mapping[str, Any], trusted: Mapping[str, Ed25519PublicKey]) -> dict[str, Any]:
    """What the runtime needs of one certificate. Raises CertificateError where its signature or content is bad."""
    predicate, _ = read(envelope, trusted)
    candidate = Candidate.from_json(predicate["candidate"])
    verdict = predicate["verdict"]
    timed = verdict["domain"].get("timed") or []
    # a record holds one shape: the guards let calls near it through, and those are what was raced
    case = timed[0] if timed else _first_case(verdict)
    environment = verdict["environment"]
    return {
        "problem": predicate["problem"]["name"],
        "certificate": certificate_sha256(envelope),
        **candidate_record(candidate),
        "dtype": case["dtype"],
        "sizes": case["params"],
        "largest": _largest(verdict),
        "status": verdict["status"],
        "beats": _beaten(verdict.get("comparisons") or []),
        "gpu": environment.get("gpu", "none"),
        "architecture": environment.get("capability", "none"),
        "torch": environment.get("torch", "none"),
        "triton": environment.get("triton", "none"),
        "nvidia-cutlass-dsl": environment.get("cutlass_dsl", "none") if candidate.language == "cute" else "none",
    }


def candidate_record(candidate: Candidate) -> dict[str, Any]:
    """What of a record the candidate itself says."""
    return {
        "candidate": candidate.sha256,
        "source": candidate.source,
        "source_sha256": candidate.source_sha256,
        "entry": candidate.entry,
        "language": candidate.language,
        "launches": [asdict(launch) for launch in candidate.launches],
        "mutates": list(candidate.mutates),
        "scratch_bytes": list(candidate.scratch_bytes),
        "layouts": list(candidate.domain.layouts),
        "bounds": [asdict(bound) for bound in candidate.domain.bounds],
    }


def _beaten(comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    """The baselines than which it was faster in every case, by the lower end of the interval."""
    lows: dict[str, list[float]] = {}
    for one in comparisons:
        lows.setdefault(str(one["baseline"]), []).append(float(one["speedup"]["low"]))
    return sorted(name for name, found in lows.items() if min(found) > 1.0)


def fits_job(record: Mapping[str, Any], on_cpu: bool = False) -> bool:
    """Whether a kernel gains something in a job: faster than all that it was raced with, or than eager torch, and
    then used in eager code alone. What only compiled regions call has to beat the compiler. On a CPU nothing is
    raced: the file is for trying it out."""
    problem, status = str(record["problem"]), record["status"]
    if problem.startswith("kernelbench/"):
        return False
    return (
        status == "faster"
        or (on_cpu and status == "correct")
        or ("eager" in record["beats"] and problem not in COMPILED_ALONE)
    )


def _largest(verdict: Mapping[str, Any]) -> dict[str, int]:
    """The largest size of each axis that the judge asked; of a verdict that does not say, no axis."""
    probed = verdict["domain"].get("probed") or {}
    timed = [case["params"] for case in verdict["domain"].get("timed") or []]
    return {
        name: max([int(high), *(int(params.get(name, 0)) for params in timed)])
        for name, (_, high) in probed.get("sizes", {}).items()
    }


def _first_case(verdict: Mapping[str, Any]) -> dict[str, Any]:
    raise CertificateError(f"verdict: {verdict.get('status')} names no case that was asked for")


def bundle(records: Sequence[Mapping[str, Any]]) -> str:
    """The text of the standalone file."""
    text = standalone()
    if text.count(_PLACE) != 1:
        raise ValueError("nightshift/kernels/apply/job: the place for the kernels is not there")
    # JSON in a Python string: its null and true are no Python, and a source may hold any quotes
    listed = json.dumps(json.dumps(list(records), sort_keys=True))
    return text.replace(_PLACE, f"KERNELS: list[dict[str, Any]] = json.loads(\n    {listed}\n)\n")


def standalone() -> str:
    """The parts as one module: the interface's docstring, everybody's imports once, the formulas that parts take
    from problems, then part by part.

    Raises ValueError where two parts define one name, or one imports something that a job does not have.
    """
    file = _JobFile()
    parts = [file.part(f"{_JOB}{name}") for name in PARTS]
    head = [f'"""{file.docstring}"""', "", "from __future__ import annotations", "", *file.imports()]
    return "\n".join(head) + "\n\n" + "\n\n\n".join([*file.formulas, *parts]) + "\n"


class _JobFile:
    """What has gone into the file so far. docstring: of the latest part; formulas: the source of each."""

    def __init__(self) -> None:
        self.docstring = ""
        self.formulas = [_heading("formulas")]
        self._plain: set[str] = set()
        self._from: dict[str, set[str]] = {}
        self._owner: dict[str, str] = {}

    def imports(self) -> list[str]:
        froms = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(self._from.items())]
        return [*sorted(self._plain), *froms]

    def part(self, module: str) -> str:
        """A part's text without its imports, which it asks for here."""
        text, tree = _source(module)
        self.docstring = ast.get_docstring(tree, clean=False) or ""
        after = tree.body[0].end_lineno or 0
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                after = max(after, node.end_lineno or 0)
                self._ask(node, module)
            for defined in _names(node):
                self._claim(defined, module)
        # comments stay: whoever runs the file reads it first, and the reasons for odd branches are in them
        return "\n".join([_heading(module.removeprefix(_JOB)), *text.splitlines()[after:]]).rstrip()

    def _ask(self, node: ast.Import | ast.ImportFrom, by: str) -> None:
        module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
        if module == "__future__" or module.startswith(_JOB):
            return
        if isinstance(node, ast.ImportFrom) and module.startswith(_FORMULAS):
            for alias in node.names:
                self._formula(module, alias.name)
        elif module.partition(".")[0] not in (*sys.stdlib_module_names, "torch"):
            raise ValueError(f"{_path(by)}: a job may not have {module}")
        elif isinstance(node, ast.ImportFrom):
            self._from.setdefault(module, set()).update(alias.name for alias in node.names)
        else:
            self._plain.add(ast.unparse(node))

    def _formula(self, module: str, name: str) -> None:
        """A function of a problem's module, after the functions that it calls."""
        if self._owner.get(name) == module:
            return
        self._claim(name, module)
        text, tree = _source(module)
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        used = {node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)}
        # a formula is torch alone: what else the problem's module defines is not in a job's file
        others = {defined for node in tree.body for defined in _names(node)} - functions.keys()
        if used & others:
            raise ValueError(f"{_path(module)}: {name} may not use {', '.join(sorted(used & others))}")
        for node in _imports(tree, used):
            self._ask(node, module)
        for other in sorted(used & functions.keys() - {name}):
            self._formula(module, other)
        self.formulas.append(ast.get_source_segment(text, functions[name]) or "")

    def _claim(self, name: str, module: str) -> None:
        if self._owner.setdefault(name, module) != module:
            raise ValueError(f"{name} stands in {_path(self._owner[name])} and in {_path(module)}")


def _path(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def _source(module: str) -> tuple[str, ast.Module]:
    spec = importlib.util.find_spec(module)
    text = Path(spec.origin if spec and spec.origin else _path(module)).read_text(encoding="utf-8")
    return text, ast.parse(text)


def _heading(name: str) -> str:
    return f"# {name} {'-' * (112 - len(name))}"


def _imports(tree: ast.Module, used: Collection[str]) -> Iterator[ast.Import | ast.ImportFrom]:
    """A module's imports, of these names alone."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [alias for alias in node.names if (alias.asname or alias.name) in used]
            if node.names:
                yield node


def _names(node: ast.stmt) -> list[str]:
    """What a statement defines at a module's top."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = (
        node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    )
    return [target.id for target in targets if isinstance(target, ast.Name)]


def write_bundle(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, bundle(records))
