"""Do unmodified MCP clients list, read and propose at `/mcp`?

    python -m benchmarks.mcp_clients FOLDER

FOLDER holds clients that share no code with this environment: `node_modules` with the inspector
(`npm install @modelcontextprotocol/inspector@2.12.0`), and a virtual environment `v2` with `mcp` 2.x
(`v2/bin/pip install "mcp>=2"`). `langchain-mcp-adapters` is the third, from here. Each
lists the tools, lists and reads incidents of a stored example, and proposes. A proposal must stand in the
incident's history under the token's name, and its plan must be as before. Writes `results/mcp_clients.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.report import write
from nightshift.agent.console.mcp_server import PATH
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.incident import Cause
from nightshift.version import commit
from tests.agent.story import TOKEN, Story

CALLS: tuple[tuple[str, dict[str, str]], ...] = (
    ("incidents", {}),
    ("incident", {"incident_id": "INC-1"}),
    ("propose", {"incident_id": "INC-1", "action": "restart_job", "reason": "its data loader keeps batches"}),
)
# as in the SDK's own documentation (py.sdk.modelcontextprotocol.io, client)
_V2 = """
import asyncio, json, sys
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

async def main(url, token, calls):
    web = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"})
    async with web, Client(streamable_http_client(url, http_client=web)) as one:
        names = [tool.name for tool in (await one.list_tools()).tools]
        said = [(await one.call_tool(name, given)).content[0].text for name, given in calls]
    print(json.dumps({"tools": names, "answers": said}))

asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
"""


def by_inspector(folder: Path, url: str) -> dict[str, Any]:
    program = [str(folder / "node_modules" / ".bin" / "mcp-inspector"), "--cli", url, "--transport", "http"]
    program += ["--header", f"Authorization: Bearer {TOKEN}"]

    def run(*words: str) -> Any:
        done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=120, check=True)
        return json.loads(done.stdout)

    answers = []
    for name, given in CALLS:
        pairs = [part for key, value in given.items() for part in ("--tool-arg", f"{key}={value}")]
        told = run("--method", "tools/call", "--tool-name", name, *pairs)
        answers.append(told.get("result", told)["content"][0]["text"])
    listed = run("--method", "tools/list")
    return {"tools": [tool["name"] for tool in listed.get("result", listed)["tools"]], "answers": answers}


def by_second_sdk(folder: Path, url: str) -> dict[str, Any]:
    command = [str(folder / "v2" / "bin" / "python"), "-c", _V2, url, TOKEN, json.dumps(CALLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def by_langchain(_: Path, url: str) -> dict[str, Any]:
    from langchain_mcp_adapters.client import MultiServerMCPClient

    async def run() -> dict[str, Any]:
        there: Any = {"url": url, "transport": "streamable_http", "headers": {"Authorization": f"Bearer {TOKEN}"}}
        tools = {tool.name: tool for tool in await MultiServerMCPClient({"nightshift": there}).get_tools()}
        return {"tools": list(tools), "answers": [str(await tools[name].ainvoke(given)) for name, given in CALLS]}

    return asyncio.run(run())


def versions(folder: Path) -> dict[str, str]:
    package = folder / "node_modules" / "@modelcontextprotocol" / "inspector" / "package.json"
    ask = "from importlib.metadata import version; print(version('mcp'), end='')"
    second = subprocess.run(
        [str(folder / "v2" / "bin" / "python"), "-c", ask], capture_output=True, text=True, check=False
    )
    told = json.loads(package.read_text())["version"] if package.is_file() else ""
    return {"inspector": told, "mcp": second.stdout, "adapters": metadata.version("langchain-mcp-adapters")}


CLIENTS = {
    "@modelcontextprotocol/inspector --cli": by_inspector,
    "mcp 2.x Client": by_second_sdk,
    "langchain-mcp-adapters": by_langchain,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the clients are installed")
    folder = parser.parse_args().folder.resolve()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home:
        story = Story(Path(home))
        name = story.tell()
        server = Server(build_console(story.parts, Settings()), "127.0.0.1", 0)
        server.start()
        before = story.store.incident(name)
        for client, ask in CLIENTS.items():
            count = len(story.store.incident(name).history)
            try:
                told = ask(folder, server.url + PATH)
            except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
                rows[client] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
                continue
            after = story.store.incident(name)
            new = after.history[count:]
            rows[client] = {
                "lists": len(told["tools"]) == 8 and name in told["answers"][0],
                "reads": "restart_pod" in told["answers"][1] or "Host memory leak" in told["answers"][1],
                "proposes": [(s.cause, s.by) for s in new] == [(Cause.PROPOSED, "ada")],
                "plan_unchanged": (after.state, after.version) == (before.state, before.version),
            }
        server.stop()
        story.store.close()
    write("mcp_clients", {"commit": commit(), "versions": versions(folder), "clients": rows})
    return 0 if all(all(v is True for v in row.values()) for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
