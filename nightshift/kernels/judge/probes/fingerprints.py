"""Hashes of a candidate's own outputs on probes that are the same for every judge: what a later run is held
against.

Probes of a verdict follow from a secret, so their outputs say nothing to another verdict. These follow from none: a
few small cases, of every dtype one with normal values and one of each of the problem's rules. They judge nobody (a
candidate may know them); of one that was found fit they show whether the same source still computes the same bits
under another driver, compiler or GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.probes import inputs
from nightshift.kernels.judge.probes.examine import Examiner
from nightshift.kernels.judge.probes.inputs import Probe
from nightshift.kernels.problem import Problem


def digest(tensors: Sequence[torch.Tensor]) -> str:
    """SHA-256 over dtype, shape and bytes of each tensor; floats as float32, where float64 was rounded to it."""
    state = hashlib.sha256()
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        plain = plain.to(torch.float32) if plain.dtype == torch.float64 else plain
        state.update(f"{plain.dtype} {tuple(plain.shape)};".encode())
        state.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return state.hexdigest()


def public_probes(problem: Problem, candidate: Candidate) -> tuple[Probe, ...]:
    """The first of each dtype and distribution in a small plan that follows from no secret."""
    found: dict[tuple[str, str], Probe] = {}
    for probe in inputs.plan(problem, candidate, b"outputs", inputs.INTERPRETER):
        plain = probe.stage == "values" and probe.distribution == "normal" and not probe.same
        if (plain or probe.stage == "exact") and probe.case.layout == "contiguous":
            found.setdefault((probe.case.dtype, probe.distribution), probe)
    return tuple(found.values())


def output_hashes(examiner: Examiner) -> tuple[Mapping[str, str], ...]:
    """Of each public probe its name and the hash of what the candidate computes for it."""
    made = []
    for probe in public_probes(examiner.problem, examiner.candidate):
        seed = probe.seeds[0]
        outputs = examiner.call(
            probe, seed, examiner.problem.inputs(probe.case, probe.distribution, seed, examiner.device)
        )
        made.append({"probe": f"{probe.distribution}, {probe.case}", "sha256": digest(outputs)})
    return tuple(made)
