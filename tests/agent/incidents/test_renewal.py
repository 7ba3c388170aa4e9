"""A diagnosis that was overtaken by its evidence is renewed, and neither plan nor approval notices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.incidents.renewal import FIRST_S, Renewals
from nightshift.agent.store.diagnosis import CHANGED, Diagnosis
from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.collectors.frame import Instant
from tests.agent.story import NOW_S, Story

ADA = Person("ada@example.org", frozenset({Role.APPROVER}), "console", 2e9)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = Story(tmp_path)
    yield story
    story.store.close()


def grown(incident: Incident) -> Diagnosis:
    """The same cause in words that say more."""
    assert incident.diagnosis is not None
    (first, *_) = incident.diagnosis.claims
    more = replace(first, sentence=f"{first.sentence} It goes faster by now.")
    return replace(incident.diagnosis, headline="Host memory leak, faster", claims=(first, more))


def test_a_diagnosis_is_renewed_in_its_place_while_its_plan_waits(story: Story) -> None:
    incident_id = story.tell()
    before = story.store.incident(incident_id)
    renewals = Renewals(story.store, story.clock, grown)
    assert renewals.turn() == 0, "nothing was seen since it was diagnosed"
    story.clock.wait_until(NOW_S + FIRST_S + 1.0)
    later = replace(story.finding(), at=Instant(NOW_S + FIRST_S))
    story.store.update_finding(incident_id, later)
    story.clock.wait_until(NOW_S + FIRST_S + 30.0)
    assert renewals.turn() == 1
    after = story.store.incident(incident_id)
    assert after.diagnosis is not None
    assert (after.version, after.state, after.action) == (before.version, before.state, before.action)
    assert after.title == "Host memory leak, faster"
    assert after.diagnosis.facts[CHANGED].endswith("It goes faster by now.")  # type: ignore[union-attr]
    assert after.updated_s > before.updated_s
    assert after.action is not None
    assert story.gate.approve(incident_id, after.action.plan_sha256, ADA).changed
    kinds = [(record.kind, record.by) for record in story.store.audit.records()]
    assert ("diagnosis", "renewal") in kinds


def test_a_renewed_cause_is_planned_again(story: Story) -> None:
    incident_id = story.tell()

    def elsewhere(incident: Incident) -> Diagnosis:
        told = grown(incident)
        return replace(told, facts={**told.facts, "subject": "pod:sft/other"})

    story.clock.wait_until(NOW_S + FIRST_S + 1.0)
    story.store.update_finding(incident_id, replace(story.finding(), at=Instant(NOW_S + FIRST_S)))
    story.clock.wait_until(NOW_S + FIRST_S + 30.0)
    assert Renewals(story.store, story.clock, elsewhere).turn() == 1
    incident = story.store.incident(incident_id)
    assert incident.state is IncidentState.AWAITING_APPROVAL
    assert incident.news, "the lifecycle takes it up and plans again"
