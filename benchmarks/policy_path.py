"""How long the documented path of a learned policy takes: `python -m benchmarks.policy_path CONVERSATION.jsonl`.

The commands of docs/how-to/learned-policies.md for the KV cache, each as a process of its own on this CPU: keygen,
train, evaluate, ship, shadow, promote, approve, promote, undo. CONVERSATION: `conversation_trace.jsonl` of
kvcache-ai/Mooncake (FAST'25). The store is what a daemon that ran once leaves behind. Seconds: wall time, and CPU
time, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import write
from nightshift.agent.clock import WallClock
from nightshift.agent.store.incident_store import Store

CAPACITY = "5483"
"""Blocks, as in the documentation: 3 % of the trace's."""


class CommandLine:
    """`nightshift` in a folder, and how long each command took."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.took_s = folder, dict[str, dict[str, float]]()
        url = f"sqlite:///{folder}/s.sqlite"
        Store(url, WallClock()).close()
        (folder / "nightshift.yaml").write_text(json.dumps({"sources": [], "store": {"url": url}}))

    def __call__(self, *words: str, code: int = 0) -> str:
        """What a command says. Raises RuntimeError where it ends otherwise."""
        stored = words[1] not in ("train", "evaluate", "keygen")
        own = ["--config", "nightshift.yaml"] if stored else []
        began_s, before = time.monotonic(), os.times()
        done = subprocess.run(
            [sys.executable, "-m", "nightshift.agent", *words, *own],
            cwd=self._folder, capture_output=True, text=True, env={**os.environ, "USER": "ann"}, check=False,
        )  # fmt: skip
        name = " ".join(words[1:2] if words[1] == "keygen" else words[1:3])
        after = os.times()
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        self.took_s[f"{len(self.took_s) + 1} {name}"] = {
            "wall": round(time.monotonic() - began_s, 1),
            "cpu": round(cpu_s, 1),
        }
        if done.returncode != code:
            raise RuntimeError(f"{words}: exit code {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout


def walk(trace: str, folder: Path) -> dict[str, Any]:
    said = CommandLine(folder)
    said("kernels", "keygen", "signing.key", "signing.pub")
    said("policy", "train", "cache", "-o", "p.json", "--key", "signing.key", "--data", trace, "--seeds", "0")
    said("policy", "evaluate", "cache", "--policy", "p.json", "--key", "signing.pub", "--data", trace)
    said("policy", "ship", "cache", "p.json", "--key", "signing.pub")
    shadow = said("policy", "shadow", "cache", "--data", trace, "--capacity", CAPACITY, "--key", "signing.pub")
    proposed = said("policy", "promote", "cache", code=1)
    said("policy", *proposed.split("approve with: nightshift policy ")[1].split())
    active = said("policy", "promote", "cache")
    said("policy", "undo", "cache", "--reason", "timed")
    return {
        "took_s": said.took_s,
        "all_s": {kind: round(sum(took[kind] for took in said.took_s.values()), 1) for kind in ("wall", "cpu")},
        "promoted": active.strip(),
        "shadow": shadow.splitlines(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("conversation", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write("policy_path", walk(str(given.conversation.absolute()), Path(folder)))


if __name__ == "__main__":
    main()
