"""The container files keep their claims: base images by digest, no root, a read-only root, a bill of materials."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "deploy").glob("*.Dockerfile"))


@dataclass(frozen=True)
class Stage:
    image: str
    name: str
    steps: tuple[tuple[str, str], ...]

    def all(self, word: str) -> list[str]:
        return [rest for step, rest in self.steps if step == word]


def parse(path: Path) -> tuple[dict[str, str | None], list[Stage]]:
    """Arguments before the first stage, and the stages."""
    text = re.sub(r"\\\n", " ", "\n".join(x for x in path.read_text().splitlines() if not x.startswith("#")))
    before: dict[str, str | None] = {}
    stages: list[tuple[str, str, list[tuple[str, str]]]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            image, _, name = rest.partition(" AS ")
            stages.append((image, name or "final", []))
        elif stages:
            stages[-1][2].append((word, rest.strip()))
        else:
            assert word == "ARG", line
            name, _, default = rest.partition("=")
            before[name] = default or None
    return before, [Stage(image, name, tuple(steps)) for image, name, steps in stages]


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def file(request: pytest.FixtureRequest) -> Path:
    assert isinstance(request.param, Path)
    return request.param


def test_there_are_two() -> None:
    assert [path.stem for path in FILES] == ["agent", "kernel-worker"]


def test_base_images_are_named_by_digest(file: Path) -> None:
    """Each stage stands on another one or on BASE: IMAGE:TAG@${DIGEST}, where the digest has no default."""
    before, stages = parse(file)
    names = {stage.name for stage in stages}
    assert {stage.image for stage in stages} - names == {"${BASE}"}
    found = re.fullmatch(r"[\w./-]+:[\w.-]+@\$\{(\w+_DIGEST)\}", before["BASE"] or "")
    assert found is not None, before["BASE"]
    assert before[found[1]] is None
    assert ":latest" not in found[0]


def test_the_image_runs_without_root_and_writes_only_to_volumes(file: Path) -> None:
    """The last USER is a number other than 0, nothing is installed after it; bytecode and HOME go nowhere else."""
    final = parse(file)[1][-1]
    words = [word for word, _ in final.steps]
    user = final.all("USER")[-1]
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    assert not {"RUN", "COPY", "ADD"} & set(words[words.index("USER") :])
    environment = dict(pair.split("=", 1) for line in final.all("ENV") for pair in shlex.split(line))
    volumes = [volume for line in final.all("VOLUME") for volume in json.loads(line)]
    assert environment["PYTHONPYCACHEPREFIX"].startswith(tuple(volumes))
    assert environment["HOME"] in volumes
    assert all(value.startswith(tuple(volumes)) for key, value in environment.items() if key.endswith("CACHE_DIR"))


def test_the_user_is_the_charts(file: Path) -> None:
    """The chart runs the images as the user that they were made for, and as nobody else's."""
    user = parse(file)[1][-1].all("USER")[-1].split(":")[0]
    assert f"runAsUser: {user}" in (ROOT / "helm/nightshift/templates/_helpers.tpl").read_text()


def test_what_is_inside_is_listed(file: Path) -> None:
    """A stage lists the very environment that is copied, by a pinned tool, and the list is in the image."""
    _, stages = parse(file)
    (listing,) = [stage for stage in stages if stage.name == "sbom"]
    assert "install.sh listing" in " ".join(listing.all("RUN"))
    assert re.search(r"CYCLONEDX_VERSION=\d+\.\d+\.\d+", " ".join(listing.all("ARG")))
    (environment,) = [c.split()[-1] for c in stages[-1].all("COPY") if c.startswith("--from=build")]
    script = (ROOT / "deploy/install.sh").read_text()
    assert f"home={environment}\n" in script
    assert "cyclonedx-py environment" in script
    assert "--from=sbom /usr/share/sbom /usr/share/sbom" in stages[-1].all("COPY")


def test_versions_are_the_tested_ones(file: Path) -> None:
    """Our package is installed under constraints.txt, and nothing is fetched by address or piped into a shell."""
    text = file.read_text() + (ROOT / "deploy/install.sh").read_text()
    for install in re.findall(r"pip .*\binstall ([^\n\\]+)", text):
        assert "-c constraints.txt" in install or "==" in install or "--no-deps" in install, install
    assert not re.search(r"^ADD |curl|wget", text, re.M)
    assert not re.search(r"(?i)(password|secret|token)\s*=", text)


def test_what_is_copied_is_there_and_reaches_the_build(file: Path) -> None:
    """Every path exists, and .dockerignore lets it through: our package among them."""
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = {
        path
        for stage in parse(file)[1]
        for line in stage.all("COPY")
        if not line.startswith("--from")
        for path in line.split()[:-1]
    }
    assert "nightshift" in copied
    for path in copied:
        assert (ROOT / path).exists(), path
        assert any(fnmatch.fnmatch(path, pattern) for pattern in allowed), path


def test_the_image_starts_the_program(file: Path) -> None:
    """Entry point and default arguments are a command of ours, without a shell in between."""
    from tests.test_docs import COMMAND
    from tests.test_docs import parse as parse_command

    final = parse(file)[1][-1]
    assert json.loads(final.all("ENTRYPOINT")[-1]) == ["nightshift"]
    parse_command(COMMAND, json.loads(final.all("CMD")[-1]), file.name)


def test_the_readme_builds_these_files() -> None:
    """Each file has its build command with the argument that it requires, and BuildKit's own list."""
    readme = (ROOT / "deploy/README.md").read_text()
    for path in FILES:
        before = parse(path)[0]
        (digest,) = [name for name, default in before.items() if default is None]
        line, *_ = [x for x in readme.splitlines() if f"--file deploy/{path.name}" in x]
        assert f"--build-arg {digest}=" in line
        assert "--sbom=true" in line
        arguments = {word.partition("=")[0] for stage in parse(path)[1] for word in stage.all("ARG")}
        for name in {*before, *arguments} - {"CYCLONEDX_VERSION"}:
            assert f"`{name}`" in readme, name
