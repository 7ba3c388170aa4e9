"""`nightshift kernels optimize | profile | probe | report | replay | apply`: the loop on the command line."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from nightshift.collectors.base import Permanent
from nightshift.kernels.loop import progress_lines

RunFolder = Annotated[Path, typer.Argument(help="A run's folder")]
Device = Annotated[str, typer.Option(help="cuda, cpu or auto")]


def optimize(
    trace: Annotated[Path | None, typer.Option(help="torch.profiler trace (.json, .json.gz)")] = None,
    model: Annotated[str, typer.Option(help="FILE.py:CLASS, traced here first")] = "",
    problem: Annotated[str, typer.Option(help="Reference problem, or a problem file")] = "",
    kernelbench: Annotated[Path | None, typer.Option(help="Folder of KernelBench tasks")] = None,
    run: Annotated[Path, typer.Option(help="The run's folder; an existing run continues")] = Path(
        "artefacts/kernels/run"
    ),
    device: Device = "auto",
    case: Annotated[str, typer.Option(help="One case of the problem: 'float16 m=64 n=128'")] = "",
    peaks: Annotated[Path | None, typer.Option(help="Peaks of this GPU; without: probed now")] = None,
    most: Annotated[int, typer.Option(min=1, help="Most hotspots that are searched")] = 6,
    min_gain: Annotated[float, typer.Option(min=0, help="Least expected gain of the step")] = 0.005,
    trials: Annotated[int, typer.Option(min=1, help="Most trials of each search")] = 100,
    minutes: Annotated[float, typer.Option(min=0.01, help="Most minutes of each search")] = 15.0,
    key: Annotated[Path | None, typer.Option(help="Private key; without: one is made for the run")] = None,
    seed: Annotated[int, typer.Option(min=-(2**53), max=2**53, help="Seed of the search")] = 0,
    git: Annotated[bool, typer.Option("--git", help="Keep each search as git commits too")] = False,
    gpus: Annotated[int, typer.Option(min=0, help="Most GPUs of this machine; 0: all that are visible")] = 0,
    ray: Annotated[str, typer.Option(help="Address of a Ray cluster with GPUs to judge on, or 'local'")] = "",
    backward: Annotated[
        bool, typer.Option("--backward", help="Of --problem: its gradients too, if it has any")
    ] = False,
    for_jobs: Annotated[
        bool, typer.Option("--for-jobs", help="Of --problem: only what a job's file can hold")
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Also print ledger lines and certificates, for who reads the pod's log")
    ] = False,
    llm: Annotated[str, typer.Option(help="Chat model that writes kernels too: PROVIDER:MODEL")] = "",
    llm_url: Annotated[str, typer.Option(help="Base URL of an OpenAI-compatible server for --llm")] = "",
    llm_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of the model in each search")] = 400_000,
) -> None:
    """Optimize kernels: search, certify, and write the report and the file for the job."""
    if sum(map(bool, (trace, model, problem, kernelbench))) != 1:
        raise typer.BadParameter("name one of --trace, --model, --problem and --kernelbench")
    import torch

    from nightshift.kernels.apply.bundle import FILE, kernel_record, write_bundle
    from nightshift.kernels.certification.envelope import CertificateError
    from nightshift.kernels.judge.judge import Judge
    from nightshift.kernels.judge.race.baselines import shelf_folder
    from nightshift.kernels.loop import optimise as loop
    from nightshift.kernels.loop.executor import LocalExecutor
    from nightshift.kernels.loop.fan_out import Means, as_it_is, search_all
    from nightshift.kernels.loop.ledger import Provenance
    from nightshift.kernels.loop.report import write_report
    from nightshift.kernels.loop.run_folder import held, keep_question, peaks_of, question, signer_of, write_json
    from nightshift.kernels.loop.search import Budget, Ladder
    from nightshift.kernels.profile.hotspots import left_out
    from nightshift.kernels.profile.problem_file import keep_problem
    from nightshift.kernels.profile.roofline import PeaksError, probe
    from nightshift.kernels.suites.model_trace import MODEL_TRACE, trace_model
    from nightshift.kernels.suites.suite import from_suite

    where, one = where_of(device), _case(case)
    kinds = {"trace": trace, "model": model, "problem": problem, "kernelbench": kernelbench}
    kind, what = next((name, str(given)) for name, given in kinds.items() if given)
    asked = question(kind, what, case=case, device=where)
    with held(run, asked) as again:
        signer = signer_of(key, run)
        try:
            known = peaks_of(run, peaks, where, probe)
            if trace is not None or model:
                path = trace if trace is not None else run / MODEL_TRACE
                if model and not (again and path.exists()):  # taken up again, a run searches what it began with
                    trace_model(model, run, where)
                found, works, decisions = loop.from_trace(path, run, known, most, min_gain, seed)
                if where == "cuda" and not found.on_gpu:
                    raise Permanent(f"{path}: holds no GPU activity: record ProfilerActivity.CUDA as well")
                if known is None:
                    known = found.peaks
                write_json(run / "profile.json", _profile_json(found, decisions))
                for line in left_out(found):
                    typer.echo(line)
                for hotspot, why in decisions[:12]:
                    typer.echo(f"{hotspot.total_s * 1e3:8.3f} ms {hotspot.share:6.1%}  {hotspot.name}: {why}")
                if where == "cpu":
                    works = [_tiny(work) for work in works]
            elif problem:
                works = loop.from_problem(problem, known, one, seed, for_jobs, backward)
                if where == "cpu" and not case:
                    works = [_tiny(work) for work in works[:1]]
            else:
                works, missed = from_suite(Path(what))
                write_json(run / "coverage.json", {"covered": [work.slug for work in works], "missed": missed})
                typer.echo(f"{len(works)} of {len(works) + len(missed)} tasks can be generated by a kernel family")
                for name, why in missed.items():
                    typer.echo(f"  not {name}: {' '.join(why.split())}")
            for work in works:
                if work.source.endswith(".py"):
                    keep_problem(Path(work.source), run, work.slug)
        except (ValueError, PeaksError) as error:
            raise Permanent(str(error)) from error
        except OSError as error:
            if error.filename is None:
                raise  # a disk that is full
            raise Permanent(f"{error.filename}: {error.strerror}") from error
        if not works:
            typer.echo("nothing to search: no operation would gain enough, or none is known")
            write_report(run)
            raise typer.Exit(1)
        keep_question(run, asked)
        finish = partial(_with_model, run=run, model=llm, url=llm_url, tokens=llm_tokens) if llm else as_it_is
        budget, ladder = Budget(trials=trials, wall_s=minutes * 60.0), Ladder() if where == "cuda" else loop.ON_CPU
        count = min(gpus or len(works), torch.cuda.device_count(), len(works)) if where == "cuda" else 1
        count = 1 if ray or stream else count
        if count > 1:
            means = Means(
                run, signer.to_bytes(), _commit(), budget, ladder, known, seed, git, gpus=tuple(range(count)),
                shelf=shelf_folder(), finish=finish,
            )  # fmt: skip
            done = search_all(works, means, typer.echo)
        else:
            with ExitStack() as stack:
                spread = stack.enter_context(_ray(ray, where)) if ray else None
                judge = stack.enter_context(Judge(where, interpret=where == "cpu", shelf=shelf_folder()))
                provenance = Provenance(_commit(), judge.environment.gpu, judge.environment.container)
                executor = spread or LocalExecutor([judge], 8 if where == "cuda" else 1)
                loop_run = loop.Run(
                    run, executor, provenance, signer, budget, ladder, known, seed, tell=typer.echo, git=git,
                    stream=typer.echo if stream else (lambda _line: None),
                )  # fmt: skip
                done = loop_run.search([finish(work) for work in works])
        trusted = {signer.key_id: signer.public}
        certified = [item for item in done if item.certified is not None]
        records = []
        for item in certified:
            assert item.certified is not None
            try:
                records.append(kernel_record(json.loads(item.certified.read_text()), trusted))
            except CertificateError as error:
                typer.echo(f"not for jobs: {item.work.slug}: {error}")
        usable = [r for r in records if r["status"] == "faster" or (where == "cpu" and r["status"] == "correct")]
        usable = [r for r in usable if not str(r["problem"]).startswith("kernelbench/")]
        write_bundle(run / FILE, usable)
        written = write_report(run)
        told_of = f"{len(certified)} of {len(done)} certified; {len(usable)} in {run / FILE}"
        typer.echo(f"{told_of}; {written.markdown}, {written.page}")
    if stream:
        typer.echo(progress_lines.end("; ".join(f"{item.work.slug}: {item.why}" for item in done)))
    if not certified:
        raise typer.Exit(1)


def _ray(address: str, where: str) -> Any:
    from nightshift.kernels.loop.ray_executor import RayExecutor

    try:
        return RayExecutor(address, 0 if where == "cuda" else 1, where, where == "cpu")
    except (ImportError, ValueError, ConnectionError) as error:
        raise Permanent(f"--ray {address}: {error}") from error


def _with_model(work: Any, run: Path, model: str, url: str, tokens: int) -> Any:
    """The same work with a language model among its authors, who keeps account in the search's folder."""
    from dataclasses import replace

    from nightshift.kernels.generate.base import GeneratorError
    from nightshift.kernels.generate.llm import Allowance, LanguageModel, connect

    try:
        account = run / "tasks" / work.slug / "model.jsonl"
        author = LanguageModel(connect(model, url or None), allowance=Allowance(tokens=tokens), account=account)
    except GeneratorError as error:
        raise Permanent(f"--llm {model}: {error}") from error
    return replace(work, generators=(*work.generators, author))


def profile(
    trace: Annotated[Path, typer.Argument(help="torch.profiler trace (.json, .json.gz)")],
    peaks: Annotated[Path | None, typer.Option(help="Peaks of the GPU (nightshift kernels probe)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the whole profile as JSON")] = False,
) -> None:
    """Profile a step's time by operation and shape, with its roofline limit. Needs no GPU."""
    from nightshift.kernels.profile.hotspots import as_text
    from nightshift.kernels.profile.hotspots import profile as read_profile
    from nightshift.kernels.profile.roofline import Peaks, PeaksError

    try:
        known = Peaks.read(peaks) if peaks is not None else None
    except PeaksError as error:
        raise Permanent(str(error)) from error
    try:
        found = read_profile(trace, known)
    except OSError as error:
        raise Permanent(f"{trace}: {error.strerror}") from error
    if as_json:
        typer.echo(json.dumps(_profile_json(found, []), indent=1))
    else:
        typer.echo(as_text(found))


def probe_peaks(output: Annotated[Path, typer.Argument(help="File to write")], device: Device = "auto") -> None:
    """Measure this GPU's copy bandwidth and arithmetic rates, for rooflines."""
    from nightshift.kernels.loop.ledger import on_disk
    from nightshift.kernels.loop.run_folder import write_json
    from nightshift.kernels.profile.roofline import probe

    where = where_of(device)
    found = probe(where) if where == "cuda" else probe(where, 1 << 26, 512, 3)
    with on_disk(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(output, found.to_json())
    rates = ", ".join(f"{k} {v / 1e12:.1f} TFLOP/s" for k, v in found.flops_per_s.items())
    typer.echo(f"{found.bytes_per_s / 1e12:.2f} TB/s; {rates}")


def trace(
    host: Annotated[str, typer.Argument(help="Node with the dynolog daemon to query")],
    file: Annotated[str, typer.Argument(help="File that the job writes, on its node, e.g. /profiles/gpt.json")],
    job_id: Annotated[int, typer.Option(help="The job's id, as its processes have it (SLURM_JOB_ID)")] = 0,
    iterations: Annotated[int, typer.Option(min=1, help="Steps to record")] = 3,
    processes: Annotated[int, typer.Option(min=1, help="Most processes that record")] = 1,
    port: Annotated[int, typer.Option(help="The daemon's port")] = 1778,
) -> None:
    """Trace a running job with shapes, through dynolog. Its processes need KINETO_USE_DAEMON=1."""
    from pathlib import PurePosixPath

    from nightshift.collectors.training.dynolog import request_trace

    for name in request_trace(
        host, PurePosixPath(file), job_id=job_id, iterations=iterations, process_limit=processes, port=port
    ):
        typer.echo(name)


def report(run: RunFolder) -> None:
    """Write a run's report.md and report.html from its ledgers. Exit code 1: a ledger was changed; line and
    field."""
    from nightshift.kernels.loop.ledger import LedgerError
    from nightshift.kernels.loop.optimise import tasks_of
    from nightshift.kernels.loop.report import write_report

    if not any(tasks_of(run)) and not (run / "profile.json").exists():
        raise Permanent(f"{run}: no run's folder: it holds neither searches nor a profile")
    try:
        written = write_report(run)
    except (LedgerError, OSError) as error:
        raise Permanent(str(error)) from error
    typer.echo(f"{written.markdown}\n{written.page}")
    for finding in written.findings:
        typer.echo(finding, err=True)
    if written.findings:
        raise typer.Exit(1)


def replay(
    trial: Annotated[str, typer.Argument(help="SEARCH:NUMBER, or NUMBER where the run has one search")],
    run: Annotated[Path, typer.Option(help="The run's folder")] = Path("artefacts/kernels/run"),
    device: Device = "auto",
) -> None:
    """Judge one trial of a run again, with the same candidate, probes and seeds. Exit code 1: another verdict."""
    from nightshift.kernels.generate.base import Task, seconds_of
    from nightshift.kernels.judge.judge import Judge
    from nightshift.kernels.judge.race.baselines import shelf_folder
    from nightshift.kernels.loop.ledger import LedgerError, read_run
    from nightshift.kernels.loop.optimise import ON_CPU, OptimiseError, find_trial
    from nightshift.kernels.loop.search import Ladder
    from nightshift.kernels.loop.search import replay as judge_again
    from nightshift.kernels.ops.problems import named
    from nightshift.kernels.problem import Case, ProblemError
    from nightshift.kernels.profile.problem_file import load_problem, problem_path
    from nightshift.kernels.suites.kernelbench import load_task

    where = where_of(device)
    try:
        folder, number = find_trial(run, trial)
        _, lines = read_run(folder)
        line = next((line for line in lines if line.trial == number), None)
        if line is None:
            raise OptimiseError(f"{trial}: {folder} has {len(lines)} lines")
        written = problem_path(run, folder.name)
        if line.problem.startswith("kernelbench/"):
            problem = replace(load_task(written, (line.case["dtype"],)).problem, name=line.problem)
        elif written.exists():
            problem = load_problem(written)
        else:
            problem = named(line.problem)
        case = Case.of(line.case["dtype"], line.case["layout"], **line.case["params"])
        with Judge(where, interpret=where == "cpu", shelf=shelf_folder()) as judge:
            verdict = judge_again(judge, folder, line, Task(problem, case), Ladder() if where == "cuda" else ON_CPU)
    except (OptimiseError, LedgerError, ProblemError) as error:
        raise Permanent(str(error)) from error
    then, now = line.seconds * 1e6, seconds_of(verdict, case) * 1e6
    typer.echo(f"then {line.status} ({line.reason}) {then:.1f} µs on {line.gpu}")
    typer.echo(f"now  {verdict.status} ({verdict.reason}) {now:.1f} µs on {verdict.environment.get('gpu')}")
    same = verdict.status.value == line.status or {verdict.status.value, line.status} <= {
        "faster", "slower", "inconclusive",
    }  # fmt: skip
    raise typer.Exit(0 if same else 1)


# Shared --------------------------------------------------------------------------------------------------------


def where_of(word: str) -> str:
    import torch

    where = ("cuda" if torch.cuda.is_available() else "cpu") if word == "auto" else word
    if where not in ("cuda", "cpu"):
        raise typer.BadParameter(f"--device: {word!r} is none of cuda, cpu and auto")
    if where == "cuda" and not torch.cuda.is_available():
        raise Permanent("--device cuda: torch sees no GPU here")
    return where


def _case(text: str) -> Any:
    from nightshift.kernels.problem import Case

    if not text.strip():
        return None
    dtype, *sizes = text.split()
    named = dict(size.partition("=")[::2] for size in sizes)
    try:
        return Case.of(dtype, "contiguous", **{name: int(value) for name, value in named.items()})
    except ValueError as error:
        raise Permanent(f"--case {text!r}: {error}; example: 'float16 m=64 n=128'") from error


def _tiny(work: Any) -> Any:
    """The same search on a shape that Triton's interpreter can run: every size at most 48."""
    from dataclasses import replace

    from nightshift.kernels.ops.families import interprets
    from nightshift.kernels.problem import Case

    case = work.task.case
    small = Case.of(case.dtype, "contiguous", **{name: min(value, 48) for name, value in case.params})
    if "m" in small.sizes:
        small = small.with_(m=min(6, small["m"]))
    authors = tuple(g for g in work.generators if interprets(g.name))
    task = replace(work.task, case=small, problem=replace(work.task.problem, cases=(small,)))
    return replace(work, task=task, generators=authors)


def _commit() -> str:
    from nightshift.kernels.cli import _commit as commit

    return commit()


def _profile_json(found: Any, decisions: list[Any]) -> dict[str, Any]:
    why = {id(hotspot): reason for hotspot, reason in decisions}
    listed = [{**h.to_json(), "name": h.name, "total_s": h.total_s, "decision": why.get(id(h), h.why)}
              for h in found.hotspots]  # fmt: skip
    plain = {k: v for k, v in asdict(found).items() if k not in ("hotspots", "peaks")}
    return {**plain, "peaks": found.peaks.to_json(), "hotspots": listed}
