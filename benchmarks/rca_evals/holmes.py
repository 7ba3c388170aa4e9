"""The same incidents through HolmesGPT, with the same model, for a table side by side.

HolmesGPT (robusta-dev/holmesgpt, Apache-2.0) is not part of this project: install it into an environment of its own
and name its program. It gets what a source wrote, noise and red herring included, as an attached file, and one
question; its answer is read by the same scorer. It gives no quotes that code could check, so its unsupported
sentences are not counted. Cases of the cluster are omitted: it reads no telemetry but Prometheus'.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.rca_evals.cases import Case
from benchmarks.rca_evals.recording import record
from benchmarks.rca_evals.scorer import judge

LIMIT_S = 600.0
QUESTION = (
    "An alert fired on this GPU cluster. The attached file is what its source wrote around that time. What is the"
    " root cause, and where is it? Answer in one short paragraph: the component that broke, how, and the place. Do"
    " not list alternatives."
)


def version(program: Path) -> str:
    """HolmesGPT's own version. Raises SystemExit where the program cannot be run."""
    try:
        said = subprocess.run([program, "version"], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SystemExit(f"--program {program}: {error}. Install HolmesGPT and name its `holmes`") from error
    return said.stdout.strip().rpartition("\n")[2]


def ask(case: Case, program: Path, llm: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One incident's row. `folder` keeps what was given and answered; it is HolmesGPT's home as well."""
    recording = record(case)
    home = folder / "".join(c if c.isalnum() else "_" for c in case.name)
    home.mkdir(parents=True, exist_ok=True)
    (home / recording.file).write_text(recording.text)
    config, out = folder / "config.yaml", home / "answer.json"
    if not config.exists():
        config.write_text("toolsets: {}\n")
    out.unlink(missing_ok=True)
    words = [
        str(program), "ask", QUESTION, "--no-interactive", "--no-echo", "--model", f"openai/{llm['model']}",
        "--config", str(config), "--file", str(home / recording.file), "--json-output-file", str(out),
    ]  # fmt: skip
    began_s = time.monotonic()
    failure = _run(words, _environment(llm, folder))
    answer: dict[str, Any] = {}
    if not failure:
        try:
            answer = json.loads(out.read_text())
        except (OSError, ValueError) as error:
            failure = f"no answer: {error}"
    said = str(answer.get("result") or "")
    return {
        "case": case.name, "origin": case.origin, "cause": case.cause, "opened": True, "shown": said,
        "verdict": asdict(judge(said, recording.truth)), "unsupported": 0,
        "tokens": int(answer.get("total_tokens") or 0), "usd": float(answer.get("total_cost") or 0.0),
        "seconds": round(time.monotonic() - began_s, 3), "failure": failure,
    }  # fmt: skip


def _run(words: list[str], environment: Mapping[str, str]) -> str:
    """Why it failed; empty where it did not."""
    try:
        done = subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S:.0f} s"
    return "" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr.strip()[-200:]}"


def _environment(llm: Mapping[str, Any], folder: Path) -> dict[str, str]:
    # HolmesGPT caches which of its toolsets work in its home
    given = {"HOME": str(folder), "OPENAI_API_KEY": "none"}
    if llm.get("base_url"):
        given["OPENAI_API_BASE"] = str(llm["base_url"])
    if llm.get("api_key_file"):
        given["OPENAI_API_KEY"] = Path(llm["api_key_file"]).read_text().strip()
    return {**os.environ, **given}
