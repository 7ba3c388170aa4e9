"""Who people are, what they may do, and which team a workload belongs to: one directory for every channel.

A channel authenticates a person and gives their e-mail address or login; this says the rest. Nobody has a role by
being in a channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict, Field

from agent.policy import Person, Role
from collectors.subject import Subject, SubjectKind

_NAMESPACED = frozenset({SubjectKind.POD, SubjectKind.CONTAINER, SubjectKind.JOB, SubjectKind.RANK})


class Owner(BaseModel):
    """A team and the namespaces that it owns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    team: str = Field(min_length=1, max_length=80, description="Name of the team")
    namespaces: tuple[str, ...] = Field(min_length=1, description="Namespaces, with shell patterns (`research-*`)")
    slack_channel: str = Field("", description="Channel id (`C…`) that its incidents go to; empty: the default one")


class Settings(BaseModel):
    """People and teams."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    roles: dict[str, Role] = Field(
        default_factory=dict, description="Role by e-mail address or login: viewer, responder, approver or admin"
    )
    anybody: Role = Field(
        Role.VIEWER, description="Role of somebody whom a channel knows and `roles` does not name"
    )
    owners: tuple[Owner, ...] = Field((), description="Who owns which namespaces; the first that fits counts")


class Directory:
    """Looks people and owners up in settings. Immutable."""

    def __init__(self, settings: Settings) -> None:
        self._anybody = settings.anybody
        self._owners = settings.owners
        self._roles = {Person(name, frozenset(), "").identity: role for name, role in settings.roles.items()}

    def person(self, name: str, channel: str, signed_in_s: float | None = None) -> Person:
        """The person of an authenticated name, as the gate knows them."""
        role = self._roles.get(Person(name, frozenset(), "").identity, self._anybody)
        return Person(name, frozenset({role}), channel, signed_in_s)

    def owner(self, namespaces: Sequence[str]) -> Owner | None:
        """The first owner of any of the namespaces."""
        for owner in self._owners:
            if any(fnmatchcase(name, pattern) for name in namespaces for pattern in owner.namespaces):
                return owner
        return None


def namespaces_of(subjects: Iterable[Subject]) -> list[str]:
    """The Kubernetes namespaces that subjects stand in, in order, each once."""
    found = (s.name.partition("/") for s in subjects if s.kind in _NAMESPACED)
    return list(dict.fromkeys(name for name, slash, _ in found if slash))
