"""FlashInfer-Bench's definitions, workloads and solutions of all its history, as one folder that benchmarks read.

    git clone https://github.com/flashinfer-ai/flashinfer-bench    # with its history; a bare one will do
    python -m benchmarks.serving_folder flashinfer-bench FOLDER

Most solutions are in commits that the newest tree no longer has. Of each definition's name the newest file counts,
of solutions each text once, by the hash of its sources. `theirs.json` has, by a solution's path, its origin and the
status that its own harness published: one word where its workloads agree, else how often each. `source.json` names
the commit that was read.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DEFINITIONS, WORKLOADS = "flashinfer_trace/definitions/", "flashinfer_trace/workloads/"
FEEDBACK, SOLUTION = "feedback_trace.json", "solution.json"


def git(repository: Path, *words: str, given: str = "") -> bytes:
    return subprocess.run(
        ["git", "-C", str(repository), *words], input=given.encode(), capture_output=True, check=True
    ).stdout


def blobs(repository: Path) -> Iterator[tuple[str, str, str]]:
    """(path, blob, text) of every version of a JSON file, the newest first."""
    words = ("log", "--all", "--raw", "--no-abbrev", "--format=", "-m", "--root", "--", "*.json", "*.jsonl")
    places: dict[str, list[str]] = {}
    for line in git(repository, *words).decode().splitlines():
        head, _, path = line.partition("\t")
        blob = head.split()[3]
        if blob.strip("0"):
            places.setdefault(blob, [])
            places[blob] += [] if path in places[blob] else [path]
    rest = git(repository, "cat-file", "--batch", given="".join(f"{blob}\n" for blob in places))
    for blob, paths in places.items():
        head, _, rest = rest.partition(b"\n")
        if head.endswith(b"missing"):
            continue
        size = int(head.split()[2])
        text, rest = rest[:size].decode(errors="replace"), rest[size + 1 :]
        for path in paths:
            yield path, blob, text


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


class Collection:
    """What a history holds, by name or path."""

    def __init__(self, repository: Path) -> None:
        self.definitions: dict[str, dict[str, Any]] = {}
        self.others: dict[str, dict[str, Any]] = {}
        self.workloads: dict[str, str] = {}
        self.solutions: dict[str, tuple[str, str, dict[str, Any]]] = {}
        self.feedback: dict[str, Any] = {}
        self.traces: dict[str, list[str]] = collections.defaultdict(list)
        for path, blob, text in blobs(repository):
            if path.endswith(".jsonl"):
                self._lines(path, text)
            elif isinstance(record := parsed(text), dict):
                self._record(path, blob, record)

    def _lines(self, path: str, text: str) -> None:
        if path.startswith(WORKLOADS):
            self.workloads.setdefault(path.removeprefix(WORKLOADS), text)
        elif "/traces/" in path:
            for entry in map(parsed, text.splitlines()):
                if isinstance(entry, dict) and entry.get("solution") and entry.get("evaluation"):
                    self.traces[entry["solution"]].append(entry["evaluation"]["status"])

    def _record(self, path: str, blob: str, record: dict[str, Any]) -> None:
        if "sources" in record and "definition" in record:
            digest = hashlib.sha256(json.dumps(record["sources"]).encode()).hexdigest()
            self.solutions.setdefault(f"{record['definition']} {digest}", (path, blob, record))
        elif path.endswith(FEEDBACK):
            self.feedback.setdefault(path, record)
        elif "axes" in record and "inputs" in record and isinstance(record.get("name"), str):
            chosen = self.definitions if path.startswith(DEFINITIONS) else self.others
            chosen.setdefault(record["name"], record)

    def theirs(self, path: str, name: str) -> Any:
        """The status that a solution's harness published, or how often each, over its workloads."""
        beside = self.feedback.get(path.replace(SOLUTION, FEEDBACK)) if path.endswith(SOLUTION) else None
        if beside is not None:
            return (beside.get("evaluation") or {}).get("status")
        counts = dict(collections.Counter(self.traces.get(name, ())))
        return next(iter(counts), None) if len(counts) < 2 else counts


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _name(text: str) -> str:
    return text.replace("/", "_").replace(" ", "_")


def write(found: Collection, folder: Path) -> Mapping[str, int]:
    theirs = {}
    for key, (path, blob, record) in found.solutions.items():
        digest, author = key.split()[-1][:8], _name(record.get("author", "x"))
        place = f"{author}/{record['definition']}/{_name(record['name'][:100])}_{digest}.json"
        put(folder / "solutions" / place, json.dumps(record))
        theirs[place] = {"theirs": found.theirs(path, record["name"]), "path": path, "blob": blob}
        if record["definition"] in found.others:
            found.definitions.setdefault(record["definition"], found.others[record["definition"]])
    for name, record in found.definitions.items():
        kind = str(record.get("op_type") or record.get("type"))
        put(folder / "definitions" / _name(kind) / f"{_name(name)}.json", json.dumps(record, indent=1))
    for place, text in found.workloads.items():
        put(folder / "workloads" / place, text)
    put(folder / "theirs.json", json.dumps(theirs, indent=1))
    return {
        "definitions": len(found.definitions),
        "workload_files": len(found.workloads),
        "solutions": len(theirs),
        "with_their_status": sum(row["theirs"] is not None for row in theirs.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    counts = write(Collection(args.repository), args.folder)
    head = git(args.repository, "rev-parse", "HEAD").decode().strip()
    source = {"repository": "github.com/flashinfer-ai/flashinfer-bench", "commit": head, **counts}
    put(args.folder / "source.json", json.dumps(source, indent=1) + "\n")
    print(json.dumps(source))


if __name__ == "__main__":
    main()
