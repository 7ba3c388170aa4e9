"""A hot operation as a problem file that stands alone: the reference, the inputs as they were seen, the exactness.

The file is the reference problem's own source with the observed shapes, dtype and layouts put in their places, so
that everything which a judge will hold a candidate to is in one text that a person can read and keep. It imports
torch, `kernels.draw`, `kernels.problem` and `kernels.exact_inputs`, nothing else of Nightshift.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

from nightshift.collectors.seal import sha256_hex
from nightshift.kernels.loop.ledger import write_whole
from nightshift.kernels.ops.problems import BY_NAME
from nightshift.kernels.problem import DTYPES, Case, Problem, ProblemError
from nightshift.kernels.profile.hotspots import Hotspot, timed_sizes


def case_of(hotspot: Hotspot) -> Case:
    """The hotspot's case. Raises ProblemError where it is of no problem, or of a dtype or shape that it has not."""
    if not hotspot.problem:
        raise ProblemError(f"{hotspot.operators}: {hotspot.why or 'no family of ours computes it'}")
    problem = BY_NAME[hotspot.problem]
    case = Case.of(hotspot.dtype, "contiguous", **timed_sizes(hotspot))
    if why := problem.outside(case):
        raise ProblemError(f"{hotspot.name}: {why}")
    return case


def write_problem(hotspots: Sequence[Hotspot], path: Path, source: str = "") -> Problem:
    """Writes the problem of hotspots of one operation, each a shape, and loads it. `source`: where it was seen."""
    names = {hotspot.problem for hotspot in hotspots}
    if len(names) != 1:
        raise ProblemError(f"a problem file is of one problem, not of {sorted(names) or 'none'}")
    base = BY_NAME[hotspots[0].problem]
    module = inspect.getmodule(base.reference)
    if module is None:
        raise ProblemError(f"{base.name}: its source cannot be read")
    text = inspect.getsource(module)
    constant = next(name for name, value in vars(module).items() if value is base)
    cases = list(dict.fromkeys(case_of(hotspot) for hotspot in hotspots))
    layouts = [name for name in base.layouts if name == "contiguous" or name in {h.layout for h in hotspots}]
    lines = [
        "",
        "",
        f"# Seen in {source}" if source else "# Seen in a trace",
        *(
            line
            for h in hotspots
            for line in (
                f"# {h.name} ({h.layout}): {h.calls_per_step:g} calls, {h.total_s * 1e3:.3f} ms a step",
                f"#   {h.operators}",
            )
        ),
        "SEEN_LAYOUTS = " + repr(tuple(layouts)),
        "PROBLEM = dataclasses.replace(",
        f"    {constant},",
        "    cases=(",
        *(f"        {_case(case)}," for case in cases),
        "    ),",
        "    layouts=tuple(dict.fromkeys((*SEEN_LAYOUTS, *" + constant + ".layouts))),",
        ")",
    ]
    head, future, rest = text.partition("from __future__ import annotations\n")
    body = head + future + "\nimport dataclasses\n" + rest + "\n".join(lines) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, body)
    return load_problem(path)


def problem_path(run: Path, slug: str) -> Path:
    """Where a search's problem file lies in a run's folder: `replay` reads it there."""
    return run / "problems" / f"{slug}.py"


def keep_problem(source: Path, run: Path, slug: str) -> None:
    """Puts the problem file that a search was made of into the run's folder.

    Raises ProblemError where another one lies there: what was searched so far was another problem.
    """
    path = problem_path(run, slug)
    if path == source:
        return
    text = source.read_bytes()
    if path.exists() and path.read_bytes() != text:
        raise ProblemError(f"{source}: not what this run has searched so far ({path}); take another --run")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)


def load_problem(path: Path) -> Problem:
    """The `PROBLEM` of a problem file. The file is run: load only files that you trust. Raises ProblemError."""
    name = f"nightshift_problem_{sha256_hex(str(path.resolve()).encode())[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not path.is_file():
        raise ProblemError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the reference's source is read for the certificate
    try:
        # not by the loader: its bytecode is known by time and size, and a file written twice in a second has both
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise ProblemError(f"{path}: does not load: {type(error).__name__}: {error}") from error
    problem = getattr(module, "PROBLEM", None)
    if not isinstance(problem, Problem):
        raise ProblemError(f"{path}: defines no PROBLEM")
    if not problem.cases or any(case.dtype not in DTYPES for case in problem.cases):
        raise ProblemError(f"{path}: PROBLEM has no usable case")
    return problem


def _case(case: Case) -> str:
    return f"Case.of({case.dtype!r}, {', '.join(f'{k}={v}' for k, v in case.params)})"
