"""The fast page parser says what prometheus_client's parsers say of every legal page, however it got there."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from nightshift.collectors.frame import Reason
from nightshift.collectors.telemetry.exposition import MAX_LINE_BYTES, Page, PageParser

Sample = tuple[str, tuple[tuple[str, str], ...], float, float | None]

NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", fullmatch=True)
LABEL_NAMES = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,8}", fullmatch=True)
# legal label values are any UTF-8; the oracle strips each line, so a value never ends it
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda v: f"{v:.6e}"),
    st.sampled_from(["NaN", "+Inf", "-Inf", "Inf", "nan", "1.", ".5", "-0", "1E5", "007", "9223372036854775794"]),
)
SPACES = st.sampled_from([" ", "  ", "\t"])


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def sample_prefixes(draw: st.DrawFn) -> str:
    labels = draw(st.lists(st.tuples(LABEL_NAMES, TEXTS), max_size=4, unique_by=lambda pair: pair[0]))
    white = draw(st.sampled_from(["", " "]))
    terms = [f'{white}{key}{white}={white}"{escaped(value)}"' for key, value in labels]
    comma = draw(st.sampled_from(["", ","])) if terms else ""
    braces = "{" + ",".join(terms) + comma + white + "}"
    if draw(st.integers(0, 9)) == 0:
        name = draw(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=8))
        return "{" + ",".join([f'"{escaped(name)}"', *terms]) + "}"
    return draw(NAMES) + (braces if terms or draw(st.booleans()) else "")


@st.composite
def pages(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Line beginnings of a page, with comments and blanks between them, and the kinds of each line."""
    lines, kinds = [], []
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["sample"] * 6 + ["help", "type", "comment", "blank"]))
        text = draw(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=10))
        match kind:
            case "sample":
                lines.append(draw(sample_prefixes()))
            case "help":
                lines.append(f"# HELP {draw(NAMES)} {escaped(text)}")
            case "type":
                types = ["counter", "gauge", "histogram", "summary", "untyped"]
                lines.append(f"# TYPE {draw(NAMES)} {draw(st.sampled_from(types))}")
            case "comment":
                lines.append(f"# {text}")
            case _:
                lines.append("")
        kinds.append(kind)
    return lines, kinds


def fill(draw: st.DrawFn, lines: list[str], kinds: list[str], stamped: bool) -> str:
    out = []
    for line, kind in zip(lines, kinds, strict=True):
        if kind != "sample":
            out.append(line)
            continue
        stamp = str(draw(st.integers(-(2**52), 2**52))) if stamped and draw(st.booleans()) else ""
        end = draw(st.sampled_from(["", " "]))
        middle = draw(SPACES)
        out.append(f"{line}{middle}{draw(NUMBERS)}{middle + stamp if stamp else ''}{end}")
    return "\n".join(out) + draw(st.sampled_from(["", "\n"]))


def ours(page: Page) -> list[Sample]:
    return [
        (s.name, s.labels, float(v), None if math.isnan(t) else float(t))
        for s, v, t in zip(page.layout.series, page.values, page.times_s, strict=True)
    ]


def oracle(text: str) -> list[Sample]:
    """prometheus_client's reading, with its renaming of counters to OpenMetrics' names undone."""
    found: list[Sample] = []
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            name = s.name
            if family.type == "counter" and name == f"{family.name}_total":
                name = family.name if f"# TYPE {family.name} counter" in text.split("\n") else name
            stamp = None if s.timestamp is None else float(s.timestamp)
            found.append((name, tuple(s.labels.items()), float(s.value), stamp))
    return found


def same(left: list[Sample], right: list[Sample]) -> bool:
    return len(left) == len(right) and all(
        a[:2] == b[:2] and (a[2] == b[2] or (math.isnan(a[2]) and math.isnan(b[2]))) and a[3] == b[3]
        for a, b in zip(left, right, strict=True)
    )


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_legal_page_reads_as_the_reference_reads_it_first_and_again(data: st.DataObject) -> None:
    lines, kinds = data.draw(pages())
    stamped = data.draw(st.booleans())
    parser = PageParser()
    for _ in range(3):
        text = fill(data.draw, lines, kinds, stamped)
        page = parser.parse(text.encode())
        assert same(ours(page), oracle(text)), (ours(page), oracle(text))
        assert not page.rejected
        if len(kinds) > 1 and data.draw(st.integers(0, 3)) == 0:  # rows come and go
            gone = data.draw(st.integers(0, len(kinds) - 1))
            lines, kinds = lines[:gone] + lines[gone + 1 :], kinds[:gone] + kinds[gone + 1 :]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=3), st.integers(0, 10**6))
def test_no_bytes_at_all_make_it_raise_and_a_broken_line_takes_no_other_with_it(
    junk: list[bytes], number: int
) -> None:
    parser = PageParser()
    parser.parse(b'good{a="b"} 1\nplain 2\n')
    for garbage in junk:
        page = parser.parse(b'good{a="b"} %d\n' % number + garbage.replace(b"\n", b" ") + b"\nplain 3\n")
        found = {s.name: v for s, v in zip(page.layout.series, page.values, strict=True) if not s.labels}
        assert page.values[0] == number
        assert found["plain"] == 3


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_page_cut_anywhere_never_reads_a_value_that_the_whole_does_not_hold_but_on_its_last_line(
    data: st.DataObject,
) -> None:
    lines = [f'm{{i="{i}"}} {i}00' for i in range(5)]
    whole = "\n".join(lines) + "\n"
    parser = PageParser()
    full = {s.labels: v for s, v in zip(*read(parser, whole), strict=True)}
    cut = data.draw(st.integers(0, len(whole)))
    series, values = read(parser, whole[:cut])
    complete = whole[:cut].count("\n")
    for s, v in list(zip(series, values, strict=True))[:complete]:
        assert full[s.labels] == v


def read(parser: PageParser, text: str) -> tuple[tuple[object, ...], np.ndarray]:  # type: ignore[type-arg]
    page = parser.parse(text.encode())
    return page.layout.series, page.values


def test_the_layout_is_the_same_object_while_only_values_move() -> None:
    parser = PageParser()
    first = parser.parse(b'# TYPE a gauge\na{g="0"} 1\na{g="1"} 2\n')
    again = parser.parse(b'# TYPE a gauge\na{g="0"} 333\na{g="1"} NaN\n')
    stamped = parser.parse(b'# TYPE a gauge\na{g="0"} 4 1000\na{g="1"} 5 2000\n')
    assert first.layout is again.layout is stamped.layout
    assert again.values.tolist()[0] == 333
    assert math.isnan(again.values[1])
    assert stamped.times_s.tolist() == [1.0, 2.0]
    assert parser.parse(b'# TYPE a gauge\na{g="0"} 1\n').layout is not first.layout


@pytest.mark.parametrize(
    "page",
    [
        b"foo1 5\n",  # another series whose name begins with the known one's
        b"5\n",  # a value without a name
        b"foo\n",
        b"foo  \n",
    ],
)
def test_a_line_that_only_resembles_the_known_series_is_not_read_as_its_value(page: bytes) -> None:
    parser = PageParser()
    parser.parse(b"foo 1\n")
    found = parser.parse(page)
    assert not any(
        s.name == "foo" and not math.isnan(v) for s, v in zip(found.layout.series, found.values, strict=True)
    )


@pytest.mark.parametrize(
    "line",
    [
        b'a{b="c} 1',
        b'a{b="c",b="d"} 1',
        b"a{b=c} 1",
        b'a{b="c"}',
        b'a{b="c"} one',
        b'a{b="c"} 1_000',
        b'a{b="c"} 1 2 3',
        b'a{="c"} 1',
        b'a{b="c" d="e"} 1',
        b"a-b 1",
        b'{b="c"} 1',
        b'a{b="\xff"} 1',
        b'a{b="' + b"x" * MAX_LINE_BYTES + b'"} 1',
    ],
)
def test_an_illegal_line_is_refused_with_a_reason_and_counted_every_time(line: bytes) -> None:
    parser = PageParser()
    for value in (1, 2):
        page = parser.parse(b"before %d\n%s\nafter %d\n" % (value, line, value))
        usable = {s.name: v for s, v in zip(page.layout.series, page.values, strict=True) if not math.isnan(v)}
        assert usable == {"before": value, "after": value}
        expected = Reason.TOO_LARGE if len(line) > MAX_LINE_BYTES else Reason.MALFORMED
        assert page.rejected == {expected: 1}


def test_exemplars_and_second_timestamps_read_as_the_openmetrics_reference_reads_them() -> None:
    text = (
        "# TYPE h histogram\n"
        'h_bucket{le="1.0"} 5 1700000000.5 # {trace_id="a}b # c"} 0.5 123.25\n'
        'h_bucket{le="+Inf"} 7 1700000000.5 # {trace_id="x"} 0.7\n'
        "h_count 7 1700000000.5\n"
        "h_sum 1.25e1 1700000000.5\n"
        "# EOF\n"
    )
    found: list[Sample] = [
        (s.name, tuple(s.labels.items()), float(s.value), None if s.timestamp is None else float(s.timestamp))
        for family in openmetrics_families(text)
        for s in family.samples
    ]
    parser = PageParser(openmetrics=True)
    assert same(ours(parser.parse(text.encode())), found)
    assert same(ours(parser.parse(text.encode())), found)


def test_types_and_help_are_told() -> None:
    page = PageParser().parse(b"# HELP a Says \\\\ and\\nmore\n# TYPE a counter\n#TYPE b gauge\na 1\n")
    assert page.layout.types == {"a": "counter"}
    assert page.layout.help == {"a": "Says \\ and\nmore"}


def test_more_samples_than_allowed_are_refused_not_kept() -> None:
    page = PageParser(max_samples=10).parse(b"".join(b"m%d 1\n" % n for n in range(25)))
    assert len(page.layout.series) == 10
    assert page.rejected[Reason.TOO_LARGE] >= 15
