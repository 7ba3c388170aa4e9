"""Writes a benchmark's figures with the environment they were measured in, and prints them."""

from __future__ import annotations

import json
import math
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "river", "pyod")


def environment() -> dict[str, Any]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count(), **versions}


def write(name: str, results: Any) -> None:
    """results/NAME.json; NaN and infinity become null."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"environment": environment(), "results": _plain(results)}, indent=1, allow_nan=False)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    print(text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
