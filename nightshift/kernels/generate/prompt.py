"""What a language model is told and what is taken from its reply: pure text, no model.

The prompt holds the task (the reference's own source, shapes, the roofline), the rules that the judge applies, a
few contrastive pairs (two correct kernels that look alike, the faster and the slower, with what differs: CUDA-L1,
arXiv 2507.14111) and what the judge said about the latest attempt. Code is taken from between two markers, or from
the one fenced block of a reply; anything else is no kernel, and what a reasoning model thought before its answer is
not read. Nothing that a model says is believed: it is judged.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nightshift.kernels.candidate import Bound, Candidate, CandidateError, Domain
from nightshift.kernels.candidate_file import FIRST_LINE, parse_candidate
from nightshift.kernels.draw import Draw
from nightshift.kernels.generate.base import Outcome, Task
from nightshift.kernels.generate.space import differences

BEGIN, END = "### BEGIN KERNEL", "### END KERNEL"
_FENCE = re.compile(r"```[\w+-]*[ \t]*\n(.*?)```", re.DOTALL)
_MARK = re.compile(r"#{2,} *(BEGIN) KERNEL[#*` \t]*$|^[*` \t]*#{2,} *(END) KERNEL", re.MULTILINE | re.IGNORECASE)
_THINKS = re.compile(r"\s*(?:<(?:think|thinking|reasoning)>|\[THINK\])")
_THOUGHT = re.compile(r"</(?:think|thinking|reasoning)>|\[/THINK\]|<\|channel\|>final<\|message\|>")
_MAX_CHARS = 60_000
_SHOWN_CHARS = 6_000

RULES = f"""You write GPU kernels in Triton 3.6 or newer for one NVIDIA GPU.
Reply with one complete Python file between a line `{BEGIN}` and a line `{END}`, and nothing else after it.
The file defines `entry(*inputs)`, which takes the inputs listed below and returns the outputs (one or a tuple).
A judge that you cannot see runs it in a sandbox and decides; it holds every claim against a float64 reference.
- Only torch (allocation: empty, empty_like, zeros; attributes), triton and triton.language may be imported.
- All arithmetic happens in your own @triton.jit kernels: no torch operators, no library calls, no try/except.
- No state between calls, no other streams or threads, no reading of files, environment or other objects.
- Inputs must stay unchanged, every output element must be written, NaN and infinity must come out as in torch.
- Accumulate in float32. Results must repeat bit for bit: no floating-point atomics.
- Fast means few bytes moved, wide coalesced accesses, enough loads in flight and no second pass over memory."""


class ReplyError(ValueError):
    """A reply holds no kernel. The message is what the model is told."""


@dataclass(frozen=True)
class SpeedContrast:
    """Two correct kernels of one task. ratio: the slow one's time over the fast one's. why: what differs."""

    fast: Outcome
    slow: Outcome
    ratio: float
    why: str


def contrasts(history: Sequence[Outcome], count: int) -> list[SpeedContrast]:
    """The most telling pairs: log of the time ratio, times the likeness of the texts; each slow half once."""
    timed: dict[str, Outcome] = {}
    for outcome in history:
        if outcome.timed:
            timed[outcome.proposal.candidate.source_sha256] = outcome
    ranked = sorted(timed.values(), key=lambda o: o.seconds)[:24]
    pairs = []
    for i, fast in enumerate(ranked):
        for slow in ranked[i + 1 :]:
            ratio = slow.seconds / fast.seconds
            if ratio < 1.05:
                continue
            a, b = fast.proposal.candidate.source, slow.proposal.candidate.source
            alike = difflib.SequenceMatcher(None, a[:4000], b[:4000], autojunk=True).quick_ratio()
            pairs.append((math.log(ratio) * alike, fast, slow, ratio))
    chosen: list[SpeedContrast] = []
    used: set[int] = set()
    for _, fast, slow, ratio in sorted(pairs, key=lambda p: -p[0]):
        if id(slow) not in used and len(chosen) < count:
            used.add(id(slow))
            chosen.append(SpeedContrast(fast, slow, ratio, _why(fast, slow)))  # only of these: it takes its time
    return chosen


def _why(fast: Outcome, slow: Outcome) -> str:
    a, b = slow.proposal.config, fast.proposal.config
    if a and set(a) == set(b):
        return f"changed {differences(a, b)}"
    old, new = (outcome.proposal.candidate.source.splitlines() for outcome in (slow, fast))
    lines = itertools.islice(difflib.unified_diff(old, new, n=0, lineterm=""), 2, None)  # behind the files' names
    changed = [line for line in lines if line[:1] in "+-" and line[1:].strip() and not line[1:].startswith("#")]
    return "changed these lines:\n" + "\n".join(f"{line[0]} {line[1:]}" for line in changed[:12])


def task_text(task: Task) -> str:
    """Reference, inputs and roofline in words."""
    problem, case = task.problem, task.case
    parts = [f"Operation: {problem.name}. Timed case: {case}.", "Reference (eager PyTorch):"]
    try:
        parts.append(inspect.getsource(problem.reference).strip())
    except (OSError, TypeError):
        parts.append(f"{problem.reference!r}")
    try:
        inputs = problem.make_inputs(case, Draw(1, "normal", "meta"))
        told = [f"{tuple(x.shape)} {str(x.dtype)[6:]}" if isinstance(x, torch.Tensor) else repr(x) for x in inputs]
        parts.append("Inputs, contiguous, in order: " + "; ".join(told) + ".")
    except (NotImplementedError, RuntimeError):
        parts.append("Inputs are contiguous, in the order of the reference's arguments.")
    moved, flops = problem.compulsory_bytes(case), problem.flops(case)
    text = f"It must move at least {moved / 1e6:.1f} MB and calculate {flops / 1e9:.2f} GFLOP"
    if math.isfinite(task.floor_s) and task.floor_s > 0:
        text += f"; at this GPU's roofline that takes {task.floor_s * 1e6:.1f} µs"
    parts.append(text + ".")
    if problem.mutates:
        parts.append(f"It changes inputs {list(problem.mutates)} in place and returns nothing.")
    return "\n".join(parts)


def feedback(task: Task, outcome: Outcome) -> str:
    """What the judge said about one attempt, and where its time lies."""
    if not outcome.timed:
        return f"The judge refused it: {outcome.status} ({outcome.reason}). {outcome.detail}"
    seconds = outcome.seconds
    rate = task.problem.compulsory_bytes(task.case) / seconds / 1e9
    text = f"Correct. It takes {seconds * 1e6:.1f} µs: {rate:.0f} GB/s of compulsory traffic"
    if math.isfinite(task.floor_s) and task.floor_s > 0:
        text += f", {task.floor_s / seconds:.0%} of the roofline"
    return text + f". {outcome.detail}"


def example_text(contrast: SpeedContrast) -> str:
    fast, slow = contrast.fast, contrast.slow
    return (
        f"Of two correct kernels the second is {contrast.ratio:.2f} times as fast ({slow.seconds * 1e6:.1f} → "
        f"{fast.seconds * 1e6:.1f} µs); it {contrast.why}\nThe faster one:\n"
        f"{fast.proposal.candidate.source[:_SHOWN_CHARS]}"
    )


def messages(
    task: Task, history: Sequence[Outcome], mine: Sequence[Outcome], exemplars: int
) -> list[tuple[str, str]]:
    """(role, text) pairs: rules, task and exemplars, then the latest attempt of this author with its verdict."""
    parts = [task_text(task)]
    parts += [example_text(c) for c in contrasts(history, exemplars)]
    best = min((o for o in history if o.timed), key=lambda o: o.seconds, default=None)
    if best is not None:
        parts.append(f"The fastest so far takes {best.seconds * 1e6:.1f} µs. Beat it.")
    said = [("system", RULES), ("user", "\n\n".join(parts))]
    if mine:
        last = mine[-1]
        said.append(("assistant", f"{BEGIN}\n{last.proposal.candidate.source}\n{END}"))
        said.append(("user", feedback(task, last) + "\nWrite an improved version of the whole file."))
    return said


def kernel_of(reply: str, task: Task, truncated: bool = False) -> Candidate:
    """The candidate in a reply. Raises ReplyError: no code, more than one, cut off, or a malformed declaration.

    Without a header of its own it answers for the timed case alone.
    """
    answer = answer_of(reply)
    if len(answer) > _MAX_CHARS:
        raise ReplyError(f"The reply has {len(answer)} characters; at most {_MAX_CHARS} are read.")
    code = _between(answer)
    if not code.strip():
        why = "It was cut off before its end: be shorter." if truncated else "Nothing else is read."
        raise ReplyError(f"No file stands between {BEGIN!r} and {END!r}. {why}")
    try:
        if code.startswith(f"# {FIRST_LINE}"):
            return parse_candidate(code, "reply").candidate
        case, problem = task.case, task.problem
        bounds = tuple(Bound(name, value, value) for name, value in case.params)
        return Candidate(
            code,
            "entry",
            "triton",
            "in_place" if problem.mutates else "own_kernel",
            "bitwise",
            mutates=problem.mutates,
            domain=Domain((case.dtype,), ("contiguous",), bounds),
        )
    except CandidateError as error:
        raise ReplyError(f"The declaration is malformed: {error}") from error


def answer_of(reply: str) -> str:
    """A reply without what a reasoning model thought before it; empty where it was still thinking."""
    thought = max((mark.end() for mark in _THOUGHT.finditer(reply)), default=0)
    answer = reply[thought:].replace("\r\n", "\n")
    return "" if _THINKS.match(answer) else answer


def _between(answer: str) -> str:
    """The file between the lines that mark it, else the only block that has an entry; empty where there is none."""
    marks = list(_MARK.finditer(answer))
    if len(marks) > 2:
        raise ReplyError("The file holds the markers themselves, or there are several: send one.")
    if marks:
        if len(marks) < 2 or not marks[0][1] or not marks[1][2]:
            return ""
        code = answer[marks[0].end() : marks[1].start()]
        fenced = _FENCE.findall(code)
        return (fenced[0] if len(fenced) == 1 else code).strip() + "\n"
    blocks = [block for block in _FENCE.findall(answer) if "def entry" in block]
    if len(blocks) > 1:
        raise ReplyError(f"{len(blocks)} blocks define entry: send one file.")
    return blocks[0].strip() + "\n" if blocks else ""
