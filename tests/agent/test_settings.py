"""Every mistake in a configuration is said with its file, line and field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.agent.config_file import MAX_BYTES, ConfigError, read
from nightshift.agent.settings import Settings, load
from nightshift.collectors.plugins import ALL as COLLECTORS
from nightshift.controllers.actuators.plugins import ALL as ACTUATORS
from nightshift.detectors.plugins import ALL as DETECTORS


def problems(path: Path, text: str) -> tuple[str, ...]:
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    return caught.value.problems


def test_no_file_is_a_working_configuration() -> None:
    """Every setting has a default."""
    settings = load()
    assert settings.tick_s == 5.0
    assert settings.store_url.startswith("sqlite:///")


def test_a_whole_configuration_is_read(tmp_path: Path) -> None:
    """Sources, detectors and nested settings arrive where they belong."""
    path = tmp_path / "nightshift.yaml"
    path.write_text(
        """
cluster: prod-1
sources:
  - type: dcgm_exporter
    urls: [http://n1:9400/metrics]
  - {type: node_log, urls: [http://n1:9500/kernel-log]}
detectors:
  disabled: [memory_leak]
approval: {kinds: {drain: two}}
"""
    )
    settings = load(path)
    assert [source.type for source in settings.sources] == ["dcgm_exporter", "node_log"]  # type: ignore[attr-defined]
    assert settings.detectors.disabled == {"memory_leak"}  # type: ignore[attr-defined]
    assert settings.approval.kinds == {"drain": "two"}


@pytest.mark.parametrize(
    ("text", "line", "field", "words"),
    [
        ("tick_s: 5\nconsole:\n  prot: 1\n", 3, "console.prot", "did you mean 'port'"),
        ("tick: 5\n", 1, "tick", "did you mean 'tick_s'"),
        (
            "sources:\n- type: dcgm_exporter\n  urls: [http://x/]\n  url: y\n",
            4,
            "sources[0].url",
            "did you mean 'urls'",
        ),
        ("sources:\n- type: dcgm_export\n  urls: []\n", 2, "sources[0].type", "did you mean 'dcgm_exporter'"),
        ("sources:\n- urls: []\n", 2, "sources[0]", "needs a `type`"),
        ("a: 1\nsources:\n- type: node_log\n", 3, "sources[0].urls", "is required"),
        ("console:\n  port: high\n", 2, "console.port", "valid integer"),
        ("console:\n  port: 99999\n", 2, "console.port", "less than or equal to 65535"),
        ("detectors:\n  memory_leek: {}\n", 2, "detectors.memory_leek", "did you mean 'memory_leak'"),
        ("tick_s: 5\ntick_s: 6\n", 2, "tick_s", "given twice (line 1)"),
        ("console: [\n", 2, "", "expected"),
        ("a: !!python/object:os.system {}\n", 1, "", "could not determine a constructor"),
        ("- a\n- b\n", 1, "", "a configuration is a mapping"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, line: int, field: str, words: str) -> None:
    """`FILE:LINE: field: what is wrong`, and for an unknown key the nearest one that exists."""
    path = tmp_path / "n.yaml"
    found = problems(path, text)
    place = f"{path}:{line}: {field}" if field else f"{path}:{line}: "
    assert any(problem.startswith(place) and words in problem for problem in found), found


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """A person fixes the file once, not once per mistake."""
    assert len(problems(tmp_path / "n.yaml", "tick_s: -1\nconsole: {port: x}\nnope: 1\n")) == 3


def test_the_environment_overrides_and_is_named_when_it_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NIGHTSHIFT_CONSOLE__PORT beats the file; a bad value names the variable, not the file."""
    path = tmp_path / "n.yaml"
    path.write_text("console: {port: 1}\n")
    monkeypatch.setenv("NIGHTSHIFT_CONSOLE__PORT", "8080")
    assert load(path).console.port == 8080
    monkeypatch.setenv("NIGHTSHIFT_CONSOLE__PORT", "many")
    (problem,) = problems(path, "console: {port: 1}\n")
    assert problem.startswith("environment variable NIGHTSHIFT_CONSOLE__PORT: console.port")


def test_files_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    """Absent, a folder, too large, not UTF-8, and an alias bomb: each one sentence, none a traceback."""
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="directory"):
        load(tmp_path)
    assert "at most" in problems(tmp_path / "big.yaml", "a: " + "x" * MAX_BYTES)[0]
    (tmp_path / "latin.yaml").write_bytes(b"cluster: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml"):
        load(tmp_path / "latin.yaml")
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join(['*' + last] * 9)}]\n"
        for last, name in zip("abcdefg", "bcdefgh", strict=True)
    )
    assert "aliases" in problems(tmp_path / "bomb.yaml", bomb)[0]


@given(st.text(max_size=200))
def test_no_text_makes_reading_fall_over(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Any file is either a mapping or a ConfigError."""
    path = tmp_path_factory.mktemp("fuzz") / "n.yaml"
    path.write_text(text, errors="replace")
    try:
        values = read(path).values
    except ConfigError as error:
        values = {"said": str(error)}
    assert isinstance(values, dict)


def fields(
    schema: dict[str, Any], definitions: dict[str, Any], at: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in schema.get("properties", {}).items():
        named = definitions[field["$ref"].rsplit("/", 1)[-1]] if "$ref" in field else {}
        yield f"{at}{name}", {**named, **field}
        for part in (field, field.get("items", {}), *field.get("anyOf", ())):
            for option in (part, *part.get("oneOf", ())):
                if "$ref" in option:
                    inner = definitions[option["$ref"].rsplit("/", 1)[-1]]
                    yield from fields(inner, definitions, f"{at}{name}.")


def test_every_setting_is_described() -> None:
    """Each field of each room and plug-in has a sentence; none of the plug-ins is left out."""
    schema = Settings.model_json_schema()
    found = dict(fields(schema, schema["$defs"]))
    assert [name for name, field in found.items() if not field.get("description")] == []
    assert len(found) > 60
    for plugin in (*COLLECTORS, *ACTUATORS):
        assert any(plugin.plugin in str(option) for option in schema["$defs"].values()), plugin
    for plugin in DETECTORS:
        assert f"detectors.{plugin.plugin}" in found


def test_what_of_slurm_this_machine_lacks_is_a_warning(tmp_path: Path) -> None:
    """No error: the file may be checked on another machine."""
    entry, slurm = {"type": "slurm"}, {"commands": str(tmp_path), "conf": str(tmp_path / "slurm.conf")}
    assert Settings(slurm=slurm).warnings == ()
    found = Settings(slurm=slurm, sources=(entry,), actuators=(entry,)).warnings
    assert [warning.partition(": ")[0] for warning in found] == ["slurm.commands", "slurm.conf"]
    assert f"no scontrol, sinfo, squeue in {tmp_path}" in found[0]
