"""What redaction finds and what it takes by mistake: `python -m benchmarks.redaction`.

Recall: every form of the corpus (tests/agent/redaction_corpus.py), drawn anew, in the setting in which its rule was
written, and in settings that no rule was written for: JSON inside JSON, an environment dump, a Python repr, a shell
trace, colour codes, a query, a table. A secret counts as missed if any eight characters of it survive.

False hits: lines that hold no secret: our own corpus, and real logs (LogHub's Hadoop and Linux samples, whose lines
carry no credential; Zhu et al., ISSRE 2023) where NIGHTSHIFT_DATA names the data sets.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import write
from nightshift.agent.rca.redact import Redactor, Settings
from tests.agent.redaction_corpus import HARMLESS, secrets

SEEDS = range(1000, 1050)
SETTINGS: dict[str, Callable[[str], str]] = {
    "as its rule was written": lambda line: line,
    "in a JSON log": lambda line: json.dumps({"ts": "2026-11-21T02:11:42Z", "msg": line, "rank": 3}),
    "JSON inside JSON": lambda line: json.dumps({"log": json.dumps({"message": line})}),
    "in an environment dump": lambda line: f"HOME=/root\nPATH=/usr/bin:/bin {line}\nRANK=3",
    "in a Python repr": lambda line: f"Exception({line!r}, 42)",
    "in a shell trace": lambda line: f"+ sh -c {line}",
    "in colours": lambda line: f"\x1b[31mERROR\x1b[0m {line} \x1b[0m",
    "in a table": lambda line: f"| 02:11:42 | trainer-3 | {line} |",
    "at the end of 5,000 characters": lambda line: "step=1 loss=2.0 " * 312 + line,
}
PIECE = 8


def survives(secret: str, text: str) -> bool:
    """Whether any piece of the secret stands in the text; lines of a key count each for themselves."""
    parts = [part for part in secret.split("\n") if len(part) >= 4]
    pieces = [part[i : i + PIECE] for part in parts for i in range(0, max(1, len(part) - PIECE + 1), PIECE)]
    return any(piece in text for piece in pieces)


def recall() -> dict[str, dict[str, object]]:
    table: dict[str, dict[str, object]] = {}
    for setting, wrap in SETTINGS.items():
        found = total = 0
        missed: Counter[str] = Counter()
        redactor = Redactor()
        for seed in SEEDS:
            for line, secret in secrets(seed):
                total += 1
                if survives(secret, redactor(wrap(line))):
                    missed[line.split(secret)[0][-30:] if secret in line else line[:30]] += 1
                else:
                    found += 1
        table[setting] = {"shown": total, "found": found, "recall": round(found / total, 4), "missed": dict(missed)}
    return table


def false_hits() -> dict[str, dict[str, object]]:
    sources: dict[str, list[str]] = {"harmless corpus": list(HARMLESS)}
    data = os.environ.get("NIGHTSHIFT_DATA", "")
    for path in sorted(Path(data, "readonly", "logs").glob("*.log")) if data else ():
        sources[f"LogHub {path.stem}"] = path.read_text(errors="replace").splitlines()
    table = {}
    for name, lines in sources.items():
        redactor = Redactor(Settings(emails=False))
        changed = [line for line in lines if redactor(line) != line]
        table[name] = {"lines": len(lines), "changed": len(changed), "kinds": dict(redactor.found)}
    return table


def speed() -> float:
    """MB per second of CPU time, on training and kernel lines."""
    text = "\n".join(HARMLESS * 200)
    redactor = Redactor()
    began = time.process_time()
    for line in text.split("\n"):
        redactor(line)
    return round(len(text) / 1e6 / (time.process_time() - began), 3)


def main() -> None:
    told = recall()
    counts = [(int(str(row["shown"])), int(str(row["found"]))) for row in told.values()]
    total = sum(found for _, found in counts) / sum(shown for shown, _ in counts)
    results = {
        "forms": len(secrets(0)),
        "recall": told,
        "recall_overall": round(total, 4),
        "false_hits": false_hits(),
        "mb_per_cpu_s": speed(),
    }
    write("redaction", results)


if __name__ == "__main__":
    main()
