"""Which texts are near a question in meaning: vectors of the user's embedding model, beside the words of
`agent.rca.search`.

A text's vector is made once, in the background, and kept in a file. A question's is made when it is asked, within
seconds. Where the model fails, is slow or is not done yet, words alone decide: nothing waits for it.
"""

from __future__ import annotations

import os
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import structlog

from nightshift.collectors.seal import sha256_hex

Vectors = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Texts to their vectors. May raise anything, and may never return."""

QUESTION_S, RETRY_S = 5.0, 600.0
BATCH, MOST_TEXTS, MOST_NEAR = 32, 20_000, 20
DISTINCT = 2.0
"""A text is near where its likeness lies so many standard deviations above the mean of all texts: which likeness is
high differs from model to model."""


class Meaning(Protocol):
    def near(self, texts: Sequence[str], question: str) -> list[int]:
        """Positions of the texts that are near a question, the nearest first."""
        ...


class VectorIndex:
    """Fulfils `Meaning`. `file` holds the vectors between starts; `redact` is applied to all that is sent."""

    def __init__(
        self,
        vectors: Vectors,
        file: Path,
        redact: Callable[[str], str],
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._file, self._redact, self._timer = vectors, file, redact, timer
        self._lock = threading.Lock()
        self._known = _read(file)
        self._filling: threading.Thread | None = None
        self._asking: threading.Thread | None = None
        self._retry_s = float("-inf")
        self._log = structlog.get_logger("embeddings")

    def near(self, texts: Sequence[str], question: str) -> list[int]:
        keys = [sha256_hex(text.encode())[:32] for text in texts[:MOST_TEXTS]]
        self._fill(dict(zip(keys, texts, strict=False)))
        with self._lock:
            places = [at for at, key in enumerate(keys) if key in self._known]
            rows = [self._known[keys[at]] for at in places]
        wanted = self._question(question) if rows else None
        if wanted is None:
            return []
        matrix = np.stack([row if len(row) == len(wanted) else np.zeros_like(wanted) for row in rows])
        likeness = matrix @ wanted
        bar = likeness.mean() + DISTINCT * likeness.std()
        order = np.argsort(-likeness, kind="stable")[:MOST_NEAR]
        return [places[at] for at in order.tolist() if likeness[at] > bar]

    def wait(self, timeout_s: float) -> None:
        """Until the texts that were last asked about have vectors, or that failed."""
        if self._filling is not None:
            self._filling.join(timeout_s)

    def _fill(self, texts: dict[str, str]) -> None:
        with self._lock:
            missing = {key: text for key, text in texts.items() if key not in self._known}
            busy = self._filling is not None and self._filling.is_alive()
            if not missing or busy or self._timer() < self._retry_s:
                return
            self._filling = threading.Thread(
                target=self._make_all, args=(missing, set(texts)), name="embeddings", daemon=True
            )
            self._filling.start()

    def _make_all(self, missing: dict[str, str], wanted: set[str]) -> None:
        keys = list(missing)
        for at in range(0, len(keys), BATCH):
            part = keys[at : at + BATCH]
            made = self._vectors([missing[key] for key in part])
            if made is None:
                break
            with self._lock:
                self._known |= dict(zip(part, made, strict=True))
        with self._lock:
            self._known = {key: row for key, row in self._known.items() if key in wanted}
            _write(self._file, self._known)

    def _question(self, question: str) -> np.ndarray | None:
        """Its vector; None where that takes too long or fails. One that never comes back is not asked twice."""
        found: list[np.ndarray] = []

        def ask() -> None:
            found.extend(self._vectors([question]) or ())

        with self._lock:
            if (self._asking is not None and self._asking.is_alive()) or self._timer() < self._retry_s:
                return None
            self._asking = threading.Thread(target=ask, name="embeddings question", daemon=True)
            self._asking.start()
        self._asking.join(QUESTION_S)
        return found[0] if found else None

    def _vectors(self, texts: Sequence[str]) -> list[np.ndarray] | None:
        """Of length 1. None where the model fails, which is logged once in `RETRY_S`."""
        try:
            made = [np.asarray(row, dtype=np.float32) for row in self._make([self._redact(text) for text in texts])]
            sizes = {row.shape for row in made}
            if len(made) != len(texts) or len(sizes) != 1 or not all(np.isfinite(row).all() for row in made):
                raise ValueError(f"{len(made)} vectors of {len(sizes)} forms for {len(texts)} texts")
            return [row / max(float(np.linalg.norm(row)), 1e-12) for row in made]
        except Exception as error:  # noqa: BLE001  whatever a provider's client raises: words alone decide then
            self._log.warning("embeddings failed", error=f"{type(error).__name__}: {error}"[:300])
            with self._lock:
                self._retry_s = self._timer() + RETRY_S
            return None


def _read(file: Path) -> dict[str, np.ndarray]:
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as kept:
            return dict(zip(kept["keys"].tolist(), kept["vectors"], strict=True))
    # none yet, or half a file: they are made again
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}


def _write(file: Path, known: dict[str, np.ndarray]) -> None:
    if not known or len({len(row) for row in known.values()}) != 1:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".partial")
    with unfinished.open("wb") as to:
        np.savez(to, keys=np.array(list(known)), vectors=np.stack(list(known.values())))
    os.replace(unfinished, file)
