"""The goodput ledger on drawn clusters: `python -m benchmarks.goodput [--clusters 40]`.

Each drawn cluster (`benchmarks.goodput_cluster`: 8 to 20 nodes of 8 GPUs, six hours, hangs, crashes, data stalls,
stragglers, spare nodes with faults, cordoned or not observed, late lines, clocks 40 s ahead, in-place restarts) is
replayed look by look through the ledger and its store; in every third the process dies and restarts twice. Scored
by hour, node, job, account and cause: the GPU-seconds that truth and books share, over the truth's. Data of our own
making. The balance is checked against wall time × GPUs of every hour.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from typing import Any

import sqlalchemy as sa

from benchmarks.detect_held_out import commit
from benchmarks.goodput_cluster import GPUS, START_S, DrawnCluster, Key
from benchmarks.report import write
from nightshift.agent.goodput.accounts import WAITING, Account
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.tables import goodput


def booked(store: Store) -> dict[Key, float]:
    sums: dict[Key, float] = defaultdict(float)
    with store.database.read() as connection:
        for row in connection.execute(sa.select(goodput)):
            if Account(row.account) not in WAITING:
                key = (int(row.start_s // 3600), row.node, row.job, Account(row.account), row.cause)
                sums[key] += row.gpu_s
    return sums


def score(seed: int) -> dict[str, Any]:
    cluster = DrawnCluster(seed)
    cluster.draw()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/s.db", cluster.clock, inventory=cluster.inventory)
        cluster.replay(store, (0.35, 0.7) if seed % 3 == 0 else ())
        books = booked(store)
        store.close()
    wall = (cluster.end_s - START_S) * GPUS * len(cluster.nodes)
    shared: dict[str, float] = defaultdict(float)
    truth: dict[str, float] = defaultdict(float)
    for key, spent in cluster.truth.items():
        name = f"{key[3]}{' injected' if key in cluster.injected else ''}"
        truth[name] += spent
        shared[name] += min(spent, books.get(key, 0.0))
    # each hour of the last column: what the truth says of wall time has to be all of it, or the score is no score
    hours: dict[int, float] = defaultdict(float)
    for key, spent in books.items():
        hours[key[0]] += spent
    off = max(abs(spent - 3600.0 * GPUS * len(cluster.nodes)) / spent for spent in hours.values())
    return {
        "seed": seed,
        "truth_over_wall": sum(truth.values()) / wall,
        "largest_imbalance": off,
        "truth": dict(truth),
        "shared": dict(shared),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", type=int, default=40)
    parser.add_argument("--first", type=int, default=1000, help="seed of the first")
    given = parser.parse_args()
    runs = [score(given.first + n) for n in range(given.clusters)]
    truth: dict[str, float] = defaultdict(float)
    shared: dict[str, float] = defaultdict(float)
    for run in runs:
        for name, spent in run["truth"].items():
            truth[name] += spent
            shared[name] += run["shared"][name]
    by = {name: {"gpu_hours": truth[name] / 3600, "right": shared[name] / truth[name]} for name in sorted(truth)}
    injected = [name for name in truth if name.endswith("injected")]
    write(
        "goodput",
        {
            "commit": commit(),
            "data": "drawn: our own making",
            "clusters": given.clusters,
            "first_seed": given.first,
            "largest_imbalance": max(run["largest_imbalance"] for run in runs),
            "truth_over_wall": [min(r["truth_over_wall"] for r in runs), max(r["truth_over_wall"] for r in runs)],
            "right_injected": sum(shared[n] for n in injected) / sum(truth[n] for n in injected),
            "right_all": sum(shared.values()) / sum(truth.values()),
            "worst_cluster_injected": min(
                sum(r["shared"].get(n, 0.0) for n in injected) / sum(r["truth"].get(n, 0.0) for n in injected)
                for r in runs
            ),
            "by_account": by,
        },
    )


if __name__ == "__main__":
    main()
