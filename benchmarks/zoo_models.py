"""Public models for `benchmarks.kernels_zoo`: configurations of `transformers`, random weights, and their batches.

Sizes are those that are published, or cut in layers where one GPU's minutes ask for it; each entry says so. Dropout
is 0 everywhere: a gradient is held against the one of float32, and torch's random numbers differ by contestant.
Token ids are drawn by Zipf's law, so that there is something to learn; nothing is downloaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class ZooModel:
    """One model and the step that it is trained with.

    model, config: classes of `transformers`. sizes: of the configuration; tiny: what a CPU takes instead. kind:
    what a batch holds (`_INPUTS`). autocast: float32 weights under bf16 autocast; else the weights are bf16. shape:
    batch and length (tokens), or images alone.
    """

    model: str
    config: str
    sizes: Mapping[str, Any]
    tiny: Mapping[str, Any]
    kind: str
    shape: tuple[int, int]
    tiny_shape: tuple[int, int] = (2, 8)
    autocast: bool = False
    note: str = ""

    def build(self, device: str, seed: int, tiny: bool = False) -> nn.Module:
        """The model with the weights of this seed, in training mode. Raises ImportError without `transformers`."""
        import transformers

        torch.manual_seed(seed)
        sizes = {**self.sizes, **(self.tiny if tiny else {})}
        config = getattr(transformers, self.config)(**sizes)
        if hasattr(config, "use_cache"):
            config.use_cache = False
        dtype = torch.float32 if self.autocast else torch.bfloat16
        with torch.device(device):
            # from a configuration, not `.to(bfloat16)`: rotary frequencies stay float32, as in a loaded model
            made = getattr(transformers, self.model)._from_config(config, dtype=dtype, attn_implementation="sdpa")
        return made.to(device).train()

    def batches(self, device: str, count: int, tiny: bool = False) -> list[Batch]:
        generator = torch.Generator().manual_seed(0)
        sizes = {**self.sizes, **(self.tiny if tiny else {})}
        shape = self.tiny_shape if tiny else self.shape
        made = [_INPUTS[self.kind](sizes, shape, generator) for _ in range(count)]
        return [{name: value.to(device) for name, value in batch.items()} for batch in made]

    def tokens(self, tiny: bool = False) -> int:
        """Tokens of a step; of an image model its images."""
        batch, length = self.tiny_shape if tiny else self.shape
        return batch * length


def _zipf(vocabulary: int, shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    ranks = torch.exp(torch.rand(shape, generator=generator) * math.log(vocabulary)).long() - 1
    return ranks.clamp(0, vocabulary - 1)


def _causal(sizes: Mapping[str, Any], shape: tuple[int, int], generator: torch.Generator) -> Batch:
    ids = _zipf(sizes["vocab_size"], shape, generator)
    return {"input_ids": ids, "labels": ids}


def _masked(sizes: Mapping[str, Any], shape: tuple[int, int], generator: torch.Generator) -> Batch:
    ids = _zipf(sizes["vocab_size"], shape, generator)
    asked = torch.rand(shape, generator=generator) < 0.3
    asked[:, 0] = True  # a batch without a label has no loss
    return {"input_ids": ids.masked_fill(asked, 0), "labels": ids.masked_fill(~asked, -100)}


def _images(sizes: Mapping[str, Any], shape: tuple[int, int], generator: torch.Generator) -> Batch:
    side = sizes["image_size"]
    pixels = torch.randn((shape[0], 3, side, side), generator=generator)
    return {"pixel_values": pixels, "labels": torch.randint(0, sizes["num_labels"], shape[:1], generator=generator)}


def _speech(sizes: Mapping[str, Any], shape: tuple[int, int], generator: torch.Generator) -> Batch:
    frames = 2 * sizes["max_source_positions"]
    features = torch.randn((shape[0], sizes["num_mel_bins"], frames), generator=generator)
    return {"input_features": features, "labels": _zipf(sizes["vocab_size"], shape, generator)}


_INPUTS = {"causal": _causal, "masked": _masked, "images": _images, "speech": _speech}
_SMALL = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 61,
}  # fmt: skip
_NO_IDS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


MODELS: dict[str, ZooModel] = {
    "llama3": ZooModel(
        "LlamaForCausalLM", "LlamaConfig",
        {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8, "num_attention_heads": 32,
         "num_key_value_heads": 4, "vocab_size": 32000},
        _SMALL, "causal", (4, 2048), note="8 layers",
    ),
    "qwen3": ZooModel(
        "Qwen3ForCausalLM", "Qwen3Config",
        {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
         "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True},
        {**_SMALL, "head_dim": 16}, "causal", (1, 2048), note="Qwen3-0.6B",
    ),
    "gpt2": ZooModel(
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": 50257, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": 61, **_NO_IDS},
        "causal", (16, 1024), autocast=True, note="GPT-2 124M",
    ),
    "mixtral": ZooModel(
        "MixtralForCausalLM", "MixtralConfig",
        {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 8, "num_attention_heads": 16,
         "num_key_value_heads": 4, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000},
        {**_SMALL, "num_local_experts": 4}, "causal", (4, 1024), note="8 experts, 2 a token; narrow",
    ),
    "gemma3": ZooModel(
        "Gemma3ForCausalLM", "Gemma3TextConfig",
        {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
         "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "sliding_window": 512},
        {**_SMALL, "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16, **_NO_IDS},
        "causal", (1, 2048), note="Gemma 3 1B",
    ),
    "modernbert": ZooModel(
        "ModernBertForMaskedLM", "ModernBertConfig", {"vocab_size": 50368},
        {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
         "vocab_size": 61, "local_attention": 4, **_NO_IDS, "cls_token_id": None, "sep_token_id": None},
        "masked", (16, 512), autocast=True, note="ModernBERT base",
    ),
    "vit": ZooModel(
        "ViTForImageClassification", "ViTConfig", {"image_size": 224, "patch_size": 16, "num_labels": 1000},
        {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
         "image_size": 16, "patch_size": 8, "num_labels": 5},
        "images", (64, 1), (2, 1), autocast=True, note="ViT-B/16",
    ),
    "whisper": ZooModel(
        "WhisperForConditionalGeneration", "WhisperConfig",
        {"d_model": 768, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 12,
         "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "vocab_size": 51865,
         "num_mel_bins": 80, "max_source_positions": 1500},
        {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 61,
         "num_mel_bins": 8, "max_source_positions": 6, "decoder_start_token_id": 0, **_NO_IDS, "pad_token_id": 0},
        "speech", (8, 128), autocast=True, note="Whisper small",
    ),
}  # fmt: skip


@dataclass
class Truth:
    """Loss and every parameter's gradient of a model's first batch in float32, eager; gradients lie on the CPU.

    A contestant's error of a gradient is the norm of its difference. It is right up to `TIMES` that of eager in the
    job's own precision, or `SHARE` of the gradient itself: both round each product to bf16.
    """

    loss: float
    gradients: dict[str, torch.Tensor]
    eager: dict[str, float] = field(default_factory=dict)
    eager_loss: float = math.nan


TIMES = 3.0
"""A contestant's error over eager's in the same precision: other orders of summation differ by less."""
SHARE = 0.02
"""Of a gradient's own norm: five bf16 roundings, where eager happens to hit float32."""
FLOOR = 1e-4
"""Of the whole gradient's norm, by the parameter: a gradient that is zero by algebra (a key's bias) is noise."""


def truth_of(entry: ZooModel, device: str, batch: Batch, tiny: bool) -> Truth:
    """The reference: the same weights (seed 1), all in float32, no autocast, no TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        model = entry.build(device, 1, tiny).float()
        loss = model(**batch).loss
        loss.backward()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = before
    gradients = {name: p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
    return Truth(float(loss.detach()), gradients)


def wrong(truth: Truth, loss: float, model: nn.Module) -> tuple[str, dict[str, Any]]:
    """(why this contestant leaves the race, "" where it is right; the figures). Its gradients are the model's.

    The first that is asked is eager, by which the others are measured; it too must be finite and have them all.
    """
    parameters = dict(model.named_parameters())
    first = not truth.eager
    total = math.sqrt(sum(float(g.norm()) ** 2 for g in truth.gradients.values()))
    floor = FLOOR * total / math.sqrt(max(1, len(truth.gradients)))
    errors, bad = {}, []
    for name, expected in truth.gradients.items():
        got = parameters[name].grad if name in parameters else None
        if got is None:
            bad.append(f"{name}: no gradient")
            continue
        error = float((got.float() - expected.to(got.device)).norm())
        errors[name] = error
        allowed = max(TIMES * truth.eager.get(name, 0.0), SHARE * float(expected.norm()), floor)
        if not math.isfinite(error) or (not first and error > allowed):
            bad.append(f"{name}: gradient differs by {error:.3g}, allowed {allowed:.3g}")
    if first:
        truth.eager, truth.eager_loss = errors, loss
    near = max(TIMES * abs(truth.eager_loss - truth.loss), 1e-3 * abs(truth.loss))
    if not math.isfinite(loss) or (not first and abs(loss - truth.loss) > near):
        bad.insert(0, f"loss {loss:.6g}, in float32 {truth.loss:.6g}")
    ratios = {
        n: e / max(truth.eager.get(n, 0.0), SHARE * float(truth.gradients[n].norm()), floor)
        for n, e in errors.items()
    }
    worst = max(ratios, key=lambda n: ratios[n], default="")
    figures = {
        "loss": loss, "loss_float32": truth.loss, "gradients": len(errors), "of": len(truth.gradients),
        "worst": worst, "worst_error_over_eager": ratios.get(worst),
    }  # fmt: skip
    more = f" (and {len(bad) - 3} more)" if len(bad) > 3 else ""
    return "; ".join(bad[:3]) + more, figures
