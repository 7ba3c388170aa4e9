"""The page of all clusters: an agent that is silent, stale or of another version is shown so, and never counted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from nightshift.agent.approvals.people import Directory, Owner
from nightshift.agent.approvals.people import Settings as PeopleSettings
from nightshift.agent.console import members as federation
from nightshift.agent.console.federation import ClusterRow, sums
from nightshift.agent.console.members import ClusterSummary, Member, Members, MemberState, read
from nightshift.agent.console.server import Server
from nightshift.agent.console.sessions import Doorkeeper, TokenAccount
from nightshift.agent.console.settings import Settings
from nightshift.agent.setup.console import build_console
from nightshift.collectors.http import HttpSettings
from nightshift.version import line
from tests.agent.story import TOKEN, Story

TEAM_TOKEN = "team-sft-token"


def summary(**changes: object) -> ClusterSummary:
    values: dict[str, object] = {
        "version": line(), "cluster": "east", "now_s": 100.0, "looked_s": 95.0, "ready": True, "halted": False,
        "gpus": 16, "gpus_seen": 15, "watts": 6_000.0, "sources": 2, "sources_silent": 1, "opened": {"critical": 2},
        "waiting": 1, "gpus_out": 8, "gpus_out_limit": 10, "false_pages_left": 0.5, "false_pages_a_week": 1.0,
        "ettr": None, "incidents": (),
    }  # fmt: skip
    return ClusterSummary.model_validate(values | changes)


@pytest.mark.parametrize(
    ("said", "age_s", "state"),
    [
        (summary(), 5.0, MemberState.CURRENT),
        (summary(), federation.SILENT_S + 1, MemberState.SILENT),
        (None, 0.0, MemberState.SILENT),
        (summary(looked_s=100.0 - federation.STALE_S), 5.0, MemberState.STALE),
        (summary(looked_s=None), 5.0, MemberState.STALE),
        (summary(ready=False), 5.0, MemberState.NOT_READY),
        (summary(version="nightshift 0.0.1"), 5.0, MemberState.OTHER_VERSION),
    ],
)
def test_how_far_an_agents_word_holds(said: ClusterSummary | None, age_s: float, state: MemberState) -> None:
    assert Member("http://east", said, 1_000.0 - age_s).state(1_000.0, line()) is state


def test_only_current_words_are_summed_and_the_count_says_so() -> None:
    rows = [
        ClusterRow("a", "", state, "", 1.0, summary())
        for state in (MemberState.CURRENT, MemberState.SILENT, MemberState.STALE, MemberState.NOT_READY)
    ]
    total = sums(rows)
    assert (total.clusters, total.of, total.gpus, total.gpus_out_limit) == (1, 4, 16, 10)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"[" * 9_999, b'{"version": 1}', b"<html>"])
def test_what_is_no_summary_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        read(body)


def test_a_later_versions_further_fields_are_no_fault_and_numbers_are_numbers() -> None:
    text = summary().model_dump_json()
    assert read((text[:-1] + ', "later": 1}').encode()).cluster == "east"
    with pytest.raises(ValueError):
        read(text.replace("6000.0", "NaN").encode())


class Pair:
    """Two agents' consoles; the second shows the first."""

    def __init__(self, folder: Path) -> None:
        for name in ("east", "west"):
            (folder / name).mkdir()
        self.stories = [Story(folder / name) for name in ("east", "west")]
        east, west = self.stories
        east.tell()
        east.parts = replace(east.parts, cluster="east")
        self.east = Server(build_console(east.parts, Settings()), "127.0.0.1", 0)
        self.east.start()
        token = folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        self.settings = HttpSettings(bearer_token_file=token)
        self.members = Members({self.east.url: self.settings})
        accounts = {TOKEN: TokenAccount("ada", ("approver",)), TEAM_TOKEN: TokenAccount("bob")}
        people = PeopleSettings(owners=(Owner(team="sft", namespaces=("sft",), members=("bob",)),))
        west.parts = replace(
            west.parts,
            cluster="west",
            members=self.known,
            directory=Directory(people),
            doorkeeper=Doorkeeper(b"k" * 32, accounts, 3600.0, west.store.database),
        )
        self.west = Server(build_console(west.parts, Settings()), "127.0.0.1", 0)
        self.west.start()

    def known(self) -> list[Member]:
        return self.members.all()

    def get(self, path: str, token: str = TOKEN) -> httpx.Response:
        return httpx.get(f"{self.west.url}{path}", headers={"Authorization": f"Bearer {token}"})

    def close(self) -> None:
        self.west.stop()
        self.east.stop()
        for story in self.stories:
            story.store.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("clusters"))
    yield made
    made.close()


def test_a_cluster_that_answers_is_shown_with_its_figures_and_incidents(pair: Pair) -> None:
    pair.members.ask(pair.east.url)
    told = pair.get("/api/v1/clusters").json()
    assert [(c["name"], c["state"], c["counted"]) for c in told["clusters"]] == [
        ("west", "current", True),
        ("east", "current", True),
    ]
    assert told["total"]["gpus"] == 32
    assert told["total"]["gpus_seen"] == 30, "a GPU without data is not seen"
    assert [one["cluster"] for one in told["incidents"]] == ["east"]
    page = pair.get("/clusters").text
    assert "2 of 2 clusters counted" in page
    assert f'{pair.east.url}/incidents/INC-1"' in page


def test_a_cluster_that_falls_silent_is_not_healthy(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last words are there still, and count for nothing."""
    door = Server(build_console(pair.stories[0].parts, Settings()), "127.0.0.1", 0)
    door.start()
    members = Members({door.url: pair.settings})
    members.ask(door.url)
    door.stop()
    members.ask(door.url)
    assert members.all()[0].said is not None
    monkeypatch.setattr(pair.members, "all", members.all)
    monkeypatch.setattr(federation, "SILENT_S", -math.inf)
    told = pair.get("/api/v1/clusters").json()
    east = told["clusters"][1]
    assert (east["state"], east["counted"]) == ("silent", False)
    assert "unreachable" in east["problem"]
    assert (told["total"]["clusters"], told["incidents"]) == (0, [])
    page = pair.get("/clusters").text
    assert "the sums are lower bounds" in page
    assert "Unknown: the agent does not answer" in page


def test_a_wrong_token_is_said_and_nothing_is_known(pair: Pair) -> None:
    members = Members({pair.east.url: HttpSettings(headers={"Authorization": "Bearer wrong"})})
    members.ask(pair.east.url)
    (member,) = members.all()
    assert member.said is None
    assert "unauthorised" in member.problem


def test_a_team_sees_that_a_cluster_is_there_and_nothing_of_it(pair: Pair) -> None:
    """Its namespace may be another team's in another cluster."""
    pair.members.ask(pair.east.url)
    told = pair.get("/api/v1/clusters", TEAM_TOKEN).json()
    assert [(c["name"], c["said"]) for c in told["clusters"]] == [("west", None), ("east", None)]
    assert (told["total"], told["incidents"]) == (None, [])
    assert "sft" not in pair.get("/clusters", TEAM_TOKEN).text.replace("bob", "")
    assert pair.get("/api/v1/summary", TEAM_TOKEN).status_code == 403


def test_reading_needs_a_sign_in(pair: Pair) -> None:
    assert httpx.get(f"{pair.west.url}/api/v1/clusters").status_code == 401
    assert httpx.get(f"{pair.west.url}/api/v1/summary").status_code == 401
