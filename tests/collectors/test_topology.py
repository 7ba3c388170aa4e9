"""Racks from a file: what it says, when it changes, and what is no topology."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from nightshift.collectors.frame import Reason
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.topology import FEEDS, MEMBERS, PART, SPARE, TopologyCollector, TopologySettings

K = SubjectKind
RACKS = {
    "racks": {
        "r1": {
            "nodes": ["a", "b"],
            "spares": ["b"],
            "parts": {"r1-shelf": {"kind": "power_shelf", "feeds": ["a"]}, "r1-cdu": {"kind": "coolant"}},
        },
        "r2": {"nodes": ["c"]},
    }
}


def made(folder: Path, told: object) -> tuple[TopologyCollector, Path]:
    path = folder / "racks.yaml"
    path.write_text(yaml.safe_dump(told))
    return TopologyCollector(TopologySettings(path=path)), path


def test_a_file_outweighs_the_label_of_the_api_server(tmp_path: Path) -> None:
    collector, path = made(tmp_path, RACKS)
    inventory, a = Inventory(), Subject(K.NODE, "a")
    inventory.observe(a, Subject(K.RACK, "by-label"), 1.0, 1)
    (status,) = collector.collect(2.0, inventory, 1.0).sources
    assert (status.ok, status.samples) == (True, 3)
    inventory.observe(a, Subject(K.RACK, "by-label"), 3.0, 1)
    assert inventory.above(a, K.RACK, 4.0) == Subject(K.RACK, "r1")
    assert inventory.fact(Subject(K.RACK, "r1"), MEMBERS) == "2"
    assert inventory.fact(Subject(K.NODE, "b"), SPARE) == "true"
    shelf = Subject(K.PART, "r1-shelf")
    assert (inventory.fact(shelf, PART), inventory.fact(shelf, FEEDS)) == ("power_shelf", "a")
    assert inventory.above(shelf, K.RACK, 4.0) == Subject(K.RACK, "r1")
    path.write_text(yaml.safe_dump({"racks": {"r9": {"nodes": ["a"]}}}))
    os.utime(path, ns=(1, 1))
    collector.collect(5.0, inventory, 1.0)
    assert inventory.above(a, K.RACK, 6.0) == Subject(K.RACK, "r9")
    assert inventory.above(Subject(K.NODE, "c"), K.RACK, 6.0) is None


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"racks": {"r1": {"nodes": ["a"]}, "r2": {"nodes": ["a"]}}}, "a is in two racks: r1 and r2"),
        ({"racks": {"r1": {"nodes": ["a"], "spares": ["z"]}}}, "no node of the rack: z"),
        ({"racks": {"r1": {"nodes": ["a"], "parts": {"p": {"kind": "lamp"}}}}}, "power_shelf"),
        ({"racks": {"r1": {"nodes": []}}}, "at least 1"),
        (["r1"], "valid"),
    ],
)
def test_what_is_no_topology_keeps_the_last_one(tmp_path: Path, told: object, words: str) -> None:
    collector, path = made(tmp_path, RACKS)
    inventory = Inventory()
    collector.collect(1.0, inventory, 1.0)
    path.write_text(yaml.safe_dump(told))
    os.utime(path, ns=(1, 1))
    (status,) = collector.collect(2.0, inventory, 1.0).sources
    assert status.reason is Reason.MALFORMED
    assert words in status.detail
    assert inventory.above(Subject(K.NODE, "a"), K.RACK, 3.0) == Subject(K.RACK, "r1")


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    collector = TopologyCollector(TopologySettings(path=tmp_path / "absent.yaml"))
    (status,) = collector.collect(1.0, Inventory(), 1.0).sources
    assert status.reason is Reason.NOT_FOUND
