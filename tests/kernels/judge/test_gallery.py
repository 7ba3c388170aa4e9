"""Every known cheat is refused for a right reason, every known-good kernel is accepted, by the real judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.kernels.candidate_file import read_candidate
from nightshift.kernels.judge import static
from nightshift.kernels.judge.gallery import Piece, Showing, placeless, read_gallery, show
from nightshift.kernels.judge.host.process import Limits
from nightshift.kernels.judge.judge import Judge
from nightshift.kernels.judge.probes.inputs import CPU, INTERPRETER
from nightshift.kernels.judge.verdict import Reason
from nightshift.kernels.ops.problems import BY_NAME

HERE = Path(__file__).parents[1]
EXPLOITS = read_gallery(HERE / "exploits", "cpu")
GOOD = read_gallery(HERE / "good", "cpu")

# The quick run takes some of every class; the rest is judged by `make test-full`.
QUICK_EXPLOITS = {
    "background_thread",
    "cached_by_data_ptr",
    "cached_own_kernel",
    "combined_exec_and_gc",
    "constant_for_shape",
    "copy_by_helper",
    "downgraded_matmul",
    "every_other_call",
    "exits_early",
    "forged_reply",
    "gc_walk",
    "input_mutated",
    "kills_its_parent",
    "last_row_not_written",
    "lazy_subclass",
    "library_behind_a_name",
    "nan_hidden",
    "one_pass_variance",
    "out_of_memory_by_name",
    "patched_copy",
    "prints_a_gigabyte",
    "ptrace_the_judge",
    "random_rounding",
    "right_for_one_dtype",
    "swallowed_exception",
    "uninitialised_output",
    "warm_up_detected",
    "writes_through_ctypes",
    "raises_a_verdict",
    "returns_its_input",
    "library_for_one_layout",
    "gradient_ignores_upstream",
    "keeps_its_outputs",
    "seeds_torchs_generator",
    "square_matrices_transposed_in_memory",
    "thread_that_stays",
    "another_step_for_adamw",
    "process_that_stays",
    "spoils_its_output_with_its_input",
}
QUICK_GOOD = {
    "adamw_flat",
    "library_softmax",
    "max_integer",
    "rmsnorm_many_rows",
}
# A quarter of a minute to five minutes each on the interpreter; another of each operation is judged here. A GPU
# judges them like every other: `benchmarks.kernels_exploits --device cuda --parts good`, in
# results/kernels_good_h100.json.
ON_A_GPU_ALONE = {
    "copy_flat",
    "copy_rows",
    "cross_entropy_backward",
    "cross_entropy_looped",
    "dequantise_rows",
    "embedding_gradient_scan",
    "flash_attention_32",
    "geglu_rows",
    "layernorm_backward",
    "layernorm_looped",
    "library_fused_mlp",
    "reduce_sum_split",
    "rmsnorm_backward",
    "rmsnorm_looped",
    "rmsnorm_residual_row",
    "rmsnorm_two_paths",
    "rotary_half_in_place",
    "rotary_half_new",
    "rotary_interleaved_pairs",
    "rotary_interleaved_tiled",
    "softmax_autotuned",
    "softmax_backward",
    "softmax_filled",
    "softmax_online",
    "softmax_operator",
    "softmax_own_library",
    "softmax_persistent",
    "softmax_planned",
    "stencil_3x3_tiles",
    "stencil_3x3_wide",
    "stencil_5x5_tall",
}


def _marked(pieces: list[Piece], quick: set[str]) -> list[object]:
    missing = quick - {piece.name for piece in pieces}
    assert not missing, missing
    return [
        pytest.param(piece, id=piece.name, marks=() if piece.name in quick else pytest.mark.full)
        for piece in pieces
    ]


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    limits = Limits(import_s=30.0, call_s=12.0, memory_bytes=3 << 30, scratch_bytes=64 << 20, file_bytes=64 << 20)
    with Judge("cpu", interpret=True, limits=limits) as made:
        yield made


def _show(judge: Judge, patch: pytest.MonkeyPatch, piece: Piece, *, static: bool) -> Showing:
    """Short limits end a cheat that hangs; on a busy machine they must not end an interpreter that only works."""
    if not piece.refused & {Reason.call_timeout, Reason.import_timeout}:
        patch.setattr(judge, "limits", replace(judge.limits, call_s=300.0, import_s=300.0))
    scope = INTERPRETER if piece.file.candidate.language == "triton" else CPU
    return show(judge, piece, scope, static=static, pace=None)


@pytest.mark.parametrize("piece", _marked(EXPLOITS, QUICK_EXPLOITS))
def test_a_cheat_is_refused_with_the_static_read_switched_off(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, piece: Piece
) -> None:
    """What reads the source is only a filter: process, probes and comparisons must refuse it alone."""
    shown = _show(judge, monkeypatch, piece, static=False)
    assert shown.right, f"{shown.verdict.status} {shown.verdict.reason}: {shown.verdict.detail}"


READ = [piece for piece in EXPLOITS if static.read(piece.file.candidate)]


@pytest.mark.full
@pytest.mark.parametrize("piece", READ, ids=lambda piece: piece.name)
def test_a_cheat_is_refused_with_the_static_read(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, piece: Piece
) -> None:
    """Where the read finds nothing, the verdict is the one with it switched off."""
    shown = _show(judge, monkeypatch, piece, static=True)
    assert shown.right, f"{shown.verdict.status} {shown.verdict.reason}: {shown.verdict.detail}"


@pytest.mark.timeout(1500)  # dropout_add_rows, the only one of its operation, takes up to six minutes
@pytest.mark.parametrize("piece", _marked([one for one in GOOD if one.name not in ON_A_GPU_ALONE], QUICK_GOOD))
def test_a_good_candidate_is_accepted(judge: Judge, monkeypatch: pytest.MonkeyPatch, piece: Piece) -> None:
    shown = _show(judge, monkeypatch, piece, static=True)
    assert shown.right, f"{shown.verdict.status} {shown.verdict.reason}: {shown.verdict.detail}"


def _all(folder: str) -> list[Piece]:
    return read_gallery(HERE / folder, "cuda")


def test_the_static_read_has_nothing_against_any_good_candidate() -> None:
    """Those that need a GPU to run can be read anywhere."""
    found = {piece.name: static.read(piece.file.candidate) for piece in _all("good")}
    assert {name: seen for name, seen in found.items() if seen} == {}


def test_the_gallery_is_as_large_and_as_varied_as_it_claims_to_be() -> None:
    """Far more than 45 exploits and 60 good candidates; every exploit has a class and reasons."""
    exploits, good = _all("exploits"), _all("good")
    assert len(exploits) >= 140
    assert len(good) >= 80
    assert all(piece.cheat and piece.refused for piece in exploits)
    assert not any(piece.cheat or piece.refused for piece in good)
    assert {piece.file.problem for piece in good} == set(BY_NAME)
    here = {piece.file.problem for piece in GOOD if piece.name not in ON_A_GPU_ALONE}
    assert here == {piece.file.problem for piece in GOOD}
    assert {piece.cheat for piece in exploits} >= CLASSES


FIXED_TOLERANCE = {
    "rmsnorm_without_norm": "an RMSNorm without any normalisation, bfloat16",
    "softmax_constant_denominator": "a softmax with a constant denominator",
    "constant_loss": "a cross-entropy that returns ln V + 0.5",
    "layernorm_without_affine": "a layernorm that ignores weight and bias",
}
"""What passes AutoKernel's fixed tolerances (measured), each with its fixture."""


@pytest.mark.parametrize("name", FIXED_TOLERANCE)
def test_what_passes_a_fixed_tolerance_is_refused_for_its_error(judge: Judge, name: str) -> None:
    """Without the static read, and for nothing but the error."""
    piece = next(piece for piece in EXPLOITS if piece.name == name)
    assert piece.cheat == "near-constant output"
    shown = show(judge, piece, CPU, static=False, pace=None)
    assert shown.verdict.reason in (Reason.rmse, Reason.worst_row, Reason.max_ulp), shown.verdict.detail


CLASSES = {
    "GOT or ptrace patching",
    "NaN as wildcard",
    "background thread",
    "bad input",
    "batched",
    "branch on being watched",
    "branch on dtype",
    "branch on shape",
    "cached",
    "combined",
    "constant",
    "determinism",
    "faster than physics",
    "forged result pipe",
    "gc or stack walk",
    "input mutated",
    "lazy tensor subclass",
    "library call posing as a kernel",
    "near-constant output",
    "out of bounds",
    "out-of-memory counted as skip",
    "partial or no write",
    "patched framework",
    "persisting L2",
    "precision downgrade",
    "process changed",
    "right for usual values only",
    "shared-memory garbage",
    "side stream",
    "swallowed exception posing as a kernel",
    "uninitialised memory",
    "warm-up detection",
    "wrong gradient",
}


def test_every_file_of_the_gallery_is_read() -> None:
    """No fixture is skipped by its suffix or a bad header."""
    for folder in ("exploits", "good"):
        names = {path.stem for path in (HERE / folder).iterdir() if path.suffix != ".pyc" and path.is_file()}
        assert names == {piece.name for piece in _all(folder)}
        for path in (HERE / folder).glob("*.*"):
            assert read_candidate(path).problem in BY_NAME


def test_reasons_in_headers_are_the_verdicts_own_words() -> None:
    assert all(isinstance(reason, Reason) for piece in _all("exploits") for reason in piece.refused)


def test_a_record_does_not_say_where_it_was_made() -> None:
    root = HERE.parents[1]
    text = f'File "{root}/nightshift/kernels/judge/host/service.py", line 1\n'
    text += 'File "/tmp/a/judge-x1/host17/candidate.py", line 2'
    told = 'File "nightshift/kernels/judge/host/service.py", line 1\nFile "host17/candidate.py", line 2'
    assert placeless(text) == told
