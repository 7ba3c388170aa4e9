"""Candidates that the author of regions writes for tiny public models, run on Triton's interpreter.

    python -m tests.kernels.regions.public_models FOLDER

A line of JSON for each model and plan: how far the candidate is from the model, of its largest element.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

TEXT = {"vocab_size": 99, "use_cache": False}
DEEP = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
GROUPED = {**TEXT, **DEEP, "num_key_value_heads": 2}
IMAGE = {**DEEP, "image_size": 16, "patch_size": 4}
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "llama": (GROUPED, "torch.randint(1, 99, (2, 12))"),
    "gemma3_text": ({**GROUPED, "head_dim": 8, "sliding_window": 8}, "torch.randint(1, 99, (2, 12))"),
    "gpt2": ({**TEXT, "n_embd": 32, "n_layer": 2, "n_head": 2}, "torch.randint(1, 99, (2, 12))"),
    "bloom": ({**TEXT, "hidden_size": 32, "n_layer": 1, "n_head": 4}, "torch.randint(1, 99, (2, 12))"),
    "opt": ({**TEXT, **DEEP, "ffn_dim": 64, "word_embed_proj_dim": 32}, "torch.randint(1, 99, (2, 12))"),
    "mixtral": ({**GROUPED, "num_local_experts": 4}, "torch.randint(1, 99, (2, 12))"),
    "modernbert": ({**DEEP, "vocab_size": 99, "pad_token_id": 0, "local_attention": 8},
                   "torch.randint(1, 99, (2, 12))"),
    "mamba": ({**TEXT, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}, "torch.randint(1, 99, (2, 6))"),
    "vit": (IMAGE, "torch.randn(2, 3, 16, 16)"),
    "swin": ({"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2],
              "window_size": 4}, "torch.randn(1, 3, 16, 16)"),
    "segformer": ({"hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "sr_ratios": [2, 1],
                   "num_attention_heads": [1, 2], "patch_sizes": [3, 3], "strides": [2, 2], "mlp_ratios": [2, 2]},
                  "torch.randn(1, 3, 32, 32)"),
}  # fmt: skip
"""Of `transformers`: what its configuration is given, and an input."""
MODULES = {
    "relu_attention": ("Linear(48, 144)", "attended(self.m(x))", "torch.rand(2, 10, 48)"),
    "recurrent": (
        "LSTM(8, 16, 2, batch_first=True, bidirectional=True)",
        "self.m(x)[0] * 2",
        "torch.randn(3, 5, 8)",
    ),
    "encoder": ("TransformerEncoderLayer(16, 4, 32, dropout=0.0)", "self.m(x)", "torch.randn(5, 3, 16)"),
    "patches": ("Identity()", "x.unfold(2, 4, 4).unfold(3, 4, 4).relu()", "torch.randn(2, 3, 8, 8)"),
    "largest": ("Identity()", "torch.topk(x.transpose(1, 2), 3, dim=1)[0] * 2", "torch.randn(2, 6, 9)"),
}
"""Of torch.nn: a module, what is computed of it, and an input."""
TASK = """
import torch

def attended(x):
    q, k, v = (y.view(2, 10, 3, 16).transpose(1, 2) for y in x.split(48, dim=2))
    scores = (q @ k.transpose(-2, -1)).masked_fill(torch.ones(10, 10).tril() == 0, float("-inf"))
    return (scores.relu() @ v).transpose(1, 2).reshape(2, 10, 48)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.m = {made}

    def forward(self, x):
        return {result}

def get_inputs():
    return [{given}]

def get_init_inputs():
    return []
"""
BY_NAME = """(lambda hf: hf.AutoModel.from_config(hf.AutoConfig.for_model({name!r}, **{settings!r})))(
    __import__("transformers"))"""


def tasks() -> dict[str, str]:
    found = {}
    for name, (settings, given) in MODELS.items():
        made = BY_NAME.format(name=name, settings=settings)
        found[name] = TASK.format(made=made, result="self.m(x)[0]", given=given)
    for name, (module, result, given) in MODULES.items():
        found[name] = TASK.format(made=f"torch.nn.{module}", result=result, given=given)
    return found


def main(folder: Path) -> None:
    import torch

    from benchmarks.kernels_compile import load
    from nightshift.kernels.draw import Draw
    from nightshift.kernels.problem import as_outputs
    from nightshift.kernels.regions.author import region_author
    from nightshift.kernels.suites.kernelbench import load_task

    for name, text in tasks().items():
        path = folder / f"{name}.py"
        path.write_text(text)
        task = load_task(path)
        problem, case = task.problem, task.problem.cases[0]
        author = region_author(problem, task.forms, "cpu")
        inputs = problem.make_inputs(case, Draw(3, "normal", "cpu"))
        with torch.no_grad():
            wanted = as_outputs(problem.reference(*inputs))
        plans = {c["product"] == "torch": c for c in reversed(author.warm.configs)}  # products of its own, torch's
        for plan in plans.values():
            made = author.family.composed(case, plan).candidate
            with torch.no_grad():
                outputs = as_outputs(load(made, str(folder))(*inputs))
            off = max(
                float((x.double() - y.double()).abs().max() / y.double().abs().max())
                for x, y in zip(outputs, wanted, strict=True)
            )
            print(json.dumps([name, plan["product"], made.kind, off]), flush=True)


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    main(Path(sys.argv[1]))
