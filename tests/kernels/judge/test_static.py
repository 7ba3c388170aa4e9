"""The static read: lets honest kernels through and names line and rule for what no kernel needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.kernels.candidate import Candidate, Launch
from nightshift.kernels.judge.static import Observation, read
from nightshift.kernels.judge.verdict import Reason

HONEST = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=-float("inf"))
    tl.store(out + at, tl.exp(v - tl.max(v, 0)), mask=at < n)


def entry(x):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.numel():
        kernel[(triton.cdiv(x.numel(), 1024),)](x.contiguous(), out, x.numel(), BLOCK=1024)
    return out
"""


def _read(source: str, kind: str = "own_kernel", language: str = "triton") -> tuple[Observation, ...]:
    return read(Candidate(source, "entry", language, kind, "bitwise"))  # type: ignore[arg-type]


def test_an_honest_kernel_has_nothing_against_it() -> None:
    assert _read(HONEST) == ()


@pytest.mark.parametrize(
    "lines",
    [
        "import functools\n@functools.lru_cache(None)\ndef g(n: int, d: torch.dtype) -> tuple[int, bool]: ...",
        "def g(input, id=0, *hash): return input.shape, id, hash",
        "C = []\nfor w in (4, 8):\n    C.append(triton.Config({}, num_warps=w))\nC.sort(key=lambda c: c.num_warps)",
        "def g(x):\n    s = set()\n    s.add(1)\n    raise TypeError(f'{type(x).__name__} {sorted(s)}')",
        "try:\n    from triton.language.extra import libdevice\nexcept ImportError:\n    from math import pi",
        "@torch.library.custom_op('a::b', mutates_args=())\ndef g(x: torch.Tensor) -> torch.Tensor: ...",
        "@torch.amp.custom_fwd(device_type='cuda')\ndef g(ctx, x): return torch.ones_like(x), torch.arange(3)",
        "if __name__ == '__main__':\n    print(entry(torch.ones(3)))",
        "if __name__ == '__main__':\n    import time\n    torch.testing.assert_close(entry(torch.randn(3)), 1)",
        "W = dict(a=1)\nL = list(range(3))",
        "import functools\n@functools.cache\ndef g(n: int): return triton.Config({'BLOCK': n})",
        "try:\n    import triton.runtime\n    H = True\nexcept ImportError:\n    H = False",
        "F8 = getattr(torch, 'float8_e4m3fn', None)\nOLD = triton.__version__ < '3'",
        "import enum, logging\nclass P(enum.IntEnum):\n    A = 0\nlog = logging.getLogger(__name__)",
        "L = torch.library.Library('mine', 'DEF')\nL.define('f(Tensor x) -> Tensor')\ny = torch.ops.mine.f(1)",
        "from torch.autograd.function import once_differentiable\nfrom torch.amp import custom_fwd",
        "from triton.runtime import driver\nN = driver.active.utils.get_device_properties(0)",
    ],
)
def test_what_honest_code_often_says_is_not_held_against_it(lines: str) -> None:
    """Caches under plain numbers, parameters called as builtins are, lists of configurations, fallback imports, a
    library of operators, attributes that may be missing, a file's own test."""
    assert _read(HONEST + lines + "\n") == ()


def test_torch_may_draw_numbers_where_the_right_answer_is_random_only() -> None:
    source = HONEST + "y = torch.rand(3)\nz = torch.randn(3)\n"
    candidate = Candidate(source, "entry", "triton", "own_kernel", "bitwise")
    assert [found.text for found in read(candidate)] == ["calls torch.rand", "calls torch.randn"]
    assert [found.text for found in read(candidate, random=True)] == ["calls torch.randn"]


def test_an_entry_may_be_annotated() -> None:
    assert _read("import torch\n\nentry: object = torch.nn.Softmax(-1)\n", "library", "python") == ()


def test_a_library_composition_may_call_torch() -> None:
    source = "import torch\n\ndef entry(x):\n    return torch.softmax(x, -1) @ x.sum(-1).exp()\n"
    assert _read(source, "library", "python") == ()
    assert {o.reason for o in _read(source, "own_kernel", "python")} == {Reason.library_call}


@pytest.mark.parametrize(
    ("line", "reason", "word"),
    [
        ("import os", Reason.static_refusal, "imports os"),
        ("from torch.utils import cpp_extension", Reason.static_refusal, "torch.utils"),
        ("import ctypes, math", Reason.static_refusal, "ctypes"),
        ("exec('1')", Reason.static_refusal, "exec"),
        ("f = (lambda: 0).__globals__", Reason.static_refusal, "__globals__"),
        ("torch.cuda.Event = None", Reason.static_refusal, "torch.cuda.Event"),
        ("from torch import cuda as c; c.synchronize = 1", Reason.static_refusal, "c.synchronize"),
        ("s = torch.cuda.Stream()", Reason.static_refusal, "Stream"),
        ("class Lazy(torch.Tensor): pass", Reason.static_refusal, "derives"),
        ("seen = {}", Reason.static_refusal, "container"),
        ("def g(x, seen={}): return seen", Reason.static_refusal, "default"),
        ("entry.last = 3", Reason.static_refusal, "entry.last"),
        ("y = torch.softmax(torch.zeros(3), 0)", Reason.library_call, "torch.softmax"),
        ("import torch.nn.functional as F\nF.softmax(1)", Reason.library_call, "torch.nn.functional.softmax"),
        ("from torch import matmul as fast\nfast(1, 2)", Reason.library_call, "torch.matmul"),
        ("z = [1].sum()", Reason.library_call, ".sum()"),
        ("a = 1 @ 2", Reason.library_call, "@"),
        ("try:\n    pass\nexcept Exception:\n    pass", Reason.static_refusal, "catches"),
        ("def g():\n    global h\n    h = 1", Reason.static_refusal, "state in h"),
        ("import dataclasses\ndataclasses.sys.addaudithook(print)", Reason.static_refusal, "module sys"),
        ("from typing import sys", Reason.static_refusal, "module sys"),
        ("y = torch.nn.functional.torch.os.environ", Reason.static_refusal, "module os"),
        ("import operator\noperator.attrgetter('os.environ')", Reason.static_refusal, "attrgetter"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", Reason.static_refusal, "backends"),
        ("__loader__.get_data('/etc/hostname')", Reason.static_refusal, "__loader__"),
        ("known = __name__ == 'candidate'", Reason.static_refusal, "__name__"),
        ("import functools\n@functools.cache\ndef g(x): return x", Reason.static_refusal, "caches"),
        ("import functools\n@functools.cache\ndef g(n: int) -> torch.Tensor: ...", Reason.static_refusal, "caches"),
        ("seen = []\ndef g(x): seen.append(x)", Reason.static_refusal, "container"),
        ("try:\n    import math\nexcept Exception:\n    import math", Reason.static_refusal, "catches"),
        ("try:\n    entry(1)\nexcept ImportError:\n    import math", Reason.static_refusal, "catches"),
        ("def g(x, open=open): return open(x)", Reason.static_refusal, "open"),
        ("L = torch.library.Library('aten', 'IMPL')", Reason.static_refusal, "torch's own operators"),
        ("torch.library.register_fake('aten::mm')", Reason.static_refusal, "torch's own operators"),
        ("y = torch.ops.aten.mm(1, 2)", Reason.library_call, "torch.ops.aten.mm"),
        ("y = torch.ops.theirs.fast(1)", Reason.library_call, "torch.ops.theirs.fast"),
        ("y = getattr(torch, '_C')", Reason.static_refusal, "getattr"),
        ("n = 'softmax'\ny = getattr(torch, n)", Reason.static_refusal, "getattr"),
        ("__name__ = '__main__'\nif __name__ == '__main__':\n    import os", Reason.static_refusal, "imports os"),
        ("if __name__ == '__main__':\n    pass\nelse:\n    import os", Reason.static_refusal, "imports os"),
        (
            "try:\n    import math\n    n = entry(1)\nexcept ImportError:\n    pass",
            Reason.static_refusal,
            "catches",
        ),
        ("import collections\ncollections._sys.exit()", Reason.static_refusal, "module sys"),
    ],
)
def test_each_rule_names_its_line(line: str, reason: Reason, word: str) -> None:
    found = _read(HONEST + line + "\n")
    assert any(o.reason is reason and word in o.text for o in found), found
    assert min(o.line for o in found) >= len(HONEST.splitlines())


@pytest.mark.parametrize("source", ["def entry(:", "\0", "(" * 5000, "x = " + "-" * 100_000 + "1"])
def test_what_does_not_parse_is_a_finding(source: str) -> None:
    assert [o.reason for o in _read(source)] == [Reason.syntax]


def test_a_missing_entry_and_a_missing_launch_are_told() -> None:
    assert {o.reason for o in _read("x = 1")} == {Reason.entry_missing, Reason.library_call}


def test_cuda_sources_are_read_for_kernels_and_includes() -> None:
    launch = Launch("k", ("1", "1", "1"), ("1", "1", "1"), ("in0",))
    good = Candidate(
        '#include <cuda_fp16.h>\nextern "C" __global__ void k() {}',
        "k",
        "cuda",
        "own_kernel",
        "bitwise",
        launches=(launch,),
    )
    assert read(good) == ()
    bad = Candidate('#include "/etc/passwd"', "k", "cuda", "own_kernel", "bitwise", launches=(launch,))
    assert [o.reason for o in read(bad)] == [Reason.entry_missing, Reason.static_refusal]


CUTE = (
    "import cutlass\nfrom cutlass import cute\n@cute.kernel\ndef k(x: cute.Pointer):\n    y = cute.math.exp(1.0)\n"
)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("", ""),
        ("from cutlass.cute.runtime import make_ptr\nfrom cutlass.memory import SmemAllocator\nimport math", ""),
        ("import os", "imports os"),
        ("import torch", "imports torch"),
        ("import cutlass.torch", "the module torch"),
        ("from cutlass import torch", "the module torch"),
        ("from cutlass import operators", "the module operators"),
        ("import cutlass.kernels.rubin.gemm", "the module kernels"),
        ("cutlass.base_dsl.dsl.os.environ", "the module os"),
        ("cute.compile = None", "assigns to cute.compile"),
        ("    open('x')", "uses open"),
        ("    global seen", "keeps state"),
        ("@cute.jit\ndef other(x):\n    eval(x)", "uses eval"),
    ],
)
def test_cute_sources_are_read_with_their_kernels_bodies(line: str, word: str) -> None:
    """They are Python that runs while it is compiled."""
    launch = Launch("k", ("1", "1", "1"), ("1", "1", "1"), ("in0",))
    found = read(Candidate(CUTE + line, "entry", "cute", "own_kernel", "bitwise", launches=(launch,)))
    assert bool(found) == bool(word), found
    assert any(word in str(one) for one in found) or not word


def test_a_cute_kernel_that_is_launched_must_be_there() -> None:
    launch = Launch("j", ("1", "1", "1"), ("1", "1", "1"), ("in0",))
    found = read(Candidate(CUTE + "def j(x): pass", "entry", "cute", "own_kernel", "bitwise", launches=(launch,)))
    assert [one.reason for one in found] == [Reason.entry_missing]


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(source: str) -> None:
    """Any text gives observations, never an exception."""
    try:
        source.encode()
    except UnicodeEncodeError:
        return
    assert isinstance(_read(source), tuple)


def test_a_kernel_may_be_launched_by_a_name_for_its_grid() -> None:
    grid = HONEST.replace("kernel[(triton.cdiv(x.numel(), 1024),)](", "launch = kernel[(4,)]\n        launch(")
    assert _read(grid) == ()
    assert [o.reason for o in _read(HONEST.replace("kernel[(triton.cdiv(x.numel(), 1024),)](", "max("))] == [
        Reason.library_call
    ]
