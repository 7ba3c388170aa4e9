"""Parameters of which every run of the tests takes the first few, and the full one all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], most: int = 2) -> list[Any]:
    return [value if n < most else pytest.param(value, marks=pytest.mark.full) for n, value in enumerate(values)]
