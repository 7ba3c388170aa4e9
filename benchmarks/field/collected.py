"""How a batch of public reports is written down: one call per report, by the channel that told of it."""

from __future__ import annotations

from typing import Any

from benchmarks.field.report import Channel, FieldReport, Form, Paged

MEMORY = r"memory|OOM|out-of-memory"
CRASH = r"crash|exit|ended|killed|fail|died"
NONFINITE = r"nan|NaN|non-finite|not a number|infinite|loss|grad"
NETWORK = r"NCCL|network|InfiniBand|\bIB\b|connection|peer|socket"
STORAGE = r"storage|disk|NVMe|file.?system|I/O|read-only"


class Batch:
    """Reports in the order of their calls. words: what the incident's title has to match."""

    def __init__(self) -> None:
        self.reports: list[FieldReport] = []

    def _add(
        self, channel: Channel, form: Form, report: tuple[str, str, str, Paged], lines: tuple[str, ...], **rest: Any
    ) -> None:
        source, title, words, paged = report
        opens = paged is not Paged.NOBODY
        self.reports.append(
            FieldReport(source, channel, lines, opens, words, form=form, paged=paged, title=title, **rest)
        )

    def kernel(
        self, source: str, title: str, words: str, paged: Paged, *lines: str, form: Form = Form.DMESG, **rest: Any
    ) -> None:
        """Lines of a kernel log."""
        self._add(Channel.KERNEL, form, (source, title, words, paged), lines, **rest)

    def job(self, source: str, title: str, words: str, paged: Paged, *lines: str, before: str = "") -> None:
        """Lines of a training or serving log."""
        self._add(Channel.JOB, Form.POD, (source, title, words, paged), lines, before=before)

    def page(self, source: str, title: str, words: str, paged: Paged, *lines: str) -> None:
        """Lines of an exporter's page."""
        self._add(Channel.EXPORTER, Form.PAGE, (source, title, words, paged), lines)

    def kubernetes(self, source: str, title: str, words: str, paged: Paged, *objects: str) -> None:
        """Objects of the Kubernetes API, as JSON."""
        self._add(Channel.KUBERNETES, Form.API, (source, title, words, paged), objects)
