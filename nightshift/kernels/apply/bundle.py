"""Writes the file for the job: the parts of `kernels.apply.job` joined, with kernels checked as they go in."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nightshift.kernels.apply.job import PARTS
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.certification.envelope import CertificateError, certificate_sha256, read
from nightshift.kernels.loop.ledger import write_whole

FILE = "nightshift_kernels.py"
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
        "gpu": environment.get("gpu", "none"),
        "architecture": environment.get("capability", "none"),
        "torch": environment.get("torch", "none"),
        "triton": environment.get("triton", "none"),
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
    """The parts as one module: the interface's docstring, everybody's imports once, then part by part.

    Raises ValueError where two parts define one name, or one imports something that a job does not have.
    """
    plain: set[str] = set()
    taken: dict[str, set[str]] = {}
    bodies: list[str] = []
    owner: dict[str, str] = {}
    docstring = ""
    for name in PARTS:
        text = (Path(__file__).parent / "job" / f"{name}.py").read_text(encoding="utf-8")
        tree = ast.parse(text)
        docstring = ast.get_docstring(tree, clean=False) or ""
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in imports:
            _take(name, node, plain, taken)
        for defined in (each for node in tree.body for each in _names(node)):
            if owner.setdefault(defined, name) != name:
                raise ValueError(
                    f"nightshift/kernels/apply/job: {defined} stands in {owner[defined]}.py and in {name}.py"
                )
        after = max(node.end_lineno or 0 for node in (tree.body[0], *imports))
        heading = f"# {name} {'-' * (112 - len(name))}"
        # comments stay: whoever runs the file reads it first, and the reasons for odd branches are in them
        bodies.append("\n".join([heading, *text.splitlines()[after:]]).rstrip())
    from_ = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(taken.items())]
    head = [f'"""{docstring}"""', "", "from __future__ import annotations", "", *sorted(plain), *from_]
    return "\n".join(head) + "\n\n" + "\n\n\n".join(bodies) + "\n"


def _take(part: str, node: ast.Import | ast.ImportFrom, plain: set[str], taken: dict[str, set[str]]) -> None:
    """Adds an import of a part's to those of the whole file."""
    module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
    if module.startswith("nightshift.kernels.apply.job.") or module == "__future__":
        return
    if module.partition(".")[0] not in (*sys.stdlib_module_names, "torch"):
        raise ValueError(f"nightshift/kernels/apply/job/{part}.py: a job may not have {module}")
    if isinstance(node, ast.ImportFrom):
        taken.setdefault(module, set()).update(alias.name for alias in node.names)
    else:
        plain.add(ast.unparse(node))


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
