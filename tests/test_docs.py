"""What the documentation says is what the program does."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main
import yaml

from nightshift.agent.__main__ import app
from nightshift.agent.settings import load

ROOT = Path(__file__).resolve().parent.parent
PROJECT = [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "SECURITY.md")]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
COMMAND = typer.main.get_command(app)


def fenced(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in fenced(page, "console"):
            found += [(page.name, line[2:]) for line in block.splitlines() if line.startswith("$ ")]
        found += [(page.name, text) for text in re.findall(r"`((?:nightshift|make) [^`]+)`", page.read_text())]
    return found


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_code_says() -> None:
    """docs/reference is as `make docs` writes it now."""
    stale = [
        name for name, text in generator().pages().items() if (ROOT / "docs/reference" / name).read_text() != text
    ]
    assert stale == [], "run `make docs` and commit what it wrote"


def test_every_row_of_the_coverage_counts_by_a_generator_that_there_is() -> None:
    """A row without one states its reason; no paper's rows exceed what the paper counts."""
    sys.path.insert(0, str(ROOT / "docs"))
    table = importlib.import_module("coverage_rows")
    from benchmarks.field.kinds_cluster import FAULTS

    names = set(FAULTS)
    if importlib.util.find_spec("benchmarks.field.kinds") is not None:
        names |= set(importlib.import_module("benchmarks.field.kinds").ALL)
    elsewhere = set()
    for paper in table.PAPERS:
        assert sum(row.count for row in paper.rows) == pytest.approx(paper.total), paper.title
        for row in paper.rows:
            assert bool(row.generator) <= bool(row.finds), row.cause
            assert row.generator or row.why, row.cause
            elsewhere |= {row.generator} - names - {""}
    if elsewhere and importlib.util.find_spec("benchmarks.field.kinds") is None:
        pytest.skip(f"benchmarks.field.kinds is not here: {len(elsewhere)} generators unchecked")
    assert elsewhere == set()


def test_every_command_in_the_docs_exists() -> None:
    """`make` names a target; `nightshift` parses with the options as written."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    said = commands()
    assert len(said) > 20
    for page, line in said:
        words = [word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
        if words[0] == "make":
            assert set(words[1:]) <= targets, f"{page}: {line}"
        elif words[0] == "nightshift" and words[1:] not in ([], ["…"]):
            parse(COMMAND, [word for word in words[1:] if word != "…"], f"{page}: {line}")


def test_every_command_block_of_the_docs_was_run_as_printed() -> None:
    """benchmarks/doc_commands.py ran these very lines, each was right; a line that it cannot run has a reason."""
    from benchmarks.doc_commands import ELSEWHERE, NEEDS, doc_lines

    rows = json.loads((ROOT / "benchmarks/results/doc_commands.json").read_text())["results"]["rows"]
    lines = doc_lines()
    assert len(lines) > 120
    assert sorted((line.page, line.text) for line in lines) == sorted((row["page"], row["line"]) for row in rows), (
        "run `python -m benchmarks.doc_commands` and commit its result"
    )
    assert [row for row in rows if row["how"] == "run" and not row["right"]] == []
    patterns = {*ELSEWHERE, *NEEDS}
    assert [one for one in patterns if not any(re.match(one, line.text) for line in lines)] == []


def parse(command: Any, arguments: list[str], where: str) -> None:
    """Follows groups to the command and lets it parse its arguments, without running it."""
    name = "nightshift"
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        assert arguments[0] in command.commands, f"{where}: there is no command {arguments[0]!r}"
        name, command, arguments = arguments[0], command.commands[arguments[0]], arguments[1:]
    options = {word for parameter in command.params for word in getattr(parameter, "opts", ())}
    unknown = [word for word in arguments if word.startswith("-") and word.split("=")[0] not in options]
    assert unknown == [], f"{where}: {name} has no option {unknown}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_configuration_in_the_docs_is_good(page: Path, tmp_path: Path) -> None:
    """Each YAML block that is a nightshift.yaml loads; every other one is YAML."""
    for number, block in enumerate(fenced(page, "yaml")):
        assert yaml.safe_load(block) is not None
        if block.startswith("# nightshift.yaml"):
            path = tmp_path / f"{number}.yaml"
            path.write_text(block)
            load(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_in_the_docs_leads_somewhere(page: Path) -> None:
    """Relative links and pictures name files that are there."""
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_every_page_and_picture_can_be_reached_from_the_readme() -> None:
    """Whoever follows links from the README finds all pages; a #place in a link is a heading of its page."""
    found, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop().resolve()
        if page in found or not page.exists():
            continue
        found.add(page)
        for target, place in re.findall(
            r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text() if page.suffix == ".md" else ""
        ):
            if not target.startswith(("http://", "https://")):
                todo.append(page.parent / target if target else page)
                assert not place or place in places(todo[-1]), f"{page}: {target}#{place}"
    assert {*PAGES, *PROJECT, *(ROOT / "docs/images").iterdir()} - found == set()


DECISIONS = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))


@pytest.mark.parametrize("record", DECISIONS, ids=lambda record: record.stem)
def test_a_decision_gives_context_choice_and_what_was_refused_on_half_a_page(record: Path) -> None:
    text = record.read_text()
    assert re.match(rf"# {record.name[:3]} ", text)
    places = [text.find(f"**{part}.**") for part in ("Context", "Choice", "Refused")]
    assert -1 not in places
    assert places == sorted(places)
    assert len(text.split()) <= 450


def test_no_two_decisions_have_one_number() -> None:
    numbers = [record.name[:3] for record in DECISIONS]
    assert len(numbers) >= 20
    assert len(set(numbers)) == len(numbers)


def test_the_wheel_names_the_licence_that_the_repository_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_newest_version_of_the_changelog_is_the_distributions() -> None:
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert versions[:2] == ["Unreleased", project["version"]]


TOP = ("nightshift", "tests", "docs", "helm", "benchmarks", "examples", "deploy")
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(TOP)})/[\w./*-]*[\w*/]")
DOTTED = re.compile(r"(?<![\w./-])nightshift(?:\.[A-Za-z_]\w*)+(?![\w/])")
NO_MODULE = (".yaml", ".db", ".example")
MADE_BY_USERS = frozenset({"nightshift_kernels.py", "benchmarks/results/incidents_openai.json"})
"""Files in the docs that a command writes for its user."""


@pytest.fixture(scope="module")
def files() -> list[str]:
    """Every file of the repository, with / before its path, so that a path's end is found by its suffix."""
    found = (path for top in TOP for path in (ROOT / top).rglob("*") if path.is_file())
    return [f"/{path.relative_to(ROOT)}" for path in found if "__pycache__" not in path.parts]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_module_that_the_docs_name_is_there(page: Path, files: list[str]) -> None:
    """A path from the top, the end of one (`slack/card.py`), and a dotted name each lead to something."""
    text = re.sub(r"\]\([^)]*\)", "]", page.read_text())  # links have a test of their own
    gone = [path for path in {*PATH.findall(text)} - MADE_BY_USERS if not any(ROOT.glob(path))]
    gone += [name for name in DOTTED.findall(text) if not name.endswith(NO_MODULE) and not resolves(name)]
    for end in set(re.findall(r"`([\w/*-]+\.py)`", text)) - MADE_BY_USERS:
        shape = re.compile(f"/{re.escape(end)}$".replace(r"\*", "[^/]*"))
        gone += [] if any(map(shape.search, files)) else [end]
    assert gone == []


def resolves(dotted: str) -> bool:
    """Is it a module, or a name that a module defines? Read from the files: some modules import torch."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:count])
        file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if file.exists():
            rest = parts[count:]
            return not rest or re.search(rf"^(?:(?:class|def) )?{rest[0]}\b", file.read_text(), re.M) is not None
    return False


def places(page: Path) -> set[str]:
    """What a link may name behind its #: the page's headings, as they are rendered."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_ci_runs_the_commands_of_the_readme() -> None:
    """What a reader types is what every merge passes."""
    ci = (ROOT / ".ci/run").read_text()
    for command in re.findall(r"^\$ (make test\S*)$", (ROOT / "README.md").read_text(), re.M):
        assert re.search(rf"^{command}$", ci, re.M), command
