"""The site of `mkdocs.yml`: README and the project's other pages beside docs/, and a menu by folder.

The pages are written to be read in the repository. Links to its source files become their paths, since a site has
no source; one that leads nowhere is a warning, and `mkdocs build --strict` fails on it.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
TOP = {"README.md": "index.md"} | {name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")}
"""Pages at the top of the repository → their place in the site."""
MENU = {
    "Start": ("index.md", "how-to/first-incident.md", "how-to/first-hour.md", "comparison.md"),
    "How to": "how-to",
    "Detectors": "detectors",
    "Concepts": "concepts",
    "Kernels": ("kernels.md", "judge-exploits.md", "judge-mutants.md"),
    "Runbooks": "runbooks",
    "Reference": "reference",
    "Project": ("architecture.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    "Decisions": "decisions",
}
"""Tab → a folder of docs/, or pages."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_log = logging.getLogger("mkdocs.hooks.site")


def on_config(config: Any) -> Any:
    docs = Path(config.docs_dir)
    listed = {place for pages in MENU.values() if not isinstance(pages, str) for place in pages}
    config.nav = []
    for tab, pages in MENU.items():
        folder = (docs / pages).glob("*.md") if isinstance(pages, str) else ()
        found = sorted(folder, key=lambda path: (path.name != "README.md", path.name))
        places = [place for path in found if (place := str(path.relative_to(docs))) not in listed]
        config.nav.append({tab: places if isinstance(pages, str) else list(pages)})
    return config


def on_files(files: Any, config: Any) -> Any:
    for name, place in TOP.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    at_top = {place: name for name, place in TOP.items()}.get(page.file.src_uri)
    source = ROOT / at_top if at_top else Path(config.docs_dir) / page.file.src_uri

    def placed(match: re.Match[str]) -> str:
        picture, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        if target.startswith(("http://", "https://", "mailto:")):
            return match[0]
        path = (source.parent / target).resolve()
        if path.is_dir() and (path / "README.md").exists():
            path /= "README.md"
        if not path.exists() or not path.is_relative_to(ROOT):
            _log.warning("%s links to %s, which is not there", page.file.src_uri, target)
            return match[0]
        inside = str(path.relative_to(ROOT))
        if inside in TOP:
            place = TOP[inside]
        elif path.is_relative_to(config.docs_dir) and path.is_file() and path.suffix != ".py":
            place = str(path.relative_to(config.docs_dir))
        else:
            return f"{text} (`{inside}`)" if inside not in text else text
        up = "../" * page.file.src_uri.count("/")
        return f"{picture}[{text}]({up}{place}{anchor})"

    # not in code: blocks and spans stay as they are
    pieces = re.split(r"(^```.*?^```$|`[^`\n]*`(?!\]))", markdown, flags=re.M | re.S)
    return "".join(piece if number % 2 else _LINK.sub(placed, piece) for number, piece in enumerate(pieces))
