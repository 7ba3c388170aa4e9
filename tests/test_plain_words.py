"""What people read is plain English: the commands' help, settings, metrics, log events, console, messages, docs.

Texts are found where they are written, by the syntax tree, so that a failure names file and line. A text that is
not for people (a prompt for a model) is listed with the reason. `DEBT` lists what is not mended yet, and only
shrinks: it is wrong to exceed it and wrong to state more than there is.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("agent", "collectors", "controllers", "detectors")
KERNEL_TEXTS = ("nightshift/kernels/cli.py", "nightshift/kernels/loop/cli.py")
MOST_WORDS, MOST_WORDS_DOCS = 20, 30

SAY = {
    r"somebody|someone|nobody": "a person, a role, or the passive: 'no approval', 'not confirmed'",
    r"whose|whom": "split the sentence, or 'of the …', 'with …'",
    r"such as": "for example, e.g.",
    r"any ?more|no more(?! than)": "no longer",
    r"anew|once more|tr(y|ies|ied) again|starts? again|begins? again": "retry, will retry; restart",
    r"stands?(?! alone)|stood": "is, applies, remains, paused",
    r"(is|are|was|were|be|been|not|what is) told|tells?( \w+)? of|told to": "notify, send, post, page; report",
    r"go(es)? on|went on": "continue, last, resume",
    r"of before|the one before|before that one": "previous",
    r"puts? off|passed over|left out|leaves? out|left away": "omit, skip, pending",
    r"held back|holds? back|kept back": "mute, withhold",
    r"looked after|looks? after|look(s|ed|ing)? (at|up)": "check, manage",
    r"lately|meanwhile|hitherto|thereof|hence": "give the time: 'within the last …', 'since then'",
    r"has it|is theirs|are theirs|of theirs|of ours|is ours": "name the owner",
    r"under ?way|where it stands": "running, paused",
    r"leads (no|now)|does not lead|to lead|gives? the lead|the lead": "acquire, hold or lose leadership",
    r"is away|are away|was away": "unreachable, unavailable",
    r"not seen|is not known|not told|are not known": "unknown, no data",
    r"ask(s|ed)? for": "require, request",
    r"keeps? (\w+ )?from|lets?": "allow, deny, prevent",
    r"by hand": "manually",
    r"says? of|said of": "show, report",
    r"the purse|the false pages of": "weekly false-page budget",
    r"at once": "immediately, or at the same time",
    r"runs? out": "expire",
    r"by (itself|themselves|its age)": "automatically, on timeout",
    r"take(s|n)? back|took back": "undo, revert",
    r"ha(s|ve|d) to": "must",
    r"for want of|for lack of|wherein|whereof|therefrom|thereby": "because",
}
"""Words that readers who are not native speakers stumble over, and what to say."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


VERBS = _set("""
    add approve archive ask calibrate check close compare configure convert create demote delete downgrade
    drill evaluate examine exercise expire explain export find generate grant halt import inspect install
    judge limit list load look lock make manage measure migrate mute observe open optimize pack pause print probe
    profile promote prove publish pull push query read reboot rebuild record register reject release remove
    replay report restore resume return revert revoke rotate run sample save search send serve set show sign
    simulate start stop submit summarize test trace train trial undo unlock unset update validate verify
    watch write
""")
"""With which the help of a command may begin."""

IRREGULAR = _set("""
    lost sent begun written found reset cut put read kept held left built made shut run set taken given
    broken withheld overrun
""")
"""Past participles without -ed with which a log event may end."""

BARE = _set("""
    told said found made seen left known kept given asked wanted held here there others rest near once again
    more most mine ours theirs whose now then before after gone lost taken heard put part parts many few
    begun ended done word words place places room standing one each why where
""")
IDENTIFIERS: dict[str, str] = {}
"""Modules that bear such a name because the field uses the word: name → reason."""

NOT_FOR_PEOPLE = {
    "nightshift/agent/rca/investigate.py": "prompt and tool descriptions for the language model",
    "nightshift/agent/rca/lookup.py": "tool answers for the language model",
    "nightshift/agent/store/tables.py": "comments on database columns",
    "nightshift/detectors/contract/": "contract kit for authors of detectors",
}

DEBT: dict[str, int] = {
    "class": 2,
    "parameter agent": 7,
    "parameter collectors": 11,
    "parameter controllers": 5,
    "parameter detectors": 10,
    "parameter kernels": 6,
}
"""Findings by check and room that are not mended yet."""


class Text(NamedTuple):
    file: str
    line: int
    kind: str
    words: str


class Found(NamedTuple):
    check: str
    text: Text
    problem: str

    def __str__(self) -> str:
        return f"{self.text.file}:{self.text.line}: {self.problem}\n    {self.text.words[:200]!r}"


_SAY = [(re.compile(rf"\b(?:{pattern})\b", re.I), say) for pattern, say in SAY.items()]
_ANY = re.compile(rf"\b(?:{'|'.join(SAY)})\b", re.I)
_LOG_LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
_NO_PROSE = re.compile(r"\(\?|\\[dws]|\bSELECT\b|\bCREATE\b|\bUPDATE\b|[{;]\n|^\s*<|\|-|asm ")


# Where texts are --------------------------------------------------------------------------------------------------


@cache
def modules() -> dict[str, ast.Module]:
    paths = sorted((ROOT / "nightshift").rglob("*.py"))
    return {str(p.relative_to(ROOT)): ast.parse(p.read_text()) for p in paths if "migrations" not in p.parts}


@cache
def nodes(file: str) -> tuple[ast.AST, ...]:
    """Of a module, walked once for all checks."""
    return tuple(ast.walk(modules()[file]))


def _words(node: ast.expr) -> str:
    """The text of a constant, an f-string (`…` for each value) or a sum of these."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(v.value if isinstance(v, ast.Constant) else "…" for v in values)  # type: ignore[misc]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return f"{_words(left) or '…'}{_words(right) or '…'}"
    return ""


def _is_pattern(func: ast.expr) -> bool:
    return isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "re"


def _strings(node: ast.AST) -> Iterator[ast.expr]:
    """The outermost strings below a node; no docstring, no pattern."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.Call) and _is_pattern(child.func):
            continue
        if isinstance(child, ast.expr) and _words(child).strip("…"):
            yield child
            for part in ast.walk(child):
                if isinstance(part, ast.FormattedValue):
                    yield from _strings(part)
            continue
        yield from _strings(child)


def _is_log(call: ast.Call) -> bool:
    func = call.func
    return (
        isinstance(func, ast.Attribute)
        and func.attr in _LOG_LEVELS
        and bool(call.args)
        and "log" in ast.unparse(func.value).lower()
    )


@cache
def log_calls(file: str) -> tuple[ast.Call, ...]:
    return tuple(node for node in nodes(file) if isinstance(node, ast.Call) and _is_log(node))


def log_events() -> Iterator[Text]:
    for file in modules():
        for call in log_calls(file):
            yield Text(file, call.lineno, "log", _words(call.args[0]))


@cache
def source_texts() -> tuple[Text, ...]:
    return tuple(_source_texts())


def _source_texts() -> Iterator[Text]:
    for file, tree in modules().items():
        if file.startswith(tuple(NOT_FOR_PEOPLE)):
            continue
        if not file.startswith((*(f"nightshift/{room}/" for room in ROOMS), *KERNEL_TEXTS)):
            continue
        events = {id(call.args[0]) for call in log_calls(file)}
        for node in _strings(tree):
            words = _words(node)
            if id(node) not in events and len(words.split()) >= 4 and not _NO_PROSE.search(words):
                yield Text(file, node.lineno, "text", words)


def commands() -> Iterator[Text]:
    import typer.main

    from nightshift.agent.__main__ import app

    def walk(name: str, command: object) -> Iterator[Text]:
        help_ = " ".join(str(getattr(command, "help", "") or "").split())
        yield Text(f"`{name} --help`", 0, "command", help_)
        for child, inner in sorted(getattr(command, "commands", {}).items()):
            yield from walk(f"{name} {child}", inner)

    yield from list(walk("nightshift", typer.main.get_command(app)))[1:]


def metric_helps() -> Iterator[tuple[str, Text]]:
    file = "nightshift/agent/metrics.py"
    for node in nodes(file):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Counter", "Gauge", "Histogram", "Info"):
            name, words = _words(node.args[0]), _words(node.args[1])
            yield name, Text(file, node.lineno, "metric", words)


def templates() -> Iterator[Text]:
    """Text nodes and shown attributes, without what the template engine fills in."""
    for path in sorted((ROOT / "nightshift/agent/console/templates").glob("*.html")):
        page = re.sub(
            r"\{#.*?#\}|<(script|style)\b.*?</\1>", lambda m: "\n" * m[0].count("\n"), path.read_text(), flags=re.S
        )
        page = re.sub(r"\{\{.*?\}\}", "…", page, flags=re.S)
        page = re.sub(r"\{%.*?%\}", lambda m: "\n" * m[0].count("\n") or " ", page, flags=re.S)
        for number, line in enumerate(page.splitlines(), 1):
            shown = re.findall(r'(?:title|aria-label|placeholder|data-confirm|hx-confirm|alt)="([^"]+)"', line)
            for words in (*shown, *re.sub(r"<[^>]*>?", "\n", line).splitlines()):
                if words.strip():
                    yield Text(str(path.relative_to(ROOT)), number, "template", words.strip())


def docs() -> Iterator[Text]:
    """Paragraphs of the pages that are written by people, without code."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for path in pages:
        file = str(path.relative_to(ROOT))
        if file.startswith("docs/reference/"):
            continue
        text = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), path.read_text(), flags=re.S | re.M)
        text = re.sub(r"`[^`\n]*`", "…", re.sub(r"<!--.*?-->", "", text))
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield Text(file, number, "docs", line.strip())


# What must hold ---------------------------------------------------------------------------------------------------


def banned(texts: Iterable[Text]) -> Iterator[Found]:
    for text in filter(lambda text: _ANY.search(text.words), texts):
        for pattern, say in _SAY:
            for match in pattern.finditer(re.sub(r"`[^`]+`", "`…`", text.words)):
                yield Found(f"words {_room(text)}", text, f"not '{match[0]}' but: {say}")


def sentences(words: str) -> list[str]:
    return re.split(r"(?<=[.!?;])\s+|\n+|\s[·→|]\s", words)


def long(texts: Iterable[Text], most: int) -> Iterator[Found]:
    for text in texts:
        for sentence in sentences(text.words):
            if (n := len(re.findall(r"[\w…][\w…'’./:-]*", sentence))) > most:
                kind = "pages" if text.kind == "docs" else "length"
                yield Found(f"{kind} {_room(text)}", text, f"{n} words in one sentence, at most {most}: split it")


def _room(text: Text) -> str:
    parts = text.file.split("/")
    return parts[1] if parts[0] == "nightshift" else parts[0].split(" ")[0].strip("`")


def not_imperative(texts: Iterable[Text]) -> Iterator[Found]:
    for text in texts:
        first = re.match(r"[A-Za-z]+", text.words)
        if not first or first[0].lower() not in VERBS:
            yield Found("command", text, "begins with no imperative verb (VERBS)")


def not_noun_verb_past(texts: Iterable[Text]) -> Iterator[Found]:
    for text in texts:
        words = text.words.split()
        good = (
            2 <= len(words) <= 6
            and re.fullmatch(r"[a-z][\w '/.-]*", text.words)
            and words[0] not in {"a", "an", "the", "that", "what", "which", "not", "no"}
            and (words[-1].endswith("ed") or words[-1] in IRREGULAR)
        )
        if not good:
            yield Found(
                f"log {_room(text)}", text, "a log event is `noun verb-past`; what else it tells is a field"
            )


_UNITS = {"_seconds": r"\((unix )?s\)|seconds", "_watts": r"\(W\)|watts"}


def not_noun_phrase(metrics: Iterable[tuple[str, Text]]) -> Iterator[Found]:
    for name, text in metrics:
        if re.match(r"(\d|when|what|how|whether|is|are|while|if)\b", text.words, re.I):
            yield Found("metric", text, "a metric's HELP is a noun phrase")
        for suffix, unit in _UNITS.items():
            if name.endswith(suffix) and not re.search(unit, text.words, re.I):
                yield Found("metric", text, f"the HELP of {name} states its unit: {unit}")


def bare_identifiers() -> Iterator[Found]:
    for file in modules():
        module = file[: -len(".py")].replace("/", ".").removesuffix(".__init__")
        if module not in IDENTIFIERS and module.rpartition(".")[2] in BARE:
            yield Found("module", Text(file, 1, "name", module), "a module is a noun of the field")
        for node in nodes(file):
            if isinstance(node, ast.ClassDef) and node.name.lower() in BARE:
                text = Text(file, node.lineno, "name", node.name)
                yield Found("class", text, "a class is a noun of the field")
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
                for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                    if arg.arg in BARE:
                        text = Text(file, arg.lineno, "name", f"{node.name}({arg.arg})")
                        yield Found(f"parameter {_room(text)}", text, "a parameter is a noun of the field")


def _held(found: Iterable[Found], *checks: str) -> None:
    """Each check's findings are exactly those that DEBT still allows."""
    by_check: dict[str, list[Found]] = {}
    for one in found:
        by_check.setdefault(one.check, []).append(one)
    stated = {check: n for check, n in DEBT.items() if check.split(" ")[0] in checks}
    wrong = {
        check: n
        for check, n in Counter({c: len(f) for c, f in by_check.items()}).items()
        if n != stated.get(check, 0)
    }
    more = [str(one) for check in wrong for one in by_check[check]]
    assert not wrong, f"DEBT states {stated}, found {wrong}\n" + "\n".join(more)
    assert not (mended := stated.keys() - by_check.keys()), f"mended, take them out of DEBT: {sorted(mended)}"


def test_no_text_uses_a_word_of_the_private_dialect() -> None:
    every = [*source_texts(), *log_events(), *commands(), *templates(), *docs()]
    assert len(every) > 4000, "the finder of texts finds too few of them"
    _held(banned(every), "words")


def test_a_sentence_for_users_has_at_most_twenty_words() -> None:
    _held(long([*source_texts(), *commands(), *templates()], MOST_WORDS), "length")


def test_no_sentence_of_the_docs_is_longer_than_thirty_words() -> None:
    _held(long(docs(), MOST_WORDS_DOCS), "pages")


def test_every_command_begins_with_an_imperative_verb() -> None:
    _held(not_imperative(commands()), "command")


def test_every_log_event_is_a_noun_and_a_verb_in_the_past() -> None:
    _held(not_noun_verb_past(log_events()), "log")


def test_every_metric_is_a_noun_phrase_with_its_unit() -> None:
    _held(not_noun_phrase(metric_helps()), "metric")


def test_no_module_class_or_public_parameter_is_a_bare_participle_or_pronoun() -> None:
    _held(bare_identifiers(), "module", "class", "parameter")
