"""Reads Prometheus exposition pages (text format 0.0.4, and OpenMetrics' samples) at the speed of a fleet.

A page says the same series in the same order at every scrape; only the values move. So the parser keeps the page's
layout: the bytes of each line up to the value. The next page is split into lines, each known prefix is taken off,
and what remains are numbers; one sum of lengths proves that every prefix fitted. Only a page whose rows changed is
read again, and only its new rows by the grammar.

Format: https://github.com/prometheus/docs/blob/main/docs/instrumenting/exposition_formats.md (0.0.4) and
https://prometheus.io/docs/specs/om/open_metrics_spec/. Values are the float64 that Prometheus stores. Exemplars are
read over. An illegal line is refused with a reason and counted; the rest of the page is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress

import numpy as np

from nightshift.collectors.frame import Floats, Reason

MAX_LINE_BYTES = 2**16
MAX_SAMPLES = 1_000_000
Labels = tuple[tuple[str, str], ...]

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_QUOTED = rb'"([^"\\\n]*(?:\\.[^"\\\n]*)*)"'
_LABEL = re.compile(rb"[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)|" + _QUOTED + rb")[ \t]*=[ \t]*" + _QUOTED + rb"[ \t]*")
_QUOTED_NAME = re.compile(rb"[ \t]*" + _QUOTED + rb"[ \t]*")
_ESCAPE = re.compile(r'\\([\\n"])')
_HELP_ESCAPE = re.compile(r"\\([\\n])")
_COMMENT = re.compile(rb"#[ \t]+(HELP|TYPE)[ \t]+([a-zA-Z_:][a-zA-Z0-9_:]*|" + _QUOTED + rb")(?:[ \t]+(.*))?$")
_WHITE = b" \t\r"


class _Illegal(ValueError):
    """A line that is not a legal sample."""


@dataclass(frozen=True, slots=True)
class Series:
    """A sample's identity as the page writes it; labels in the page's order."""

    name: str
    labels: Labels

    def label(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.labels if key == name), default)


@dataclass(frozen=True, eq=False)
class Layout:
    """What stays while only values move. The same object comes back as long as the page's rows are unchanged, so a
    reader works out once where each sample belongs."""

    series: tuple[Series, ...]
    types: Mapping[str, str]
    help: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Page:
    """values [n_samples] float64 in line order, NaN where the page says NaN or a value was refused; times_s
    [n_samples] (Unix s), NaN where the page gives no timestamp. `rejected` counts refused lines."""

    layout: Layout
    values: Floats
    times_s: Floats
    rejected: Mapping[Reason, int]


@dataclass(frozen=True, eq=False)
class _Template:
    """A layout with the bytes to recognise it by. Lines that are no samples (`fixed`) must come back unchanged."""

    layout: Layout
    prefixes: Sequence[bytes]
    sampled: Sequence[bool]
    fixed: Sequence[bool]
    prefix_bytes: int
    rejected: Mapping[Reason, int]
    no_times: Floats


@dataclass
class PageParser:
    r"""Reads the pages of one source, one after the other. `openmetrics`: timestamps are in seconds, not ms.

    >>> page = PageParser().parse(b'# TYPE gpu_power gauge\ngpu_power{gpu="0",UUID="GPU-1"} 655.2\n')
    >>> [(s.name, s.label("UUID"), value) for s, value in zip(page.layout.series, page.values.tolist())]
    [('gpu_power', 'GPU-1', 655.2)]
    """

    openmetrics: bool = False
    max_samples: int = MAX_SAMPLES
    _template: _Template | None = None
    _known: dict[bytes, Series] = field(default_factory=dict)

    def parse(self, page: bytes) -> Page:
        """Never raises: what is not legal is left out and counted in `rejected`."""
        lines = page.split(b"\n")
        template = self._template
        if template is not None and len(lines) == len(template.prefixes):
            rests = list(map(bytes.removeprefix, lines, template.prefixes))
            joined = b"".join(rests)
            # removeprefix leaves a line as it is where its prefix differs, so equal lengths prove that all fitted
            fits = len(joined) + template.prefix_bytes + len(lines) - 1 == len(page)
            if fits and not any(compress(rests, template.fixed)):
                return self._values(template, list(compress(rests, template.sampled)), b"_" in joined)
        template, rests = self._learn(lines)
        self._template = template
        return self._values(template, rests, strict=True)

    def _values(self, template: _Template, rests: list[bytes], strict: bool) -> Page:
        if not strict:
            try:
                values = np.fromiter(map(float, rests), np.float64, len(rests))
                return Page(template.layout, values, template.no_times, template.rejected)
            except ValueError:
                pass  # timestamps, exemplars or an illegal value: read one by one below
        pairs = [rest.split() for rest in rests]
        # every line with a timestamp, as a federated page has it, is still one pass of NumPy
        if not strict and set(map(len, pairs)) == {2}:
            try:
                both = np.fromiter(map(float, chain.from_iterable(pairs)), np.float64, 2 * len(pairs))
                return Page(template.layout, both[::2], self._seconds(both[1::2]), template.rejected)
            except ValueError:
                pass
        values, times = np.full(len(pairs), np.nan), np.full(len(pairs), np.nan)
        refused = 0
        for position, parts in enumerate(pairs):
            try:
                values[position], times[position] = _value(parts)
            except ValueError:
                refused += 1
        rejected = dict(template.rejected)
        if refused:
            rejected[Reason.MALFORMED] = rejected.get(Reason.MALFORMED, 0) + refused
        return Page(template.layout, values, self._seconds(times), rejected)

    def _seconds(self, stamps: Floats) -> Floats:
        seconds: Floats = stamps if self.openmetrics else stamps / 1000
        return seconds

    def _learn(self, lines: Sequence[bytes]) -> tuple[_Template, list[bytes]]:
        prefixes: list[bytes] = []
        sampled: list[bool] = []
        series: list[Series] = []
        rests: list[bytes] = []
        types: dict[str, str] = {}
        help_texts: dict[str, str] = {}
        rejected: dict[Reason, int] = {}
        known: dict[bytes, Series] = {}
        blocks: dict[bytes, Labels] = {}
        for line in lines:
            found = None
            if len(line) > MAX_LINE_BYTES or len(series) >= self.max_samples:
                rejected[Reason.TOO_LARGE] = rejected.get(Reason.TOO_LARGE, 0) + 1
            elif line.startswith(b"#"):
                _comment(line, types, help_texts)
            elif line.strip(_WHITE):
                try:
                    prefix = _known_prefix(line, self._known) or _prefix(line)
                    found = self._known.get(prefix) or _series(prefix, blocks)
                except ValueError:
                    rejected[Reason.MALFORMED] = rejected.get(Reason.MALFORMED, 0) + 1
            if found is None:
                prefixes.append(line)
                sampled.append(False)
                continue
            known[prefix] = found
            series.append(found)
            prefixes.append(prefix)
            sampled.append(True)
            rests.append(line[len(prefix) :])
        self._known = known
        layout = Layout(tuple(series), types, help_texts)
        fixed = [not is_sample for is_sample in sampled]
        no_times = np.full(len(series), np.nan)
        no_times.setflags(write=False)
        return (
            _Template(layout, prefixes, sampled, fixed, sum(map(len, prefixes)), rejected, no_times),
            rests,
        )


def _known_prefix(line: bytes, known: Mapping[bytes, Series]) -> bytes | None:
    """The line's prefix where it was read before; after a legal label block no brace follows, but in exemplars."""
    # the last brace may belong to an exemplar; that text is no known prefix, and the line is read with care
    prefix = line[: line.rfind(b"}") + 1]
    if not prefix:
        prefix = line[: line.find(b" ") + 1]
    return prefix if prefix in known else None


def _prefix(line: bytes) -> bytes:
    """The bytes of a sample's line up to its value: through the closing brace, or through the white space after a
    name without labels."""
    name = _NAME.match(line, _skip_white(line, 0))
    at = _skip_white(line, name.end() if name else _skip_white(line, 0))
    if line[at : at + 1] != b"{":
        if name is None or at == name.end():
            raise _Illegal
        return line[:at]
    at += 1
    while True:
        match = _LABEL.match(line, at) or _QUOTED_NAME.match(line, at)
        if match is not None:
            at = match.end()
        at = _skip_white(line, at)
        end = line[at : at + 1]
        if end == b"}":
            return line[: at + 1]
        if end != b"," or match is None:
            raise _Illegal
        at += 1


def _skip_white(line: bytes, at: int) -> int:
    while line[at : at + 1] in (b" ", b"\t"):
        at += 1
    return at


def _series(prefix: bytes, blocks: dict[bytes, Labels]) -> Series:
    """Reads name and labels of a prefix. `blocks` keeps label blocks, which the metrics of one GPU share."""
    opening = prefix.find(b"{")
    quoted = prefix.find(b'"')
    if opening < 0 or (0 <= quoted < opening):
        return Series(prefix.strip(_WHITE).decode(), ())
    name, block = prefix[:opening].strip(_WHITE).decode(), prefix[opening:]
    # the forty metrics of a GPU share one label block: it is read once per page
    if name and block in blocks:
        return Series(name, blocks[block])
    labels: dict[str, str] = {}
    at = 1
    while block[_skip_white(block, at) :] != b"}":
        match = _LABEL.match(block, at)
        if match is not None:
            key = match.group(1).decode() if match.group(1) is not None else _text(match.group(2))
            if not key or key in labels:
                raise _Illegal
            labels[key] = _text(match.group(3))
        else:
            match = _QUOTED_NAME.match(block, at)
            if match is None or name:
                raise _Illegal
            name = _text(match.group(1))
        at = match.end() + 1
        if block[match.end() : at] == b"}":
            break
    if not name:
        raise _Illegal
    found = tuple(labels.items())
    if prefix[:1] != b"{":
        blocks[block] = found
    return Series(name, found)


def _text(raw: bytes) -> str:
    text = raw.decode()
    return _ESCAPE.sub(_unescape, text) if "\\" in text else text


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match.group(1) == "n" else match.group(1)


def _comment(line: bytes, types: dict[str, str], help_texts: dict[str, str]) -> None:
    match = _COMMENT.match(line.rstrip(_WHITE))
    if match is None:
        return  # an ordinary comment
    name = match.group(2) if match.group(3) is None else match.group(3)
    text = (match.group(4) or b"").decode(errors="replace")
    if match.group(1) == b"TYPE":
        types[_text_or_blank(name)] = text.strip()
    else:
        help_texts[_text_or_blank(name)] = _HELP_ESCAPE.sub(_unescape, text)


def _text_or_blank(raw: bytes) -> str:
    return _ESCAPE.sub(_unescape, raw.decode(errors="replace"))


def _value(parts: Sequence[bytes]) -> tuple[float, float]:
    """Value and timestamp (NaN: none) of what follows a prefix. Raises ValueError where it is not legal."""
    if b"#" in parts:
        parts = parts[: parts.index(b"#")]
    # Python's float takes 1_000, the exposition format does not
    if not 1 <= len(parts) <= 2 or any(b"_" in part for part in parts):
        raise _Illegal
    return float(parts[0]), float(parts[1]) if len(parts) == 2 else np.nan
