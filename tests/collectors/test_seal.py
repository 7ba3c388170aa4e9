"""Canonical JSON and envelopes: what is signed is what is read."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.seal import SealError, Signer, _canonical, canonical_json, fingerprint, open_envelope

NUMBERS = {  # RFC 8785 appendix B
    0.0: b"0",
    5e-324: b"5e-324",
    1.7976931348623157e308: b"1.7976931348623157e+308",
    9007199254740992.0: b"9007199254740992",
    295147905179352830000.0: b"295147905179352830000",
    1e23: b"1e+23",
    0.000001: b"0.000001",
    333333333.33333325: b"333333333.33333325",
    1e21: b"1e+21",
    1e-7: b"1e-7",
    -0.0000033333333333333333: b"-0.0000033333333333333333",
    1424953923781206.2: b"1424953923781206.2",
}


@pytest.mark.parametrize("value", NUMBERS)
def test_numbers_are_written_as_rfc_8785_lists_them(value: float) -> None:
    assert canonical_json(value) == NUMBERS[value]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_number_reads_back_as_itself(value: float) -> None:
    assert float(json.loads(canonical_json(value))) == value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab€😀z", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_canonical_bytes_read_back_and_do_not_depend_on_key_order(value: object) -> None:
    data = canonical_json(value)
    assert json.loads(data) == value
    assert canonical_json(json.loads(data)) == data


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
records = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text('aZ"€😀', max_size=3), inner),
    max_leaves=12,
)


@given(records)
def test_the_quick_way_writes_the_bytes_that_the_careful_way_writes(value: object) -> None:
    assert canonical_json(value) == _canonical(value, "$").encode()


@pytest.mark.parametrize("number", [1e-4, 9.999e-5, 1e16, 9999999999999998.0, 123456789.0, -0.0, 0.1 + 0.2])
def test_numbers_at_the_edge_of_an_exponent_are_written_alike(number: float) -> None:
    assert canonical_json({"a": number, "b": -number}) == _canonical({"a": number, "b": -number}, "$").encode()


def test_keys_are_sorted_by_utf_16_code_unit() -> None:
    assert list(json.loads(canonical_json({"\ufb33": 1, "😀": 2, "a": 3}))) == ["a", "😀", "\ufb33"]


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: 2}, {"a": {"b": b"x"}}, 2**53 + 1, "\ud800", {3}])
def test_a_value_without_canonical_form_is_refused_naming_the_place(value: object) -> None:
    with pytest.raises(SealError, match=r"^\$"):
        canonical_json(value)


def test_an_envelope_opens_only_with_a_trusted_key_its_type_and_its_bytes() -> None:
    signer, stranger = Signer.generate(), Signer.generate()
    envelope = signer.seal("text/plain", b"cordon n7")
    trusted = {signer.key_id: signer.public}
    assert open_envelope(envelope, "text/plain", trusted) == (b"cordon n7", signer.key_id)
    with pytest.raises(SealError, match="trusted key"):
        open_envelope(envelope, "text/plain", {stranger.key_id: stranger.public})
    with pytest.raises(SealError, match="payloadType"):
        open_envelope(envelope, "text/html", trusted)
    with pytest.raises(SealError, match="trusted key"):
        open_envelope(envelope | {"payload": "Y29yZG9uIG44"}, "text/plain", trusted)
    with pytest.raises(SealError, match="malformed"):
        open_envelope(envelope | {"payload": "%%"}, "text/plain", trusted)


def test_a_restored_signer_is_the_same_signer() -> None:
    signer = Signer.generate()
    assert Signer.from_bytes(signer.to_bytes()).key_id == signer.key_id
    with pytest.raises(SealError, match="32 bytes"):
        Signer.from_bytes(b"short")


def test_a_fingerprint_is_the_sha_256_of_the_canonical_bytes() -> None:
    assert fingerprint({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_a_numpy_float_is_written_as_the_number_that_it_is() -> None:
    """np.float64 is a float whose repr is not a number; a detector's figures must not make a record unreadable."""
    assert canonical_json([np.float64(0.1), np.float64(-3e21)]) == canonical_json([0.1, -3e21])
