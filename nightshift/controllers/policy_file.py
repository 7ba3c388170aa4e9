"""A learned policy on disk: one JSON file, signed, that holds numbers and nothing that can run.

The file is a DSSE envelope (Ed25519, as kernel certificates have) over canonical JSON: what the policy is for, the
names of its features and actions, its weights as little-endian float32 in base64, its normaliser, the hash of the
environment that it was trained in, seeds, and its evaluation. Loading unpickles nothing, and refuses what is not
signed by a trusted key, is of another format version or kind, sees other features or knows other actions than this
program offers, or holds a number that is none. Inference is NumPy; the daemon loads no torch.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import SealError, Signer, canonical_json, open_envelope, sha256_hex

PAYLOAD_TYPE = "application/vnd.nightshift.policy+json"
VERSION = 1
MAX_BYTES = 16 << 20
MAX_WIDTH, MAX_LAYERS = 4096, 16
_PARTS = ("weight", "bias")
_PICKLES = (b"\x80", b"PK\x03\x04", b"\x93NUMPY", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""How pickles, ZIP archives (torch.save), NumPy files and compressed files (gzip, bzip2, xz, zstd) begin."""

Floats = NDArray[np.float64]


class PolicyRefused(Permanent):
    """A policy file that is not loaded; says what is wrong with it."""


@dataclass(frozen=True)
class Interface:
    """What a policy is for, what it sees and what it may answer, in order: file and program must agree on all."""

    kind: str  # power | scheduling
    features: tuple[str, ...]
    actions: tuple[str, ...]


@dataclass(frozen=True)
class Normaliser:
    """Feature → (feature - mean) / scale, clipped to ±clip. Arrays [n_features]."""

    mean: Floats
    scale: Floats
    clip: float = 10.0

    def __call__(self, features: Floats) -> Floats:
        with np.errstate(over="ignore"):  # a tiny scale: far out, and clipped
            return np.clip((features - self.mean) / self.scale, -self.clip, self.clip)


@dataclass(frozen=True)
class Network:
    """A multilayer perceptron with tanh between its layers, as stable-baselines3's MlpPolicy has.

    `layers`: (weight [n_out, n_in], bias [n_out]) from first to last.
    """

    normaliser: Normaliser
    layers: tuple[tuple[Floats, Floats], ...]

    def logits(self, features: Floats) -> Floats:
        """[n, n_features] → [n, n_actions]. Raises ValueError where one comes out as no number."""
        with np.errstate(over="ignore", invalid="ignore"):  # asked of the answer below
            x = self.normaliser(features)
            for weight, bias in self.layers[:-1]:
                x = np.tanh(x @ weight.T + bias)
            weight, bias = self.layers[-1]
            found = np.asarray(x @ weight.T + bias)
        if not np.isfinite(found).all():
            raise ValueError("the network's answer is no number")
        return found

    def probabilities(self, features: Floats, mask: NDArray[np.bool_] | None = None) -> Floats:
        """Softmax over the actions that `mask` [n, n_actions] allows; each row sums to 1."""
        logits = self.logits(features)
        if mask is not None:
            logits = np.where(mask, logits, -np.inf)
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class PolicyFile:
    """A policy that was loaded, or is to be written."""

    name: str
    interface: Interface
    network: Network
    training: Mapping[str, Any]  # environment_sha256, seeds, steps, program version
    evaluation: Mapping[str, Any]
    sha256: str = ""  # of the signed payload
    key_id: str = ""


def write(path: Path, policy: PolicyFile, signer: Signer) -> str:
    """Signs and writes; returns the payload's SHA-256."""
    if "environment_sha256" not in policy.training or "seeds" not in policy.training:
        raise PolicyRefused(f"{path}: training: names no environment_sha256 or no seeds")
    n = policy.network.normaliser
    payload = canonical_json(
        {
            "version": VERSION,
            "name": policy.name,
            "kind": policy.interface.kind,
            "features": list(policy.interface.features),
            "actions": list(policy.interface.actions),
            "normaliser": {"mean": n.mean.tolist(), "scale": n.scale.tolist(), "clip": float(n.clip)},
            "weights": {
                f"policy.{i}.{part}": _encode(array)
                for i, layer in enumerate(policy.network.layers)
                for part, array in zip(_PARTS, layer, strict=True)
            },
            "training": dict(policy.training),
            "evaluation": dict(policy.evaluation),
        }
    )
    path.write_text(json.dumps(signer.seal(PAYLOAD_TYPE, payload)) + "\n", encoding="utf-8")
    return sha256_hex(payload)


def read(path: Path, interface: Interface, trusted: Mapping[str, Ed25519PublicKey]) -> PolicyFile:
    """Loads a policy for `interface`. Raises PolicyRefused, naming the file and what is wrong."""
    return parse(read_bytes(path), str(path), interface, trusted)


def read_bytes(path: Path) -> bytes:
    """The file's content, at most MAX_BYTES of it. Raises PolicyRefused for what is larger, no plain file (a device
    or a pipe never ends), or a link, which may be turned to another file after it was looked at."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        why = "a symbolic link; name the file itself" if path.is_symlink() else error.strerror
        raise PolicyRefused(f"{path}: {why}") from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise PolicyRefused(f"{path}: not a plain file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PolicyRefused(f"{path}: {error.strerror}") from error
    finally:
        os.close(handle)
    if len(raw) > MAX_BYTES:
        raise PolicyRefused(f"{path}: larger than {MAX_BYTES >> 20} MiB")
    return raw


def parse(raw: bytes, source: str, interface: Interface, trusted: Mapping[str, Ed25519PublicKey]) -> PolicyFile:
    """A policy from a file's content. Raises PolicyRefused, naming the `source` and what is wrong."""
    if raw.startswith(_PICKLES):
        raise PolicyRefused(f"{source}: a pickle or archive; policies are signed JSON (`nightshift policy train`)")
    try:
        payload, key = open_envelope(json.loads(raw), PAYLOAD_TYPE, trusted)
        body = json.loads(payload)
    except (SealError, ValueError, RecursionError) as error:
        raise PolicyRefused(f"{source}: {error}") from error
    try:
        return _parse(body, interface, sha256_hex(payload), key)
    except PolicyRefused as error:
        raise PolicyRefused(f"{source}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, binascii.Error) as error:
        raise PolicyRefused(f"{source}: malformed: {type(error).__name__}: {error}") from error


def _parse(body: Mapping[str, Any], interface: Interface, sha256: str, key: str) -> PolicyFile:
    if not isinstance(body, dict):
        raise PolicyRefused("not an object")
    if body["version"] != VERSION or body["version"] is True:  # in Python, True == 1
        raise PolicyRefused(f"version {body['version']}; this program reads version {VERSION}")
    for field, mine in (("kind", interface.kind), ("features", interface.features), ("actions", interface.actions)):
        told = body[field] if isinstance(mine, str) else tuple(body[field])
        if told != mine:
            raise PolicyRefused(f"{field}: made for {told}, this program has {mine}")
    network = Network(_normaliser(body["normaliser"], len(interface.features)), _layers(body["weights"], interface))
    return PolicyFile(
        str(body["name"]),
        interface,
        network,
        dict(body["training"]),
        dict(body["evaluation"]),
        sha256,
        key,
    )


def _normaliser(n: Mapping[str, Any], width: int) -> Normaliser:
    normaliser = Normaliser(_row(n["mean"]), _row(n["scale"]), float(n["clip"]))
    if normaliser.mean.shape != (width,) or normaliser.scale.shape != (width,) or (normaliser.scale <= 0).any():
        raise PolicyRefused("normaliser: not one mean and one positive scale for each feature")
    if not (math.isfinite(normaliser.clip) and normaliser.clip > 0):
        raise PolicyRefused(f"normaliser: clip {normaliser.clip} is not a positive number")
    return normaliser


def _layers(weights: Mapping[str, Any], interface: Interface) -> tuple[tuple[Floats, Floats], ...]:
    """Each layer's weight and bias. The sizes are bounded before anything is computed with them."""
    layers, width = [], len(interface.features)
    count = len(weights) // 2
    if count > MAX_LAYERS or set(weights) != {f"policy.{i}.{p}" for i in range(count) for p in _PARTS}:
        raise PolicyRefused(f"weights: {sorted(weights)[:4]}… are not policy.0 to policy.N of a network")
    for i in range(count):
        weight, bias = (_decode(weights[f"policy.{i}.{part}"]) for part in _PARTS)
        fits = weight.ndim == 2 and weight.shape[1] == width and bias.shape == (weight.shape[0],)
        if not fits or len(bias) > MAX_WIDTH:
            raise PolicyRefused(f"weights: policy.{i}: shapes {weight.shape} and {bias.shape} after width {width}")
        layers.append((weight, bias))
        width = weight.shape[0]
    if not layers or width != len(interface.actions):
        raise PolicyRefused(f"weights: {width} outputs for {len(interface.actions)} actions")
    return tuple(layers)


def _encode(array: Floats) -> dict[str, Any]:
    return {"shape": list(array.shape), "float32": base64.b64encode(array.astype("<f4").tobytes()).decode()}


def _decode(record: Mapping[str, Any]) -> Floats:
    flat = np.frombuffer(base64.b64decode(record["float32"], validate=True), "<f4").astype(np.float64)
    return _finite(flat.reshape([int(n) for n in record["shape"]]))


def _row(values: Sequence[float]) -> Floats:
    return _finite(np.array(values, dtype=np.float64))


def _finite(array: Floats) -> Floats:
    if not np.isfinite(array).all():
        raise PolicyRefused("a weight or scale is no number")
    return array
