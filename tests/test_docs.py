"""What the documentation says is what the program does."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main
import yaml

from nightshift.agent.__main__ import app
from nightshift.agent.settings import load

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
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


def parse(command: Any, arguments: list[str], where: str) -> None:
    """Follows groups to the command and lets it parse its arguments, without running it."""
    name = "nightshift"
    while hasattr(command, "commands") and arguments:
        assert arguments[0] in command.commands, f"{where}: there is no command {arguments[0]!r}"
        name, command, arguments = arguments[0], command.commands[arguments[0]], arguments[1:]
    if hasattr(command, "commands"):
        return
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
    assert {*PAGES, *(ROOT / "docs/images").iterdir()} - found == set()


def places(page: Path) -> set[str]:
    """What a link may name behind its #: the page's headings, as they are rendered."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_ci_runs_the_commands_of_the_readme() -> None:
    """What a reader types is what every merge passes."""
    ci = (ROOT / ".ci/run").read_text()
    for command in re.findall(r"^\$ (make test\S*)$", (ROOT / "README.md").read_text(), re.M):
        assert re.search(rf"^{command}$", ci, re.M), command
