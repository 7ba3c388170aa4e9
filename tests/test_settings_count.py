"""The number of settings, which may fall and not rise unnoticed. `python -m tests.test_settings_count` prints it.

A new setting raises the figure here; docs/decisions/034-settings-people-can-tune.md says which settings deserve it.
"""

from __future__ import annotations

import re
from collections import Counter

from docs.generate import settings_page

SETTINGS = 300


def counted() -> Counter[str]:
    """Rows of the reference by their first part: each leaf counts once for every place where it can be set."""
    counts: Counter[str] = Counter()
    section = ""
    for line in settings_page().splitlines():
        heading = re.match(r"#+ (.*)", line)
        section = heading[1].replace("`", "") if heading else section
        row = re.match(r"\| `([^`.\[]+)", line)
        if row:
            counts[section if ": " in section else row[1]] += 1
    return counts


def test_there_are_no_more_settings_than_were_decided_on() -> None:
    assert counted().total() == SETTINGS


if __name__ == "__main__":
    for name, count in sorted(counted().items(), key=lambda item: -item[1]):
        print(f"{count:4d} {name}")
    print(f"{counted().total():4d} settings")
