"""Serving kernels as a package: its layout, its guards, and a model that transformers serves with it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from nightshift.kernels.apply import hub
from nightshift.kernels.candidate import Launch
from nightshift.kernels.certification.envelope import CertificateError, certificate_sha256
from nightshift.kernels.cli import app
from nightshift.kernels.suites.definitions import definition_of, solution_of
from tests.kernel_certificates import SIGNER
from tests.kernels.apply.served_programs import TOKENS, TRUSTED, certificate, delivered, kernel_of
from tests.serving_definitions import plain_norm, put

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return delivered(tmp_path_factory.mktemp("delivered"))


@pytest.fixture(scope="module")
def package(out: Path) -> Any:
    place = out / "build/torch-cpu/__init__.py"
    spec = importlib.util.spec_from_file_location("delivered_kernels", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs(rows: int = 3, width: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(rows, width, dtype=torch.bfloat16), torch.ones(width, dtype=torch.bfloat16)


def test_each_kernel_lies_beside_its_certificate(out: Path) -> None:
    folder = out / "build/torch-cpu"
    records = json.loads((folder / "kernels.json").read_text())
    assert sorted(records) == ["decode_h2_kv1", "prefill_causal_h4_kv2_d16_ps1", "rmsnorm_h16", "rmsnorm_h64"]
    for record in records.values():
        envelope = json.loads((folder / f"{record['source']}.certificate.json").read_text())
        assert certificate_sha256(envelope) == record["certificate"]
        assert (folder / f"{record['source']}.py").exists()
        assert (folder / f"{record['reference']}.py").exists()
    assert records["rmsnorm_h64"]["epsilon"] == 1e-6
    assert records["prefill_causal_h4_kv2_d16_ps1"]["attention"] == [4, 2, 16]
    assert records["decode_h2_kv1"]["decode"] == [2, 1, 16]


def test_solutions_are_read_as_flashinfer_bench_reads_them(out: Path) -> None:
    found = {one.definition: one for one in map(solution_of, out.glob("solutions/**/*.json"))}
    assert found["rmsnorm_h64"].language == "triton"
    assert found["rmsnorm_h64"].style is False


GUARDS: dict[str, tuple[str, Any]] = {
    "another dtype": ("dtype", lambda x, w: (x.half(), w)),
    "another width": ("shape", lambda x, w: (x[:, :32].contiguous(), w)),
    "sizes that disagree": ("shape", lambda x, w: (x, w[:32].contiguous())),
    "another rank": ("shape", lambda x, w: (x[None], w)),
    "rows apart": ("layout", lambda x, w: (x.repeat(1, 2)[:, :64], w)),
    "a gradient": ("gradient", lambda x, w: (x.requires_grad_(), w)),
    "a number for a tensor": ("inputs", lambda x, w: (x, 1.0)),
    "too few": ("inputs", lambda x, w: (x,)),
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_refuses(package: Any, name: str) -> None:
    why, change = GUARDS[name]
    record = package.KERNELS["rmsnorm_h64"]
    assert package.refusal(record, inputs()) == ""
    assert package.refusal(record, change(*inputs())) == why


def test_another_architecture_is_computed_by_the_reference(tmp_path: Path, package: Any, monkeypatch: Any) -> None:
    """No kernel runs, and the outputs are the definition's."""
    record = {**package.KERNELS["rmsnorm_h64"], "architecture": "9.0"}
    monkeypatch.setitem(package.KERNELS, "rmsnorm_h64", record)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    made = package.SOLUTIONS["rmsnorm_h64"](x, x[0])
    assert package.COUNTS["rmsnorm_h64"]["architecture"] == 1
    wide = x.float()
    right = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * x[0].float()).bfloat16()
    assert torch.equal(made, right)


@pytest.mark.full
def test_a_compiler_sees_the_forms_of_the_outputs(package: Any) -> None:
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(5, 4, 16, dtype=torch.bfloat16)
        cache = torch.empty(9, 1, 2, 16, dtype=torch.bfloat16)
        places = torch.empty(3, dtype=torch.int32)
        made, lse = package.OPERATORS["prefill_causal_h4_kv2_d16_ps1"](
            q, cache, cache, places, places, places, 0.25
        )
    assert (made.shape, made.dtype) == (q.shape, torch.bfloat16)
    assert (lse.shape, lse.dtype) == ((5, 4), torch.float32)


def test_what_may_not_be_delivered_is_named(tmp_path: Path) -> None:
    definition = definition_of(put(tmp_path, plain_norm(64)))
    made = kernel_of(definition)
    here, there = (certificate(definition, made, environment={"capability": name}) for name in ("none", "9.0"))
    known = {definition.name: definition}
    with pytest.raises(CertificateError, match="no such definition"):
        hub.deliveries([here], TRUSTED, {})
    with pytest.raises(CertificateError, match="not the one that was certified"):
        hub.deliveries([here], TRUSTED, {definition.name: replace(definition, reference="def run(): pass")})
    with pytest.raises(CertificateError):
        hub.deliveries([{**here, "payload": there["payload"]}], TRUSTED, known)
    launch = Launch("k", ("1", "1", "1"), ("1", "1", "1"), ())
    launched = replace(made, language="cute", launches=(launch,))
    with pytest.raises(CertificateError, match="'cute' has no entry"):
        hub.deliveries([certificate(definition, launched)], TRUSTED, known)
    with pytest.raises(CertificateError, match="2 kinds of machine"):
        hub.write(tmp_path / "out", hub.deliveries([here, there], TRUSTED, known))
    assert hub.write(tmp_path / "gpu", hub.deliveries([there], TRUSTED, known)).name == "torch-cuda"


def test_a_kernel_that_lost_its_race_is_not_delivered(tmp_path: Path) -> None:
    widths = (64, 16)
    for width, status in zip(widths, ("faster", "slower"), strict=True):
        definition = definition_of(put(tmp_path / "folder", plain_norm(width)))
        made = certificate(definition, kernel_of(definition), status=status, environment={"capability": "9.0"})
        (tmp_path / f"{width}.json").write_text(json.dumps(made))
    key = tmp_path / "key.pub"
    key.write_text(SIGNER.public.public_bytes_raw().hex() + "\n")
    given = [
        "deliver",
        str(tmp_path),
        str(tmp_path / "out"),
        "--folder",
        str(tmp_path / "folder"),
        "--key",
        str(key),
    ]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    assert "rmsnorm_h16: not written, it is slower than its baseline" in done.output
    assert list(json.loads((tmp_path / "out/build/torch-cuda/kernels.json").read_text())) == ["rmsnorm_h64"]


@pytest.mark.full
def test_transformers_serves_the_same_tokens(out: Path) -> None:
    """Greedy tokens of a small Qwen3, with a static cache and by continuous batching, on Triton's interpreter."""
    pytest.importorskip("kernels", minversion="0.16")
    program = [sys.executable, "-m", "tests.kernels.apply.served_programs", str(out)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        program, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["ours"] == told["torch"]
    assert told["ours_static"] == told["torch_padded"]
    assert told["ours_batched"] == told["torch_batched"]
    for name, counts in told["counts_batched"].items():
        assert set(counts) == {"kernel"}, name
    assert set(told["counts"]) == {"rmsnorm_h64", "rmsnorm_h16"}
    assert told["counts_static"]["decode_h2_kv1"] == {"kernel": TOKENS - 1}
    assert "prefill_causal_h4_kv2_d16_ps1" in told["counts_batched"]
    assert set(told["opcheck"].values()) == {"SUCCESS"}
