"""Predicting the next uncorrectable HBM error, rivals beside: `NIGHTSHIFT_DATA=… python -m benchmarks.detect_ecc`.

Data: HBM error logs of openeuler hbm-predictor (Calchas, ATC'24). At every moment at which a device logged
anything, a method may say "imminent"; right is an uncorrectable error (UER) on that device later, within 24 hours.
Recall: UERs after a device's first that had such a word in the 24 hours before. The learner is split by device
*and* time: it is trained on other devices' past only. Counts are small: counts and exact intervals, no more.

A device that is repaired after its error has no next one: precision is bounded by what operators did, not only by
physics. With the cells hidden (row, bank, column unknown, as most exporters have it) only counts are left.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier

from benchmarks.report import write
from collectors.frame import Instant, LogRecord
from collectors.kernel_event import KernelEvent, KernelEventKind
from collectors.subject import Inventory, Subject, SubjectKind
from collectors.tick import Tick
from detectors.base import Fault, State
from detectors.ecc import Ecc
from detectors.evaluate import exact_interval

DATA = "readonly/hbm/hbm_errors_dev_half.csv.gz"
HORIZON_S = 86400.0
BANK = ["Stack", "SID", "PcId", "BankGroup", "BankArray"]


def load(path: Path) -> pd.DataFrame:
    table = pd.read_csv(path)
    table["device"] = table.Datacenter + "/" + table.Server + "/" + table.Name
    table["bank"] = table[BANK].agg("-".join, axis=1)
    return table.sort_values(["device", "Time"]).reset_index(drop=True)


def moments(table: pd.DataFrame) -> pd.DataFrame:
    """One row per device and logged moment: the features of its past, and whether a UER follows within a day."""
    rows = []
    for device, log in table.groupby("device"):
        uer_s = np.sort(log[log.EccType == "UER"].Time.unique())
        for at_s in np.sort(log.Time.unique()):
            past = log[at_s >= log.Time]
            day = past[past.Time > at_s - HORIZON_S]
            row: dict[str, Any] = {
                "device": device,
                "at_s": at_s,
                "follows": bool(((uer_s > at_s) & (uer_s <= at_s + HORIZON_S)).any()),
                "uer_now": bool((uer_s == at_s).any()),
            }
            for kind in ("CE", "UEO", "UER"):
                row[f"{kind}_all"] = past[past.EccType == kind].Time.nunique()
                row[f"{kind}_day"] = day[day.EccType == kind].Time.nunique()
            row["since_first_s"] = at_s - past.Time.min()
            row["cells_rows_day"] = day[["bank", "Row"]].drop_duplicates().shape[0]
            row["cells_banks_day"] = day.bank.nunique()
            row["cells_columns_day"] = day[["bank", "Col"]].drop_duplicates().shape[0]
            row["cells_rows_in_bank"] = day.groupby("bank").Row.nunique().max()
            rows.append(row)
    return pd.DataFrame(rows).sort_values(["at_s", "device"]).reset_index(drop=True)


def ours(table: pd.DataFrame, points: pd.DataFrame, cells: bool) -> np.ndarray:
    """The detector on the log as Xids: UER is 48, UEO 94, CE 92; row and bank are given where cells are."""
    detector, inventory = Ecc(), Inventory()
    codes = {"UER": 48, "UEO": 94, "CE": 92}
    said = np.zeros(len(points), dtype=bool)
    grouped = dict(tuple(table.groupby(["Time", "device"])))
    for number, point in enumerate(points.itertuples()):
        gpu = Subject(SubjectKind.GPU, point.device)
        events = []
        for line in grouped[(point.at_s, point.device)].itertuples():
            record = LogRecord(Instant(float(point.at_s)), "bench", gpu, line.EccType, int(line.Index))
            attributes = {"row": line.Row, "bank": line.bank} if cells else {}
            code = codes[line.EccType]
            node = Subject(SubjectKind.NODE, "bench")
            events.append(KernelEvent(KernelEventKind.XID, record, node, code=code, gpu=gpu, attributes=attributes))
        findings = detector.update(Tick(float(point.at_s), events=tuple(events)), inventory)
        said[number] = any(
            f.subject == gpu and f.fault is Fault.HBM_IMMINENT and f.state is State.FIRING for f in findings
        )
    return said


def forest(points: pd.DataFrame, cells: bool) -> np.ndarray:
    """A random forest on Calchas' kind of features, trained for each device on the other devices' past."""
    names = [c for c in points if c.endswith(("_all", "_day")) or c == "since_first_s" or c.startswith("cells")]
    features = points[[n for n in names if cells or not n.startswith("cells")]].to_numpy(float)
    said = np.zeros(len(points), dtype=bool)
    for device in points.device.unique():
        own = np.flatnonzero(points.device == device)
        known = np.flatnonzero((points.device != device) & (points.at_s + HORIZON_S < points.at_s[own[0]]))
        if len(known) < 10 or points.follows[known].sum() < 2:
            continue
        model = RandomForestClassifier(200, class_weight="balanced", min_samples_leaf=2, random_state=1, n_jobs=1)
        model.fit(features[known], points.follows[known])
        said[own] = model.predict_proba(features[own])[:, 1] > 0.5
    return said


def score(points: pd.DataFrame, said: np.ndarray) -> dict[str, Any]:
    right = int((said & points.follows).sum())
    following, warned = 0, 0
    for _, log in points[["device", "at_s", "uer_now"]].assign(said=said).groupby("device"):
        uer_s = log.at_s[log.uer_now].to_numpy()
        for at_s in uer_s[1:]:
            following += 1
            warned += bool((log.said & (log.at_s < at_s) & (log.at_s >= at_s - HORIZON_S)).any())
    return {
        "said": int(said.sum()),
        "devices": int(points.device[said].nunique()),
        "right": right,
        "precision": right / said.sum() if said.any() else None,
        "precision_interval": exact_interval(right, int(said.sum())),
        "next_errors": following,
        "warned": warned,
        "next_error_recall": warned / following if following else None,
        "recall_interval": exact_interval(warned, following),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=DATA)
    arguments = parser.parse_args()
    folder = os.environ.get("NIGHTSHIFT_DATA")
    if not folder:
        parser.error("NIGHTSHIFT_DATA does not name the folder of measurements")
    table = load(Path(folder) / arguments.data)
    points = moments(table)
    rules: dict[str, Callable[[bool], np.ndarray]] = {
        "nightshift, every imminent word": lambda cells: ours(table, points, cells),
        "any UER now": lambda cells: points.uer_now.to_numpy(),
        "2 or more UER within a day": lambda cells: (points.UER_day >= 2).to_numpy(),
        "10 or more CE within a day": lambda cells: (points.CE_day >= 10).to_numpy(),
        "3 or more rows of one bank within a day": lambda cells: (
            (points.cells_rows_in_bank >= 3).to_numpy() & cells
        ),
        "random forest on Calchas' features": lambda cells: forest(points, cells),
    }
    first = points[points.uer_now].groupby("device").head(1)
    follows = points[points.uer_now].follows
    results = {
        "devices": int(points.device.nunique()),
        "moments": len(points),
        "after any UER, another within 24 h": [
            int(follows.sum()),
            len(follows),
            *exact_interval(int(follows.sum()), len(follows)),
        ],
        "after the first UER, another within 24 h": [
            int(first.follows.sum()),
            len(first),
            *exact_interval(int(first.follows.sum()), len(first)),
        ],
    }
    for cells in (True, False):
        name = "with cells" if cells else "cells hidden"
        results[name] = {rule: score(points, method(cells)) for rule, method in rules.items()}
    write("detect_ecc", results)


if __name__ == "__main__":
    main()
