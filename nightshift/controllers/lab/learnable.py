"""What `nightshift policy train | evaluate` asks of a kind of policy: each kind has one such part.

The part lives in its own package and is named in `KINDS`; nothing of it is imported before it is asked for, since
training may need the extra `rl` (gymnasium, stable-baselines3, torch) and the daemon does not. What every kind's
training shares stands here too: the hash of its environment, the normaliser, and the network's export.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.base import Permanent
from nightshift.controllers.policy_file import Interface, Network, Normaliser, PolicyFile

KINDS: Mapping[str, str] = {
    "power": "nightshift.controllers.lab.power.learn",
    "scheduling": "nightshift.controllers.lab.scheduling.learn",
    "cache": "nightshift.controllers.lab.cache.learn",
}
"""Kind → module that holds `LEARNABLE`."""

CONTROLLERS = Path(__file__).resolve().parents[1]


class Learnable(Protocol):
    """Trains and evaluates policies of one kind."""

    @property
    def interface(self) -> Interface: ...

    def train(self, seed: int, steps: int | None, say: Any, data: Sequence[Path] = ()) -> PolicyFile:
        """From scratch, the same result for the same seed; `steps` of the environment, None for the full number.
        `say(text)` tells how far it is. `data`: what a kind learns from that is not drawn."""
        ...

    def evaluate(self, policy: PolicyFile | None, data: Sequence[Path], seeds: Sequence[int]) -> Mapping[str, Any]:
        """The kind's table: every baseline and heuristic in the same run, with the policy where one is given.

        `data`: files of measurements in the kind's format (Permanent names the file and line that is wrong).
        """
        ...


def learnable(kind: str) -> Learnable:
    """Raises Permanent for an unknown kind, or where the extra `rl` is not installed."""
    if kind not in KINDS:
        raise Permanent(f"no policies of kind {kind!r}; there are {', '.join(KINDS)}")
    try:
        found: Learnable = import_module(KINDS[kind]).LEARNABLE
    except ImportError as error:
        raise Permanent(f"{error.name} is not installed. In the checkout: pip install '.[rl]'") from error
    return found


# Shared by every kind's training ---------------------------------------------------------------------------------


def environment_sha256(sources: Sequence[str], folder: Path = CONTROLLERS) -> str:
    """Of the source text of everything that a policy is trained in: files below a folder, in this order."""
    state = hashlib.sha256()
    for name in sources:
        state.update((folder / name).read_bytes())
    return state.hexdigest()


def rollout_report(say: Callable[[], None]) -> Any:
    """A callback of stable-baselines3 that calls `say` after each rollout."""
    from stable_baselines3.common.callbacks import BaseCallback

    class RolloutReport(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            say()

    return RolloutReport()


def normaliser(features: NDArray[Any], *, robust: bool = False, clip: float = 5.0) -> Normaliser:
    """From features [n, n_features] seen under random actions: mean and standard deviation; `robust`: median, and
    the spread of a normal distribution with the same 10th and 90th percentile, for features with long tails."""
    rows = np.asarray(features, np.float64)
    if robust:
        middle, spread = np.median(rows, axis=0), np.subtract(*np.percentile(rows, (90, 10), axis=0)) / 2.56
    else:
        middle, spread = rows.mean(axis=0), rows.std(axis=0)
    return Normaliser(middle, np.maximum(spread, 1e-3), clip)


def exported(model: Any, normaliser: Normaliser) -> Network:
    """The policy's half of a stable-baselines3 MlpPolicy as plain arrays, in its layers' order."""
    weights = {name: w.detach().numpy().astype(np.float64) for name, w in model.policy.state_dict().items()}
    names = sorted(
        {name.rpartition(".")[0] for name in weights if name.startswith("mlp_extractor.policy_net.")},
        key=lambda name: int(name.rpartition(".")[2]),
    )
    layers = tuple((weights[f"{name}.weight"], weights[f"{name}.bias"]) for name in (*names, "action_net"))
    return Network(normaliser, layers)
