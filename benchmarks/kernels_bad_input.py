"""Bad input, twice: as this user, and as one without privileges, where a pod that is not root has fewer layers.

    python -m benchmarks.kernels_bad_input [--device cuda] [--threads 6] [--commit COMMIT] [--out FILE]

Sources that do not parse, hang, fork, fill the disk, eat memory, kill their parent, print a gigabyte, return wrong
types or forge an answer: each must be refused for a right reason without the static read, and afterwards the same
judge must accept known-good kernels. Run as root, the second run is user 65534's. Writes after each run, to
benchmarks/results/kernels_bad_input.json: by user the summary, the layers that were in force, and every verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nightshift.kernels.judge.host.isolation import NOBODY

ROOT = Path(__file__).resolve().parents[1]
CLASSES = ("bad input", "out-of-memory counted as skip", "forged result pipe")
GOOD = ("softmax_row", "rmsnorm_row", "library_softmax")


def judged_as(uid: int, device: str, threads: int, commit: str) -> dict[str, Any]:
    """What `benchmarks.kernels_exploits` wrote, run by that user in folders of its own."""
    folder = Path(tempfile.mkdtemp(prefix="bad-input-"))
    folder.chmod(0o711)  # hosts of a root's judge are other users
    out = folder / "found.json"
    words = ["--device", device, "--threads", str(threads), "--commit", commit, "--out", str(out)]
    words += ["--timed", "without", "--parts", "static_off", "good", "--classes", *CLASSES, "--only", *GOOD]
    places = {name: str(folder) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR")}
    mine = uid == os.geteuid()
    try:
        if not mine:
            os.chown(folder, uid, uid)
        subprocess.run(
            [sys.executable, "-m", "benchmarks.kernels_exploits", *words],
            cwd=ROOT,
            env={**os.environ, **places},
            check=False,
            **({} if mine else {"user": uid, "group": uid, "extra_groups": []}),
        )
        found: dict[str, Any] = json.loads(out.read_text())
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--commit", default="")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "kernels_bad_input.json")
    options = parser.parse_args()
    record: dict[str, Any] = {"commit": options.commit}
    for name, uid in {"this user": os.geteuid(), "without privileges": os.geteuid() or NOBODY}.items():
        try:
            record[name] = judged_as(uid, options.device, options.threads, options.commit)
        except (OSError, ValueError) as error:
            record[name] = {"failed": f"{type(error).__name__}: {error}"}
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        print(name, uid, json.dumps(record[name].get("summary", record[name])), flush=True)
    runs = [record[name].get("summary", {}) for name in ("this user", "without privileges")]
    right = all(run and all(part["right"] == part["judged"] for part in run.values()) for run in runs)
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
