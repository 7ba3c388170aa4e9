"""Our kernels beside those of others, in one race: Triton's tutorials, FlexAttention and CUTLASS.

    python -m benchmarks.kernels_peers TRITON [--seconds 240] [--out FILE]
    python -m benchmarks.kernels_peers TRITON --tiny --out FILE     # a CPU: every part, no times

TRITON is a checkout of Triton, at the installed version. Its tutorials are read from there; none of them is kept.
CUTLASS is raced where its Operator API is installed (`pip install nvidia-cutlass-operators`).
For each timed case the best known configuration gets a verdict of the judge (correctness, then the race), and the
peers stand beside eager, torch.compile and the libraries that the problem names. A peer that does not run, or that
computes something else, is in the row with the reason. Writes benchmarks/results/kernels_peers.json, row by row.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels_close import Choice, written
from benchmarks.kernels_table import choices_of
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import INTERPRETER, QUICK_GPU
from nightshift.kernels.judge.race.contest import FULL
from nightshift.kernels.loop.optimise import TINY
from nightshift.kernels.ops.families import interprets
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case, Problem
from nightshift.version import commit

OUT = Path(__file__).resolve().parent / "results" / "kernels_peers.json"
Call = Callable[..., Any]


def taught(file: Path, name: str) -> Call:
    """What a tutorial defines under a name. Its statements run up to that one: its tests and timings follow.

    Raises ValueError where the file defines no such name."""
    tree = ast.parse(file.read_text(), str(file))
    for place, statement in enumerate(tree.body):
        if name in _defined(statement):
            known: dict[str, Any] = {"__name__": file.stem}
            exec(compile(ast.Module(tree.body[: place + 1], []), str(file), "exec"), known)
            found: Call = known[name]
            return found
    raise ValueError(f"{file}: defines no {name}")


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    if isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


@functools.cache
def _mask(length: int, device: str) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return query >= key

    return create_block_mask(causal, None, None, length, length, device=device)


@functools.cache
def _flex() -> Call:
    from torch.nn.attention.flex_attention import flex_attention

    made: Call = torch.compile(flex_attention, dynamic=False)
    return made


def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """FlexAttention, compiled as its documentation says, with a causal mask by blocks."""
    made: torch.Tensor = _flex()(q, k, v, block_mask=_mask(q.shape[2], q.device.type))
    return made


class Cutlass:
    """CUTLASS's products, by its Operator API: of its operators with the largest tiles for this GPU, the one that a
    trial at the first call of each form finds fastest."""

    TRIED, CALLS = 8, 10

    def __init__(self) -> None:
        self._chosen: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        from cutlass import operators

        out = a.new_empty(a.shape[0], b.shape[1])
        try:
            asked = operators.GemmArguments(a, b, out, accumulator_type=torch.float32)
            form = a.shape, b.shape, a.stride(), b.stride(), a.dtype
            if form not in self._chosen:
                capability = "{}{}a".format(*torch.cuda.get_device_capability(a.device))
                found = operators.get_operators(asked, target_sm=capability)
                found.sort(key=lambda one: math.prod(one.metadata.design.tile_shape), reverse=True)
                made = [(one, one.compile(asked)) for one in found[: self.TRIED]]
                self._chosen[form] = min(made, key=lambda pair: self._seconds(asked, *pair))
            self._run(asked, *self._chosen[form])
        except Exception as error:
            raise RuntimeError(f"CUTLASS: {type(error).__name__}: {error}") from error
        return out

    def _seconds(self, asked: Any, operator: Any, compiled: Any) -> float:
        self._run(asked, operator, compiled)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(self.CALLS):
            self._run(asked, operator, compiled)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    @staticmethod
    def _run(asked: Any, operator: Any, compiled: Any) -> None:
        stream = torch.cuda.current_stream()
        operator.run(asked, compiled_artifact=compiled, stream=stream, assume_supported_args=True)


def peers_of(problem: str, tutorials: Path) -> dict[str, Call]:
    """By name, each called with the problem's inputs. What cannot be loaded raises when it is called."""

    def call(file: str, name: str, arranged: Callable[[Call], Call]) -> Call:
        loaded = functools.cache(lambda: arranged(taught(tutorials / file, name)))

        def peer(*inputs: Any) -> Any:
            return loaded()(*inputs)

        return peer

    def attended(attention: Call) -> Call:
        return lambda q, k, v: attention(q, k, v, True, q.shape[-1] ** -0.5)

    def normalised(norm: Call) -> Call:
        return lambda x, weight, bias, eps: norm(x, (x.shape[-1],), weight, bias, eps)

    table: dict[str, dict[str, Call]] = {
        "softmax": {"tutorial": call("02-fused-softmax.py", "softmax", lambda f: f)},
        "matmul": {"tutorial": call("03-matrix-multiplication.py", "matmul", lambda f: f), "cutlass": Cutlass()},
        "layernorm": {"tutorial": call("05-layer-norm.py", "layer_norm", normalised)},
        "flash_attention": {"tutorial": call("06-fused-attention.py", "attention", attended), "flex": flex},
    }
    return table[problem]


PROBLEMS = ("softmax", "matmul", "layernorm", "flash_attention")


def row_of(
    judge: Judge, problem: Problem, case: Case, choices: Sequence[Choice], request: Request
) -> dict[str, Any]:
    """The first configuration that the judge takes and races, beside every peer; and what it said of the others."""
    row: dict[str, Any] = {"problem": problem.name, "case": str(case), "refused": []}
    for choice in choices:
        verdict = judge.verdict(written(problem.name, case, choice), problem, request)
        row |= {"status": str(verdict.status), "detail": verdict.detail[:300]}
        row |= {"family": choice[0], "config": choice[1]}
        if verdict.refused or not verdict.comparisons:
            row["refused"].append({"family": choice[0], "why": f"{verdict.reason}: {verdict.detail}"[:300]})
            continue
        row["raced"] = {
            c.baseline: {"us": c.baseline_s * 1e6, "ours_us": c.candidate_s * 1e6,
                         "speedup": [c.speedup.low, c.speedup.point, c.speedup.high]}
            for c in verdict.comparisons
        }  # fmt: skip
        row["not_raced"] = {x.baseline: x.why[:300] for x in verdict.left_out}
        break
    return row


def tiny(case: Case) -> Case:
    return Case.of(case.dtype, **{k: min(v, {"m": 6, "b": 1, "h": 1}.get(k, 32)) for k, v in case.params})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("triton", type=Path, help="a checkout of Triton")
    parser.add_argument("--only", nargs="*", default=PROBLEMS, choices=PROBLEMS)
    parser.add_argument("--seconds", type=float, default=240.0, help="begin no row after so many")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--tiny", action="store_true", help="a dry run on a CPU; writes --out")
    options = parser.parse_args()
    if options.tiny and options.out == OUT:
        parser.error("--tiny: name a file with --out")
    tutorials = options.triton / "python" / "tutorials"
    if not tutorials.is_dir():
        parser.error(f"{options.triton}: holds no python/tutorials: clone triton-lang/triton there")
    began, device = time.time(), "cpu" if options.tiny else "cuda"
    result: dict[str, Any] = {"commit": commit(), "rows": []}
    with Judge(device, compiled=not options.tiny, interpret=options.tiny) as judge:
        result["environment"] = judge.environment.to_json()
        board = "none" if options.tiny else torch.cuda.get_device_name(0)
        for name in options.only:
            problem = replace(named(name), libraries={**named(name).libraries, **peers_of(name, tutorials)})
            for published in problem.cases:
                if time.time() - began > options.seconds:
                    continue
                case = tiny(published) if options.tiny else published
                choices = choices_of(board, name, case, {}, 100 if options.tiny else 3)
                choices = [c for c in choices if interprets(c[0])][:1] if options.tiny else choices
                scope, pace = (INTERPRETER, TINY) if options.tiny else (QUICK_GPU, FULL)
                result["rows"].append(row_of(judge, problem, case, choices, Request(scope, pace, cases=(case,))))
                options.out.write_text(json.dumps(result, indent=1, default=str) + "\n")
                print(json.dumps(result["rows"][-1], default=str)[:600], flush=True)


if __name__ == "__main__":
    main()
