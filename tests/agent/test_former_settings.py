"""A configuration with settings that became constants loads, and says what no longer has an effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.agent.config_file import ConfigError
from nightshift.agent.former_settings import BLOCK, GONE, MOVED, REMOVED, constant, found, moved, moves, without
from nightshift.agent.settings import Settings, load
from nightshift.collectors.plugins import ALL as COLLECTORS
from nightshift.controllers.actuators.plugins import ALL as ACTUATORS

LEAVES = {path: where for path, where in REMOVED.items() if where != BLOCK}
# Entries of lists and these blocks need other fields beside them.
BLOCKS = (
    *("sources.", "actuators.", "power.nodes.", "power.kubernetes.", "kubernetes.", "console.oidc.", "outlets."),
    "slack.quiet_hours.",
)
FIELDS = st.sampled_from(sorted(path for path in LEAVES if not path.startswith(BLOCKS)))


def nested(path: str, value: Any) -> dict[str, Any]:
    """`{"a": {"b": value}}` of `a.b`."""
    first, _, rest = path.partition(".")
    return {first: nested(rest, value) if rest else value}


def test_every_row_names_a_constant_that_is_there() -> None:
    for path, where in LEAVES.items():
        assert constant(where) is not None, path


def test_no_row_names_a_setting_that_is_still_one() -> None:
    """`found` would take the value of a setting that counts."""
    values = Settings().model_dump(mode="json")
    assert list(found(values)) == []
    assert list(moves(values)) == []


@pytest.mark.parametrize(("kind", "plugins"), [("sources", COLLECTORS), ("actuators", ACTUATORS)])
def test_no_row_names_a_setting_that_an_entry_of_a_list_still_has(kind: str, plugins: Any) -> None:
    fields = {f"{kind}.{plugin.plugin}.{name}" for plugin in plugins for name in plugin.Settings.model_fields}
    assert not fields & set(REMOVED)
    entries = {f"{kind}.{plugin.plugin}" for plugin in plugins}
    assert {path.rpartition(".")[0] for path in LEAVES if path.startswith(f"{kind}.")} <= entries


def test_a_former_setting_of_an_entry_of_a_list_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text("sources:\n  - type: nvml\n    forget_after_s: 60\n")
    (warning,) = load(path).warnings
    assert warning.startswith(f"{path}:3: sources[0].forget_after_s: ")


def test_a_block_without_settings_loads_and_a_misspelt_field_in_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text("correlate:\n  slack_s: 10\nhistory: {}\n")
    assert len(load(path).warnings) == 1
    path.write_text("correlate:\n  slakc_s: 10\n")
    with pytest.raises(ConfigError, match="there is no such setting"):
        load(path)


@given(FIELDS, st.one_of(st.integers(), st.text(), st.none(), st.lists(st.integers()), st.floats(allow_nan=False)))
def test_a_former_setting_loads_with_whatever_value(path: str, value: Any) -> None:
    settings = Settings(**nested(path, value))
    assert settings.model_dump() == Settings().model_dump()


@given(FIELDS)
def test_taking_former_settings_out_leaves_the_given_values_as_they_were(path: str) -> None:
    values = {**nested(path, 1), "cluster": "c"}
    gone = frozenset(at for at, _ in found(values))
    assert {REMOVED[".".join(map(str, at))] for at in gone} == {LEAVES[path]} | (
        {BLOCK} if len(gone) > 1 else set()
    )
    assert without(values, gone)["cluster"] == "c"
    assert list(found(values)), "the values given are not changed"
    assert not list(found(without(values, gone)))


def test_a_former_setting_in_a_file_is_named_with_its_line_and_the_value_that_counts(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text("cluster: prod-1\ndetectors:\n  hang:\n    strength: 2.0\n    ratio: 5\n")
    settings = load(path)
    assert settings.detectors.hang.strength == 2.0  # type: ignore[attr-defined]
    (warning,) = settings.warnings
    assert warning.startswith(f"{path}:5: detectors.hang.ratio: ")
    assert "no effect" in warning
    assert "20.0" in warning


def test_a_former_setting_with_the_constant_as_its_value_is_named_as_well(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text("detectors:\n  hang:\n    ratio: 20.0\n")
    assert len(load(path).warnings) == 1


def test_a_former_setting_in_the_environment_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DETECTORS__HANG__RATIO", "5")
    (warning,) = load().warnings
    assert warning.startswith("environment variable NIGHTSHIFT_DETECTORS__HANG__RATIO: detectors.hang.ratio: ")


def test_a_misspelt_setting_beside_a_former_one_is_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text("detectors:\n  hang:\n    ratio: 5\n    ratoi: 5\n")
    with pytest.raises(ConfigError, match=r":4: detectors.hang.ratoi: there is no such setting"):
        load(path)


def test_config_check_prints_former_settings_and_finds_the_file_good(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text("detectors:\n  hang:\n    ratio: 5\n")
    result = CliRunner().invoke(app, ["config", "check", str(path)])
    assert result.exit_code == 0
    assert f"warning: {path}:3: detectors.hang.ratio" in result.output


def test_a_removed_part_in_a_file_is_named_with_its_record_and_the_rest_counts(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text(
        "detectors:\n  disabled: [multivariate, hang]\n  multivariate:\n    model: h200\n    rate_per_1000: 5\n"
        "budget:\n  drain_share: 0.2\nllm:\n  max_per_hour: 20\nguard:\n  domain_rate: 6\n"
        "collect_timeout_s: 9\n"
    )
    settings = load(path)
    assert settings.detectors.disabled == {"hang"}  # type: ignore[attr-defined]
    assert [warning.partition(": removed; ")[0] for warning in settings.warnings] == [
        f"{path}:12: collect_timeout_s",
        f"{path}:2: detectors.disabled[0]",
        f"{path}:3: detectors.multivariate",
        f"{path}:7: budget.drain_share",
        f"{path}:9: llm.max_per_hour",
        f"{path}:11: guard.domain_rate",
    ]
    for record in GONE.values():
        assert (Path(__file__).parents[2] / record).is_file()
        assert any(record in warning for warning in settings.warnings)


def test_a_former_setting_of_a_named_entry_is_named_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text("kubernetes:\n  prod:\n    kubeconfig: /k\n    timeout_s: 30\n")
    settings = load(path)
    assert settings.kubernetes["prod"].kubeconfig == Path("/k")
    (warning,) = settings.warnings
    assert warning.startswith(f"{path}:4: kubernetes.prod.timeout_s: ")
    assert "10.0" in warning


def test_a_removed_detector_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_DETECTORS__MULTIVARIATE__MODEL", "h200")
    (warning,) = load().warnings
    assert warning.startswith("detectors.multivariate: removed; ")


KUBE = {"kubeconfig": "/k", "context": "c"}
AGENTS = {**KUBE, "namespace": "ops", "selector": "app=agent", "port": 9500, "certificate_name": "{pod}"}
LABELS = {"gpu_resource": "amd.com/gpu", "rack_label": "rack"}
DRAINS = {
    **KUBE,
    "namespaces": ["ml"],
    "drain_grace_s": 5,
    "evict_unmanaged": True,
    "evict_local_data": False,
    "save_wait_s": 1.0,
    "cordon_claims": ["mine"],
}
SLURMS = {"commands": "/opt/slurm/bin", "slurm_conf": "/opt/slurm/etc/slurm.conf"}
HTTP = {"http": {"bearer_token_file": "/t", "headers": {"X-Scope-OrgID": "a"}}}
WORKLOAD = {"workload": {"pod_pattern": "(?P<job>.+)-x"}}
PAGES = {"urls": ["http://n1:1/m"], "nodes": {"http://n1:1/m": "n1"}, **HTTP}
FORMER: dict[str, Any] = {
    "sources": [
        {"type": "alertmanager", "url": "http://a", **HTTP},
        {"type": "cadvisor", **PAGES, **WORKLOAD},
        {"type": "dcgm_exporter", **PAGES, **WORKLOAD},
        {"type": "inference", **PAGES},
        {"type": "node_exporter", **PAGES},
        {"type": "node_log", **PAGES, "state_file": "/s"},
        {"type": "node_agents", **AGENTS, **HTTP, "state_file": "/s"},
        {"type": "prometheus", "url": "http://p", **HTTP, **WORKLOAD},
        {"type": "training_metrics", "api": "http://p", **HTTP, **WORKLOAD, "names": {"columns": {"loss": ["l"]}}},
        {"type": "tensorboard", "directory": "/d", "namespace": "ml", "names": {"columns": {"loss": ["l"]}}},
        {"type": "kineto", "path": "/d", "namespace": "ml", **WORKLOAD},
        {"type": "training_logs", "directory": "/d", **WORKLOAD},
        {"type": "kubernetes", **KUBE, **LABELS, "nvlink_domain_label": "clique"},
        {"type": "kubernetes_events", **KUBE},
        {"type": "nvml", "node": "n1"},
        {"type": "kernel_log", "node": "n1"},
        {"type": "slurm", **SLURMS},
    ],
    "actuators": [
        {"type": "kubernetes", **DRAINS},
        {"type": "kubernetes_repair", "image": "i", "namespace": "n", "pull_secrets": ["p"], **DRAINS},
        {
            "type": "kubernetes_kernels",
            "image": "i",
            "namespace": "n",
            "signer_secret": "s",
            **KUBE,
            "gpu_resource": "amd.com/gpu",
            "pull_secrets": ["p"],
        },
        {"type": "slurm", **SLURMS},
    ],
    "scheduling": {**KUBE, **LABELS, "opted_in": ["ml"], "gpu_watts": 450.0},
    "detectors": {"hang": {"enabled": False}, "xid": {"enabled": "true"}},
    "election": {"kubeconfig": "/k", "context": "c"},
    "llm": {"temperature": 0.2},
    "power": {
        "kubernetes": KUBE,
        "opted_in": ["ml"],
        "nodes": {"agents": AGENTS, "ca_file": "/c", "certificate_file": "/d", "key_file": "/e"},
    },
    "slack": {
        "proxy": "http://proxy",
        "console_url": "https://c",
        "quiet_hours": {"start": "22:00", "end": "07:00", "zone": "Europe/Zurich"},
    },
    "guard": {"maintenance": [{"subjects": ["*"], "start_s": 1, "end_s": 2, "owner": "o", "zone": "Asia/Tokyo"}]},
    "outlets": {
        "console_url": "https://c",
        "pagerduty": {"routing_key_file": "/r", "proxy": "http://proxy"},
        "opsgenie": {"api_key_file": "/r", "proxy": "http://proxy"},
    },
}
"""Every moved setting in its former place."""


def reached(part: Any, path: str) -> Any:
    for name in path.split("."):
        part = part[name] if isinstance(part, dict) else getattr(part, name)
    return part


def plain(value: Any) -> Any:
    """A setting's value as a file has it."""
    if isinstance(value, BaseModel):
        given = {name: plain(getattr(value, name)) for name in value.model_fields_set}
        return {name: given[name] for name in sorted(given)}
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in sorted(value.items())}
    if isinstance(value, tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return str(value) if isinstance(value, Path) else value


def test_every_moved_setting_in_its_former_place_still_counts() -> None:
    """Each row of MOVED is in the configuration, and what the part uses is the value that was given there."""
    settings, rows = Settings(**FORMER), set()
    for at, row in moves(FORMER):
        part: Any = settings
        value: Any = FORMER
        for step in at[:-1]:
            part = part[step] if isinstance(step, int) else getattr(part, step)
            value = value[step]
        if row.to:
            assert plain(reached(part, row.to)) == plain(value[at[-1]]), at
        rows.add(id(row))
    assert settings.detectors.disabled == {"hang"}  # type: ignore[attr-defined]
    assert rows == {id(row) for row in MOVED.values()}


def test_moved_settings_leave_the_given_values_as_they_were() -> None:
    before = repr(FORMER)
    assert list(moves(moved(FORMER))) != list(moves(FORMER))
    assert repr(FORMER) == before


def test_config_check_says_the_new_spelling_with_the_place_of_the_former_one(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text("sources:\n  - type: prometheus\n    url: http://p\n    http: {ca_file: /ca}\n")
    result = CliRunner().invoke(app, ["config", "check", str(path)])
    assert result.exit_code == 0
    assert f"warning: {path}:4: sources[0].http: deprecated spelling, still in effect" in result.output
    assert "`connections`" in result.output


def test_a_mistake_in_a_former_block_is_named_on_its_line(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text("sources:\n  - type: prometheus\n    url: http://p\n    http:\n      ca_fiel: /ca\n")
    with pytest.raises(ConfigError, match=r":5: sources\[0\].connection.ca_fiel: there is no such setting"):
        load(path)


def test_both_spellings_of_one_setting_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text(
        "connections: {a: {}}\nsources:\n"
        "  - {type: prometheus, url: http://p, connection: a, http: {ca_file: /b}}\n"
    )
    with pytest.raises(ConfigError, match=r"sources\[0\].http: there is no such setting"):
        load(path)


def test_a_former_setting_in_the_environment_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_SCHEDULING__KUBECONFIG", "/k")
    settings = load()
    assert settings.scheduling.access.kubeconfig == Path("/k")
    (warning,) = settings.warnings
    assert warning.startswith("environment variable NIGHTSHIFT_SCHEDULING__KUBECONFIG: scheduling.kubeconfig: ")
