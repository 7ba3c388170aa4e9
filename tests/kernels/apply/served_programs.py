"""Certified serving kernels for a model of few numbers, as a delivered folder; and a program that serves it.

TRITON_INTERPRET=1 python -m tests.kernels.apply.served_programs FOLDER    # one JSON object: tokens and counts
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from nightshift.collectors.seal import sha256_hex
from nightshift.kernels.apply import hub
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate.template import candidate
from nightshift.kernels.ops.serving.families import family_of
from nightshift.kernels.suites.definitions import Definition, definition_of
from nightshift.kernels.suites.serving import problem_of
from tests.kernel_certificates import SIGNER, predicate, signed
from tests.serving_definitions import decode, plain_norm, prefill, put

TRUSTED = {SIGNER.key_id: SIGNER.public}
TOKENS = 4


def certificate(definition: Definition, made: Candidate, **verdict: Any) -> dict[str, Any]:
    content = predicate(**verdict)
    problem = {"name": f"serving/{definition.name}", "reference_sha256": sha256_hex(definition.reference.encode())}
    return signed({**content, "candidate": made.to_json(), "problem": problem})


def kernel_of(definition: Definition) -> Candidate:
    """Our kernel, of its smallest tiles: they are interpreted."""
    family, problem = family_of(definition), problem_of(definition)
    assert family is not None
    config = {name: values[0] for name, values in family.kernel.dimensions.items()}
    config |= {name: 16 for name in ("tokens", "block") if name in config}
    return candidate(family, problem.name, problem.cases[0], config)


def delivered(folder: Path, capability: str = "none") -> Path:
    """A folder with norms of 64 and of 16 and an attention of 4 heads over 2 of width 16, and of 2 over one."""
    records = (plain_norm(64), plain_norm(16), prefill(), decode(2, 1))
    definitions = {made.name: made for made in (definition_of(put(folder, record)) for record in records)}
    envelopes = [certificate(d, kernel_of(d), environment={"capability": capability}) for d in definitions.values()]
    hub.write(folder / "out", hub.deliveries(envelopes, TRUSTED, definitions))
    return folder / "out"


def model() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=256, use_sliding_window=False,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).to(torch.bfloat16).eval()


def generated(served: Any, ids: torch.Tensor, padded: int = 0) -> list[list[int]]:
    """Greedy tokens with a static cache; the last prompt's first tokens may be padding."""
    mask = torch.ones_like(ids)
    mask[-1, :padded] = 0
    out = served.generate(
        ids, attention_mask=mask, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False,
        cache_implementation="static", disable_compile=True,
    )  # fmt: skip
    return [row[ids.shape[1] :] for row in out.tolist()]


def batched(served: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy tokens of continuous batching, prompts in order."""
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    config = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
    size = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)
    found = served.generate_batch(inputs=prompts, generation_config=config, continuous_batching_config=size)
    return [found[key].generated_tokens for key in sorted(found, key=lambda key: int(key.rpartition("_")[2]))]


def main(folder: Path) -> None:
    import kernels

    ids = torch.randint(3, 128, (2, 7), generator=torch.Generator().manual_seed(1))
    prompts = [*ids.tolist(), [5, 6, 7]]
    plain = model()
    told: dict[str, Any] = {"torch": generated(plain, ids), "torch_padded": generated(plain, ids, padded=3)}
    plain.set_attn_implementation("paged|sdpa")
    told["torch_batched"] = batched(plain, prompts)
    repository = kernels.LocalLayerRepository(folder, layer_name="RMSNorm")
    served, mode = model(), kernels.Mode.INFERENCE
    with kernels.use_kernel_mapping({"RMSNorm": {"cpu": {mode: repository}}}, inherit_mapping=False):
        kernels.kernelize(served, mode=mode, device="cpu")
    package = kernels.get_local_kernel(folder)
    told["ours"] = generated(served, ids)
    told["counts"] = {name: dict(found) for name, found in package.COUNTS.items()}
    batches = package.register()
    served.set_attn_implementation(package.STATIC)
    told["ours_static"] = generated(served, ids, padded=3)
    told["counts_static"] = {name: dict(found) for name, found in package.COUNTS.items()}
    served.set_attn_implementation(batches)
    told["ours_batched"] = batched(served, prompts)
    told["counts_batched"] = {name: dict(found) for name, found in package.COUNTS.items()}
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    told["opcheck"] = torch.library.opcheck(package.OPERATORS["rmsnorm_h64"], (x, x[0].clone()))
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
