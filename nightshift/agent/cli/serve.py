"""`nightshift run` and `nightshift node`: the processes that serve until they are told to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nightshift.agent.cli.terminal import Config


def run(config: Config = None) -> None:
    """Run the daemon until SIGTERM. SIGHUP reloads the configuration."""
    from nightshift.agent.daemon import run as run_daemon

    run_daemon(config)


def node(
    host: Annotated[str, typer.Option(help="Address to listen on (:: is every one, of IPv6 and IPv4)")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port to listen on")] = 9400,
    period_s: Annotated[float, typer.Option(help="Time between two samples (s)")] = 1.0,
    certificate: Annotated[Path | None, typer.Option(help="Certificate (PEM) to serve with")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key (PEM)")] = None,
    client_ca: Annotated[Path | None, typer.Option(help="Only clients of this authority (PEM)")] = None,
    client_name: Annotated[
        list[str] | None, typer.Option(help="Of them only who bears this DNS name; may be given again")
    ] = None,
    name: Annotated[str, typer.Option(envvar="NODE_NAME", help="This node's name; without: its host name")] = "",
    power_leases: Annotated[bool, typer.Option(help="Take power limits from the agent, for a time")] = False,
    power_fallback_w: Annotated[float, typer.Option(help="Limit without a lease (W); 0: each GPU's default")] = 0.0,
) -> None:
    """Serve this machine's GPU metrics (dcgm-exporter format) and kernel log until SIGTERM."""
    from nightshift.agent.node_agent import Power
    from nightshift.agent.node_agent import run as run_node
    from nightshift.collectors.telemetry.exporter import Settings

    run_node(
        Settings(
            host=host,
            port=port,
            period_s=period_s,
            certificate_file=certificate,
            key_file=key,
            client_ca_file=client_ca,
            client_names=tuple(client_name or ()),
        ),
        name,
        # Milliwatts, as NVML counts; 0 W is no limit that a GPU takes.
        Power(_nvml_power(), int(power_fallback_w * 1000) or None) if power_leases else None,
    )


def _nvml_power() -> Any:
    from nightshift.controllers.actuators.nvml_power import NvmlPower

    return NvmlPower()
