"""What a candidate leaves behind in its process is seen, and what is no change is none."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
import torch._dynamo  # an optimiser's first step loads it, and it then asks for functions at exit
from torch.nn.modules import module

from nightshift.kernels.judge.host.footprint import Footprint, Functions
from nightshift.kernels.judge.verdict import STATUS_OF, Reason, Status


@pytest.fixture(scope="module")
def functions() -> Functions:
    """Of every module, which takes seconds; each footprint notes for itself what differed when it was taken."""
    return Functions()


def test_an_honest_call_leaves_nothing_behind(functions: Functions) -> None:
    x = torch.rand(3, 4)
    footprint = Footprint("cpu", functions)
    with torch.inference_mode(), torch.no_grad():
        torch.softmax(x, -1)
    footprint.handed_over([torch.empty(3) for _ in range(40)])
    assert footprint.changed() == []
    assert footprint.outlived() == 0
    assert footprint.threads() == 0


def _environment(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


@pytest.fixture(scope="module")
def taken_once(functions: Functions) -> Footprint:
    """Whoever changes something takes it back."""
    torch.manual_seed(0)
    random.setstate(PYTHONS)
    numpy.random.set_state(NUMPYS)
    return Footprint("cpu", functions)


PYTHONS, NUMPYS = random.getstate(), numpy.random.get_state()


@pytest.mark.parametrize(
    ("change", "back", "told"),
    [
        (lambda: torch.manual_seed(1), lambda: torch.manual_seed(0), "seed of torch's generator"),
        (
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
            "default dtype",
        ),
        (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True), "gradients enabled"),
        (
            lambda: torch.set_flush_denormal(True),
            lambda: torch.set_flush_denormal(False),
            "subnormal numbers flushed",
        ),
        (gc.disable, gc.enable, "garbage collection"),
        (
            lambda: module._global_forward_hooks.update({-1: print}),
            lambda: module._global_forward_hooks.pop(-1),
            "hooks on all modules",
        ),
        (
            lambda: _environment("CUDA_LAUNCH_BLOCKING", "1"),
            lambda: _environment("CUDA_LAUNCH_BLOCKING", None),
            "os.environ['CUDA_LAUNCH_BLOCKING']",
        ),
        (lambda: random.seed(1), lambda: random.setstate(PYTHONS), "state of Python's generator"),
        (
            lambda: numpy.random.seed(1),
            lambda: numpy.random.set_state(NUMPYS),
            "state of NumPy's generator",
        ),
        (
            lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 4000),
            lambda: sys.setrecursionlimit(sys.getrecursionlimit() - 4000),  # a compiler raises it for good
            "recursion limit",
        ),
        (lambda: threading.settrace(print), lambda: threading.settrace(None), "threading.settrace"),
        (lambda: gc.callbacks.append(print), lambda: gc.callbacks.remove(print), "garbage collector's callbacks"),
        (
            lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
            lambda: signal.signal(signal.SIGUSR1, signal.SIG_DFL),
            "SIGUSR1",
        ),
        (
            lambda: torch._C._set_mkldnn_enabled(False),
            lambda: torch._C._set_mkldnn_enabled(True),
            "oneDNN enabled",
        ),
    ],
)
def test_a_change_is_told_by_its_name(
    taken_once: Footprint, change: Callable[[], object], back: Callable[[], object], told: str
) -> None:
    change()
    try:
        found = taken_once.changed()
    finally:
        back()
    assert any(name.startswith(told) for name in found), found
    assert not any(name.startswith(told) for name in taken_once.changed())


def test_objects_taken_from_the_garbage_collector_are_told_when_asked_thoroughly(taken_once: Footprint) -> None:
    gc.freeze()
    try:
        assert "objects that are never collected" in taken_once.changed(thoroughly=True)
    finally:
        gc.unfreeze()
    assert "objects that are never collected" not in taken_once.changed(thoroughly=True)


def test_drawing_once_makes_a_model_and_drawing_again_changes_what_the_job_draws(functions: Functions) -> None:
    footprint = Footprint("cpu", functions)
    torch.nn.Linear(3, 3)
    assert footprint.changed() == []
    assert footprint.changed() == []
    torch.rand(())
    assert footprint.changed() == ["state of torch's generator"]
    assert footprint.changed() == ["state of torch's generator"]


def test_a_function_of_torch_in_anothers_place_is_told(
    monkeypatch: pytest.MonkeyPatch, functions: Functions
) -> None:
    footprint = Footprint("cpu", functions)
    monkeypatch.setattr(torch, "softmax", torch.sigmoid)
    assert footprint.changed() == ["torch.softmax"]


def test_a_method_in_anothers_place_is_told_when_asked_thoroughly_an_inherited_one_too(
    monkeypatch: pytest.MonkeyPatch, functions: Functions
) -> None:
    footprint = Footprint("cpu", functions)
    assert footprint.changed(thoroughly=True) == []
    monkeypatch.setattr(torch.nn.Linear, "forward", torch.relu)
    monkeypatch.setattr(torch.optim.AdamW, "step", print)
    assert footprint.changed() == []
    told = footprint.changed(thoroughly=True)
    assert any(name.endswith("Linear.forward") for name in told), told
    assert any(name.endswith("AdamW.step") for name in told), told


def test_an_optimiser_that_is_made_changes_nothing() -> None:
    """torch then wraps the step of its class."""
    footprint = Footprint("cpu")
    torch.optim.SGD([torch.zeros(1)]).step()
    assert footprint.changed(thoroughly=True) == []


COMPILING = """
import torch
from nightshift.kernels.judge.host.footprint import Footprint
from nightshift.kernels.judge.host.footprint import watch_registrations

watch_registrations()
footprint = Footprint("cpu")
torch.compile(lambda x: (2 * x).sin(), backend="eager")(torch.ones(4))
told = footprint.changed(thoroughly=True, at_last=True)
torch.manual_seed = torch._disable_dynamo(lambda seed: None)
print(told, footprint.changed())
"""


@pytest.mark.full
def test_what_torch_compile_does_to_torch_at_its_first_use_is_no_change_and_what_looks_like_it_is() -> None:
    """A library may compile; that puts wrappers around `torch.manual_seed` and `Module.__init__`."""
    done = subprocess.run([sys.executable, "-c", COMPILING], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] ['torch.manual_seed']"


AT_FIRST_USE = """
from nightshift.kernels.judge.host.footprint import Footprint
from nightshift.kernels.judge.host.footprint import watch_registrations

watch_registrations()
footprint = Footprint("cpu")
for place in ("/usr/local/lib/python3.12/dist-packages/torch/late.py", "/scratch/candidate.py"):
    exec(compile("import atexit, os; atexit.register(print); os.register_at_fork(before=print)", place, "exec"))
    print(len(footprint.changed()))
"""


def test_what_a_package_registers_at_its_first_use_is_no_change_also_where_debian_keeps_packages() -> None:
    done = subprocess.run([sys.executable, "-c", AT_FIRST_USE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "2"]


def test_outputs_that_are_kept_are_counted_and_a_few_are_not(functions: Functions) -> None:
    footprint = Footprint("cpu", functions)
    kept = [torch.empty(5) for _ in range(7)]
    footprint.handed_over(kept)
    assert footprint.outlived() == 0
    views = [torch.empty(5) for _ in range(3)]
    footprint.handed_over(views)
    views = [x[1:] for x in views]
    assert footprint.outlived() == 10
    kept.clear()
    assert footprint.outlived() == 0


def test_a_thread_that_stays_is_counted(functions: Functions) -> None:
    footprint = Footprint("cpu", functions)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert footprint.threads() == 1
    done.set()
    thread.join()


def test_a_changed_process_is_the_candidates_fault() -> None:
    assert STATUS_OF[Reason.process_changed] is Status.wrong


def test_constants_modules_and_operators_in_anothers_place_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the dispatcher's own word: what is registered past `torch.library` is seen as well."""
    footprint = Footprint("cpu")
    monkeypatch.setattr("math.pi", 3.0)
    monkeypatch.setattr(torch, "float", torch.float16)
    monkeypatch.setitem(sys.modules, "torch.nn.functional", torch.nn.init)
    library = torch._C._dispatch_library("IMPL", "aten", "Meta", "", 0)
    library.impl("aten::mish", "Meta", lambda x: x)
    told = footprint.changed(thoroughly=True, at_last=True)
    library.reset()
    assert told == ["math.pi", "operator aten::mish", "sys.modules['torch.nn.functional']", "torch.float"]


@pytest.mark.full
def test_tensors_that_nobody_lets_go_of_are_counted_when_they_are_as_many_as_the_calls() -> None:
    """Inputs and scratch memory: a few constants of a candidate's own are none of these."""
    footprint = Footprint("cpu")
    kept = [torch.empty(5) for _ in range(40)]
    assert footprint.grown(calls=40, own=0) >= 40
    assert footprint.grown(calls=40, own=30) == 0
    del kept[16:]
    assert footprint.grown(calls=40, own=0) == 0


COMPILED = """
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nightshift.kernels.judge.host.footprint import Footprint

footprint = Footprint("cpu")

@triton.jit
def kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at)
    tl.store(out + at, tl.exp(v - tl.max(v, 0)) / tl.sum(v, 0))

signature = {"x": "*fp32", "out": "*fp32", "BLOCK": "constexpr"}
made = triton.compile(ASTSource(kernel, signature, {(2,): 256}), target=GPUTarget("cuda", 90, 32))
told = footprint.changed(thoroughly=True, at_last=True)
tl.exp = tl.exp2
tl.sum = tl.max
print("ptx" in made.asm, told, footprint.changed(thoroughly=True))
"""


@pytest.mark.full
def test_a_kernel_that_triton_compiles_changes_nothing_and_one_of_its_functions_in_anothers_place_does(
    tmp_path: Path,
) -> None:
    """Not under its interpreter, which does so itself for each launch."""
    room = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    (tmp_path / "compiled.py").write_text(COMPILED)
    room |= {"PYTHONPATH": os.getcwd(), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "compiled.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=room, check=False)
    assert "True [] ['triton.language.exp', 'triton.language.sum']" in done.stdout, done.stderr
