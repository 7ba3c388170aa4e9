"""The documentation as a site: links lead somewhere, the search finds each page, nothing comes from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_the_site_is_built_strictly_and_its_search_knows_every_page(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    pages = {path.with_name("index.html") if path.stem == "README" else path for path in pages}
    index = json.loads((tmp_path / "site/search/search_index.json").read_text())["docs"]
    found = {Path(entry["location"].partition("#")[0] or "index.html") for entry in index}
    assert {str(path) for path in pages} - {str(path) for path in found} == set()
    assert any("blast radius" in entry["text"] for entry in index)
    for page in (tmp_path / "site").rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?(https?:[^\"> ]+)", page.read_text())
        assert [url for url in loaded if "canonical" not in url] == [], page


@pytest.mark.full
@pytest.mark.parametrize("broken", ["gone.md", "../../gone.py", "#gone"])
def test_a_link_or_a_heading_that_is_not_there_fails_the_build(tmp_path: Path, broken: str) -> None:
    """Of one page with the same hook and rules, so that it is quick."""
    (tmp_path / "docs/concepts").mkdir(parents=True)
    shutil.copy(ROOT / "docs/site.py", tmp_path / "docs/site.py")
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        (tmp_path / name).write_text("# Page\n")
    rules = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(re.sub(r"^theme:\n(  .*\n)+", "theme: mkdocs\n", rules, flags=re.M))
    (tmp_path / "docs/concepts/a.md").write_text(f"# A\n\n[x]({broken})\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode == 1
    assert broken in done.stderr


@pytest.mark.full
def test_the_pages_of_detectors_are_what_their_code_does_now() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    from detector_pages import detector_pages

    written = dict(detector_pages())
    stale = [name for name, text in written.items() if (ROOT / "docs/detectors" / name).read_text() != text]
    assert stale == [], "run `make docs` and commit what it wrote"
    assert {path.name for path in (ROOT / "docs/detectors").iterdir()} == set(written)
    assert sum(name.endswith("-miss.svg") for name in written) >= 11
