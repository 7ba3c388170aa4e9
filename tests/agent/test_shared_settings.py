"""What several parts need is stated once: parts refer to it by name, or take it without saying so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nightshift.agent.config_file import ConfigError
from nightshift.agent.settings import Settings, load
from nightshift.collectors.shared_settings import stated_block


def test_two_sources_use_the_connection_that_they_name() -> None:
    settings: Any = Settings(
        connections={"mimir": {"ca_file": "/ca"}},
        sources=[
            {"type": "prometheus", "url": "http://p", "connection": "mimir"},
            {"type": "alertmanager", "url": "http://a", "connection": "mimir"},
            {"type": "alertmanager", "url": "http://b"},
        ],
    )
    files = [source.connection.ca_file for source in settings.sources]
    assert files == [Path("/ca"), Path("/ca"), None]


def test_parts_may_have_service_accounts_of_their_own() -> None:
    settings: Any = Settings(
        kubernetes={"reads": {"kubeconfig": "/r"}, "acts": {"kubeconfig": "/a", "context": "prod"}},
        sources=[{"type": "kubernetes", "access": "reads"}, {"type": "kubernetes_events"}],
        actuators=[{"type": "kubernetes", "access": "acts"}],
        election={"access": "pod"},
    )
    named = [*settings.sources, *settings.actuators, settings.election]
    assert [part.access.kubeconfig for part in named] == [Path("/r"), None, Path("/a"), None]
    assert settings.actuators[0].access.context == "prod"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "connections: {mimir: {}}\nsources:\n  - type: prometheus\n    url: http://p\n    connection: mimri\n",
            ":5: sources[0].connection: Value error, `connections` has no entry 'mimri'; did you mean 'mimir'?",
        ),
        ("election: {access: x}\n", ":1: election.access: Value error, `kubernetes` has no entry 'x'"),
        (
            "power: {nodes: {agents: true}}\n",
            ":1: power.nodes.agents: Value error, requires the block `node_agents`",
        ),
        ("sources: [{type: node_agents}]\n", "requires the block `node_agents`"),
    ],
)
def test_a_name_without_an_entry_is_refused_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(path)
    assert [problem in line for line in refused.value.problems] == [True]


def test_a_mistake_in_a_shared_block_is_named_once_however_many_parts_use_it(tmp_path: Path) -> None:
    path = tmp_path / "nightshift.yaml"
    path.write_text(
        "connections: {a: {ca_fiel: /x}}\nlabels: {rack: x}\nsources:\n"
        "  - {type: prometheus, url: http://p, connection: a}\n"
        "  - {type: prometheus, url: http://q, connection: a}\n"
        "  - {type: kubernetes}\n"
    )
    with pytest.raises(ConfigError) as refused:
        load(path)
    assert [line.split(": ")[1] for line in refused.value.problems] == ["connections.a.ca_fiel", "labels.rack"]


def test_what_is_stated_once_reaches_every_part_that_uses_it() -> None:
    settings: Any = Settings(
        labels={"gpu_resource": "amd.com/gpu"},
        workload={"pod_pattern": "(?P<job>.+)-x", "namespace": "ml"},
        node_names={"http://n1:1/m": "n1"},
        drain={"grace_s": 5},
        proxy="http://proxy",
        console={"public_url": "http://c"},
        outlets={"opsgenie": {"api_key_file": "/k"}},
        sources=[
            {"type": "kubernetes"},
            {"type": "cadvisor", "urls": ["http://n1:1/m"]},
            {"type": "kineto", "path": "/d"},
        ],
        actuators=[{"type": "kubernetes"}],
    )
    kubernetes, cadvisor, kineto = settings.sources
    assert kubernetes.labels.gpu_resource == settings.scheduling.labels.gpu_resource == "amd.com/gpu"
    assert cadvisor.workload is kineto.workload
    assert (cadvisor.nodes, kineto.namespace) == ({"http://n1:1/m": "n1"}, "ml")
    assert settings.actuators[0].drain.grace_s == 5
    assert settings.outlets.opsgenie.proxy == settings.slack.proxy == "http://proxy"
    assert settings.outlets.console_url == settings.slack.console_url == "http://c"


def test_a_former_value_in_a_part_keeps_the_rest_of_the_shared_block() -> None:
    settings: Any = Settings(
        labels={"gpu_resource": "amd.com/gpu"}, sources=[{"type": "kubernetes", "rack_label": "rack"}]
    )
    assert settings.sources[0].labels.model_dump() == {
        "gpu_resource": "amd.com/gpu",
        "rack_label": "rack",
        "nvlink_domain_label": "nvidia.com/gpu.clique",
    }


def test_one_configuration_leaves_nothing_for_the_next() -> None:
    Settings(labels={"gpu_resource": "amd.com/gpu"})
    assert stated_block("labels") is None
    assert Settings().scheduling.labels.gpu_resource == "nvidia.com/gpu"


def test_a_name_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_KUBERNETES__READS__KUBECONFIG", "/r")
    monkeypatch.setenv("NIGHTSHIFT_SCHEDULING__ACCESS", "reads")
    assert load().scheduling.access.kubeconfig == Path("/r")
