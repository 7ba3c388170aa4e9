"""A model of random weights served by transformers: torch's own ways against delivered kernels, tokens and speed.

    python -m benchmarks.serving_model DELIVERED --until 240 --out FILE.json    # on a GPU; resumable by way

DELIVERED is a folder of `nightshift kernels deliver`. The model has a Llama's shape (`SHAPE`) and few layers. Every
way generates greedily from the same prompts of random ids: `generate` with a static cache, eager and compiled, and
continuous batching. Decoding is timed as what all tokens take beyond the first of each prompt. Reported are its
tokens/s, the share of tokens that torch's eager way gives as well, and how far the logits of a second token, which
comes of the cache, are from eager's; and how far probabilities are from those of the same weights in a training
step. Continuous batching gives no logits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import serving_rows

SHAPE: Mapping[str, Any] = {
    "vocab_size": 64000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 8,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
}  # fmt: skip
"""Yi 6B's widths: its attentions are among the published definitions."""
PROMPTS, TOKENS, LONGEST, BATCH, SEEN = 200, 50, 384, 50, 16


@dataclass(frozen=True)
class Way:
    """How tokens are generated. ours: with delivered kernels; norms: those of norms as well."""

    name: str
    ours: bool
    batched: bool
    compiled: bool = False
    norms: bool = True


WAYS = (
    Way("generate, eager", False, False),
    Way("generate, compile", False, False, True),
    Way("generate, compile, our attention", True, False, True, norms=False),
    Way("batched, ours", True, True),
    Way("generate, compile, ours", True, False, True),
    Way("batched, torch", False, True),
    Way("generate, ours", True, False),
)
RIVALS = {"generate": ("generate, eager", "generate, compile"), "batched": ("batched, torch",)}


def model(shape: Mapping[str, Any], device: str) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        return LlamaForCausalLM(LlamaConfig(**shape)).to(torch.bfloat16).eval()


def prompts(count: int, shape: Mapping[str, Any]) -> list[list[int]]:
    """Random ids; lengths up to `LONGEST`, or an eighth of the model's longest."""
    import random

    rng, longest = random.Random(41), min(LONGEST, shape["max_position_embeddings"] // 8)
    lengths = [rng.randint(longest // 16, longest) for _ in range(count)]
    return [[rng.randrange(3, shape["vocab_size"]) for _ in range(length)] for length in lengths]


@contextmanager
def mapped(served: Any, delivered: Path, way: Way, device: str) -> Iterator[Any]:
    """The delivered layers in a model; the package."""
    import kernels

    mode = kernels.Mode.INFERENCE | kernels.Mode.TORCH_COMPILE if way.compiled else kernels.Mode.INFERENCE
    layer = kernels.LocalLayerRepository(delivered, layer_name="RMSNorm")
    layers = {"RMSNorm": {device: {mode: layer}}} if way.norms else {}
    with kernels.use_kernel_mapping(layers, inherit_mapping=False):
        kernels.kernelize(served, mode=mode, device=device)
        yield kernels.get_local_kernel(delivered)
    with kernels.use_kernel_mapping({}, inherit_mapping=False):
        kernels.kernelize(served, mode=mode, device=device)  # the model's own again


def generate(
    served: Any, chosen: list[list[int]], tokens: int, compiled: bool, width: int = LONGEST
) -> list[list[int]]:
    """Prompts in parts, each padded on the left to `width`: a compiled step has one length of the cache."""
    import torch

    made = []
    for start in range(0, len(chosen), BATCH):
        part = chosen[start : start + BATCH]
        ids = torch.tensor([[0] * (width - len(p)) + p for p in part], device=served.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part], device=served.device)
        out = served.generate(
            ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0,
            cache_implementation="static", disable_compile=not compiled,
        )  # fmt: skip
        made += [row[width:] for row in out.tolist()]
    return made


def batched(served: Any, chosen: list[list[int]], tokens: int, blocks: int) -> list[list[int]]:
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    size = ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=4096)
    found = served.generate_batch(inputs=chosen, generation_config=config, continuous_batching_config=size)
    return [found[key].generated_tokens for key in sorted(found, key=lambda key: int(key.rpartition("_")[2]))]


def logits(served: Any, chosen: list[list[int]]) -> tuple[Any, dict[str, float]]:
    """Of some prompts' second new token, by `generate` with a static cache: [prompts, vocabulary]. And how far
    the logarithms of the probabilities of `SEEN` new tokens are from those of a training step's forward pass."""
    import torch

    rows, off, way = [], [], served.config._attn_implementation
    for prompt in chosen[:8]:
        out = served.generate(
            torch.tensor([prompt], device=served.device), max_new_tokens=SEEN, min_new_tokens=SEEN, do_sample=False,
            pad_token_id=0, cache_implementation="static", disable_compile=True, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
        made = torch.stack(out.logits, 1)[0].float()
        rows.append(made[1].cpu())
        served.set_attn_implementation("sdpa")
        served.train()
        whole = served(out.sequences, use_cache=False).logits[0, len(prompt) - 1 : -1].detach().float()
        served.eval()
        served.set_attn_implementation(way)
        tokens = out.sequences[0, len(prompt) :, None]
        pair = (torch.log_softmax(x, -1).gather(1, tokens)[:, 0] for x in (made, whole))
        off.append((next(pair) - next(pair)).abs())
    found = torch.cat(off)
    return torch.stack(rows), {"training_off_mean": float(found.mean()), "training_off_most": float(found.max())}


def measured(way: Way, run: Callable[[list[list[int]], int], list[list[int]]], chosen: Any, tokens: int) -> Any:
    """The tokens of all prompts, and a row: what they took, and what their first tokens did."""
    import torch

    def timed(count: int) -> tuple[Any, float]:
        run(chosen[: 2 if way.batched else BATCH], count)  # compiles, and fills caches of kernels
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.monotonic()
        made = run(chosen, count)
        return made, time.monotonic() - start

    made, took_s = timed(tokens)
    _, first_s = timed(1)
    beyond = sum(map(len, made)) - len(made)
    return made, {
        "decode_tokens_per_s": round(beyond / (took_s - first_s), 1),
        "took_s": round(took_s, 3),
        "first_s": round(first_s, 3),
    }


def row_of(
    served: Any, way: Way, delivered: Path, chosen: list[list[int]], tokens: int
) -> tuple[dict[str, Any], Any]:
    device = served.device.type
    blocks = 2 * -(-sum(len(p) + tokens for p in chosen) // 256) + len(chosen)
    width = max(map(len, chosen))

    def run(part: list[list[int]], count: int) -> list[list[int]]:
        if way.batched:
            return batched(served, part, count, blocks)
        return generate(served, part, count, way.compiled, width)

    if not way.ours:
        served.set_attn_implementation("paged|sdpa" if way.batched else "sdpa")
        made, row = measured(way, run, chosen, tokens)
        served.set_attn_implementation("sdpa")
        scores, beside = (None, {}) if way.batched else logits(served, chosen)
        return {**row, **beside, "tokens": made}, scores
    with mapped(served, delivered, way, device) as package:
        batches = package.register()
        package.COUNTS.clear()
        served.set_attn_implementation(batches if way.batched else package.STATIC)
        scores, beside = (None, {}) if way.batched else logits(served, chosen)
        made, row = measured(way, run, chosen, tokens)
        served.set_attn_implementation("sdpa")
        counts = {name: dict(n) for name, n in package.COUNTS.items()}
        return {**row, **beside, "tokens": made, "counts": counts}, scores


def figures(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Decoded tokens/s over the best of torch's ways: of one kind, and of all. A way is ours where a kernel ran."""
    speeds = {name: row["decode_tokens_per_s"] for name, row in rows.items() if "decode_tokens_per_s" in row}
    ours = {
        way.name: speeds[way.name]
        for way in WAYS
        if way.ours
        and way.name in speeds
        and any("kernel" in counts for counts in rows[way.name]["counts"].values())
    }
    over = {}
    for kind, rivals in {**RIVALS, "": tuple(name for names in RIVALS.values() for name in names)}.items():
        theirs = [speeds[name] for name in rivals if name in speeds]
        mine = [speed for name, speed in ours.items() if name.startswith(kind)]
        over[kind or "all"] = round(max(mine) / max(theirs), 3) if mine and theirs else None
    return {"decode_tokens_per_s_over_the_best": over}


def compared(row: dict[str, Any], first: Any, scores: Any, eager: Any) -> dict[str, Any]:
    """A row with the share of eager's tokens and the largest distance of its logits, and without the tokens.
    scores: None where the way gives no logits."""
    pairs = [
        (a, b)
        for mine, theirs in zip(row.pop("tokens"), first, strict=True)
        for a, b in zip(mine, theirs, strict=False)
    ]
    same = sum(a == b for a, b in pairs) / max(1, len(pairs))
    off = None if scores is None else float((scores - eager).abs().max())
    return {**row, "tokens_as_eager": round(same, 4), "logits_off": off, "logits_size": float(eager.abs().max())}


def main() -> None:
    parser = serving_rows.parser(__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--shape", type=json.loads, default={}, help="JSON that changes the model's shape")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    args = parser.parse_args()
    start = time.monotonic()
    rows: dict[str, Any] = {}
    shape = {**SHAPE, **args.shape}
    served, chosen = model(shape, args.device), prompts(args.prompts, shape)
    first = eager = None
    for way in WAYS:
        if time.monotonic() - start > args.until:
            rows[way.name] = {"detail": "the time was over"}
            continue
        try:
            row, scores = row_of(served, way, args.folder, chosen, args.tokens)
        except Exception as error:  # noqa: BLE001  one way, and the rest is measured
            rows[way.name] = {"detail": f"{type(error).__name__}: {error}"[:400]}
        else:
            first, eager = (row["tokens"], scores) if first is None else (first, eager)
            rows[way.name] = compared(row, first, scores, eager)
        print(way.name, rows[way.name], flush=True)
        found = {"shape": shape, "prompts": len(chosen), "new_tokens": args.tokens, **figures(rows)}
        serving_rows.save(args.out, "serving_model", args.device, found, rows=rows)


if __name__ == "__main__":
    main()
