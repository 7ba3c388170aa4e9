"""CuTe DSL for tests: of the extra `cute`, without which they are skipped, but not where CI is set."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from nightshift.kernels.candidate_file import CandidateFile, read_candidate

if importlib.util.find_spec("cutlass") is None:
    if os.environ.get("CI"):
        raise ImportError("CI needs the extra `cute`")
    pytest.skip("the extra `cute` is not installed", allow_module_level=True)


def in_cute(name: str, folder: str = "good") -> CandidateFile:
    """A piece of the gallery."""
    return read_candidate(Path(__file__).parent / folder / f"{name}_cute.py")
