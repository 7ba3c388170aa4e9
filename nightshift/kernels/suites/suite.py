"""Works of a suite in KernelBench's format: the tasks that a family of ours computes, found by numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nightshift.collectors.seal import sha256_hex
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate.base import Outcome, Proposal, Spent, Task
from nightshift.kernels.generate.known import templates
from nightshift.kernels.generate.template import Family
from nightshift.kernels.loop.optimise import OptimiseError, Work, slug_of
from nightshift.kernels.ops.families import families_of
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import ProblemError
from nightshift.kernels.suites.argument_binding import Binding, bind
from nightshift.kernels.suites.kernelbench import Task as SuiteTask
from nightshift.kernels.suites.kernelbench import load_task, names_of


def from_suite(folder: Path, dtypes: tuple[str, ...] = ("float32",)) -> tuple[list[Work], dict[str, str]]:
    """(works, why not others) of a folder in KernelBench's format. A file that is no task is one of the others."""
    works: dict[str, Work] = {}
    missed: dict[str, str] = {}
    for name in names_of(folder):
        try:
            task = load_task(folder / name, dtypes)
            binding = binding_of(task)
        except ProblemError as error:
            missed[name] = str(error)
            continue
        if binding is None:
            missed[name] = "computes nothing that a family of ours does"
        elif not python_families(binding.problem):
            missed[name] = f"no family writes {binding.problem}"
        else:
            made = _suite_work(task, binding, f"suite {folder.name}/{name}", str(folder / name))
            slug = slug_of(name)
            slug = f"{slug[:70]}-{sha256_hex(name.encode())[:8]}" if slug in works else slug
            works[slug] = replace(made, slug=slug)
    return list(works.values()), missed


def task_again(path: Path, dtype: str, origin: str) -> Work:
    """One task's work, for another process. Raises OptimiseError where no family computes it."""
    task = load_task(path, (dtype,))
    binding = binding_of(task)
    if binding is None:
        raise OptimiseError(f"{path}: computes nothing that a family of ours does")
    return _suite_work(task, binding, origin, str(path))


def _suite_work(task: SuiteTask, binding: Binding, origin: str, path: str) -> Work:
    wanted = Task(task.problem, task.problem.cases[0])
    return Work(slug_of(Path(path).name), wanted, (SuiteAuthor(task, binding),), origin, path)


def binding_of(task: SuiteTask) -> Binding | None:
    """Which of our problems a KernelBench task is, by numbers (`kernels.suites.argument_binding`)."""
    sample = task.problem.inputs(task.problem.cases[0], "normal", 1, "cpu")
    return bind(task.problem.reference, sample)


@dataclass
class SuiteAuthor:
    """A family's kernels behind a KernelBench task's arguments."""

    suite: SuiteTask
    binding: Binding
    seed: int = 0

    @property
    def name(self) -> str:
        return python_families(self.binding.problem)[0].name

    def spent(self) -> Spent:
        return Spent()

    def propose(self, task: Task, history: Sequence[Outcome], count: int) -> Sequence[Proposal]:
        inner = Task(named(self.binding.problem), self.binding.case(task.case.dtype))
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        made = templates(gpu, inner.problem.name, inner.case, self.seed)
        template = next(t for t in made if t.family.name == self.name)
        return [replace(p, candidate=self._wrapped(p.candidate)) for p in template.propose(inner, history, count)]

    def _wrapped(self, inner: Candidate) -> Candidate:
        text = self.binding.call.replace("entry(", f"{inner.entry}(")
        # a family's kernel was written for rows that lie side by side; a task's arguments may lie anyhow
        laid = "a = [x.contiguous() if hasattr(x, 'contiguous') else x for x in a]"
        glue = f"\n\ndef nightshift_task(*a):\n    {laid}\n    return {text}\n"
        return Candidate(
            inner.source + glue, "nightshift_task", inner.language, inner.kind, inner.determinism, inner.mutates
        )


def python_families(problem: str) -> list[Family]:
    """Families whose kernels a Python entry calls: those that can stand behind a task or in a job's file."""
    return [family for family in families_of(problem) if not family.name.endswith("_cuda")]
