"""Bad and harmless rollouts in drawn fleets: `python -m benchmarks.rollouts`.

240 fleets of 200 to 1,000 nodes over four weeks, with faults of one kind at 6.5 per 1,000 node-days (Kokolis et
al., arXiv 2410.21680; all of them of one kind is the hard side). Nodes differ as in `benchmarks.lemons`: a gamma
distribution of shape 2, and 1.2 % of lemons that fail 10 to 40 times as often. In half of the fleets one version is
bad: made up, each changed node then fails 0.5 to 5 times a week more (log-uniform). Beside it two to six harmless
rollouts happen; each rollout reaches 2 to 100 % of the nodes, within an hour to five days. In one of four every
node goes back to the former version two to eight days later, and a bad one does no harm from then on. A tenth of
the nodes run jobs of three NCCL versions, a new job every three days. In one fleet of four a switch fails and takes
up to 40 nodes with it; that is one incident. Each incident is judged at its onset and again two days later, as the
daemon diagnoses what is news (`agent.incidents.rollouts.blamed`). A bad rollout is named where one of its incidents
names it; every other name is a false blame. A version that made fewer than five nodes fail is counted apart.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.detect_held_out import commit
from benchmarks.lemons import RATE, SHAPE, SHARE, TIMES
from benchmarks.report import write
from nightshift.agent.incidents.rollouts import COMPARED_S, DAY_S, VersionChange, blamed

FLEETS, SEED, SPAN_S = 240, 11, 28 * DAY_S
COMPONENTS = ("driver", "vbios", "kernel", "container_runtime", "kubelet", "cuda", "os_image")
LATER_S, JOB_S = 2 * DAY_S, 3 * DAY_S


def rollout(rng: np.random.Generator, component: str, nodes: int) -> list[VersionChange]:
    count = max(4, int(nodes * np.exp(rng.uniform(np.log(0.02), 0.0))))
    begins_s, lasts_s = rng.uniform(2 * DAY_S, 18 * DAY_S), np.exp(rng.uniform(np.log(3600.0), np.log(5 * DAY_S)))
    at_s = begins_s + rng.uniform(0.0, lasts_s, count)
    chosen = rng.choice(nodes, count, replace=False)
    made = [VersionChange(f"n{n}", component, "1", "2", float(t)) for n, t in zip(chosen, at_s, strict=True)]
    if rng.random() < 0.25:
        back_s = rng.uniform(2 * DAY_S, 8 * DAY_S)
        made += [VersionChange(one.node, component, "2", "1", one.at_s + back_s) for one in made]
    return made


def jobs(rng: np.random.Generator, nodes: int) -> list[VersionChange]:
    """Changes of NCCL as jobs come and go."""
    found = []
    for node in rng.choice(nodes, nodes // 10, replace=False):
        at_s, version = rng.exponential(JOB_S), int(rng.integers(3))
        while at_s < SPAN_S:
            before, version = version, int(rng.integers(3))
            if before != version:
                found.append(VersionChange(f"n{node}", "nccl", f"2.{before}", f"2.{version}", float(at_s)))
            at_s += rng.exponential(JOB_S)
    return found


def fleet(rng: np.random.Generator, *, bad: bool) -> dict[str, int]:
    nodes, names = int(np.exp(rng.uniform(np.log(200), np.log(1000)))), list(rng.permutation(COMPONENTS))
    rollouts = {name: rollout(rng, str(name), nodes) for name in names[: int(rng.integers(3, 8))]}
    guilty = str(names[0]) if bad else ""
    lemon = np.exp(rng.uniform(np.log(TIMES[0]), np.log(TIMES[1]), nodes))
    rates = np.where(rng.random(nodes) < SHARE, RATE * lemon, rng.gamma(SHAPE, RATE / SHAPE, nodes))
    counts = enumerate(rng.poisson(rates * 28))
    failed = [(f"n{node}", float(t_s)) for node, count in counts for t_s in rng.uniform(0, SPAN_S, count)]
    of_bad: set[tuple[str, float]] = set()
    if bad:
        rate = np.exp(rng.uniform(np.log(0.5), np.log(5.0))) / (7 * DAY_S)
        back_s = {one.node: one.at_s for one in rollouts[names[0]] if one.after == "1"}
        for change in (one for one in rollouts[names[0]] if one.after == "2"):
            # a node that has failed is taken out of use, or the version is taken back on it
            at_s = change.at_s + rng.exponential(1.0 / rate)
            if at_s < min(SPAN_S, back_s.get(change.node, SPAN_S)):
                of_bad.add((change.node, float(at_s)))
    if rng.random() < 0.25:
        failed.append((f"n{rng.integers(nodes)}", float(rng.uniform(0, SPAN_S))))
    every = sorted([*failed, *of_bad], key=lambda pair: pair[1])
    changes = [*(c for found in rollouts.values() for c in found), *jobs(rng, nodes)]
    all_nodes = [f"n{n}" for n in range(nodes)]
    named = false = judged = 0
    for node, onset_s in every:
        said: set[str] = set()
        for at_s in (onset_s, onset_s + LATER_S):
            known = [(n, t) for n, t in every if at_s - COMPARED_S < t <= at_s]
            seen = [change for change in changes if change.at_s <= at_s]
            found = blamed(seen, known, all_nodes, node, onset_s, at_s)
            said |= {found.component} if found is not None else set()
        judged += 1
        named += guilty in said and (node, onset_s) in of_bad
        # an incident of its own kind on a bad node is the version's fault as far as anybody can tell
        false += bool(said - {guilty})
    return {"incidents": judged, "of_bad": len(of_bad), "named": named, "false": false}


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    at, rng = commit(), np.random.default_rng(SEED)
    fleets: list[dict[str, Any]] = []
    for number in range(FLEETS):
        bad = number % 2 == 0
        fleets.append({"bad": bad, **fleet(rng, bad=bad)})
    # a version that made fewer nodes fail than are a coincidence cannot be told from chance
    bad_ones = [one for one in fleets if one["bad"] and one["of_bad"] >= 5]
    incidents, false = sum(one["incidents"] for one in fleets), sum(one["false"] for one in fleets)
    results = {
        "commit": at, "fleets": FLEETS, "bad_rollouts": len(bad_ones),
        "bad_rollouts_of_fewer_failures": sum(one["bad"] for one in fleets) - len(bad_ones),
        "named_share": sum(one["named"] > 0 for one in bad_ones) / len(bad_ones),
        "incidents": incidents, "falsely_blamed": false, "falsely_blamed_share": false / incidents,
        "false_in_fleets_without_a_bad_one": sum(one["false"] for one in fleets if not one["bad"]),
    }  # fmt: skip
    write("rollouts", results)


if __name__ == "__main__":
    main()
