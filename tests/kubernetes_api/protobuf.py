"""Secrets in Kubernetes' protobuf encoding, in which Helm's client writes its releases; answers are JSON.

Envelope and field numbers: apimachinery's runtime/generated.proto and meta/v1/generated.proto, core/v1's
generated.proto (kubernetes.io/docs/reference/using-api/api-concepts, "Protobuf encoding idiosyncrasies"). Of other
kinds the server knows no fields, so it answers 415, as a real one does for media types that it does not take.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from .errors import ApiError

MEDIA = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_META = {1: "name", 2: "generateName", 3: "namespace", 5: "uid", 6: "resourceVersion"}


def decode(raw: bytes) -> dict[str, Any]:
    """The object as JSON would hold it."""
    if not raw.startswith(_MAGIC):
        raise ApiError("BadRequest", "the object provided is unrecognized: no protobuf envelope")
    envelope = dict(_fields(raw[len(_MAGIC) :]))
    type_meta = {number: _text(value) for number, value in _fields(envelope[1])}
    version, kind = type_meta.get(1, ""), type_meta.get(2, "")
    if kind == "DeleteOptions":
        return _delete_options(envelope.get(2, b""))
    if (version, kind) != ("v1", "Secret"):
        raise ApiError("UnsupportedMediaType", f"the test API server reads no {kind} in protobuf")
    found: dict[str, Any] = {"apiVersion": version, "kind": kind, "metadata": {}, "data": {}}
    for number, value in _fields(envelope[2]):
        if number == 1:
            found["metadata"] = _metadata(value)
        elif number == 2:
            key, content = _entry(value)
            found["data"][key] = base64.b64encode(content).decode()
        elif number == 3:
            found["type"] = _text(value)
    return found


def _metadata(raw: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    for number, value in _fields(raw):
        if number in _META and _text(value):
            meta[_META[number]] = _text(value)
        elif number in (11, 12):
            key, content = _entry(value)
            meta.setdefault("labels" if number == 11 else "annotations", {})[key] = content.decode()
    return meta


def _delete_options(raw: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, value in _fields(raw):
        if number == 1:
            found["gracePeriodSeconds"] = value
        elif number == 4:
            found["propagationPolicy"] = _text(value)
    return found


def _entry(raw: Any) -> tuple[str, bytes]:
    entry = dict(_fields(raw))
    return _text(entry.get(1, b"")), bytes(entry.get(2, b""))


def _text(value: Any) -> str:
    return bytes(value).decode()


def _fields(raw: Any) -> Iterator[tuple[int, Any]]:
    """(number, value) of a message: bytes of length-delimited fields, integers of varints."""
    data, at = memoryview(bytes(raw)), 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 2:
            size, at = _varint(data, at)
            yield number, data[at : at + size]
            at += size
        else:
            raise ApiError("BadRequest", f"protobuf wire type {wire} is not read here")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
