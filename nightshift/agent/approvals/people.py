"""Who people are, what they may do, and which team a workload belongs to: one directory for every channel.

A channel authenticates a person and gives their e-mail address or login, and the groups that an identity provider
vouches for; this says the rest. Nobody has a role by being in a channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from nightshift.agent.approvals.policy import ORDER, Person, Role, RoleGrant

NOBODY: Literal["nobody"] = "nobody"


class Owner(BaseModel):
    """A team, the namespaces that it owns, and its people, who see and decide what is its own alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    team: str = Field(min_length=1, max_length=80, description="Name of the team")
    namespaces: tuple[str, ...] = Field(min_length=1, description="Namespaces, with shell patterns (`research-*`)")
    slack_channel: str = Field("", description="Channel id (`C…`) that its incidents go to; empty: the default one")
    members: tuple[str, ...] = Field((), description="E-mail addresses or logins of its responders")
    approvers: tuple[str, ...] = Field((), description="E-mail addresses or logins of who approves for it")
    groups: dict[str, Role] = Field(
        default_factory=dict, description="Role over the team's jobs by group of the identity provider"
    )

    @property
    def names_people(self) -> bool:
        return bool(self.members or self.approvers or self.groups)


class Settings(BaseModel):
    """People and teams."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    roles: dict[str, Role] = Field(
        default_factory=dict,
        description="Role over the whole cluster by e-mail address or login: viewer, responder, approver or admin",
    )
    groups: dict[str, Role] = Field(
        default_factory=dict, description="Role over the whole cluster by group of the identity provider"
    )
    anybody: Role | Literal["nobody"] | None = Field(
        None,
        description="Cluster-wide role for users not listed here. Default: viewer; none once any team lists "
        "members",
    )
    owners: tuple[Owner, ...] = Field((), description="Who owns which namespaces; the first that fits counts")
    same: dict[str, str] = Field(
        default_factory=dict,
        description="Aliases (token or login → person). All aliases of a person count as one approver",
    )

    @field_validator("same")
    @classmethod
    def _leads_to_people(cls, same: dict[str, str]) -> dict[str, str]:
        """Raises ValueError where a name belongs to another one that belongs to somebody else, or to nobody."""
        # Compared as identities are: two spellings of one name could otherwise lead to two people, who then
        # approve together.
        spelt = {_identity(name): _identity(person) for name, person in same.items()}
        if len(spelt) < len(same):
            raise ValueError("the same name is listed twice, in two spellings")
        for name, person in spelt.items():
            if not name or not person:
                raise ValueError(f"{name or person}: both sides must be a name")
            # A chain would have to be followed at every click; and one that ends in itself has no person at all.
            if person in spelt:
                raise ValueError(f"{name} belongs to {person}, which is itself another name of {spelt[person]}")
        return spelt


class Directory:
    """Looks people and owners up in the settings that it heeded last; every door holds the same one."""

    def __init__(self, settings: Settings) -> None:
        self._book = _Book(settings)

    # One assignment: a question that is being answered meanwhile is answered by the old book or by the new, never
    # by a mix.
    def heed(self, settings: Settings) -> None:
        """Takes new settings up, between two questions: who was taken out may do nothing from now on."""
        self._book = _Book(settings)

    @property
    def has_tenants(self) -> bool:
        """Whether an owner names its people, so that not everybody may look."""
        return self._book.has_tenants

    def person(
        self, name: str, channel: str, signed_in_s: float | None = None, groups: Iterable[str] = ()
    ) -> Person:
        """The person of an authenticated name, as the gate knows them. `groups`: the identity provider's word."""
        return self._book.person(name, channel, signed_in_s, groups)

    def owner(self, namespaces: Sequence[str]) -> Owner | None:
        """The first owner of any of the namespaces."""
        return self._book.owner(namespaces)

    def one(self, identity: str) -> str:
        """Whom an identity counts as where different people are asked for."""
        return self._book.one(identity)

    def knows(self, person: Person) -> bool:
        """Whether a person has any role at all: who has none is told so at sign-in."""
        return bool(person.roles or person.grants)


class _Book:
    """One state of the settings. Immutable."""

    def __init__(self, settings: Settings) -> None:
        tenants = any(owner.names_people for owner in settings.owners)
        # Where teams name their people, a stranger who may look would read all teams' work.
        anybody = settings.anybody or (NOBODY if tenants else Role.VIEWER)
        self._anybody: frozenset[Role] = frozenset() if anybody == NOBODY else frozenset({Role(anybody)})
        self.has_tenants = tenants
        self._owners = settings.owners
        self._groups = settings.groups
        self._same = settings.same
        self._roles = {_identity(name): role for name, role in settings.roles.items()}
        # Only groups that give a role here are stored with an approval: a person may be in thousands of others.
        self._naming = frozenset(self._groups).union(*(owner.groups for owner in settings.owners))
        self._teams = [(owner, _people(owner)) for owner in settings.owners]

    def person(
        self, name: str, channel: str, signed_in_s: float | None = None, groups: Iterable[str] = ()
    ) -> Person:
        who, belongs = _identity(name), frozenset(groups)
        wide = {role for role in (self._roles.get(who), *map(self._groups.get, belongs)) if role is not None}
        grants = []
        for owner, people in self._teams:
            here = [role for group, role in owner.groups.items() if group in belongs]
            here += [people[who]] if who in people else []
            if here:
                # A person may be in a team by name and by group; the stronger role counts, or a group would take
                # rights away.
                grants.append(RoleGrant(max(here, key=ORDER.index), owner.namespaces))
        named = wide or grants
        # `anybody` is for strangers: a team's member would see the whole cluster by it.
        roles = frozenset(wide) if named else self._anybody
        vouched = tuple(sorted(group for group in belongs if group in self._naming))
        return Person(name, roles, channel, signed_in_s, tuple(grants), vouched)

    def one(self, identity: str) -> str:
        return self._same.get(identity, identity)

    def owner(self, namespaces: Sequence[str]) -> Owner | None:
        for owner in self._owners:
            if any(fnmatchcase(name, pattern) for name in namespaces for pattern in owner.namespaces):
                return owner
        return None


def _people(owner: Owner) -> Mapping[str, Role]:
    members = {_identity(name): Role.RESPONDER for name in owner.members}
    return members | {_identity(name): Role.APPROVER for name in owner.approvers}


def _identity(name: str) -> str:
    return Person(name, frozenset(), "").identity
