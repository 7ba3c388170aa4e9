"""Traces of SGLang and vLLM as their places, against what another tool reads out of the operators behind them.

    python -m benchmarks.serving_traces CLONE [--out FILE.json]

CLONE is a checkout of github.com/AMD-AGI/TraceLens: `tests/traces/inference` has servers' traces, and beside each
what TraceLens reports of it (`perf_csvs`). It joins a graph's kernels to the operators of a second trace, taken
while the graph was captured. We read the first trace alone, with the model's config.json. Compared are sizes of
products, heads of attention and widths of norms, kernel by kernel. The GPUs are AMD's.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
QWEN3_8B = {
    "num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
}  # fmt: skip
GPT_OSS_20B = {
    "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "intermediate_size": 2880, "vocab_size": 201088, "num_local_experts": 32,
}  # fmt: skip
"""From huggingface.co/Qwen/Qwen3-8B and huggingface.co/openai/gpt-oss-20b."""
TRACES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "sglang_decode": ("sglang_Qwen3-8B_decode.json.gz", QWEN3_8B),
    "sglang_prefilldecode": ("sglang_Qwen3-8B_prefilldecode.json.gz", QWEN3_8B),
    "vllm_decode_full": ("graph_execution.json.gz", GPT_OSS_20B),
    "vllm_prefilldecode_piecewise": ("graph_execution.json.gz", GPT_OSS_20B),
}


def reported(folder: Path) -> dict[str, set[str]]:
    """By a kernel's name what the other tool says that it computes, as our definitions write sizes."""
    csv.field_size_limit(sys.maxsize)
    found: dict[str, set[str]] = {}

    def rows(name: str) -> Iterator[dict[str, str]]:
        with (folder / "perf_csvs" / name).open(newline="") as file:
            yield from csv.DictReader(file)

    def keep(row: Mapping[str, str], told: str) -> None:
        for name in re.findall(r"\{'name': '(.*?)', 'stream'", row["kernel_details__summarize_kernel_stats"]):
            found.setdefault(name, set()).add(told)

    for row in rows("GEMM.csv"):
        keep(row, f"n{row['param: N']}_k{row['param: K']}")
    for row in rows("InferenceAttention_fwd.csv"):
        if row["param: H_Q"]:
            heads, kv, width = (float(row[f"param: {name}"]) for name in ("H_Q", "H_KV", "d_h_qk"))
            keep(row, f"h{heads:.0f}_kv{kv:.0f}_d{width:.0f}")
    for row in rows("RMSNorm_fwd.csv"):
        keep(row, f"h{row['param: num_channels']}")
    return found


def measure(clone: Path, name: str, folder: Path) -> dict[str, Any]:
    from nightshift.collectors.training.kineto_reader import read_trace
    from nightshift.kernels.profile.server import ModelShape, server_profile

    file, config = TRACES[name]
    place = clone / "tests/traces/inference" / name
    shape = folder / "config.json"
    shape.write_text(json.dumps(config))
    began = time.monotonic()
    found = server_profile(read_trace(place / file), ModelShape.read(shape))
    took_s = time.monotonic() - began
    truth = reported(place)
    compared = [
        (one.name, kernel[:60], one.definition, sorted(truth[kernel]))
        for one in found.places
        for kernel in one.kernels
        if kernel in truth and one.definition
    ]
    wrong = [row for row in compared if not any(re.search(rf"_{told}(\D|$)", row[2]) for told in row[3])]
    spent = sum(one.seconds for one in found.places)
    return {
        "phases": {phase.name: [phase.passes, phase.batch, phase.tokens] for phase in found.phases},
        "gpu_ms": round(spent * 1e3, 3),
        "share_in_a_place": round(sum(one.seconds for one in found.places if one.name != "other") / spent, 4),
        "share_with_a_definition": round(sum(one.seconds for one in found.places if one.definition) / spent, 4),
        "share_outside": round(found.outside_s / (spent + found.outside_s), 4),
        "compared": len(compared),
        "as_reported": len(compared) - len(wrong),
        "others": wrong,
        "took_s": round(took_s, 2),
    }


def main() -> None:
    import tempfile

    from nightshift.version import commit

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS / "serving_traces.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = {name: measure(args.clone, name, Path(folder)) for name in TRACES}
    head = subprocess.run(
        ["git", "-C", args.clone, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    source = {"repository": "github.com/AMD-AGI/TraceLens", "commit": head.stdout.strip()}
    made = {"benchmark": "serving_traces", "commit": commit() or "unknown", "source": source, "rows": rows}
    args.out.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
