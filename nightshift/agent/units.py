"""Figures as people read them: times, sizes, durations; an en dash where nothing is known."""

from __future__ import annotations

import math
from datetime import UTC, datetime

UNKNOWN = "–"
SIZES = {2**40: "TiB", 2**30: "GiB", 2**20: "MiB", 2**10: "KiB"}


def clock_time(t_s: float | None) -> str:
    """`02:41:07` UTC."""
    if t_s is None or not math.isfinite(t_s):
        return UNKNOWN
    return datetime.fromtimestamp(t_s, UTC).strftime("%H:%M:%S")


def full_time(t_s: float | None) -> str:
    """`2026-11-21 02:41:07 UTC`."""
    if t_s is None or not math.isfinite(t_s):
        return UNKNOWN
    return datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso_time(t_s: float | None) -> str:
    """For a `datetime` attribute; empty where it is not known."""
    if t_s is None or not math.isfinite(t_s):
        return ""
    return datetime.fromtimestamp(t_s, UTC).isoformat(timespec="seconds")


def duration(span_s: float | None) -> str:
    """`45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    if span_s is None or not math.isfinite(span_s):
        return UNKNOWN
    seconds = max(0, round(span_s))
    # 90 s and 90 min are how people say them; "1 min" for 89 s would be off by half.
    if seconds < 90:
        return f"{seconds} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def quantity(value: float | None, unit: str = "") -> str:
    """`61.2 GiB`, `540 W`, `0.31`: three significant digits."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if unit == "bytes":
        for size, name in SIZES.items():
            if abs(value) >= size:
                return f"{value / size:.3g} {name}"
        return f"{value:.0f} B"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    # A ratio has no unit to say: the title beside it says of what.
    return f"{text} {unit}" if unit and unit not in ("ratio", "1") else text


def gpu_hours(value: float) -> str:
    """`6.4 GPU-h`."""
    return UNKNOWN if not math.isfinite(value) else f"{value:.3g} GPU-h"


def sentence(text: str) -> str:
    """`host_memory_leak` → `Host memory leak`."""
    words = str(text).replace("_", " ").strip()
    acronyms = {"gpu": "GPU", "hbm": "HBM", "xid": "Xid", "ecc": "ECC", "oom": "OOM", "pcie": "PCIe", "rma": "RMA"}
    words = " ".join(acronyms.get(word, word) for word in words.split(" "))
    return words[:1].upper() + words[1:]
