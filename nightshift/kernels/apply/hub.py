"""Writes certified serving kernels as servers load them, with their certificates beside.

Two forms in one folder. `build/torch-cuda` (`torch-cpu` for what was judged without a GPU) is Hugging Face's layout
of a kernel repository (https://huggingface.co/docs/kernels): `kernels.LocalLayerRepository(folder, layer_name=…)`
and `kernels.get_local_kernel(folder)` read it; its code is `kernels.apply.package`. `solutions` has the form of
FlashInfer-Bench, for its own `apply`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nightshift.collectors.seal import sha256_hex
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.certification.envelope import CertificateError, certificate_sha256, read
from nightshift.kernels.judge.verdict import Status
from nightshift.kernels.suites.definitions import Definition, TensorForm

# Read and not imported: only a server runs it.
_CODE = Path(__file__).with_name("package.py")
PACKAGE, AUTHOR = "nightshift-serving", "nightshift"
_PREFILL = ["q", "k_cache", "v_cache", "qo_indptr", "kv_indptr", "kv_indices", "sm_scale"]
_DECODE = [name for name in _PREFILL if name != "qo_indptr"]
_SCALARS = {"float32": "float", "float16": "float", "bfloat16": "float", "bool": "bool"}


@dataclass(frozen=True)
class CertifiedKernel:
    """A certified kernel and the definition that it computes. slower: than a baseline that it was raced with."""

    definition: Definition
    candidate: Candidate
    envelope: Mapping[str, Any]
    architecture: str
    slower: bool

    @property
    def stem(self) -> str:
        """A module's name: of the definition, and of the text that it is."""
        return f"kernel_{re.sub(r'[^0-9A-Za-z_]', '_', self.definition.name)}_{self.candidate.sha256[:8]}"

    def record(self) -> dict[str, Any]:
        """What the package needs to know of the kernel."""
        definition = self.definition
        return {
            "certificate": certificate_sha256(self.envelope),
            "architecture": self.architecture,
            "source": self.stem,
            "reference": f"{self.stem}_reference",
            "entry": self.candidate.entry,
            "names": list(definition.inputs),
            "inputs": [_form(form) for form in definition.inputs.values()],
            "scalars": {n: _SCALARS.get(f.dtype, "int") for n, f in definition.inputs.items() if f.shape is None},
            "outputs": {name: _form(form) for name, form in definition.outputs.items()},
            "axes": {name: size for name, size in definition.axes.items() if size is not None},
            **_places(definition),
        }


def _form(form: TensorForm) -> dict[str, Any]:
    return {"shape": None if form.shape is None else list(form.shape), "dtype": form.dtype}


def _places(definition: Definition) -> dict[str, Any]:
    """Which place in a model a kernel has: a norm's width and epsilon, an attention's heads and width, or none."""
    axes, names = definition.axes, list(definition.inputs)
    epsilon = re.search(r"EPS = ([0-9.]+e-?\d+)", definition.reference)
    norm = names == ["hidden_states", "weight"] and definition.kind == "rmsnorm" and epsilon is not None
    heads = [axes.get(name) for name in ("num_qo_heads", "num_kv_heads", "head_dim")]
    single = axes.get("page_size") == 1
    return {
        "norm": axes.get("hidden_size") if norm else 0,
        "epsilon": float(epsilon.group(1)) if norm and epsilon else 0.0,
        "attention": heads if names == _PREFILL and single and "causal" in definition.name else [],
        "decode": heads if names == _DECODE and single else [],
    }


def deliveries(
    envelopes: Sequence[Mapping[str, Any]],
    trusted: Mapping[str, Ed25519PublicKey],
    definitions: Mapping[str, Definition],
) -> list[CertifiedKernel]:
    """What the certificates certify. Raises CertificateError where one is bad, or its definition is
    missing or another."""
    found = []
    for envelope in envelopes:
        predicate, _ = read(envelope, trusted)
        suite, _, name = str(predicate["problem"]["name"]).partition("/")
        if suite != "serving" or name not in definitions:
            raise CertificateError(f"problem: {predicate['problem']['name']}: the folder has no such definition")
        if sha256_hex(definitions[name].reference.encode()) != predicate["problem"].get("reference_sha256"):
            raise CertificateError(f"problem: {name}: the folder's reference is not the one that was certified")
        candidate = Candidate.from_json(predicate["candidate"])
        if candidate.brings_launches:
            raise CertificateError(f"candidate: {name}: {candidate.language!r} has no entry to be called")
        verdict = predicate["verdict"]
        architecture = str(verdict["environment"].get("capability") or "none")
        slower = verdict["status"] == Status.slower
        found.append(CertifiedKernel(definitions[name], candidate, envelope, architecture, slower))
    return found


def write(folder: Path, kernels: Sequence[CertifiedKernel]) -> Path:
    """The folder of both forms: the package's path. Kernels of one architecture kind (GPU or none) at a time."""
    variants = {"cpu" if one.architecture == "none" else "cuda" for one in kernels}
    if len(variants) != 1:
        raise CertificateError(f"certificates: {len(variants)} kinds of machine, and a package is for one")
    (variant,) = variants
    place = folder / "build" / f"torch-{variant}"
    records = {one.definition.name: one.record() for one in sorted(kernels, key=lambda one: one.definition.name)}
    listed = json.dumps(records, indent=1) + "\n"  # inputs and outputs in the definition's order
    _put(place / "kernels.json", listed)
    _put(place / "__init__.py", _CODE.read_text(encoding="utf-8"))
    _put(place / "metadata.json", json.dumps(_metadata(variant, listed), indent=1) + "\n")
    for one in kernels:
        _put(place / f"{one.stem}.py", one.candidate.source)
        _put(place / f"{one.stem}_reference.py", one.definition.reference)
        _put(place / f"{one.stem}.certificate.json", json.dumps(one.envelope, indent=1) + "\n")
        _put(folder / "solutions" / AUTHOR / one.definition.kind / one.definition.name / f"{one.stem}.json",
             json.dumps(_solution(one), indent=1) + "\n")  # fmt: skip
    return place


def _metadata(variant: str, listed: str) -> dict[str, Any]:
    digest = hashlib.sha256(listed.encode()).hexdigest()[:12]
    return {
        "name": PACKAGE,
        "id": f"_{PACKAGE.replace('-', '_')}_{digest}",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": variant},
    }


def _solution(one: CertifiedKernel) -> dict[str, Any]:
    """FlashInfer-Bench's file for a kernel; outputs are returned."""
    return {
        "name": one.stem,
        "definition": one.definition.name,
        "author": AUTHOR,
        "spec": {
            "language": "triton",
            "target_hardware": ["cuda"],
            "entry_point": f"main.py::{one.candidate.entry}",
            "dependencies": [],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": one.candidate.source}],
        "description": f"Certificate {certificate_sha256(one.envelope)}",
    }


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
