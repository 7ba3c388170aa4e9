"""A server's trace: passes by marks or by CUDA graphs, places by the order of kernels, sizes by the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nightshift.collectors.training.kineto_reader import read_trace
from nightshift.collectors.training.kineto_trace import TraceError
from nightshift.kernels.cli import app
from nightshift.kernels.profile.roofline import Peaks
from nightshift.kernels.profile.server import ModelShape, ServerProfile, place_of, server_profile

CONFIG = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "vocab_size": 128,
}  # fmt: skip
LAYER = (
    ("fused_add_rmsnorm_kernel", 2), ("nvjet_tst_64x8", 10), ("rmsnorm_kernel", 1), ("rotary_embedding_kernel", 1),
    ("reshape_and_cache_flash_kernel", 1), ("void flash::flash_fwd_splitkv_kernel<Traits<128>>(Params)", 20),
    ("nvjet_tst_64x8", 5), ("void cublasLt::splitKreduce_kernel<32, 16>(int)", 1), ("fused_add_rmsnorm_kernel", 2),
    ("nvjet_tst_128x8", 30), ("act_and_mul_kernel", 3), ("nvjet_tst_64x8", 15),
)  # fmt: skip
ENDS = (("fused_add_rmsnorm_kernel", 2), ("nvjet_tst_256x8", 40), ("void at::native::reduce_kernel<ArgMaxOps>", 4))
PASS_US = 400


def kernel(name: str, at: float, length: float, correlation: int) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": correlation}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": length, "args": args}


def trace(folder: Path, marks: list[str], graphs: bool = False, layer: Any = LAYER) -> Path:
    """A pass for each mark; an empty one is no mark."""
    events: list[dict[str, Any]] = []
    for number, mark in enumerate(marks):
        begin = 1000.0 + number * PASS_US
        host = {"ph": "X", "pid": 1, "tid": 1}
        if mark:
            events.append({**host, "cat": "user_annotation", "name": mark, "ts": begin, "dur": 90})
        at = begin + 20
        for place, (name, length) in enumerate([*layer, *layer, *ENDS]):
            correlation = 1 + number if graphs else 1 + 100 * number + place
            if not graphs or not place:
                call = "cudaGraphLaunch" if graphs else "cudaLaunchKernel"
                args = {"correlation": correlation}
                ran = {"cat": "cuda_runtime", "name": call, "ts": begin + 1 + place, "dur": 1}
                events.append({**host, **ran, "args": args})
            events.append(kernel(name, at, length, correlation))
            at += length
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def shape(folder: Path, **change: Any) -> ModelShape:
    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, **change}))
    return ModelShape.read(path)


def profile(folder: Path, marks: list[str], **more: Any) -> ServerProfile:
    peaks = Peaks(1e9, {"bfloat16": 1e12}, "probe")
    return server_profile(read_trace(trace(folder, marks, **more)), shape(folder), peaks, 8)


def test_every_place_has_its_definition(tmp_path: Path) -> None:
    found = profile(tmp_path, ["step[DECODE bs=8]", "step[DECODE bs=8]"])
    (phase,) = found.phases
    assert (phase.name, phase.passes, phase.tokens) == ("decode", 2, 8.0)
    assert phase.period_s == pytest.approx(PASS_US * 1e-6)
    assert phase.tokens_per_s == pytest.approx(8 / (PASS_US * 1e-6))
    by_name = {place.name: (place.definition, place.calls, round(place.seconds * 1e6)) for place in found.places}
    assert by_name == {
        "product: gate and up": ("gemm_n192_k64", 2.0, 60),
        "product: head": ("gemm_n128_k64", 1.0, 40),
        "attention": ("gqa_*decode_h4_kv2_d16*", 2.0, 40),
        "product: down": ("gemm_n64_k96", 2.0, 30),
        "product: qkv": ("gemm_n128_k64", 2.0, 20),
        "product: out": ("gemm_n64_k64", 4.0, 12),
        "norm: and addition": ("fused_add_rmsnorm_h64", 5.0, 10),
        "gate": ("silu_*h96*", 2.0, 6),
        "sampling": ("*_v128", 1.0, 4),
        "norm: of heads": ("rmsnorm_h16", 2.0, 2),
        "rotary": ("rope_*d16*", 2.0, 2),
        "cache write": ("", 2.0, 2),
    }
    assert sum(place.seconds for place in found.places) == pytest.approx(phase.busy_s)


def test_a_gain_is_of_the_whole_pass(tmp_path: Path) -> None:
    found = profile(tmp_path, ["step[DECODE bs=8]", "step[DECODE bs=8]"])
    place = next(place for place in found.places if place.name == "product: head")
    moved = 2 * (128 * 64 + 8 * (128 + 64))
    assert place.floor_s == pytest.approx(moved / 1e9)
    saved = place.seconds - place.floor_s / 0.9
    assert place.gain == pytest.approx(PASS_US * 1e-6 / (PASS_US * 1e-6 - saved) - 1)


MARKS = {
    "step[DECODE bs=32]": ("decode", 32, 32, 0),
    "step[EXTEND bs=15 toks=15360]": ("prefill", 15, 15360, 0),
    "step[MIXED bs=4 toks=900]": ("mixed", 4, 900, 0),
    "execute_context_0(0)_generation_64(64)": ("decode", 64, 64, 0),
    "execute_context_9(8155)_generation_37(37)": ("mixed", 46, 8192, 0),
    "execute_context_2(700)_generation_0(0)": ("prefill", 2, 700, 0),
    "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)": ("decode", 32, 32, 32785),
}


@pytest.mark.parametrize("mark", MARKS)
def test_servers_name_their_passes(tmp_path: Path, mark: str) -> None:
    (phase,) = profile(tmp_path, [mark]).phases
    assert (phase.name, phase.batch, phase.tokens, phase.context) == MARKS[mark]


def test_phases_stay_apart(tmp_path: Path) -> None:
    found = profile(tmp_path, ["step[EXTEND bs=2 toks=64]", "step[DECODE bs=8]", "", "step[DECODE bs=8]"])
    assert [(phase.name, phase.passes) for phase in found.phases] == [("prefill", 1), ("decode", 2)]
    outside_us = sum(length for _, length in (*LAYER, *LAYER, *ENDS))
    assert found.outside_s == pytest.approx(outside_us * 1e-6)
    names = {(place.phase, place.name): place.definition for place in found.places}
    assert names["prefill", "attention"] == "gqa_*prefill_causal_h4_kv2_d16*"


def test_without_marks_a_graph_with_every_layer_is_a_decode(tmp_path: Path) -> None:
    found = profile(tmp_path, ["", ""], graphs=True)
    assert [(phase.name, phase.passes, phase.batch) for phase in found.phases] == [("decode", 2, 8.0)]
    assert "no pass is marked" in found.notes[0]


def test_what_shows_no_pass_says_how_to_mark_one(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="record_function"):
        profile(tmp_path, ["", ""])


def test_products_of_another_order_are_not_told_apart(tmp_path: Path) -> None:
    found = profile(tmp_path, ["step[DECODE bs=8]"], layer=LAYER[:-1])
    assert "7 products in 2 layers" in found.notes[0]
    assert {place.definition for place in found.places if place.name == "product"} == {""}


@pytest.mark.parametrize(
    ("text", "told"),
    [("[]", "no config.json"), ("{", "no config.json"), ("{}", "num_attention_heads"), (None, "no config.json")],
)
def test_a_config_that_is_none_is_named(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(TraceError, match=told):
        ModelShape.read(path)


def test_ranks_share_heads_and_widths(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"text_config": CONFIG}))
    found = ModelShape.read(path, ranks=4)
    assert (found.heads, found.kv, found.wide, found.vocabulary, found.hidden) == (1, 1, 24, 32, 64)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("void paged_attention_kernel<bf16, (vllm::Fp8KVCacheDataType)0>(int)", "attention"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bEEvPT0_", "norm"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3", "norm"),
        ("triton_poi_fused_mul_silu_5", "gate"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "experts"),
        ("void at::native::vectorized_gather_kernel<16, long>(char*)", "embedding"),
        ("void at::native::elementwise_kernel<128, direct_copy_kernel_cuda>(int)", "other"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias", "product"),
    ],
)
def test_a_kernel_has_one_place(name: str, place: str) -> None:
    assert place_of(name) == place


def test_the_command_names_what_is_delivered(tmp_path: Path) -> None:
    made = trace(tmp_path, ["step[DECODE bs=8]"])
    shape(tmp_path)
    place = tmp_path / "delivered" / "build" / "torch-cuda"
    place.mkdir(parents=True)
    (place / "kernels.json").write_text(json.dumps({"gqa_paged_decode_h4_kv2_d16_ps1": {}}))
    given = ["profile", str(made), "--model", str(tmp_path / "config.json"), "--delivered"]
    done = CliRunner().invoke(app, [*given, str(tmp_path / "delivered")])
    assert done.exit_code == 0, done.output
    assert "gqa_paged_decode_h4_kv2_d16_ps1 (certified kernel delivered)" in done.output
    refused = CliRunner().invoke(app, [*given, str(tmp_path / "empty")])
    assert refused.exit_code != 0
    without = CliRunner().invoke(app, ["profile", str(made), "--batch", "8"])
    assert without.exit_code == 2
