"""Power control that may change a limit at each look."""

import pytest


@pytest.fixture(autouse=True)
def _no_dwell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.controllers.power.shield.DWELL_S", 0.0)
