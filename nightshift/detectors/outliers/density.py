"""What a GPU of one model usually looks like: a mixture of normal classes over several metrics at once, as JSON.

Trained offline (`detectors.outliers.learning`), read here with NumPy alone. The score of a look is its negative
log density: how unlike every class of workload it was. Scores are not probabilities of healthy telemetry (it is
not Gaussian), so the model carries its calibration: conformal p-values by rank among the scores of series that
were held out of the training (Vovk et al., "Algorithmic Learning in a Random World", 2005), and the tail of false
episodes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Floats
from nightshift.collectors.seal import fingerprint
from nightshift.detectors.alarms.tail import Tail

VERSION = 2
"""1: without a digest. It is refused, as every other version is: `nightshift learn` writes a new one in seconds."""
MOST_LOOKS = 10_000
KEPT_SCORES = 512
BUILT_IN = Path(__file__).with_name("models")


class ModelError(Permanent):
    """A model file cannot be used; the message names the file and the field."""


@dataclass(frozen=True, eq=False)
class Density:
    """centre, scale [d]; weights [k]; means [k, d] and whiten [k, d, d] of the standardised metrics.

    look_s: seconds that one look averages; persist: looks in a row that an episode needs; settle: usual looks
    before a GPU is judged at all. highest: the top scores of `scored` calibration looks, ascending.
    """

    sku: str
    metrics: tuple[str, ...]
    look_s: float
    persist: int
    settle: int
    centre: Floats
    scale: Floats
    weights: Floats
    means: Floats
    whiten: Floats
    highest: Floats
    scored: int
    tail: Tail
    source: str

    def __post_init__(self) -> None:
        d, k = len(self.metrics), len(self.weights)
        shapes = {"centre": (d,), "scale": (d,), "weights": (k,), "means": (k, d), "whiten": (k, d, d)}
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape or not np.isfinite(array).all():
                raise ModelError(f"{name}: {array.shape} with only finite numbers wanted as {shape}")
        for name in ("persist", "settle", "scored"):
            if type(getattr(self, name)) is not int or not 0 <= getattr(self, name) <= 2**53:
                raise ModelError(f"{name}: {getattr(self, name)!r} is no count")
        for name in ("threshold", "rate_per_1000", "scale", "shape", "series_days"):
            if not _finite(getattr(self.tail, name)):
                raise ModelError(f"tail.{name}: {getattr(self.tail, name)!r} is no finite number")
        for name, right in {
            "sku": isinstance(self.sku, str) and bool(self.sku.strip()),
            "metrics": d and len(set(self.metrics)) == d and all(isinstance(m, str) for m in self.metrics),
            "look_s": _finite(self.look_s) and self.look_s > 0,
            "persist": 1 <= self.persist <= MOST_LOOKS,
            "settle": self.settle <= MOST_LOOKS,
            "scale": (self.scale > 0).all(),
            "weights": k and (self.weights > 0).all() and abs(self.weights.sum() - 1.0) < 1e-6,
            "whiten": all(np.abs(np.diagonal(one)).min(initial=1.0) > 0 for one in self.whiten),
            "highest": self.highest.ndim == 1 and len(self.highest) and bool((np.diff(self.highest) >= 0).all()),
            "tail": self.tail.scale > 0 and min(self.tail.shape, self.tail.rate_per_1000) >= 0,
        }.items():
            if not right:
                raise ModelError(f"{name}: outside what it can be")

    def score(self, x: Floats) -> tuple[Floats, NDArray[np.int64]]:
        """x [n, d] in the metrics' units → (negative log density [n], nearest class [n])."""
        z = (x - self.centre) / self.scale
        logs = np.empty((len(z), len(self.weights)))
        for k in range(len(self.weights)):
            away = (z - self.means[k]) @ self.whiten[k]
            spread = np.log(np.abs(np.diagonal(self.whiten[k]))).sum()
            logs[:, k] = np.log(self.weights[k]) + spread - 0.5 * np.einsum("nd,nd->n", away, away)
        best = logs.max(axis=1)
        total = best + np.log(np.exp(logs - best[:, None]).sum(axis=1))
        return -total, logs.argmax(axis=1)

    def p_value(self, score: float) -> float:
        """The conformal p-value of one look: its rank among the calibration's, never 0."""
        above = len(self.highest) - int(np.searchsorted(self.highest, score, side="left"))
        if above == len(self.highest) and self.scored > len(self.highest):
            return 1.0 if score < self.highest[0] else (above + 1) / (self.scored + 1)
        return (above + 1) / (self.scored + 1)

    def save(self, path: Path) -> None:
        values = {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in vars(self).items()}
        told = {"version": VERSION, **values, "tail": asdict(self.tail)}
        text = json.dumps({**told, "digest": fingerprint(told)}, indent=1, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def load(path: Path) -> Density:
    """Reads a model. Raises ModelError where it is none, of another version, or not as it was written."""
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if read["version"] != VERSION:
            raise ModelError(f"version {read['version']!r}, this code reads {VERSION}: learn it again")
        if read.pop("digest") != fingerprint(read):
            raise ModelError("digest: the file was changed after it was learnt")
        del read["version"]
        arrays = ("centre", "scale", "weights", "means", "whiten", "highest")
        values = {**read, **{name: np.array(read[name], dtype=float) for name in arrays}}
        return Density(**{**values, "metrics": tuple(read["metrics"]), "tail": Tail(**read["tail"])})
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path}: not a model: {error!r}") from error


def find(name: str) -> Density:
    """A model by the path of its file, or by the name of one that comes with Nightshift."""
    built_in = BUILT_IN / f"{name}.json"
    return load(built_in if "/" not in name and built_in.is_file() else Path(name))
