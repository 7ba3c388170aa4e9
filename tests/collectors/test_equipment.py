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


SEL = "ipmi_sel_events_count_by_state"


def _sel(up: int = 1, info: str = "", **counts: int) -> str:
    """A page of ipmi_exporter with its collector `sel-events`; names in lower case are of its configuration."""
    lines = [f'ipmi_up{{collector="sel-events"}} {up}', f'ipmi_fan_speed_state{{id="1",name="Fan1"}} 0{info}']
    for name, count in counts.items():
        by = f'{SEL}{{state="{name}"}}' if name[0].isupper() else f'ipmi_sel_events_count_by_name{{name="{name}"}}'
        lines.append(f"{by} {count}")
    return "\n".join(lines) + "\n"


def test_an_event_log_that_grows_is_an_event_and_what_was_there_is_none() -> None:
    looks = (
        (_sel(Nominal=9, Critical=2, memory_ecc=2), None),  # the first look: all of it is old
        (_sel(Nominal=10, Critical=2, memory_ecc=2), None),  # nothing grave came
        (_sel(Nominal=10, Critical=3, memory_ecc=3), "Critical: memory_ecc"),
        (_sel(up=0), None),  # the BMC did not answer for its log: it has not emptied it
        (_sel(Nominal=10, Critical=3, memory_ecc=3), None),
        (_sel(Nominal=1, memory_ecc=0), None),  # a person cleared it
        (_sel(Nominal=1, Warning=2, memory_ecc=0), "Warning: 2 new entries, which ipmi_exporter does not name"),
    )
    pages: dict[str, Any] = {IPMI: ""}
    collector, inventory = _collector(pages, nodes={IPMI: "n3"}), Inventory()
    for number, (page, wanted) in enumerate(looks):
        pages[IPMI] = page
        batch = collector.collect(NOW_S + 30.0 * number, inventory, 4.0)
        assert [event.record.text for event in batch.events] == ([f"BMC log {wanted}"] if wanted else [])
        assert [event.record for event in batch.events] == list(batch.logs)
    assert batch.events[0].node == Subject(SubjectKind.NODE, "n3")
    assert batch.events[0].record.at.uncertainty_s == 30.0


def test_a_bmc_tells_its_own_and_the_hosts_firmware() -> None:
    told = '\nipmi_bmc_info{firmware_revision="1.66",manufacturer_id="Dell",system_firmware_version="N/A"} 1'
    inventory = Inventory()
    _collector({IPMI: _sel(info=told)}, nodes={IPMI: "n3"}).collect(NOW_S, inventory, 4.0)
    assert inventory.facts(Subject(SubjectKind.NODE, "n3")) == {"bmc": "1.66"}


GUID = "0xe1d04a69816f16bc"


def _nvlink(downs: int, state: str = "ACT", guid: str = GUID, device: int = 2, heat: str = "0C") -> str:
    """Both ends of an NVLink by NMX Telemetry, with the labels that NVIDIA's infra-controller reads of a GB200."""
    both = f'topology_id="128", chassis_id="1820325172739", Cable_PN="NA", Cable_SN="NA", logical_state="{state}"'
    gpu = (
        f'Device_ID="GB100", port_label="GPUP10", device_num_on_tray="{device}", tray_index="17", '
        f'Node_GUID="{guid}", node_description="GB100 Nvidia Technologies", Port_Number="11", '
        f'link_partner_description="MF0;sw06:N5400_LD/U1", link_partner_node_guid="0x2c5e", '
        f'link_partner_port_num="7{device}", Module_Temperature="{heat}", {both}'
    )
    switch = (
        f'Device_ID="N5400_LD", port_label="acp7{device}", Node_GUID="0x2c5e", Port_Number="7{device}", '
        f'node_description="MF0;sw06:N5400_LD/U1", FW_Version="35.2014.1866", '
        f'link_partner_description="GB100 Nvidia Technologies", link_partner_node_guid="{guid}", '
        f'link_partner_port_num="11", {both}'
    )
    ends = ((gpu, 1.0), (switch, 0.5))
    stamp = int(1000 * NOW_S)
    return "".join(
        f"Link_Down{{{labels}}} {downs} {stamp}\nrx_power_lane_0{{{labels}}} {light} {stamp}\n"
        for labels, light in ends
    )


def test_nvlink_ports_of_nmx_telemetry_are_of_their_gpus_and_switches() -> None:
    url = "http://sw06:9352/xcset/nvlink_domain_telemetry"
    pages = {url: _nvlink(3) + _nvlink(0, "DOWN", "0xe1d04a69816f16bd", 3, "71C")}
    collector, inventory = _collector(pages), Inventory()
    gpu = Subject(SubjectKind.GPU, "GPU-2")
    inventory.observe(gpu, Subject(SubjectKind.NODE, "n17"), 0.0)
    inventory.describe(gpu, fabric_guid="e1d04a69816f16bc")
    frame = _frames(collector, inventory)[SubjectKind.NIC]
    mine, other = _nic("1820325172739.tray17.gpu2/nvlink:11"), _nic("1820325172739.tray17.gpu3/nvlink:11")
    ends = _nic("sw06/acp72"), _nic("sw06/acp73")
    assert set(frame.index.subjects) == {mine, other, *ends}, "GPUs of one description are told apart"
    assert [frame.value(port, "nic_link_down_total") for port in (mine, *ends)] == [3, 3, 0]
    assert [frame.value(port, "nic_port_state") for port in (mine, other)] == [4, 1]
    assert np.isnan(frame.value(mine, "nic_module_temperature_c"))  # a backplane has no module
    assert frame.value(other, "nic_module_temperature_c") == 71
    assert abs(frame.value(ends[0], "nic_rx_power_dbm") + 3.01) < 0.01  # half a milliwatt
    assert [inventory.fact(port, PEER) for port in (mine, ends[1])] == [str(ends[0]), str(other)]
    assert inventory.above(mine, SubjectKind.NODE, NOW_S) == Subject(SubjectKind.NODE, "n17")
    assert inventory.above(other, SubjectKind.NODE, NOW_S) is None  # no GPU has said that it is this one
    assert inventory.above(mine, SubjectKind.SWITCH, NOW_S) == Subject(SubjectKind.SWITCH, "sw06")
    assert inventory.fact(Subject(SubjectKind.SWITCH, "sw06"), "firmware") == "35.2014.1866"


def test_what_was_known_of_links_before_a_restart_counts_until_they_are_cabled_anew() -> None:
    inventory, port = Inventory(), _nic("leaf1/9")
    inventory.describe(port, peer="nic:spine1/1", cable="SN MT1")
    pages: dict[str, Any] = {UFM: _port("leaf1", 9, 0, ',Cable_SN="MT1"')}
    collector = _collector(pages)
    _frames(collector, inventory)
    assert inventory.fact(port, PEER) == "nic:spine1/1"
    pages[UFM] = _port("leaf1", 9, 0, ',Cable_SN="MT2"')
    _frames(collector, inventory)
    assert not inventory.fact(port, PEER)
