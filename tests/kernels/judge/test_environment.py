"""The judge asks NVML about the card that it computes on, whatever CUDA_VISIBLE_DEVICES leaves it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from types import SimpleNamespace

import pynvml
import pytest
import torch

from nightshift.kernels.judge.environment import Nvml, UnknownDevice, handle_of
from tests.collectors.conftest import nvml_library  # noqa: F401

NOWHERE = "0000FFFF:FF:00.0"


@pytest.fixture
def nvml(nvml_library: ctypes.CDLL) -> Iterator[ctypes.CDLL]:  # noqa: F811
    """Eight pretend cards."""
    nvml_library.stub_reset()
    pynvml.nvmlInit()
    yield nvml_library
    nvml_library.stub_reset()


def uuid(card: int) -> str:
    """As torch writes it: without NVML's prefix."""
    return f"0000000{card}-0000-0000-0000-000000000000"


@pytest.mark.parametrize("card", range(8))
def test_cudas_device_is_found_by_its_uuid(nvml: ctypes.CDLL, card: int) -> None:
    """With and without the prefix that NVML writes."""
    for name in (uuid(card), f"GPU-{uuid(card)}"):
        assert pynvml.nvmlDeviceGetUUID(handle_of(pynvml, name, NOWHERE)) == f"GPU-{uuid(card)}"


def test_a_uuid_that_nvml_does_not_know_is_looked_up_at_its_bus(nvml: ctypes.CDLL) -> None:
    """Card 5 of the stand-in sits at bus 15 (hexadecimal), and no card has the UUID."""
    assert pynvml.nvmlDeviceGetUUID(handle_of(pynvml, "of-nobody", "00000000:15:00.0")) == f"GPU-{uuid(5)}"


def test_a_device_that_nvml_does_not_know_is_no_other_card(nvml: ctypes.CDLL) -> None:
    """Another card's energy, memory and Xids would stand in the certificate."""
    with pytest.raises(UnknownDevice, match="of-nobody"):
        handle_of(pynvml, "of-nobody", NOWHERE)


def test_the_judges_nvml_is_of_the_card_that_cuda_was_given(
    nvml: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's device 0 is the machine's card 6 under CUDA_VISIBLE_DEVICES=6: its energy is read, card 0's is not."""
    given = SimpleNamespace(uuid=uuid(6), pci_domain_id=0, pci_bus_id=22, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: given)
    with Nvml() as asked:
        first = asked.energy_j()
        assert asked.energy_j() > first
        pynvml.nvmlInit()
        untouched = pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0))
        assert untouched == 612
        nvml.stub_lose(0, 1)
        assert math.isfinite(asked.energy_j())
        nvml.stub_lose(6, 1)
        assert math.isnan(asked.energy_j())
