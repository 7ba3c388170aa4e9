"""`nightshift kernels serve`: the judge as tools of the Model Context Protocol, for an agent that writes kernels.

It runs where the GPU is and speaks over stdin and stdout, so that who may start it decides who may use it. A
candidate's text is all that it takes: it goes to the judge's sandbox, as any author's. Problems come from ours and
from the files that were named at its start, since a problem file is run as it is.
Protocol and SDK: modelcontextprotocol.io/specification, github.com/modelcontextprotocol/python-sdk (1.x).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from anyio.to_thread import run_sync
from mcp.server.fastmcp import FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from pydantic import Field

from nightshift.kernels.candidate import CandidateError
from nightshift.kernels.candidate_file import CandidateFile, candidate_text, parse_candidate
from nightshift.kernels.generate.base import GeneratorError, Task
from nightshift.kernels.generate.llm import RULES
from nightshift.kernels.generate.request import gathered, text_of
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import FULL_GPU, INTERPRETER
from nightshift.kernels.judge.race.contest import FULL
from nightshift.kernels.judge.verdict import Refusal, Verdict
from nightshift.kernels.loop.optimise import OptimiseError, work_of
from nightshift.kernels.loop.verdict_figures import figures
from nightshift.kernels.ops.problems import BY_NAME
from nightshift.kernels.problem import Problem
from nightshift.kernels.profile.problem_file import load_problem
from nightshift.kernels.profile.roofline import probe

_INSTRUCTIONS = """Write GPU kernels and have them judged. `problem` says what is to be computed and by which rules.
`generate` gives kernels to start from; `compile` is quick, `verify` decides whether a kernel is right, `benchmark`
also races it against eager torch, torch.compile and libraries. Nothing that a kernel says of itself counts."""
_KEPT = 64
Source = Annotated[
    str, Field(description="A candidate file: its first comment lines declare it", max_length=200_000)
]
ProblemName = Annotated[str, Field(description="As `problems` lists it", max_length=200)]


class KernelTools:
    """One method per tool. Verdicts are kept by the candidate's SHA-256, the last 64 of them.

    files: problem files that may be named, by their problem's name. Raises ProblemError where one does not load.
    """

    def __init__(self, device: str, files: Sequence[Path] = (), shelf: Path | None = None) -> None:
        self._device, self._shelf = device, shelf
        self._problems = {**BY_NAME, **{problem.name: problem for problem in map(load_problem, files)}}
        self._judges: dict[bool, Judge] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._lock = threading.Lock()
        self._peaks = probe(device) if device == "cuda" else None  # before anything is raced

    def close(self) -> None:
        for judge in self._judges.values():
            judge.__exit__()

    def server(self) -> FastMCP[None]:
        made: FastMCP[None] = FastMCP("nightshift-kernels", instructions=_INSTRUCTIONS, log_level="WARNING")
        for tool in (
            self.problems, self.problem, self.generate, self.compile, self.verify, self.benchmark, self.report,
        ):  # fmt: skip
            made.add_tool(tool, structured_output=False)
        return made

    # Reading ----------------------------------------------------------------------------------------------------

    def problems(self) -> str:
        """List the operations that kernels are judged for, with their timed cases."""
        rows = [{"name": p.name, "cases": [str(case) for case in p.cases]} for p in self._problems.values()]
        return json.dumps(rows)

    def problem(self, name: ProblemName, case: str = "") -> str:
        """Read one operation: reference, inputs, hardware, what torch.compile makes of it, rules, playbook.
        case: one of its timed cases; empty: the first."""
        task = self._task(name, case)
        return f"{text_of(gathered(task, self._peaks))}\n\n{RULES}"

    def report(self, sha256: Annotated[str, Field(max_length=64)]) -> str:
        """Report what was found about a candidate: errors, times, GB/s, memory, and what was not checked."""
        if sha256 not in self._verdicts:
            raise ToolError(f"no candidate {sha256} was judged here: verify or benchmark it")
        return json.dumps(figures(self._verdicts[sha256].to_json()))

    # Working ----------------------------------------------------------------------------------------------------

    def generate(
        self,
        name: ProblemName,
        case: str = "",
        count: Annotated[int, Field(ge=1, le=8)] = 2,
        seed: Annotated[int, Field(ge=0, le=2**31)] = 0,
    ) -> str:
        """Generate candidate files by the authors that need no model. Other seeds give other ones."""
        task = self._task(name, case)
        problem = self._problems[name]
        try:
            authors = work_of(problem, task.case, "an agent", None, seed).generators
            made = [proposal for author in authors for proposal in author.propose(task, (), count)]
        except (GeneratorError, OptimiseError) as error:
            raise ToolError(str(error)) from error
        rows = [
            {"author": one.generator, "idea": one.hypothesis, "source": candidate_text(one.candidate, name)}
            for one in made[:count]
        ]
        return json.dumps(rows)

    async def compile(self, source: Source) -> str:
        """Compile a candidate and call it once. Says what stopped it; nothing is examined."""
        return await run_sync(self._compiled, source)

    def _compiled(self, source: str) -> str:
        read, problem = self._read(source)
        try:
            with self._lock:
                self._judge(read).compiles(read.candidate, problem)
        except Refusal as refusal:
            return json.dumps({"compiles": False, "reason": refusal.reason, "detail": refusal.detail})
        return json.dumps({"compiles": True})

    async def verify(self, source: Source) -> str:
        """Verify that a candidate is right, on the whole plan of probes. Takes minutes; it is not timed."""
        return await run_sync(self._judged, source, False)

    async def benchmark(self, source: Source) -> str:
        """Verify a candidate, then race it against its baselines. Needs a GPU."""
        if self._device != "cuda":
            raise ToolError("this machine has no GPU: times would mean nothing; verify it instead")
        return await run_sync(self._judged, source, True)

    def _judged(self, source: str, timed: bool) -> str:
        read, problem = self._read(source)
        scope = FULL_GPU if self._device == "cuda" else INTERPRETER
        with self._lock:
            verdict = self._judge(read).verdict(read.candidate, problem, Request(scope, FULL if timed else None))
            self._verdicts[verdict.candidate_sha256] = verdict
            while len(self._verdicts) > _KEPT:
                del self._verdicts[next(iter(self._verdicts))]
        return json.dumps(figures(verdict.to_json()))

    def _read(self, source: str) -> tuple[CandidateFile, Problem]:
        try:
            read = parse_candidate(source)
        except CandidateError as error:
            raise ToolError(str(error)) from error
        return read, self._named(read.problem)

    def _named(self, name: str) -> Problem:
        if name not in self._problems:
            raise ToolError(f"problem: {name!r} is none of {', '.join(sorted(self._problems))}")
        return self._problems[name]

    def _task(self, name: str, case: str) -> Task:
        problem = self._named(name)
        found = {str(one): one for one in problem.cases}
        if case and case not in found:
            raise ToolError(f"case: {case!r} is none of {name}'s: {'; '.join(found)}")
        return Task(problem, found[case] if case else problem.cases[0])

    def _judge(self, read: CandidateFile) -> Judge:
        """One for all candidates; on a machine without a GPU another one for what Triton's interpreter runs."""
        interpret = self._device == "cpu" and read.candidate.language == "triton"
        if interpret not in self._judges:
            self._judges[interpret] = Judge(self._device, interpret=interpret, shelf=self._shelf).__enter__()
        return self._judges[interpret]
