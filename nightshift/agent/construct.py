"""Plug-ins from their settings: which class an entry means, and what is watched where nothing is configured."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nightshift.agent.clock import Clock
from nightshift.collectors.base import Collector, Permanent
from nightshift.collectors.plugins import ALL as COLLECTORS
from nightshift.collectors.seal import fingerprint
from nightshift.controllers.action import ActionKind, Actuator
from nightshift.controllers.actuators.plugins import ALL as ACTUATORS
from nightshift.controllers.rack_actuator import RackActuator
from nightshift.detectors.base import Detector
from nightshift.detectors.plugins import ALL as DETECTORS

# What is watched without a configuration: this machine's GPUs and its kernel log.
LOCAL = ("nvml", "kernel_log")
NVML_LIBRARY = "libnvidia-ml.so.1"


def build_collectors(entries: Sequence[Any], state_dir: Path | None = None) -> list[Collector]:
    """One collector per entry of `sources`. Without entries: this machine's, where it has NVIDIA's driver. What a
    collector keeps over restarts goes to `state_dir`; without one it keeps nothing."""
    known: dict[str, Any] = {plugin.plugin: plugin for plugin in COLLECTORS}
    if not entries:
        if not has_nvidia_driver():
            raise Permanent(
                f"no source is configured and this machine has no NVIDIA driver ({NVML_LIBRARY}): "
                "name `sources` in a configuration file (--config FILE)"
            )
        return [known[name](known[name].Settings()) for name in LOCAL if name in known]
    return [known[entry.type](_with_state(entry, state_dir)) for entry in entries]


def _with_state(entry: Any, state_dir: Path | None) -> Any:
    """The entry with a file for its state, where its plug-in keeps any and no file is configured. The name follows
    from what is read, so that it stays when entries are reordered."""
    if state_dir is None or getattr(entry, "state_file", state_dir) is not None:
        return entry
    read = entry.urls if hasattr(entry, "urls") else [entry.agents.namespace, entry.agents.selector]
    # Sorted: the same sources in another order read the same things.
    place = fingerprint([entry.type, *sorted(read)])[:16]
    return entry.model_copy(update={"state_file": state_dir / f"{entry.type}-{place}.json"})


def build_detectors(entries: Any) -> list[Detector]:
    """One detector per entry, but the disabled ones."""
    return [
        plugin(getattr(entries, plugin.plugin)) for plugin in DETECTORS if plugin.plugin not in entries.disabled
    ]


def build_actuators(entries: Sequence[Any], clock: Clock) -> list[Actuator]:
    """One actuator per entry of `actuators`; what drains a node drains a rack's nodes together."""
    known: dict[str, Any] = {plugin.plugin: plugin for plugin in ACTUATORS}
    made = [known[entry.type].from_settings(entry, now_s=clock.now_s) for entry in entries]
    # the others as they are: whoever needs one of a kind finds it by its class
    return [RackActuator(one) if ActionKind.DRAIN in one.kinds() else one for one in made]


def has_nvidia_driver() -> bool:
    try:
        # The driver's own library: /dev/nvidia0 may be there without it, and nvidia-smi is not in every image.
        ctypes.CDLL(NVML_LIBRARY)
    except OSError:
        return False
    return True
