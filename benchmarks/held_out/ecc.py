"""HBM errors on devices that no share was fitted on: what is stated of the next error, beside what followed.

Set: the git directory of `REPOSITORY` under one folder as `OWNER+NAME/repo`; then
`python -m benchmarks.held_out.ecc MIRRORS FOLDER` writes `FOLDER/calchas_hbm.csv`. It is split by device. Those
with an odd md5 are scored; `benchmarks.detect_ecc` fitted on the even ones, and tells what counts.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.detect_ecc import apart, by_device, is_odd, load, moments, scored
from benchmarks.held_out.leak import by_device as ratio
from nightshift.detectors.ecc.detector import STRATA, Stratum

REPOSITORY, NAME = "openeuler-mirror/hbm-predictor", "data/raw_data/dataset(opensource).csv"
TABLE = "calchas_hbm.csv"


def held(points: pd.DataFrame, stratum: Stratum) -> dict[str, Any]:
    """Whether the stated interval holds: of all moments together, and of how many devices each by itself."""
    counts = by_device(apart(points).query("stratum == @stratum.name"))
    of, followed = (np.array(column, dtype=float) for column in zip(*counts, strict=True))
    inside = (followed / of >= stratum.low) & (followed / of <= stratum.high)
    share = ratio(followed.tolist(), of.tolist())
    return {
        "stated": [stratum.share, stratum.low, stratum.high],
        "share": share,
        "share_within": bool(stratum.low <= share["value"] <= stratum.high),
        "devices_within": ratio(inside.astype(float).tolist(), [1.0] * len(counts)),
    }


def measure(folder: Path) -> dict[str, Any]:
    """The score on the odd devices. Raises FileNotFoundError where the set was not extracted."""
    table = load(folder / TABLE)
    odd = table.device.map({device: is_odd(device) for device in table.device.unique()})
    fit, unseen = (table[mask].reset_index(drop=True) for mask in (~odd, odd))
    points = moments(unseen)
    return {
        "Calchas HBM, odd devices": {
            "stated share": {stratum.name: held(points, stratum) for stratum in STRATA},
            **scored(unseen, points, moments(fit)),
        }
    }


def extract(mirrors: Path, folder: Path) -> None:
    """Writes the table from a git directory `OWNER+NAME/repo`. Raises CalledProcessError."""
    git = ["git", "-C", str(mirrors / REPOSITORY.replace("/", "+") / "repo"), "show", f"HEAD:{NAME}"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TABLE).write_bytes(subprocess.run(git, check=True, capture_output=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description="Extract the set of HBM errors.")
    parser.add_argument("mirrors", type=Path, help="folder of git directories OWNER+NAME/repo")
    parser.add_argument("folder", type=Path, help="folder to write to")
    arguments = parser.parse_args()
    extract(arguments.mirrors, arguments.folder)


if __name__ == "__main__":
    main()
