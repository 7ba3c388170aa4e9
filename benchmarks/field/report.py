"""What one public report says and what is right for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Channel(StrEnum):
    KERNEL = "kernel_log"
    JOB = "training_logs"


@dataclass(frozen=True)
class FieldReport:
    """source: where it was read (`owner/repository#number`, or an address). lines: the log in our own words and with
    drawn values: `$host`, `$pci` (0000:9b:00), `$gpu`, `$pid`, `$n` and `$m` (numbers), `$step` (rises by the line).
    opens: whether an incident is right. words: a pattern that its title or one of its findings' titles has to match;
    of a report that opens nothing it is empty. before: healthy step lines of the same trainer, as a pattern of one.
    program: who wrote the line to the system's log."""

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
