"""Power control that may change a limit at each look."""

import pytest


@pytest.fixture
def no_dwell(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("shield", "clocks"):
        monkeypatch.setattr(f"nightshift.controllers.power.{module}.DWELL_S", 0.0)
