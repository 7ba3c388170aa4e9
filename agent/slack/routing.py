"""Where an incident is told, and whether now. Decides purely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agent.incident import Incident
from agent.people import Directory, namespaces_of
from agent.slack.settings import Settings
from collectors.subject import Subject, SubjectKind
from detectors.base import Severity

_ORDER = list(Severity)


@dataclass(frozen=True, slots=True)
class Hold:
    """Not now, but at `until_s`; says why."""

    until_s: float
    why: str


def namespaces(incident: Incident) -> list[str]:
    """The namespaces that an incident is about: of what alarmed, and of whom the plan would hit."""
    subjects: list[Subject] = list(incident.subjects)
    diagnosis, action = incident.diagnosis, incident.action
    if diagnosis is not None and "job" in diagnosis.facts:
        subjects.append(Subject(SubjectKind.JOB, str(diagnosis.facts["job"])))
    if action is not None:
        subjects += [Subject(SubjectKind.JOB, name) for name in action.blast_radius.jobs]
    return namespaces_of(subjects)


def channel_of(incident: Incident, settings: Settings, directory: Directory) -> str:
    """One channel: the first route that fits, else the owner's, else the default. Never two."""
    spaces = namespaces(incident)
    for route in settings.routes:
        severe = not route.severities or incident.severity in route.severities
        if severe and (not route.namespaces or _any_fits(spaces, route.namespaces)):
            return route.channel
    owner = directory.owner(spaces)
    return owner.slack_channel if owner is not None and owner.slack_channel else settings.channel


def hold(incident: Incident, settings: Settings, now_s: float) -> Hold | None:
    """Whether quiet hours keep an incident back, and until when."""
    hours = settings.quiet_hours
    if hours is None or _ORDER.index(incident.severity) >= _ORDER.index(hours.least):
        return None
    end_s = hours.end_after(now_s)
    return None if end_s is None else Hold(end_s, "quiet hours")


def _any_fits(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
