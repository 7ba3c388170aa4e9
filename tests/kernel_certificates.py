"""Kernel certificates for tests: with the evidence that a promotion demands, signed as real ones are.

Only the verdict is written here, as no GPU is at hand: its environment, race and gaps are what a judge on an
H200 says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nightshift.collectors.seal import Signer, canonical_json
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.certification.certificate import issue
from nightshift.kernels.certification.envelope import JUDGE, PAYLOAD_TYPE, PREDICATE_TYPE, STATEMENT_TYPE
from nightshift.kernels.certification.evidence import FleetView, JobEnvironment, JobReport, record_of
from nightshift.kernels.judge.verdict import Comparison, Interval, Reason, Status, Verdict
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

SIGNER = Signer.from_bytes(bytes(range(32)))
TRUSTED = {SIGNER.key_id: SIGNER.public}
GPU = "NVIDIA H200"
ENVIRONMENT = {
    "gpu": GPU,
    "capability": "9.0",
    "driver": "580.65.06",
    "cuda": "13.0",
    "torch": "2.11.0+cu130",
    "triton": "3.6.0",
}
SAME = JobEnvironment((GPU,), ("580.65.06",), ("2.11.0+cu130",), ("3.6.0",), jobs=("lab/gpt",))
"""Jobs that run where it was certified."""
GAPS = (
    "sizes, dtypes, layouts and values other than those drawn (domain.probed), and other GPUs",
    "indices beyond 2^31",
)
REASONS = {
    Status.faster: Reason.clears_best,
    Status.slower: Reason.below_baseline,
    Status.inconclusive: Reason.straddles,
    Status.correct: Reason.passed,
}
INTERVALS = {
    Status.faster: Interval(1.9, 2.0, 2.1),
    Status.slower: Interval(0.7, 0.8, 0.9),
    Status.inconclusive: Interval(0.9, 1.0, 1.1),
}


def gpu_verdict(
    candidate: Candidate,
    problem: str,
    case: Case,
    status: Status = Status.faster,
    detail: str = "",
    environment: Mapping[str, str] = ENVIRONMENT,
    probed: Mapping[str, Any] | None = None,
) -> Verdict:
    """What a judge on a GPU says of a candidate; of *correct* that nothing was raced."""
    interval = INTERVALS.get(status)
    raced = (
        ()
        if interval is None
        else tuple(
            Comparison(str(case), name, "A", 2e-5, 2e-5 * interval.point * more, interval, 30)
            for name, more in (("eager", 1.0), ("torch.compile", 1.0))
        )
    )
    domain = {"timed": [case.to_json()], **({"probed": {"sizes": probed}} if probed is not None else {})}
    return Verdict(
        candidate.sha256, problem, status, REASONS[status], detail, "timing", ("static", "timing"),
        comparisons=raced, domain=domain, environment=dict(environment), not_checked=GAPS,
    )  # fmt: skip


def gpu_certificate(
    candidate: Candidate, problem: str, case: Case, status: Status = Status.faster, **changes: Any
) -> dict[str, Any]:
    """The same, signed. changes: of the verdict, see `gpu_verdict`."""
    verdict = gpu_verdict(candidate, problem, case, status, **changes)
    return issue(verdict, candidate, named(problem), SIGNER, "2026-11-21T00:00:00+00:00", "c0ffee")


def predicate(**changes: Any) -> dict[str, Any]:
    """The content of a certificate that nothing objects to, as plain values. changes: of its verdict."""
    candidate = Candidate("def entry(x):\n    return x\n", "entry", "triton", "own_kernel", "bitwise")
    case = Case.of("float16", m=4096, n=4096)
    verdict = gpu_verdict(candidate, "softmax", case).to_json() | changes
    found = {"issued_at": "2026-11-21T00:00:00+00:00", "commit": "c0ffee", "judge": JUDGE}
    return {
        **found,
        "candidate": candidate.to_json(),
        "problem": {"name": "softmax", "reference_sha256": ""},
        "anchors": [],
        "verdict": verdict,
    }


RECORD: dict[str, Any] = record_of(predicate())


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A certificate with any content: of another judge, of an older version, or made up."""
    candidate = Candidate.from_json(content["candidate"])
    digests = {"candidate": candidate.sha256, "source": candidate.source_sha256}
    subject = [{"name": name, "digest": {"sha256": found}} for name, found in digests.items()]
    statement = {"_type": STATEMENT_TYPE, "subject": subject, "predicateType": PREDICATE_TYPE, "predicate": content}
    return SIGNER.seal(PAYLOAD_TYPE, canonical_json(statement))


def view_of(certificate: str, at_s: float, job: str = "lab/gpt", **changes: tuple[str, ...]) -> FleetView:
    """A fleet whose one job uses a kernel where it was certified. changes: of what the job reports."""
    report: dict[str, Any] = {name: SAME.of(name) for name in ("gpu", "driver", "torch", "triton")}
    return FleetView(at_s, {GPU: SAME.driver}, {job: JobReport(True, (certificate[:16],), (), **report | changes)})
