"""`nightshift kernels optimize | profile | probe | report | replay | apply`: the loop on the command line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from nightshift.collectors.base import Permanent
from nightshift.kernels.loop import progress_lines
from nightshift.version import commit

RunFolder = Annotated[Path, typer.Argument(help="A run's folder")]
Device = Annotated[str, typer.Option(help="cuda, cpu or auto")]
DEFAULT_RUN = Path("artefacts/kernels/run")

# Options of `optimize`, which has more of them than a signature can say at a glance
_Trace = Annotated[Path | None, typer.Option(help="torch.profiler trace (.json, .json.gz)")]
_Model = Annotated[str, typer.Option(help="FILE.py:CLASS, traced here first")]
_Problem = Annotated[str, typer.Option(help="Reference problem, or a problem file")]
_Suite = Annotated[Path | None, typer.Option(help="Folder of KernelBench tasks")]
_Run = Annotated[Path, typer.Option(help="The run's folder; an existing run continues")]
_Case = Annotated[str, typer.Option(help="One case of the problem: 'float16 m=64 n=128'")]
_Peaks = Annotated[Path | None, typer.Option(help="Peaks of this GPU; without: probed now")]
_Most = Annotated[int, typer.Option(min=1, help="Most hotspots that are searched")]
_MinGain = Annotated[float, typer.Option(min=0, help="Least expected gain of the step")]
_Trials = Annotated[int, typer.Option(min=1, help="Most trials of each search")]
_Minutes = Annotated[float, typer.Option(min=0.01, help="Most minutes of each search")]
_Key = Annotated[Path | None, typer.Option(help="Private key; without: one is made for the run")]
# canonical JSON (RFC 8785), by which a ledger is sealed, has no integers beyond 2^53
_Seed = Annotated[int, typer.Option(min=-(2**53), max=2**53, help="Seed of the search")]
_Git = Annotated[bool, typer.Option("--git", help="Keep each search as git commits too")]
_Gpus = Annotated[int, typer.Option(min=0, help="Most GPUs of this machine; 0: all that are visible")]
_Ray = Annotated[str, typer.Option(help="Address of a Ray cluster with GPUs to judge on, or 'local'")]
_Backward = Annotated[bool, typer.Option("--backward", help="Of --problem: its gradients too, if it has any")]
_ForJobs = Annotated[bool, typer.Option("--for-jobs", help="Of --problem: only what a job's file can hold")]
_Stream = Annotated[
    bool, typer.Option("--stream", help="Also print ledger lines and certificates, for who reads the pod's log")
]
_Llm = Annotated[str, typer.Option(help="Chat model that writes kernels too: PROVIDER:MODEL")]
_Policy = Annotated[Path | None, typer.Option(help="Checkpoint of a learned policy that writes kernels too")]
_LlmUrl = Annotated[str, typer.Option(help="Base URL of an OpenAI-compatible server for --llm")]
_LlmTokens = Annotated[int, typer.Option(min=1, help="Most tokens of the model in each search")]
_LlmUsd = Annotated[float, typer.Option(min=0, help="Most USD of the model in each search; 0: no limit")]
_LlmPrices = Annotated[
    tuple[float, float], typer.Option(help="USD of a million tokens sent, and of a million answered")
]
_LlmStrategy = Annotated[str, typer.Option(help="How its turns are chosen: serial, islands, planner")]


def optimize(
    trace: _Trace = None,
    model: _Model = "",
    problem: _Problem = "",
    kernelbench: _Suite = None,
    run: _Run = DEFAULT_RUN,
    device: Device = "auto",
    case: _Case = "",
    peaks: _Peaks = None,
    most: _Most = 6,
    min_gain: _MinGain = 0.005,
    trials: _Trials = 100,
    minutes: _Minutes = 15.0,
    key: _Key = None,
    seed: _Seed = 0,
    git: _Git = False,
    gpus: _Gpus = 0,
    ray: _Ray = "",
    backward: _Backward = False,
    for_jobs: _ForJobs = False,
    stream: _Stream = False,
    llm: _Llm = "",
    llm_url: _LlmUrl = "",
    llm_tokens: _LlmTokens = 400_000,
    llm_usd: _LlmUsd = 0.0,
    llm_prices: _LlmPrices = (0.0, 0.0),
    llm_strategy: _LlmStrategy = "serial",
    policy: _Policy = None,
) -> None:
    """Optimize kernels: search, certify, and write the report and the file for the job."""
    kind, what = _one_of(trace=trace, model=model, problem=problem, kernelbench=kernelbench)
    from nightshift.kernels.judge.race.baselines import shelf_folder
    from nightshift.kernels.loop.fan_out import Means, as_it_is
    from nightshift.kernels.loop.optimise import ON_CPU
    from nightshift.kernels.loop.report import write_report
    from nightshift.kernels.loop.run_folder import held, keep_question, peaks_of, question, signer_of
    from nightshift.kernels.loop.search import Ladder, SearchBudget
    from nightshift.kernels.profile.roofline import probe

    where = where_of(device)
    model_words = _ModelWords(llm, llm_url, llm_tokens, llm_usd, llm_prices, llm_strategy) if llm else None
    wanted = _Wanted(kind, what, run, where, _case(case), most, min_gain, seed, for_jobs, backward)
    asked = question(kind, what, case=case, device=where)
    with held(run, asked) as again:
        signer = signer_of(key, run)
        with _refusals():
            works, known = wanted.works(peaks_of(run, peaks, where, probe), again)
        if not works:
            write_report(run)
            typer.echo("nothing to search: no operation would gain enough, or none is known")
            raise typer.Exit(1)
        keep_question(run, asked)
        means = Means(
            run, signer.to_bytes(), commit() or "unknown", SearchBudget(trials=trials, wall_s=minutes * 60.0),
            Ladder() if where == "cuda" else ON_CPU, known, seed, git, where,
            tuple(range(_gpus_for(len(works), where, gpus, alone=bool(ray or stream)))), shelf=shelf_folder(),
            finish=partial(_with_authors, run=run, words=model_words, peaks=known, policy=policy)
            if llm or policy else as_it_is,
        )  # fmt: skip
        done = _search(works, means, ray, stream, _Telling(run, signer, where))
        certified = _write(done, run, signer, where)
    if stream:
        typer.echo(progress_lines.end("; ".join(f"{item.work.slug}: {item.why}" for item in done)))
    if not certified:
        raise typer.Exit(1)


def _one_of(**options: Path | str | None) -> tuple[str, str]:
    """(name, value) of the one option that is given. Raises BadParameter where it is none, or several."""
    named = [(name, str(given)) for name, given in options.items() if given]
    if len(named) != 1:
        *others, last = (f"--{name}" for name in options)
        raise typer.BadParameter(f"name one of {', '.join(others)} and {last}")
    return named[0]


@dataclass(frozen=True)
class _Wanted:
    """What to search, as the options of `optimize` name it."""

    kind: str
    what: str
    run: Path
    where: str
    case: Any
    most: int
    min_gain: float
    seed: int
    for_jobs: bool
    backward: bool

    def works(self, peaks: Any, continues: bool) -> tuple[list[Any], Any]:
        """(works, the GPU's peaks): those that are known, else what a trace shows. continues: the run continues."""
        from nightshift.kernels.loop.optimise import from_problem
        from nightshift.kernels.profile.problem_file import keep_problem

        match self.kind:
            case "problem":
                works = from_problem(self.what, peaks, self.case, self.seed, self.for_jobs, self.backward)
                if self.where == "cpu" and self.case is None:
                    works = [_tiny(work) for work in works[:1]]
            case "kernelbench":
                works = self._of_suite()
            case _:
                works, peaks = self._of_trace(peaks, continues)
        for work in works:
            # `replay` judges with the problem as it was searched, whatever the user does to the file
            if work.source.endswith(".py"):
                keep_problem(Path(work.source), self.run, work.slug)
        return works, peaks

    def _of_trace(self, peaks: Any, continues: bool) -> tuple[list[Any], Any]:
        from nightshift.kernels.apply.job.problems import SPECS, UNTRAINED
        from nightshift.kernels.loop.optimise import from_trace
        from nightshift.kernels.loop.run_folder import write_json
        from nightshift.kernels.profile.hotspots import first, left_out
        from nightshift.kernels.suites.model_trace import MODEL_TRACE, trace_model

        path = Path(self.what) if self.kind == "trace" else self.run / MODEL_TRACE
        # a run that continues searches what it began with: another trace has other times, and so other hotspots
        if self.kind == "model" and not (continues and path.exists()):
            trace_model(self.what, self.run, self.where)
        # what a job's file would never use is not searched: a search is minutes of a GPU
        found, works, decisions = from_trace(
            path, self.run, peaks, self.most, self.min_gain, self.seed, frozenset(SPECS), UNTRAINED
        )
        if self.where == "cuda" and not found.on_gpu:
            raise Permanent(f"{path}: holds no GPU activity: record ProfilerActivity.CUDA as well")
        write_json(self.run / "profile.json", _profile_json(found, decisions))
        for line in (*first(found), *left_out(found)):
            typer.echo(line)
        for hotspot, why in decisions[:12]:
            typer.echo(f"{hotspot.total_s * 1e3:8.3f} ms {hotspot.share:6.1%}  {hotspot.name}: {why}")
        works = [_tiny(work) for work in works] if self.where == "cpu" else works
        return works, found.peaks if peaks is None else peaks

    def _of_suite(self) -> list[Any]:
        from nightshift.kernels.loop.run_folder import write_json
        from nightshift.kernels.suites.suite import from_suite

        works, missed = from_suite(Path(self.what))
        write_json(self.run / "coverage.json", {"covered": [work.slug for work in works], "missed": missed})
        typer.echo(f"{len(works)} of {len(works) + len(missed)} tasks have an author")
        for name, why in missed.items():
            typer.echo(f"  not {name}: {' '.join(why.split())}")
        return works


@contextmanager
def _refusals() -> Iterator[None]:
    """What a user's file or question lacks, as Permanent."""
    from nightshift.kernels.profile.roofline import PeaksError

    try:
        yield
    except (ValueError, PeaksError) as error:
        raise Permanent(str(error)) from error
    except OSError as error:
        if error.filename is None:
            raise  # a disk that is full
        raise Permanent(f"{error.filename}: {error.strerror}") from error


def _gpus_for(works: int, where: str, most: int, alone: bool) -> int:
    """How many processes search, each on a GPU. alone: one, in this process: Ray spreads candidates by itself, and
    a stream is one pod's log."""
    import torch

    return 1 if alone or where != "cuda" else min(most or works, torch.cuda.device_count(), works)


def _search(works: list[Any], means: Any, ray: str, stream: bool, tell: Callable[[str], None]) -> list[Any]:
    from nightshift.kernels.judge.judge import Judge
    from nightshift.kernels.loop.executor import LocalExecutor
    from nightshift.kernels.loop.fan_out import run_of, search_all

    if len(means.gpus) > 1:
        return search_all(works, means, tell)
    with ExitStack() as stack:
        spread = stack.enter_context(_ray(ray, means.device)) if ray else None
        # beside Ray's judges too: it says what machine this is
        judge = stack.enter_context(Judge(means.device, interpret=means.device == "cpu", shelf=means.shelf))
        executor = spread or LocalExecutor([judge], means.threads if means.device == "cuda" else 1)
        made = run_of(means, executor, judge, tell)
        if stream:
            made.stream = typer.echo
        return made.search([means.finish(work) for work in works])


class _Telling:
    """Prints progress; after every new certificate the job's file is written, so that a run that is ended leaves
    what it has found."""

    def __init__(self, run: Path, signer: Any, where: str) -> None:
        self._run, self._signer, self._where = run, signer, where
        self._certificates = 0

    def __call__(self, text: str) -> None:
        typer.echo(text)
        count = len(_certificates(self._run))
        if count > self._certificates:
            self._certificates = count
            _write_file(self._run, self._signer, self._where, lambda _: None)


def _certificates(run: Path) -> list[Path]:
    return sorted((run / "tasks").glob("*/certificate.json"))


def _write_file(run: Path, signer: Any, where: str, tell: Callable[[str], None]) -> int:
    """Writes the job's file of the run's certificates; how many kernels it holds."""
    from nightshift.kernels.apply.bundle import FILE, fits_job, kernel_record, write_bundle
    from nightshift.kernels.certification.envelope import CertificateError

    records = []
    for path in _certificates(run):
        try:
            records.append(kernel_record(json.loads(path.read_text()), {signer.key_id: signer.public}))
        except (CertificateError, ValueError) as error:
            tell(f"not for jobs: {path.parent.name}: {error}")
    usable = [record for record in records if fits_job(record, where == "cpu")]
    write_bundle(run / FILE, usable)
    return len(usable)


def _write(done: list[Any], run: Path, signer: Any, where: str) -> int:
    """The job's file and the report; how many works were certified."""
    from nightshift.kernels.apply.bundle import FILE
    from nightshift.kernels.loop.report import write_report

    certified = [item for item in done if item.certified is not None]
    usable = _write_file(run, signer, where, typer.echo)
    written = write_report(run)
    told_of = f"{len(certified)} of {len(done)} certified; {usable} in {run / FILE}"
    typer.echo(f"{told_of}; {written.markdown}, {written.page}")
    if not usable:
        typer.echo("The file holds no kernel. A job that uses torch.compile still gains what its passes change.")
    return len(certified)


def _ray(address: str, where: str) -> Any:
    from nightshift.kernels.loop.ray_executor import RayExecutor

    try:
        return RayExecutor(address, 0 if where == "cuda" else 1, where, where == "cpu")
    except (ImportError, ValueError, ConnectionError) as error:
        raise Permanent(f"--ray {address}: {error}") from error


@dataclass(frozen=True)
class _ModelWords:
    """The options of a language model, which another process reads too. Raises Permanent."""

    model: str
    url: str
    tokens: int
    usd: float
    prices: tuple[float, float]
    strategy: str

    def __post_init__(self) -> None:
        from nightshift.kernels.generate.strategies import STRATEGIES

        if self.strategy not in STRATEGIES:
            raise Permanent(f"--llm-strategy: {self.strategy!r} is none of {', '.join(STRATEGIES)}")
        if self.usd and not max(self.prices) > 0:
            raise Permanent("--llm-usd: without --llm-prices nothing is known of what a token costs")
        if min(self.prices) < 0:
            raise Permanent(f"--llm-prices: {min(self.prices):g} is no price")

    def author(self, account: Path, peaks: Any) -> Any:
        from nightshift.kernels.generate.llm import LanguageModel, connect
        from nightshift.kernels.generate.strategies import AuthorAllowance

        allowance = AuthorAllowance(tokens=self.tokens, usd=self.usd or math.inf)
        chat = connect(self.model, self.url or None, prices=self.prices)
        return LanguageModel(chat, allowance=allowance, account=account, strategy=self.strategy, peaks=peaks)


def _with_authors(work: Any, run: Path, words: _ModelWords | None, peaks: Any, policy: Path | None) -> Any:
    """The same work with a language model among its authors, who keeps account in the search's folder, or a learned
    policy."""
    from nightshift.kernels.generate.base import GeneratorError

    more: list[Any] = []
    try:
        if words is not None:
            more.append(words.author(run / "tasks" / work.slug / "model.jsonl", peaks))
        if policy is not None:
            from nightshift.kernels.generate.policy import author_of

            more.append(author_of(policy, work.task, [a.family for a in work.generators if hasattr(a, "family")]))
    except GeneratorError as error:
        if words is not None and not more:
            raise Permanent(f"--llm {words.model}: {error}") from error
        raise Permanent(f"--policy: {error}") from error
    return replace(work, generators=(*work.generators, *more))


def profile(
    trace: Annotated[Path, typer.Argument(help="torch.profiler trace (.json, .json.gz)")],
    peaks: Annotated[Path | None, typer.Option(help="Peaks of the GPU (nightshift kernels probe)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the whole profile as JSON")] = False,
    model: Annotated[
        Path | None, typer.Option(help="config.json of the model: profile a server, prefill and decode apart")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="definitions of serving, to name each place by")] = None,
    delivered: Annotated[Path | None, typer.Option(help="kernels that `kernels deliver` wrote")] = None,
    batch: Annotated[int, typer.Option(min=0, help="sequences of a pass, where the trace does not say")] = 0,
    ranks: Annotated[int, typer.Option(min=1, help="GPUs that share each layer")] = 1,
) -> None:
    """Profile a step's time by operation and shape, with its roofline limit. Needs no GPU."""
    from nightshift.kernels.profile.hotspots import as_text
    from nightshift.kernels.profile.hotspots import profile as read_profile
    from nightshift.kernels.profile.roofline import Peaks, PeaksError

    try:
        known = Peaks.read(peaks) if peaks is not None else None
    except PeaksError as error:
        raise Permanent(str(error)) from error
    if model is None and (folder or delivered or batch or ranks > 1):
        raise typer.BadParameter("--folder, --delivered, --batch and --ranks are of a server: give --model, too")
    if model is not None:
        _profile_server(trace, model, known, as_json, _served(folder, delivered), batch, ranks)
        return
    try:
        found = read_profile(trace, known)
    except OSError as error:
        raise Permanent(f"{trace}: {error.strerror}") from error
    if as_json:
        typer.echo(json.dumps(_profile_json(found, []), indent=1))
    else:
        typer.echo(as_text(found))


def _served(folder: Path | None, delivered: Path | None) -> dict[str, str]:
    """Definitions by name, and what there is of each: a certified kernel, or nothing."""
    names = (
        dict.fromkeys(sorted(path.stem for path in (folder / "definitions").rglob("*.json")), "") if folder else {}
    )
    for listed in delivered.glob("build/*/kernels.json") if delivered else ():
        names |= dict.fromkeys(json.loads(listed.read_text(encoding="utf-8")), "certified kernel delivered")
    if (folder or delivered) and not names:
        raise Permanent(f"{folder or delivered}: neither definitions nor delivered kernels")
    return names


def _profile_server(
    trace: Path, model: Path, peaks: Any, as_json: bool, known: Mapping[str, str], batch: int, ranks: int
) -> None:
    from nightshift.collectors.training.kineto_reader import read_trace
    from nightshift.kernels.profile.server import ModelShape, as_text, server_profile, to_json

    try:
        found = server_profile(read_trace(trace), ModelShape.read(model, ranks), peaks, batch)
    except OSError as error:
        raise Permanent(f"{trace}: {error.strerror}") from error
    typer.echo(json.dumps(to_json(found), indent=1) if as_json else as_text(found, known))


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

    # a report would be written into any folder, and say that nothing was searched
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
    run: Annotated[Path, typer.Option(help="The run's folder")] = DEFAULT_RUN,
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
        # the run's own copy: the user's file, or the reference problem, may have changed since
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
    # times vary from race to race: whether it is fit must come out the same, how fast need not
    same = verdict.status.value == line.status or {verdict.status.value, line.status} <= {
        "faster", "slower", "inconclusive",
    }  # fmt: skip
    raise typer.Exit(0 if same else 1)


# Shared --------------------------------------------------------------------------------------------------------


def serve(
    problem: Annotated[
        list[Path] | None, typer.Option(help="Problem file to offer beside ours (repeatable)")
    ] = None,
    device: Device = "auto",
) -> None:
    """Serve the judge's tools to an agent by MCP, over stdin and stdout: generate, compile, verify, benchmark."""
    from nightshift.kernels.judge.race.baselines import shelf_folder

    try:
        from nightshift.kernels.loop.tool_server import KernelTools
    except ModuleNotFoundError as error:
        raise Permanent(f"{error}: pip install 'nightshift-oncall[mcp]'") from error
    with _refusals():
        tools = KernelTools(where_of(device), problem or (), shelf_folder())
    try:
        tools.server().run("stdio")
    finally:
        tools.close()


def where_of(device: str) -> str:
    import torch

    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if where not in ("cuda", "cpu"):
        raise typer.BadParameter(f"--device: {device!r} is none of cuda, cpu and auto")
    # said here: deep in a search it would be a traceback of torch's
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
    from nightshift.kernels.ops.families import interprets
    from nightshift.kernels.problem import Case

    case = work.task.case
    small = Case.of(case.dtype, "contiguous", **{name: min(value, 48) for name, value in case.params})
    if "m" in small.sizes:
        small = small.with_(m=min(6, small["m"]))
    # CUDA C++ and Gluon have no interpreter
    authors = tuple(g for g in work.generators if interprets(g.name))
    task = replace(work.task, case=small, problem=replace(work.task.problem, cases=(small,)))
    return replace(work, task=task, generators=authors)


def _profile_json(found: Any, decisions: list[Any]) -> dict[str, Any]:
    why = {id(hotspot): reason for hotspot, reason in decisions}
    listed = [{**h.to_json(), "name": h.name, "total_s": h.total_s, "decision": why.get(id(h), h.why)}
              for h in found.hotspots]  # fmt: skip
    plain = {k: v for k, v in asdict(found).items() if k not in ("hotspots", "peaks")}
    return {**plain, "peaks": found.peaks.to_json(), "hotspots": listed}
