"""Pages of ipmi_exporter and of fabric telemetry: parts, ports, cables and the other ends of links."""

from __future__ import annotations

from typing import Any

import numpy as np

from nightshift.collectors.frame import Frame, Reason
from nightshift.collectors.http import SourceError
from nightshift.collectors.subject import CABLE, PEER, Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.equipment import EquipmentCollector
from tests.bmc import Answering, response

NOW_S = 1_795_300_000.0
UFM = "http://ufm:9001/labels/metrics"
IPMI = "http://ipmi:9290/ipmi?target=n3-bmc"


def _collector(pages: dict[str, Any], **settings: Any) -> EquipmentCollector:
    collector = EquipmentCollector(EquipmentCollector.Settings.model_validate({"urls": list(pages), **settings}))

    def answer(url: str) -> Any:
        body = pages[url]
        return body if isinstance(body, SourceError) else response(body.encode(), "text/plain")

    collector._fetcher = Answering(answer)  # type: ignore[assignment]
    return collector


def _frames(collector: EquipmentCollector, inventory: Inventory) -> dict[SubjectKind, Frame]:
    return {frame.kind: frame for frame in collector.collect(NOW_S, inventory, 4.0).frames}


def _nic(name: str) -> Subject:
    return Subject(SubjectKind.NIC, name)


def _port(description: str, number: int, downs: int, more: str = "") -> str:
    labels = f'node_guid="0x1",port_num="{number}",node_description="{description}"{more}'
    return (
        f"LinkDownedCounterExtended{{{labels}}} {downs}\n"
        f"logical_state{{{labels}}} 4\n"
        f"rx_power_lane_0{{{labels}}} -1.5\nrx_power_lane_1{{{labels}}} -4.5\n"
    )


def test_sensors_are_parts_of_the_target_and_not_of_the_exporter() -> None:
    page = (
        'ipmi_sensor_state{id="1",name="PS2 Status",type="Power Supply"} 2\n'
        'ipmi_fan_speed_state{id="2",name="Fan1"} 0\nipmi_fan_speed_rpm{id="2",name="Fan1"} 9000\n'
        'ipmi_temperature_state{id="3",name="Inlet Temp"} NaN\n'
        'ipmi_temperature_celsius{id="3",name="Inlet Temp"} 24\n'
        'ipmi_sensor_state{id="4",name="Leak",type="Cooling"} 7\n'
    )
    inventory = Inventory()
    collector = _collector({IPMI: page})
    batch = collector.collect(NOW_S, inventory, 4.0)
    (frame,), (status,) = batch.frames, batch.sources
    supply = Subject(SubjectKind.PART, "n3-bmc/PS2 Status")
    assert frame.value(supply, "part_health") == 2.0
    assert inventory.fact(supply, "sort") == "power supply"
    assert frame.value(Subject(SubjectKind.PART, "n3-bmc/Fan1"), "part_fan_rpm") == 9000
    assert np.isnan(frame.value(Subject(SubjectKind.PART, "n3-bmc/Inlet Temp"), "part_health"))
    assert np.isnan(frame.value(Subject(SubjectKind.PART, "n3-bmc/Leak"), "part_health"))  # no state that there is
    assert status.rejected == {Reason.MALFORMED: 1}
    named = _collector({IPMI: page}, nodes={IPMI: "n3"})
    assert {s.name.partition("/")[0] for s in _frames(named, Inventory())[SubjectKind.PART].index.subjects} == {
        "n3"
    }


def test_sensors_of_one_name_are_told_apart() -> None:
    page = 'ipmi_sensor_state{id="1",name="PSU",type="P"} 0\nipmi_sensor_state{id="2",name="PSU",type="P"} 2\n'
    frame = _frames(_collector({IPMI: page}), Inventory())[SubjectKind.PART]
    assert {s.name: frame.value(s, "part_health") for s in frame.index.subjects} == {
        "n3-bmc/PSU #1": 0.0,
        "n3-bmc/PSU #2": 2.0,
    }


def test_both_ends_of_a_link_find_each_other_by_the_cable() -> None:
    cable = ',Cable_SN="MT1",Cable_PN="MCP4"'
    page = _port("n1 mlx5_0", 1, 3, cable) + _port(
        "MF0;leaf1:MQM9700/U1", 7, 3, cable + ',FW_Version="31.2012.1024"'
    )
    inventory = Inventory()
    frame = _frames(_collector({UFM: page}), inventory)[SubjectKind.NIC]
    host, leaf = _nic("n1/mlx5_0:1"), _nic("leaf1/7")
    assert set(frame.index.subjects) == {host, leaf}
    assert frame.value(leaf, "nic_link_down_total") == 3
    assert frame.value(leaf, "nic_rx_power_dbm") == -4.5  # the weakest lane
    assert (inventory.fact(host, PEER), inventory.fact(leaf, PEER)) == (str(leaf), str(host))
    assert inventory.fact(leaf, CABLE) == "SN MT1, PN MCP4"
    switch = Subject(SubjectKind.SWITCH, "leaf1")
    assert (
        inventory.above(host, SubjectKind.SWITCH, NOW_S)
        == inventory.above(leaf, SubjectKind.SWITCH, NOW_S)
        == switch
    )
    assert inventory.above(host, SubjectKind.NODE, NOW_S) == Subject(SubjectKind.NODE, "n1")
    assert inventory.fact(switch, "firmware") == "31.2012.1024"


def test_labels_that_name_the_other_end_count_first_and_a_breakout_cable_names_none() -> None:
    told = ',Cable_SN="MT1",peer_node_description="leaf2",peer_port_label="9"'
    three = "".join(_port("leaf3", number, 0, ',Cable_SN="MT2"') for number in (1, 2, 3))
    inventory = Inventory()
    _frames(_collector({UFM: _port("n1 mlx5_0", 1, 0, told) + three}), inventory)
    assert inventory.fact(_nic("n1/mlx5_0:1"), PEER) == "nic:leaf2/9"
    assert inventory.fact(_nic("leaf3/1"), PEER) is None


def test_a_switch_that_left_the_page_keeps_its_links() -> None:
    cable = ',Cable_SN="MT1"'
    host, leaf = _port("n1 mlx5_0", 1, 0, cable), _port("leaf1", 7, 0, cable)
    pages: dict[str, Any] = {UFM: host + leaf}
    collector, inventory = _collector(pages), Inventory()
    _frames(collector, inventory)
    pages[UFM] = host
    _frames(collector, inventory)
    assert inventory.above(_nic("n1/mlx5_0:1"), SubjectKind.SWITCH, NOW_S) == Subject(SubjectKind.SWITCH, "leaf1")
    pages[UFM] = _port("n1 mlx5_0", 1, 0, ',Cable_SN="MT9"') + _port("leaf4", 2, 0, ',Cable_SN="MT9"')
    _frames(collector, inventory)
    assert inventory.fact(_nic("n1/mlx5_0:1"), PEER) == "nic:leaf4/2"  # re-cabled


def test_ports_without_readable_names_keep_their_guid_and_nonsense_is_counted() -> None:
    page = 'LinkDownedCounter{node_guid="0xabc",port_num="3"} 1\nLinkDownedCounter{port_num="3"} 1\n'
    batch = _collector({UFM: page}).collect(NOW_S, Inventory(), 4.0)
    assert [s.name for s in batch.frames[0].index.subjects] == ["0xabc/3"]
    assert batch.sources[0].rejected == {Reason.MALFORMED: 1}


def test_a_page_that_is_no_page_is_not_healthy() -> None:
    for body in ("<html>Sign in</html>\n", "# nothing\n", "node_load1 3\n"):
        (status,) = _collector({UFM: body}).collect(NOW_S, Inventory(), 4.0).sources
        assert not status.ok
    away = _collector({UFM: SourceError(Reason.TIMEOUT, "late")}).collect(NOW_S, Inventory(), 4.0)
    assert not away.sources[0].ok
    assert not away.frames
