"""The judge as MCP tools: an unmodified client generates, compiles, verifies and reads a report over stdio."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import TextContent

from nightshift.kernels.candidate_file import candidate_text, parse_candidate
from nightshift.kernels.generate.base import GeneratorError
from nightshift.kernels.loop.optimise import OptimiseError, work_of
from nightshift.kernels.ops.problems import ALL

TOOLS = {"problems", "problem", "generate", "compile", "verify", "benchmark", "report"}
GOOD = Path(__file__).parent.parent / "good"
SMALL = """
from dataclasses import replace
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case
PROBLEM = replace(named("softmax"), name="small_softmax", cases=(Case.of("float32", m=4, n=16),))
"""


async def talk(folder: Path) -> dict[str, Any]:
    """What a client gets that knows nothing of ours: it goes by the tools' own words."""
    (folder / "small.py").write_text(SMALL)
    command = [
        "-m",
        "nightshift.agent",
        "kernels",
        "serve",
        "--device",
        "cpu",
        "--problem",
        str(folder / "small.py"),
    ]
    found: dict[str, Any] = {}
    async with (
        stdio_client(StdioServerParameters(command=sys.executable, args=command)) as streams,
        ClientSession(*streams) as client,
    ):
        await client.initialize()
        found["tools"] = {tool.name for tool in (await client.list_tools()).tools}

        async def call(tool: str, **given: Any) -> str:
            result = await client.call_tool(tool, given)
            (part,) = result.content
            assert isinstance(part, TextContent)
            return part.text

        found["problem"] = await call("problem", name="small_softmax")
        found["made"] = json.loads(await call("generate", name="softmax", count=2))
        good = (GOOD / "softmax_row.py").read_text()
        small = good.replace("problem: softmax", "problem: small_softmax")
        found["compiles"] = json.loads(await call("compile", source=small))
        found["broken"] = json.loads(await call("compile", source=small.replace("def entry", "def no_entry")))
        found["right"] = json.loads(await call("verify", source=small))
        found["wrong"] = json.loads(await call("verify", source=small.replace("tl.exp(", "tl.exp2(")))
        found["report"] = json.loads(await call("report", sha256=found["right"]["sha256"]))
        found["timed"] = await call("benchmark", source=small)
        found["unknown"] = await call("problem", name="no_such")
        found["no_header"] = await call("verify", source="import os")
    return found


@pytest.mark.full
def test_an_unmodified_client_generates_compiles_verifies_and_reads_the_report(tmp_path: Path) -> None:
    found = asyncio.run(talk(tmp_path))
    assert found["tools"] == TOOLS
    assert "Reference (eager PyTorch):" in found["problem"]
    assert [parse_candidate(one["source"]).problem for one in found["made"]] == ["softmax"] * 2
    assert found["compiles"] == {"compiles": True}
    assert found["broken"]["reason"] == "entry_missing"
    assert found["right"]["status"] == "correct"
    assert 0 < found["right"]["largest_error_ulp"] < 100
    assert found["wrong"]["status"] == "wrong"
    assert found["report"] == found["right"]
    assert found["report"]["not_checked"]
    assert "no GPU" in found["timed"]
    assert "is none of" in found["unknown"]
    assert "expected '# nightshift candidate'" in found["no_header"]


def test_what_authors_write_is_a_file_that_says_the_same() -> None:
    """Every author's first proposal for every problem of ours, header and all."""
    count = 0
    for problem in ALL:
        try:
            work = work_of(problem, problem.cases[0], "a test", None, 0)
            proposals = [one for author in work.generators for one in author.propose(work.task, (), 1)]
        except (GeneratorError, OptimiseError):
            continue
        for one in proposals:
            read = parse_candidate(candidate_text(one.candidate, problem.name))
            assert replace(read.candidate, source="") == replace(one.candidate, source=""), problem.name
            assert read.problem == problem.name
            assert read.candidate.source.endswith(one.candidate.source)
            count += 1
    assert count > 50
