"""Where an incident is told, and whether now. Decides purely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nightshift.agent.approvals.people import Directory
from nightshift.agent.notify.slack.settings import Settings
from nightshift.agent.store.incident import Incident
from nightshift.agent.store.tenancy import namespaces_of
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.base import Severity

_ORDER = list(Severity)


@dataclass(frozen=True, slots=True)
class Hold:
    """Not now, but at `until_s`; says why."""

    until_s: float
    why: str


def channel_of(incident: Incident, settings: Settings, directory: Directory) -> str:
    """One channel: the first route that fits, else the owner's, else the default. Never two.

    An owner's channel gets only what is the owner's alone: what touches several teams' jobs goes to the default
    channel, or one team would read of another's."""
    spaces = namespaces(incident)
    for route in settings.routes:
        severe = not route.severities or incident.severity in route.severities
        if severe and (not route.namespaces or _any_fits(spaces, route.namespaces)):
            return route.channel
    channels = {owner.slack_channel if (owner := directory.owner([name])) else "" for name in spaces}
    return (channels.pop() if len(channels) == 1 else "") or settings.channel


def namespaces(incident: Incident) -> list[str]:
    """The namespaces that an incident is about: whose jobs it touches, and the job that its diagnosis names."""
    named = []
    if incident.diagnosis is not None and "job" in incident.diagnosis.facts:
        named = namespaces_of([Subject(SubjectKind.JOB, str(incident.diagnosis.facts["job"]))])
    return list(dict.fromkeys([*namespaces_of(incident.subjects), *named, *incident.namespaces]))


def hold(incident: Incident, settings: Settings, now_s: float) -> Hold | None:
    """Whether quiet hours keep an incident back, and until when."""
    hours = settings.quiet_hours
    if hours is None or _ORDER.index(incident.severity) >= _ORDER.index(hours.least):
        return None
    end_s = hours.end_after(now_s)
    return None if end_s is None else Hold(end_s, "quiet hours")


def _any_fits(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
