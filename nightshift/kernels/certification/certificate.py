"""A verdict that anyone can check again: an in-toto statement in a DSSE envelope, signed with Ed25519.

It carries the candidate itself and its declared domain, what was measured and where, the secret that every probe
follows from, hashes of its own outputs on public probes (of a candidate that declares bitwise determinism), and
*anchors*: hashes of the problem's inputs and of its float64 oracle's outputs on small cases.
Inputs are the same bits on every machine (`kernels.draw`), so their hash must match exactly, everywhere. The
oracle's outputs are rounded to float32 before hashing; another CPU or torch release may still round one the other
way, so a few values are kept beside the hash, and agreement within 1e-5 is reported as "equal within rounding".

Formats: https://github.com/in-toto/attestation (Statement v1), https://github.com/secure-systems-lab/dsse.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nightshift.collectors.seal import Signer, canonical_json, sha256_hex
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.certification.envelope import (
    JUDGE,
    PAYLOAD_TYPE,
    PREDICATE_TYPE,
    STATEMENT_TYPE,
    CertificateError,
    read,
)
from nightshift.kernels.judge.environment import Environment
from nightshift.kernels.judge.probes import inputs
from nightshift.kernels.judge.probes.fingerprints import digest
from nightshift.kernels.judge.verdict import FIT, Status, Verdict
from nightshift.kernels.loop.ledger_chain import LedgerHead
from nightshift.kernels.problem import Case, Inputs, Outputs, Problem, ProblemError

# an anchor is computed again on the CPU at every `verify`, on machines without the GPU too
_ANCHOR_BYTES = 1 << 20
_SAMPLES = 8
# another libm or BLAS moves a float64 sum by far less
_TOLERANCE = 1e-5


def reference_sha256(problem: Problem) -> str:
    """Of the reference's source text (of the module that it stands in, where that can be read). A problem that was
    read from a file has its text as the reference's `source`."""
    if text := getattr(problem.reference, "source", ""):
        return sha256_hex(str(text).encode())
    try:
        # the module's, not the function's: a reference calls its neighbours
        text = inspect.getsource(inspect.getmodule(problem.reference) or problem.reference)
    except (OSError, TypeError):
        text = problem.name
    return sha256_hex(text.encode())


def anchors(problem: Problem, candidate: Candidate) -> tuple[dict[str, Any], ...]:
    """Hashes on one small case of each dtype inside the candidate's domain; computed on the CPU."""
    found: dict[str, dict[str, Any]] = {}
    # from no secret: whoever verifies has to draw the same
    for probe in inputs.plan(problem, candidate, b"anchors", inputs.CPU):
        case = probe.case
        if (
            case.dtype in found
            or case.layout != "contiguous"
            or not 0 < problem.compulsory_bytes(case) <= _ANCHOR_BYTES
        ):
            continue
        found[case.dtype] = _anchor(problem, case, probe.seeds[0])
    return tuple(found.values())


def _anchor(problem: Problem, case: Case, seed: int) -> dict[str, Any]:
    made = problem.inputs(case, "normal", seed, "cpu")
    outputs = problem.truth(made)
    return {
        "case": case.to_json(),
        "distribution": "normal",
        "seed": f"{seed:016x}",
        "inputs_sha256": _inputs_digest(made),
        "outputs_sha256": digest(outputs),
        "sample": _sample(outputs),
    }


def _inputs_digest(made: Inputs) -> str:
    numbers = json.dumps([x for x in made if not isinstance(x, torch.Tensor)])
    return sha256_hex((digest([x for x in made if isinstance(x, torch.Tensor)]) + numbers).encode())


def _sample(outputs: Outputs) -> list[float | None]:
    flat = torch.cat([x.detach().to(torch.float64).reshape(-1) for x in outputs])
    step = max(1, flat.numel() // _SAMPLES)
    return [float(value) if math.isfinite(value) else None for value in flat[::step][:_SAMPLES].tolist()]


def issue(
    verdict: Verdict,
    candidate: Candidate,
    problem: Problem,
    signer: Signer,
    issued_at: str,
    commit: str,
    ledger: LedgerHead | None = None,
) -> dict[str, Any]:
    """The signed envelope. Raises CertificateError for a refused candidate or a machine fault. ledger: the end of
    the ledger of the search that found it.

    A library composition, or a verdict without a race, is recorded as *correct*, never as a faster kernel.
    """
    if verdict.status not in FIT:
        raise CertificateError(f"status: {verdict.status} ({verdict.reason}) is not certified")
    if verdict.candidate_sha256 != candidate.sha256 or verdict.problem != problem.name:
        raise CertificateError("verdict: it is about another candidate or problem")
    record = verdict.to_json()
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": "candidate", "digest": {"sha256": candidate.sha256}},
            {"name": "source", "digest": {"sha256": candidate.source_sha256}},
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "issued_at": issued_at,
            "commit": commit,
            "judge": JUDGE,
            **({} if ledger is None else {"ledger": ledger.to_json()}),
            "candidate": candidate.to_json(),
            "problem": {"name": problem.name, "reference_sha256": reference_sha256(problem)},
            "anchors": list(anchors(problem, candidate)),
            "verdict": record,
        },
    }
    return signer.seal(PAYLOAD_TYPE, canonical_json(statement))


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: ok, stale or broken, and what was seen."""

    name: str
    state: str  # ok | stale | broken
    detail: str


@dataclass(frozen=True)
class Verification:
    checks: tuple[Check, ...]
    predicate: Mapping[str, Any] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        return all(check.state != "broken" for check in self.checks)

    @property
    def stale(self) -> bool:
        return any(check.state == "stale" for check in self.checks)


def verify(
    envelope: object,
    trusted: Mapping[str, Ed25519PublicKey],
    problem_named: Callable[[str], Problem],
    machine: Environment | None = None,
    rerun: Callable[[Candidate, Problem, Mapping[str, Any]], Verdict] | None = None,
) -> Verification:
    """Signature, anchors, drift against `machine` (None: not on the hardware), and a fresh verdict by `rerun`.

    Raises CertificateError where there is nothing to check (malformed, or signed by nobody trusted).
    """
    predicate, key = read(envelope, trusted)
    checks = [Check("signature", "ok", f"by {key[:16]}…")]
    candidate = Candidate.from_json(predicate["candidate"])
    try:
        problem = problem_named(str(predicate["problem"]["name"]))
    except (ProblemError, KeyError, TypeError) as error:
        return Verification((*checks, Check("problem", "broken", str(error))), predicate)
    same = reference_sha256(problem) == predicate["problem"].get("reference_sha256")
    told = "the reference's source is the one certified" if same else "the reference's source has changed"
    checks.append(Check("reference", "ok" if same else "stale", told))
    checks += [_check_anchor(problem, record) for record in predicate["anchors"]]
    judge = predicate.get("judge", 1)
    checks.append(Check("judge", "ok" if judge == JUDGE else "stale", f"version {judge}, this is {JUDGE}"))
    if machine is not None:
        drift = machine.drift(predicate["verdict"]["environment"], candidate.language)
        checks.append(
            Check("environment", "stale", "; ".join(drift)) if drift else Check("environment", "ok", "same")
        )
    now = rerun(candidate, problem, predicate["verdict"]) if rerun is not None else None
    checks.append(_compare_outputs(predicate["verdict"].get("outputs"), now))
    if now is not None:
        checks.append(_compare_verdicts(predicate["verdict"], now))
    return Verification(tuple(checks), predicate)


def _check_anchor(problem: Problem, record: Mapping[str, Any]) -> Check:
    try:
        raw = record["case"]
        case = Case.of(raw["dtype"], raw["layout"], **raw["params"])
        again = _anchor(problem, case, int(record["seed"], 16))
        name = f"anchor {case}"
        if again["inputs_sha256"] != record["inputs_sha256"]:
            return Check(name, "broken", "the inputs are not those that were certified")
        if again["outputs_sha256"] == record["outputs_sha256"]:
            return Check(name, "ok", "same bits")
        pairs = list(zip(again["sample"], record["sample"], strict=True))
    except (KeyError, TypeError, ValueError, ProblemError) as error:
        return Check("anchor", "broken", f"malformed ({type(error).__name__}: {error})")
    if all(_close(a, b) for a, b in pairs):
        return Check(name, "ok", "equal within rounding")
    return Check(name, "broken", "the oracle gives other outputs")


def _close(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=1e-30)


def _compare_verdicts(then: Mapping[str, Any], now: Verdict) -> Check:
    """Two verdicts agree unless one is a refusal, or both decided and decided otherwise."""
    told = f"{then.get('status')} then, {now.status} now ({now.detail})"
    # a machine's fault is no word about the candidate, so the certificate is not broken by it
    if now.status is Status.machine_fault:
        return Check("re-run", "stale", told)
    if now.status not in FIT:
        return Check("re-run", "broken", told)
    undecided = {Status.inconclusive.value, now.status.value}
    return Check(
        "re-run", "ok" if then.get("status") in undecided or now.status is Status.inconclusive else "stale", told
    )


def _compare_outputs(then: object, now: Verdict | None) -> Check:
    """Whether the candidate's own outputs on the public probes are the bits that were certified."""
    try:
        certified = {str(entry["probe"]): str(entry["sha256"]) for entry in then or ()}  # type: ignore[attr-defined]
    except (KeyError, TypeError) as error:
        return Check("outputs", "broken", f"malformed ({type(error).__name__}: {error})")
    if not certified:
        return Check("outputs", "ok", "no output hash")
    if now is None:
        return Check("outputs", "ok", f"hashes of {len(certified)} probes; --rerun compares them")
    again = {entry["probe"]: entry["sha256"] for entry in now.outputs}
    drifted = [name for name, sha in certified.items() if again.get(name, sha) != sha]
    missing = [name for name in certified if name not in again]
    if not drifted and not missing:
        return Check("outputs", "ok", f"same bits on {len(certified)} probes")
    told = [f"other bits: {'; '.join(drifted)}"] * bool(drifted) + [f"not run: {'; '.join(missing)}"] * bool(
        missing
    )
    return Check("outputs", "stale", ". ".join(told))
