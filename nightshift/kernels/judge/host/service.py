"""Runs inside the candidate's process: loads its source and calls its entry on lent buffers. It judges nothing.

Everything here shares an address space with hostile code, so nothing it reports in the candidate's favour counts.
It reports failures (a candidate may always fail itself) and "done"; the judge then looks into its own buffers.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import importlib.util
import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
import torch.func

from nightshift.kernels.cute import cute_binary, cute_version
from nightshift.kernels.differentiate import differentiated
from nightshift.kernels.judge import cuda, launch_plan
from nightshift.kernels.judge.host import recorder as recording
from nightshift.kernels.judge.host.channel import MAX_FRAME_BYTES, Channel
from nightshift.kernels.judge.host.footprint import Footprint, Functions, tensors, watch_registrations
from nightshift.kernels.judge.host.interference import amid_others, another_layers, late_inputs, load_beside
from nightshift.kernels.judge.probes.buffers import Borrower, Lent, View, give_back
from nightshift.kernels.judge.verdict import Reason

_IDLE_S = 3600.0
_PIECE_BYTES = 1 << 28
_PADDING_BYTES = 16 << 20
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_COMPILERS = 8
"""Kernels that are compiled at a time."""
_functions: list[Functions] = []
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
"""What colours a compiler's words on a terminal."""


class Unfit(Exception):
    """The entry's result has the wrong form."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def warm() -> None:
    """Before hosts are forked: look at all functions once for all of them."""
    torch.func.vmap(torch.neg)(torch.zeros(1))  # its first use teaches some of torch's operators
    watch_registrations()
    _functions.append(Functions())


def freeze() -> None:
    """Last of all before hosts are forked: what there is by now is garbage in none of them. To walk it took each
    host 0.2 s a time, and a copy of its own of all memory that holds objects."""
    gc.collect()
    gc.freeze()
    for known in _functions:
        known.tensors = tensors()


def serve(channel: Channel, device: str, arena: int | None) -> None:
    """Answer the judge until it hangs up."""
    host = Host(device, Borrower(device, arena))
    while True:
        message = channel.receive(_IDLE_S)
        try:
            body, blob = host.answer(message.body, message.blob)
        except Unfit as error:
            body, blob = {"ok": False, "reason": error.reason, "text": str(error)[:2000]}, b""
        except BaseException as error:  # noqa: BLE001  whatever the candidate raises, to end too, is its failure
            body, blob = {"ok": False, "reason": reason_of(error), "text": told(error)}, b""
        channel.send(body, blob)


def _source() -> Path:
    return Path("candidate.py").absolute()


def told(error: BaseException) -> str:
    """An exception's class, words and line of the source, where it can say any."""
    try:
        words = _COLOURS.sub("", str(error))[:2000]
    except BaseException as again:  # noqa: BLE001  the candidate's own class
        words = f"(its words cannot be told: {type(again).__name__})"
    last, trace = 0, error.__traceback__
    while trace is not None:
        last = trace.tb_lineno if trace.tb_frame.f_code.co_filename == str(_source()) else last
        trace = trace.tb_next
    return f"{type(error).__name__}: {words or 'no words'}" + f" (line {last})" * bool(last)


def reason_of(error: BaseException) -> Reason:
    """What an exception of the candidate means."""
    names = {cls.__name__ for cls in type(error).__mro__}
    text = told(error)
    if isinstance(error, SyntaxError):
        return Reason.syntax
    if isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN:
        return Reason.process_limit
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
        return Reason.disk_limit
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names or "out of memory" in text:
        return Reason.out_of_memory
    if names & {"CompilationError", "CompileError", "OutOfResources", "PTXASError", "UnsupportedLanguageConstruct"}:
        return Reason.compile_failed
    if "illegal memory access" in text or "misaligned address" in text or "CUDA_ERROR_ILLEGAL" in text:
        return Reason.illegal_access
    return Reason.raised


class Host:
    """State of one candidate: its entry and the buffers lent to it."""

    def __init__(self, device: str, borrower: Borrower) -> None:
        self._device = device
        self._borrower = borrower
        self._entry: Callable[..., Any] | None = None
        self._footprint: Footprint | None = None
        self._slots: list[tuple[list[Any], list[Any]]] = []
        self._leaves: list[torch.Tensor] = []
        self._calls = 0  # examined ones, of each with tensors of their own

    def answer(self, order: Mapping[str, Any], blob: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Carry out one order, with the blob that came with it; (body, blob) of the reply."""
        match order["op"]:
            case "load":
                put_compiled(blob)
                self._load(order)
                return {"ok": True, **self._left_behind("imported")}, b""
            case "rehearse":
                assert self._entry is not None
                rehearse(self._entry, order["forms"])
                return {"ok": True}, compiled()
            case "compile":
                return compiled_source(order)
            case "attach":
                for lent in order["buffers"]:
                    self._borrower.attach(Lent(**lent))
                return {"ok": True}, b""
            case "call":
                self._calls += 1
                body, blob, outputs = self._call(order)
                later = self._changed_later(outputs, order)  # what the call was given is let go of by now
                return {**body, "later": later, **self._left_behind()}, blob
            case "slots":
                self._slots = [(self._inputs(slot["in"]), slot["out"]) for slot in order["slots"]]
                return {"ok": True}, b""
            case "run":
                for number in order["order"]:
                    values, outputs = self._slots[number]
                    self._store(self._run(values), outputs, order["mutates"])
                self._wait()
                return {"ok": True}, b""
            case "left":
                return {"ok": True, **self._left_behind("examined")}, b""
            case "profile":
                return self._profile(order), b""
            case other:
                raise ValueError(f"host: no order {other!r}")

    def _load(self, order: Mapping[str, Any]) -> None:
        if self._device == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, order["vram_bytes"] / total))
            if order["language"] == "triton":
                recording.replace_launcher()
        torch.manual_seed(order.get("seed", 0))
        self._footprint = Footprint(self._device, _functions[0] if _functions else None)
        self._entry = getattr(imported(order["source"]), order["entry"], None)
        if not callable(self._entry):
            raise Unfit(Reason.entry_missing, f"the source defines no callable {order['entry']!r}")
        if order.get("step"):
            positions, count = order["step"]
            self._entry = differentiated(self._entry, tuple(positions), count)

    def _left_behind(self, once: Literal["imported", "examined", "called"] = "called") -> dict[str, Any]:
        """What the candidate has changed in its process, how many outputs it keeps, and how many threads run."""
        assert self._footprint is not None
        seen, outlived = self._footprint, self._footprint.outlived()
        if once == "examined":
            ours = 2 * (self._borrower.count + sum(len(values) for values, _ in self._slots))  # views and theirs
            outlived = outlived or seen.grown(self._calls, ours)
        changed = seen.changed(once != "called", once == "examined")
        return {"changed": changed, "outlived": outlived, "threads": seen.threads()}

    def _inputs(self, items: Sequence[Any]) -> list[Any]:
        return [
            self._borrower.tensor(View.from_json(item)) if isinstance(item, Mapping) else item[0] for item in items
        ]

    def _run(self, inputs: Sequence[Any]) -> Any:
        assert self._entry is not None
        with torch.no_grad():
            return self._entry(*inputs)

    def _leaf(self, given: torch.Tensor) -> torch.Tensor:
        """An input as a layer's parameter is: it asks for a gradient."""
        self._leaves.append(given.detach().requires_grad_(True))
        return self._leaves[-1]

    def _plain(self, given: Sequence[Any], order: Mapping[str, Any]) -> Any:
        """As a training job calls it: gradients are enabled, whether any of the inputs asks for one or not."""
        assert self._entry is not None
        inputs = list(given)
        required = order.get("required", ())
        for position in required:
            inputs[position] = self._leaf(inputs[position])
        outputs = self._entry(*inputs)
        return [x.detach() for x in as_tensors(outputs)] if required else outputs

    def _call(self, order: Mapping[str, Any]) -> tuple[dict[str, Any], bytes, Sequence[torch.Tensor]]:
        inputs, self._leaves = self._inputs(order["inputs"]), []
        body: dict[str, Any] = {"ok": True}
        blob = b""
        with contextlib.ExitStack() as stack:
            if order.get("load"):
                stack.enter_context(load_beside(self._device))
            if order.get("stream"):
                inputs = stack.enter_context(late_inputs(inputs, self._device))
            run = functools.partial(self._gradients if order.get("gradients") else self._plain, order=order)
            if order.get("record"):
                outputs, blob = self._recorded(run, inputs, order, body)
            elif order.get("overlap") and not order.get("gradients"):
                outputs = amid_others(run, inputs, self._device, order["overlap"] != "floats")
            else:
                outputs = run(inputs)
            if not order["mutates"]:
                self._note_memory(inputs, as_tensors(outputs), order, body)
            self._store(outputs, order["outputs"], order["mutates"])
            outputs = () if order["mutates"] else as_tensors(outputs)
            body["attached"] = [*attached("input", inputs), *attached("output", outputs)]
            body["attached"] += attached("input that asks for a gradient", self._leaves)
            self._leaves = []
        self._wait()
        give_back()
        return body, blob, outputs

    def _recorded(
        self, run: Callable[..., Any], inputs: Sequence[Any], order: Mapping[str, Any], body: dict[str, Any]
    ) -> tuple[Any, bytes]:
        """What `run(inputs)` returns, and its plan's binaries; what it launched goes into `body`."""
        blob = b""
        resident = [
            (launch_plan.Pointer("in", index), tensor.data_ptr(), _span(tensor))
            for index, tensor in enumerate(inputs)
            if isinstance(tensor, torch.Tensor) and tensor.numel()
        ]
        lent = [x for x in (*inputs, *self._inputs(order["seeds"])) if isinstance(x, torch.Tensor)]
        with recording.Recorder(resident, lent) as recorder:
            outputs = run(inputs)
        if not order.get("gradients") or self._device == "cpu":  # else in another thread, partly unseen
            body["kept_bytes"] = sum(recorder.kept.values())
        body.update(launches=recorder.launches, opaque=sorted({*recorder.opaque, *recorder.called}))
        body["launched"] = sorted({step[2] for step in recorder.steps if step[0] == "fire"})[:64]
        if self._device == "cuda":
            try:
                made = recorder.plan([] if order["mutates"] else as_tensors(outputs))
                body["plan"], blob = made.to_message()
            except launch_plan.PlanError as error:
                body["no_plan"] = str(error)[:500]
        return outputs, blob

    def _note_memory(
        self, inputs: Sequence[Any], outputs: Sequence[torch.Tensor], order: Mapping[str, Any], body: dict[str, Any]
    ) -> None:
        """Which outputs are not dense or lie in an input's memory; of others, whether a reader can use them."""
        body["strided"] = [n for n, x in enumerate(outputs) if not x.is_contiguous()]
        places = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, torch.Tensor) and x.numel()}
        body["aliases"] = [
            n for n, x in enumerate(outputs) if x.numel() and x.untyped_storage().data_ptr() in places
        ]
        if not order.get("gradients"):  # whose memory autograd made
            usable(outputs, inputs)
            assert self._footprint is not None
            fresh = [x for n, x in enumerate(outputs) if n not in body["aliases"]]
            frugal(fresh)
            self._footprint.handed_over(fresh)

    def _changed_later(self, outputs: Sequence[torch.Tensor], order: Mapping[str, Any]) -> list[int]:
        """Positions of outputs that no longer are what was stored of them."""
        self._wait()
        with recording.unseen():
            pairs = [
                (output, self._borrower.tensor(View.from_json(item)))
                for output, item in zip(outputs, order["outputs"], strict=True)
            ]
            return [n for n, (output, stored) in enumerate(pairs) if not _same_bits(output, stored)]

    def _gradients(self, given: Sequence[Any], order: Mapping[str, Any]) -> Any:
        assert self._entry is not None
        inputs = list(given)
        for position in order["gradients"]:
            inputs[position] = self._leaf(inputs[position])
        outputs = as_tensors(self._entry(*inputs))
        later = self._entry(*another_layers(inputs)) if order.get("overlap") else ()
        seeds = self._inputs(order["seeds"])
        if len(seeds) != len(outputs):
            raise Unfit(Reason.wrong_type, f"{len(outputs)} outputs, expected {len(seeds)}")
        leaves = [inputs[position] for position in order["gradients"]]
        only = order["only"]
        pairs = list(zip(outputs, seeds, strict=True))
        reached = [(o, g) for o, g in (pairs if only < 0 else pairs[only : only + 1]) if o.requires_grad]
        upstream = [o for o, _ in reached], leaves, [g for _, g in reached]
        with self._unchanged(outputs):
            if order["twice"]:
                others = [-2 * g for _, g in reached]
                torch.autograd.grad(*upstream[:2], others, retain_graph=True, allow_unused=only >= 0)
            made = torch.autograd.grad(*upstream, allow_unused=only >= 0)
        del later  # until here: what the other layers keep must not be what this one's backward pass reads
        return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, made, strict=True)]

    @contextlib.contextmanager
    def _unchanged(self, outputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """A backward pass during which no output may change: later layers have them, too."""
        with recording.unseen():
            before = [_bits(output).clone() for output in outputs]
        yield
        self._wait()
        with recording.unseen():
            for number, (output, old) in enumerate(zip(outputs, before, strict=True)):
                if not torch.equal(_bits(output), old):
                    raise Unfit(Reason.gradient, f"output {number} was changed by the backward pass")

    def _profile(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """GPU seconds per call and the kernels' names, by CUPTI; the judge holds this against its own clock."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for number in order["order"]:
                values, outputs = self._slots[number]
                self._store(self._run(values), outputs, order["mutates"])
            self._wait()
        busy: dict[str, float] = {}
        for event in seen.events():
            if event.device_type.name == "CUDA":
                busy[event.name] = busy.get(event.name, 0.0) + event.time_range.elapsed_us() * 1e-6
        names = sorted(busy, key=lambda name: -busy[name])[:16]
        return {"ok": True, "seconds": sum(busy.values()) / len(order["order"]), "kernels": names}

    def _store(self, result: Any, wanted: Sequence[Any], mutates: Sequence[int]) -> None:
        """Copy outputs into the lent buffers, once their form is right; in-place results are already there."""
        if mutates:
            return
        outputs = as_tensors(result)
        if len(outputs) != len(wanted):
            raise Unfit(Reason.wrong_type, f"{len(outputs)} outputs, expected {len(wanted)}")
        for number, (output, item) in enumerate(zip(outputs, wanted, strict=True)):
            target = self._borrower.tensor(View.from_json(item))
            if output.device.type != self._device:
                raise Unfit(Reason.wrong_device, f"output {number} is on {output.device}, expected {self._device}")
            if output.dtype != target.dtype:
                raise Unfit(Reason.wrong_dtype, f"output {number} is {output.dtype}, expected {target.dtype}")
            if output.shape != target.shape:
                text = f"output {number} is {tuple(output.shape)}, expected {tuple(target.shape)}"
                raise Unfit(Reason.wrong_shape, text)
            target.copy_(output.detach())

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


# --- a candidate's text as a module, and as a binary ----------------------------------------------------------


def imported(source: str) -> ModuleType:
    """A candidate's Python, run as a module of its own."""
    path = _source()
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError:
        raise
    except MemoryError as error:
        raise Unfit(Reason.out_of_memory, f"at import: {told(error)}") from error
    except BaseException as error:
        raise Unfit(Reason.compile_failed, f"at import: {told(error)}") from error
    return module


def compiled_source(order: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """A source of CUDA C++ as a binary, or one kernel of a CuTe source, with its name there."""
    if order["language"] == "cuda":
        return {"ok": True}, cuda.compile_source(order["source"], order["arch"])
    if cute_version() == "none":
        raise Unfit(Reason.compile_failed, "CuTe DSL is not installed: pip install nvidia-cutlass-dsl")
    kernel = getattr(imported(order["source"]), order["kernel"], None)
    if kernel is None:
        raise Unfit(Reason.entry_missing, f"the source defines no kernel {order['kernel']!r}")
    try:
        name, binary = cute_binary(kernel, order["block"], order["types"], order["arch"])
    except MemoryError:
        raise
    except BaseException as error:
        raise Unfit(Reason.compile_failed, told(error)) from error
    return {"ok": True, "name": name}, binary


# --- kernels compiled ahead ---------------------------------------------------------------------------------


def rehearse(entry: Callable[..., Any], forms: Sequence[Any]) -> None:
    """Compile what an entry launches, several kernels at a time: it is called with tensors without memory (shape
    and dtype) or the numbers given, and nothing is launched. An entry that cannot be called so compiles later."""
    from triton.runtime import JITFunction, _async_compile

    def compile_only(self: Any, *args: Any, grid: Any = None, warmup: bool = False, **named: Any) -> None:
        run(self, *args, grid=grid, warmup=True, **named)

    run, JITFunction.run = JITFunction.run, compile_only
    inputs = [torch.empty(x[0], dtype=getattr(torch, x[1]), device="meta") if isinstance(x, list) else x
              for x in forms]  # fmt: skip
    try:
        with (
            contextlib.suppress(Exception),
            torch.no_grad(),
            ThreadPoolExecutor(_COMPILERS) as pool,
            _async_compile.AsyncCompileMode(pool, ignore_errors=True),
        ):
            entry(*inputs)
    finally:
        JITFunction.run = run


def compiled() -> bytes:
    """The kernels that this process has compiled, packed; none where they are too many for an answer."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(_kernels().rglob("*")):
            if path.is_file():
                archive.add(path, path.relative_to(_kernels()))
    return packed.getvalue() if packed.tell() < MAX_FRAME_BYTES // 2 else b""


def put_compiled(packed: bytes) -> None:
    """Unpack another process's kernels, under this one's paths, which Triton notes in its files."""
    if not packed:
        return
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(_kernels(), filter="data")
    for path in _kernels().rglob("__grp__*"):
        names = json.loads(path.read_text())["child_paths"]
        path.write_text(json.dumps({"child_paths": {name: str(path.parent / name) for name in names}}))


def _kernels() -> Path:
    return Path(os.environ["TRITON_CACHE_DIR"])


# --- the form of what an entry returns, and what it leaves on tensors ------------------------------------------


def as_tensors(result: Any) -> tuple[torch.Tensor, ...]:
    outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
    for number, output in enumerate(outputs):
        if type(output) is not torch.Tensor:
            raise Unfit(Reason.wrong_type, f"output {number} is a {type(output).__name__}, not a torch.Tensor")
    return outputs


def usable(outputs: Sequence[torch.Tensor], inputs: Sequence[Any]) -> None:
    """Whether outputs are to any reader what eager's are: their memory holds the values, autograd takes them."""
    for number, output in enumerate(outputs):
        if output.layout != torch.strided or output.is_neg() or output.is_conj():
            text = f"output {number} is not what its memory holds: it is sparse, packed, or to be negated when read"
            raise Unfit(Reason.wrong_type, text)
        if output.is_inference() and not any(isinstance(x, torch.Tensor) and x.is_inference() for x in inputs):
            raise Unfit(Reason.wrong_type, f"output {number} was made in inference mode: autograd refuses it")
        if output.requires_grad:
            raise Unfit(Reason.wrong_type, f"output {number} asks for a gradient, though no input does")


def frugal(outputs: Sequence[torch.Tensor]) -> None:
    """Whether outputs keep no more memory than they fill, or little: padded rows are usual."""
    filled: dict[int, int] = {}
    sizes = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in outputs}
    for x in outputs:
        place = x.untyped_storage().data_ptr()
        filled[place] = filled.get(place, 0) + x.numel() * x.itemsize
    for place, size in sizes.items():
        if size > 2 * filled[place] + _PADDING_BYTES:
            text = f"outputs of {filled[place]} bytes are views of {size}, which live as long as they do"
            raise Unfit(Reason.wrong_strides, text)


def attached(kind: str, values: Sequence[Any]) -> list[str]:
    """Python attributes of tensors, but for torch.compile's own marks; hooks on their gradients, and gradients."""
    tensors = [(n, x) for n, x in enumerate(values) if isinstance(x, torch.Tensor)]
    names = [(n, name) for n, x in tensors for name in vars(x) if not name.startswith("_dynamo")]
    names += [(n, name) for n, x in tensors for name in _HOOKS if getattr(x, name)]
    names += [(n, "grad") for n, x in tensors if x.is_leaf and x.grad is not None]
    return [f".{name} of {kind} {n}" for n, name in names][:8]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes; a copy of them where it is not contiguous."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one form hold the same bits; in pieces, for a comparison takes memory."""
    mine, others = _bits(one), _bits(other)
    pieces = (slice(start, start + _PIECE_BYTES) for start in range(0, len(mine), _PIECE_BYTES))
    return all(torch.equal(mine[piece], others[piece]) for piece in pieces)


def _span(tensor: torch.Tensor) -> int:
    """Bytes from a view's first element to its last."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize
