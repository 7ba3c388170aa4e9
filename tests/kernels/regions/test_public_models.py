"""Candidates for tiny models of `transformers` and modules of torch, written by the author of regions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.regions.public_models import MODELS, MODULES

ROOT = Path(__file__).parents[3]


@pytest.mark.full
def test_candidates_for_public_models_compute_what_the_models_do(tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.regions.public_models", str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert {name for name, *_ in rows} == {*MODELS, *MODULES}
    assert not [row for row in rows if not row[-1] < 1e-5]
