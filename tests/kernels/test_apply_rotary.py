"""Rotary embeddings in the job's file: found in compiled regions by their algebra, and called by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightshift.kernels.apply.job.start import unfit
from nightshift.kernels.generate.template import Apart, candidate
from nightshift.kernels.loop.optimise import work_of
from nightshift.kernels.ops.problems import named
from nightshift.kernels.ops.rotary.triton_family import Rotary
from nightshift.kernels.problem import Case
from tests.kernels.applied_records import pair_records, record, rotary_records
from tests.kernels.test_apply import run

SCRIPT = Path(__file__).parent / "applied_rotary.py"
SIZES = {"b": 2, "s": 6, "h": 4, "g": 2}


@pytest.mark.full
def test_compiled_regions_rotate_by_the_kernels_however_it_is_written_and_nothing_else_does(tmp_path: Path) -> None:
    """Two layers by the same tables, q and k together, forward and backward: as Llama has them (a projection's
    output, turned), with positions first, and of contiguous heads, whose gradients come back positions first. With
    one sign off, or tables for each batch, nothing is found. After a demotion the region is compiled anew."""
    seen = run("compiled", tmp_path, rotary_records(**SIZES), script=SCRIPT)
    names = ["", "_backward", "_by_position", "_by_position_backward"]
    halves = [f"rotary_half{name}" for name in names]
    assert [name for _, name in seen["applied"]] == [
        *halves,
        *(f"rotary_interleaved{n} h=4 float32" for n in names),
    ]
    ways = ("turned", "by position", "contiguous", "one sign off", "by batch")
    assert [seen[way]["equal"] for way in ways] == [True] * 5
    both = {"rotary_half_by_position": 2, "rotary_half_by_position_backward": 2}
    assert seen["turned"]["graph"] == seen["by position"]["graph"] == both
    assert seen["contiguous"]["graph"] == {"rotary_half": 2, "rotary_half_by_position_backward": 2}
    assert seen["one sign off"]["graph"] == seen["by batch"]["graph"] == {}
    assert [seen["calls"][name] for name in halves] == [2, 0, 4, 6]
    assert seen["wrong"] == 0
    assert seen["inferred"]
    assert seen["inference"] == {"rotary_half_by_position": 2}
    assert seen["demoted"] == {"equal": True, "graph": {"rotary_half_by_position_backward": 2}}
    assert seen["back"]


@pytest.mark.full
def test_a_model_may_call_the_rotations_by_name_before_during_and_after(tmp_path: Path) -> None:
    """Eager and compiled, with gradients and second derivatives; what a guard refuses is torch's, and counted."""
    seen = run("called", tmp_path, rotary_records(**SIZES), script=SCRIPT)
    assert seen["before"] == seen["during"] == seen["after"] == [True] * 5
    halves = {"rotary_half": 2, "rotary_half_backward": 2}
    halves |= {"rotary_half_by_position": 1, "rotary_half_by_position_backward": 1}
    # the pairs' gradient is differentiated again: the first one is torch's, the last is not
    pairs = {f"rotary_interleaved{name}": 1 for name in ("", "_backward", "_by_position", "_by_position_backward")}
    assert seen["calls"] == {**halves, **pairs}
    assert seen["wide"]
    assert seen["fallbacks"] == {"rotary_half: dtype": 1}
    assert seen["inferred"] == {**dict.fromkeys(seen["calls"], 0), "rotary_half": 1}
    assert seen["wrong"] == 0


@pytest.mark.full
def test_compiled_regions_rotate_pairs_by_the_kernels_as_models_write_them(tmp_path: Path) -> None:
    """Each of queries and keys by the kernel for its heads, forward and backward: as a projection's output lies,
    turned or not, and of contiguous heads, whose gradients come back positions first. With one sign off nothing is
    found. After a demotion the region is compiled anew."""
    made = [*pair_records(b=2, s=6, h=4), *pair_records(b=2, s=6, h=2)]
    seen = run("paired", tmp_path, made, script=SCRIPT)
    names = [f"rotary_interleaved{name}" for name in ("", "_backward", "_by_position", "_by_position_backward")]
    assert seen["applied"] == [f"{name} h={heads} float32" for heads in (4, 2) for name in names]
    assert seen["back"]
    ways = ("sliced", "complex by position", "every two, contiguous", "unflattened", "one sign off")
    assert [seen[way]["equal"] for way in ways] == [True] * 5
    by_position = {names[2]: 2, names[3]: 2}
    assert seen["sliced"]["graph"] == seen["complex by position"]["graph"] == by_position
    back = {names[0]: 2, names[3]: 2}
    assert seen["every two, contiguous"]["graph"] == seen["unflattened"]["graph"] == back
    assert seen["one sign off"]["graph"] == {}
    assert [seen["calls"][f"{name} h=4 float32"] for name in names] == [2, 0, 2, 4]
    assert [seen["calls"][f"{name} h=2 float32"] for name in names] == [2, 0, 2, 4]
    assert seen["wrong"] == 0
    # a kernel of the same source for the other heads has the same certificate here
    assert seen["demoted"] == {"equal": True, "graph": {names[3]: 2}}


def test_a_job_is_given_no_rotation_that_writes_into_its_inputs() -> None:
    """The family writes such, a search for jobs does not, and a file that holds one leaves it out."""
    case = named("rotary_half").cases[0]
    places = {config["place"] for config in Rotary().space("rotary_half", case)}
    assert places == {"new", "in_place"}
    assert {config["place"] for config in Apart(Rotary()).space("rotary_half", case)} == {"new"}
    work = work_of(named("rotary_half"), case, "a test", None, 0, for_jobs=True)
    made = [p.candidate for author in work.generators for p in author.propose(work.task, [], 24)]
    assert made
    assert not any(one.mutates for one in made)
    config = next(c for c in Rotary().space("rotary_half", case) if c["place"] == "in_place")
    written = candidate(Rotary(), "rotary_half", Case.of("float32", d=8, **SIZES), config)
    held = {**record("rotary_half", written.source, d=8, **SIZES), "mutates": list(written.mutates)}
    assert "writes into its inputs" in unfit(held)
