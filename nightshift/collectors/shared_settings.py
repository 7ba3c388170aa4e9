"""Settings that several parts need and a configuration states once.

A part's own `Settings` declares the value that it works with: a connection, an access, a pattern. In a
configuration the part gives the name of an entry, or nothing, and gets the value while the configuration is
validated. So a part needs no configuration to be made or tested, and a person states nothing twice.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, BeforeValidator, Field

NOTHING: Mapping[str, Any] = MappingProxyType({})
_stated: ContextVar[Mapping[str, Any]] = ContextVar("stated", default=NOTHING)


@contextmanager
def stated(values: Mapping[str, Any]) -> Iterator[None]:
    """Within: what the configuration states, by block. A block of named entries is a mapping."""
    token = _stated.set(values)
    try:
        yield
    finally:
        _stated.reset(token)


def entry_of(block: str) -> BeforeValidator:
    """For a field that refers to an entry of a block by its name.

    >>> from pydantic import TypeAdapter
    >>> from typing import Annotated
    >>> with stated({"sizes": {"small": 1}}):
    ...     TypeAdapter(Annotated[int, entry_of("sizes")]).validate_python("small")
    1
    """

    def look_up(value: Any) -> Any:
        # Anything else is the value itself: of a test, or of a former spelling that held it in place.
        if not isinstance(value, str):
            return value
        entries = _stated.get().get(block, NOTHING)
        if value not in entries:
            close = difflib.get_close_matches(value, entries, n=1)
            raise ValueError(
                f"`{block}` has no entry {value!r}" + (f"; did you mean {close[0]!r}?" if close else "")
            )
        return entries[value]

    return BeforeValidator(look_up)


def stated_once(block: str, default: Callable[[], Any]) -> Any:
    """For a field whose value stands in a block of its own. It is in no dump: the block is."""
    return Field(
        default_factory=lambda: _stated.get().get(block, default()),
        exclude=True,
        description=f"Stated once for all parts, as `{block}`",
    )


def completed(block: str) -> BeforeValidator:
    """For a field of `stated_once` in whose place a former spelling gives some of the values: the block has the
    others."""

    def complete(value: Any) -> Any:
        here = _stated.get().get(block)
        if not isinstance(value, Mapping) or not isinstance(here, BaseModel):
            return value
        return {**{name: getattr(here, name) for name in here.model_fields_set}, **value}

    return BeforeValidator(complete)


def stated_block(block: str) -> Any:
    """What the configuration that is being validated states in a block; None where it states nothing."""
    return _stated.get().get(block)
