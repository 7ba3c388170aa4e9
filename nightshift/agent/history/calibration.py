"""What `nightshift calibrate` leaves out, and what it says of the tails that it fitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nightshift.agent.history.lookback import AFTER_S, LEAD_S, OwnEvent, same_node
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.alarms.budget import BudgetSettings
from nightshift.detectors.alarms.tail import Tail


def excused_by(own: Sequence[OwnEvent], inventory: Inventory) -> Callable[[Subject, float], bool]:
    """Whether an alarm is explained by trouble that the cluster itself recorded on that node within a day."""

    def excused(subject: Subject, at_s: float) -> bool:
        # before the inventory is asked: this runs for every alarm of months
        near = [e for e in own if -LEAD_S <= at_s - e.at_s <= AFTER_S]
        if not near:
            return False
        nodes = {node for one in (subject, *inventory.gpus(subject, at_s)) if (node := _node(one, inventory, at_s))}
        return any(same_node(node, event.node) for node in nodes for event in near)

    return excused


def _node(subject: Subject, inventory: Inventory, at_s: float) -> str:
    node = subject if subject.kind is SubjectKind.NODE else inventory.above(subject, SubjectKind.NODE, at_s)
    return node.name if node is not None else ""


def table(tails: Mapping[str, Tail], strengths: Mapping[str, float], budget: BudgetSettings) -> str:
    """One line per detector, for people: days, episodes, and the false alarms at the strength that is set."""
    rows = [("detector", "series-days", "episodes", "false alarms / 1,000 series-days", "measured down to")]
    for name, strength in strengths.items():
        tail = tails.get(name)
        if tail is None:
            rows.append((name, "0", "", "a claim: nothing that it watches was seen", ""))
            continue
        rows.append(
            (
                name,
                f"{tail.series_days:.1f}",
                str(tail.episodes),
                f"{tail.rate(strength):.3g}",
                f"{tail.measured_to:.3g}",
            )
        )
    widths = [max(len(row[n]) for row in rows) for n in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append(
        f"Below what is measured a rate is the tail's extrapolation. Budget: {budget.false_pages_per_week:g} false "
        "pages per week, all detectors together."
    )
    return "\n".join(lines) + "\n"
