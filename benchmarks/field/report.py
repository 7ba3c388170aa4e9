"""What one public report says and what is right for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Channel(StrEnum):
    KERNEL = "kernel_log"
    JOB = "training_logs"


@dataclass(frozen=True)
class FieldReport:
    """One report, and the right answer.

    source: where it was read (`owner/repository#number`). lines: the log in our own words with drawn values:
    `$host`, `$pci` (0000:9b:00), `$gpu`, `$pid`, `$n` (a number), `$step` (rises by the line), `$loss`,
    `$norm`. opens: whether an incident is right. words: a pattern that its title, its headline or a finding's
    summary has to match. before: a healthy step line of the same trainer. program: who wrote the line to the
    system's log."""

    source: str
    channel: Channel
    lines: tuple[str, ...]
    opens: bool = True
    words: str = ""
    before: str = ""
    program: str = "kernel"


def kernel(source: str, words: str, *lines: str, opens: bool = True, program: str = "kernel") -> FieldReport:
    return FieldReport(source, Channel.KERNEL, lines, opens, words, program=program)


def job(source: str, words: str, *lines: str, opens: bool = True, before: str = "") -> FieldReport:
    return FieldReport(source, Channel.JOB, lines, opens, words, before)
