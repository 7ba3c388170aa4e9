"""`nightshift kernels …`: judge a candidate, certify it, check a certificate again."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nightshift.collectors.seal import SealError, Signer, trusted_keys
from nightshift.kernels.loop import cli
from nightshift.kernels.loops.cli import schedule
from nightshift.kernels.schemes.cli import algorithm
from nightshift.version import commit

# what needs torch is imported inside the commands: it takes seconds, and `--help` needs none of it
app = typer.Typer(help="Find faster GPU kernels: profile, search, judge, certify, apply.", no_args_is_help=True)

app.command()(cli.optimize)
app.command()(cli.profile)
app.command("probe")(cli.probe_peaks)
app.command()(cli.trace)
app.command()(cli.report)
app.command()(cli.replay)
app.command()(cli.serve)
app.command()(algorithm)
app.command()(schedule)

_WORDS = {"ok": "ok    ", "stale": "STALE ", "broken": "BROKEN"}


def _fail(text: str) -> typer.Exit:
    typer.echo(text, err=True)
    return typer.Exit(2)


def _signer(path: Path) -> Signer:
    try:
        return Signer.from_file(path)
    except SealError as error:
        raise _fail(str(error)) from error


def _trusted(paths: list[Path]) -> dict[str, Ed25519PublicKey]:
    try:
        return trusted_keys(paths)
    except SealError as error:
        raise _fail(str(error)) from error


@app.command()
def problems(
    folder: Annotated[
        Path | None, typer.Argument(help="folder of definitions in FlashInfer-Bench's format")
    ] = None,
) -> None:
    """List the reference problems, or the definitions of a folder. Runs the definitions' references."""
    from nightshift.kernels.ops.problems import ALL
    from nightshift.kernels.problem import ProblemError
    from nightshift.kernels.suites.definitions import definitions_in, workloads_of
    from nightshift.kernels.suites.serving import problem_of

    if folder is None:
        for problem in ALL:
            typer.echo(f"{problem.name:24} {problem.family:16} {len(problem.cases)} timed cases")
        return
    try:
        found, refused = definitions_in(folder)
    except ProblemError as error:
        raise _fail(str(error)) from error
    for definition in found.values():
        try:
            problem = problem_of(definition, workloads_of(folder, definition))
        except ProblemError as error:
            refused[definition.name] = str(error)
        else:
            typer.echo(f"{problem.name:64} {problem.family:12} {len(problem.cases)} timed cases")
    for why in refused.values():
        typer.echo(f"refused: {why}", err=True)


@app.command()
def keygen(private: Path, public: Path) -> None:
    """Make a signing key: PRIVATE (mode 0600) and PUBLIC, both in hexadecimal."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    signer = Signer.generate()
    try:
        # created with its mode, and never over a key that signed certificates
        descriptor = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(signer.to_bytes().hex() + "\n")
        public.write_text(signer.public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex() + "\n")
    except OSError as error:
        raise _fail(f"{error.filename}: {error.strerror}") from error
    typer.echo(f"key {signer.key_id}")


@app.command()
def judge(
    file: Annotated[Path, typer.Argument(help="candidate file, or a solution's JSON file with --folder")],
    folder: Annotated[Path | None, typer.Option(help="folder of definitions in FlashInfer-Bench's format")] = None,
    trace: Annotated[Path | None, typer.Option(help="write the solution's trace entries here")] = None,
    device: Annotated[str, typer.Option(help="cuda, cpu or auto")] = "auto",
    timing: Annotated[bool, typer.Option(help="race it against its baselines")] = True,
    promote: Annotated[bool, typer.Option(help="also run compute-sanitizer")] = False,
    static: Annotated[bool, typer.Option(help="the cheap first read")] = True,
    certificate: Annotated[Path | None, typer.Option(help="write a signed certificate here")] = None,
    key: Annotated[Path | None, typer.Option(help="private key that signs it")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the whole verdict as JSON")] = False,
) -> None:
    """Judge one candidate file. Exit code 0: fit (whatever its speed); 1: refused; 3: machine fault."""
    from nightshift.kernels.candidate import CandidateError
    from nightshift.kernels.candidate_file import read_candidate
    from nightshift.kernels.judge.judge import Judge, Request
    from nightshift.kernels.judge.probes.inputs import CPU, FULL_GPU, INTERPRETER
    from nightshift.kernels.judge.race.baselines import shelf_folder
    from nightshift.kernels.judge.race.contest import FULL
    from nightshift.kernels.judge.verdict import Status
    from nightshift.kernels.ops.problems import named
    from nightshift.kernels.problem import ProblemError

    signer = _certifier(certificate, key)
    if folder is not None:
        raise typer.Exit(_judge_solution(file, folder, cli.where_of(device), trace, as_json))
    try:
        read = read_candidate(file)
        problem = named(read.problem)
    except (CandidateError, ProblemError) as error:
        raise _fail(str(error)) from error
    where = cli.where_of(device)
    interpret = where == "cpu" and read.candidate.language == "triton"
    scope = FULL_GPU if where == "cuda" else INTERPRETER if interpret else CPU
    request = Request(scope, FULL if timing and where == "cuda" else None, static=static, promote=promote)
    with Judge(where, interpret=interpret, shelf=shelf_folder()) as court:
        verdict = court.verdict(read.candidate, problem, request)
    typer.echo(json.dumps(verdict.to_json(), indent=1) if as_json else _verdict_text(verdict))
    if certificate is not None and signer is not None:
        _certify(verdict, read.candidate, problem, signer, certificate)
    if verdict.status is Status.machine_fault:
        # not 1: nothing was found against the candidate, and a retry elsewhere may pass
        raise typer.Exit(3)
    raise typer.Exit(1 if verdict.refused else 0)


def _judge_solution(file: Path, folder: Path, where: str, trace: Path | None, as_json: bool) -> int:
    """Judge a solution for a definition of a folder: the exit code. C++ and CUDA are built first, within limits."""
    import tempfile

    import torch

    from nightshift.kernels.judge.judge import Judge, Request
    from nightshift.kernels.judge.probes.inputs import CPU, QUICK_GPU
    from nightshift.kernels.problem import ProblemError
    from nightshift.kernels.suites import extension
    from nightshift.kernels.suites.definitions import definitions_in, solution_of, workloads_of
    from nightshift.kernels.suites.serving import candidate_of, problem_of, trace_of

    with tempfile.TemporaryDirectory(prefix="built-") as built:
        Path(built).chmod(0o755)
        try:
            solution = solution_of(file)
            definition = definitions_in(folder)[0].get(solution.definition)
            if definition is None:
                raise ProblemError(f"{file}: definition: {folder} has no {solution.definition}")
            workloads = workloads_of(folder, definition)
            problem, made = problem_of(definition, workloads), None
            if solution.language == "cuda":
                arch = "{}{}a".format(*torch.cuda.get_device_capability()) if where == "cuda" else ""
                extension.make_headers(Path(built) / "headers")
                made = extension.build(solution.sources, Path(built) / "solution", Path(built) / "headers", arch)
            candidate = candidate_of(definition, solution, made)
        except ProblemError as error:
            raise _fail(str(error)) from error
        interpret = where == "cpu" and candidate.language == "triton"
        scope = QUICK_GPU if where == "cuda" else CPU
        with Judge(where, interpret=interpret, compiled=False, extensions=Path(built)) as court:
            verdict = court.verdict(candidate, problem, Request(scope, None, static=False))
    typer.echo(json.dumps(verdict.to_json(), indent=1) if as_json else _verdict_text(verdict))
    if trace is not None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entries = [trace_of(solution, workload, verdict, now) for workload in workloads]
        trace.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return 3 if str(verdict.status) == "machine_fault" else int(verdict.refused)


def _certifier(certificate: Path | None, key: Path | None) -> Signer | None:
    """Who signs the certificate. What is wrong with either option is said before minutes of judging."""
    if (certificate is None) != (key is None):
        raise _fail("--certificate and --key go together")
    if certificate is not None and (certificate.is_dir() or not os.access(certificate.parent, os.W_OK)):
        raise _fail(f"--certificate {certificate}: cannot be written there")
    return _signer(key) if key is not None else None


def _verdict_text(verdict: Any) -> str:
    lines = [
        f"{verdict.status}: {verdict.reason} — {verdict.detail}",
        f"stages: {', '.join(verdict.stages) or 'none'} ({verdict.took_s:.1f} s)",
    ]
    for c in verdict.comparisons:
        ratio = f"{c.speedup.point:.3f}x [{c.speedup.low:.3f}, {c.speedup.high:.3f}] tier {c.tier}"
        lines.append(f"  {c.case}: {c.candidate_s * 1e6:.1f} µs, {c.baseline} {c.baseline_s * 1e6:.1f} µs: {ratio}")
    lines += [f"  {x.case}: {x.baseline} not raced: {x.why.splitlines()[0]}" for x in verdict.left_out]
    lines += [f"  not checked: {gap}" for gap in verdict.not_checked]
    return "\n".join(lines)


def _certify(verdict: Any, candidate: Any, problem: Any, signer: Signer, path: Path) -> None:
    from nightshift.kernels.certification.certificate import issue
    from nightshift.kernels.certification.envelope import CertificateError

    try:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        envelope = issue(verdict, candidate, problem, signer, now, commit() or "unknown")
    except CertificateError as error:
        typer.echo(f"no certificate: {error}", err=True)
    else:
        path.write_text(json.dumps(envelope, indent=1) + "\n")
        typer.echo(f"certificate: {path}")


@app.command()
def deliver(
    certificates: Annotated[Path, typer.Argument(help="folder of certificates of serving kernels")],
    output: Annotated[Path, typer.Argument(help="folder to write")],
    folder: Annotated[Path, typer.Option(help="folder of definitions in FlashInfer-Bench's format")],
    key: Annotated[list[Path], typer.Option(help="trusted public key (repeatable)")],
) -> None:
    """Write certified serving kernels as a Hugging Face kernel repository, and as FlashInfer-Bench's solutions.

    A kernel that its baseline outran is not written: there the server's own way is better.
    """
    from nightshift.kernels.apply import hub
    from nightshift.kernels.certification.envelope import CertificateError
    from nightshift.kernels.problem import ProblemError
    from nightshift.kernels.suites.definitions import definitions_in

    paths = sorted(certificates.glob("*.json"))
    if not paths:
        raise _fail(f"{certificates}: holds no certificates")
    trusted, path = _trusted(key), certificates
    try:
        definitions, found = definitions_in(folder)[0], []
        for path in paths:
            found += hub.deliveries([json.loads(path.read_text())], trusted, definitions)
        for one in found:
            if one.slower:
                typer.echo(f"{one.definition.name}: not written, it is slower than its baseline")
        found = [one for one in found if not one.slower]
        path = output
        package = hub.write(output, found)
    except (CertificateError, ProblemError, OSError, ValueError) as error:
        raise _fail(f"{path}: {error}") from error
    typer.echo(f"{len(found)} kernels: {package}")


@app.command()
def verify(
    certificate: Annotated[Path, typer.Argument(help="certificate file")],
    key: Annotated[list[Path], typer.Option(help="trusted public key (repeatable)")],
    rerun: Annotated[bool, typer.Option(help="judge it again on this machine's GPU")] = False,
) -> None:
    """Check a certificate: signature, anchors, drift; on the hardware judge again. Exit code 0: valid; 4: stale."""
    from nightshift.kernels.certification.certificate import verify as check
    from nightshift.kernels.certification.envelope import CertificateError
    from nightshift.kernels.certification.evidence import certified_when
    from nightshift.kernels.judge.environment import environment
    from nightshift.kernels.ops.problems import named

    try:
        envelope: Any = json.loads(certificate.read_text())
    except (OSError, ValueError) as error:
        raise _fail(f"{certificate}: {error}") from error
    where = cli.where_of("auto")
    # on a machine without a GPU the rest can be checked; what cannot is named in the end
    here = environment(where) if where == "cuda" else None
    if rerun and here is None:
        raise _fail("--rerun needs the GPU; without it, signature, anchors and drift are checked")
    try:
        found = check(envelope, _trusted(key), named, here, _rerun if rerun else None)
    except CertificateError as error:
        typer.echo(f"BROKEN {certificate}: {error}", err=True)
        raise typer.Exit(1) from error
    for item in found.checks:
        typer.echo(f"{_WORDS[item.state]} {item.name}: {item.detail}")
    typer.echo(f"certified: {certified_when(found.predicate['issued_at'], time.time())}")
    for gap in found.predicate["verdict"].get("not_checked", ()):
        typer.echo(f"never checked: {gap}")
    if here is None:
        typer.echo("not checked here: environment drift and a re-run, which need the certified GPU")
    if not found.valid:
        raise typer.Exit(1)
    if found.stale:
        typer.echo("stale: certify again (nightshift kernels judge … --certificate)")
        raise typer.Exit(4)


def _rerun(candidate: Any, problem: Any, then: Mapping[str, Any]) -> Any:
    from nightshift.kernels.judge.judge import Judge, Request
    from nightshift.kernels.judge.probes.inputs import FULL_GPU
    from nightshift.kernels.judge.race.baselines import shelf_folder
    from nightshift.kernels.judge.race.contest import FULL

    with Judge("cuda", shelf=shelf_folder()) as court:
        # asked as the certificate was: fewer checks would confirm what they did not look at
        promoted = "sanitizer" in (then.get("stages") or ())
        pace = FULL if then.get("comparisons") else None
        return court.verdict(candidate, problem, Request(FULL_GPU, pace, promote=promoted))


if __name__ == "__main__":
    sys.exit(app())
