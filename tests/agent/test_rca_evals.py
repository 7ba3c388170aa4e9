"""The evaluation of language models: its scorer is not talked round, and its incidents go through the product."""

from __future__ import annotations

import json
import stat
import sys
import types
from pathlib import Path
from string import Template
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.first_request import half_of
from benchmarks.rca_evals import feedback, holmes, problems
from benchmarks.rca_evals.__main__ import chosen_cases, kept_rows, main, replay, table
from benchmarks.rca_evals.answers import BAD, EVERYTHING, GOOD, HELD_OUT, VAGUE, bad
from benchmarks.rca_evals.cases import cases
from benchmarks.rca_evals.causes import CAUSES
from benchmarks.rca_evals.evaluation import filled
from benchmarks.rca_evals.reader import endpoint
from benchmarks.rca_evals.recording import record
from benchmarks.rca_evals.scorer import Truth, causes_in, judge
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.rca.evidence import gather
from nightshift.agent.rca.feedback import judged
from nightshift.agent.rca.model import ModelSettings
from nightshift.agent.store.records import plain
from tests.agent.rooted import INVENTORY, NOW_S, XID_LINES, history, xid_burst
from tests.agent.scripted_model import calls, scripted
from tests.agent.story import Story

PLACE = "node n7"
CAUSE = st.sampled_from(sorted(GOOD))


def said(text: str) -> str:
    return Template(text).substitute(place=PLACE)


def right(text: str, cause: str) -> bool:
    return judge(text, Truth(cause, ("n7",))).right


@pytest.mark.parametrize("cause", sorted(GOOD))
def test_every_good_answer_is_read_as_right_and_every_bad_one_as_wrong(cause: str) -> None:
    assert all(right(said(text), cause) for text in GOOD[cause])
    assert not any(right(said(text), cause) for text in (*BAD[cause], EVERYTHING, *VAGUE))


def test_answers_written_after_the_scorer_are_read_rightly() -> None:
    assert [text for cause, text, wanted in HELD_OUT if right(said(text), cause) is not wanted] == []


@settings(max_examples=40, deadline=None)
@given(CAUSE, st.lists(CAUSE, min_size=3, max_size=12, unique=True))
def test_naming_many_causes_never_wins(cause: str, others: list[str]) -> None:
    truth = CAUSES[cause]
    foreign = [o for o in others if CAUSES[o].family not in {truth.family, *truth.admits}]
    if len({CAUSES[other].family for other in foreign}) < 2:
        return
    named = [said(GOOD[name][0]) for name in (cause, *foreign)]
    assert not right(" ".join(named), cause)
    assert not right(" Or: ".join(f"Possibly {text}" for text in named), cause)


@settings(max_examples=60, deadline=None)
@given(CAUSE, CAUSE)
def test_the_right_answer_to_another_incident_is_wrong(cause: str, other: str) -> None:
    truth, told = CAUSES[cause], CAUSES[other]
    if told.family in {truth.family, *truth.admits} or truth.family in told.admits:
        return
    assert not right(said(GOOD[other][0]), cause)


@pytest.mark.parametrize(
    ("text", "cause", "wanted"),
    [
        ("The GPU of n7 did not fall off the bus.", "gpu_off_bus", False),
        ("A GPU of n7 fell off the bus; the NIC is fine and the cable is not to blame.", "gpu_off_bus", True),
        ("A GPU of n8 fell off the bus.", "gpu_off_bus", False),
        ("NCCL on n7 timed out because a GPU of n7 fell off the bus.", "gpu_off_bus", True),
        (
            "A GPU of n7 fell off the bus because its power supply failed and its disk is full.",
            "gpu_off_bus",
            False,
        ),
        ("Most likely a GPU of n7 fell off the bus; a bad cable is possible too.", "gpu_off_bus", True),
        ("GPU problem on n7.", "gpu_off_bus", False),
        ("", "gpu_off_bus", False),
        ('n7 says "GPU has fallen off the bus". The NIC of n7 lost its link.', "gpu_off_bus", False),
    ],
)
def test_denials_effects_places_and_hedges(text: str, cause: str, wanted: bool) -> None:
    assert right(text, cause) is wanted


@given(st.text(max_size=400))
@settings(max_examples=60, deadline=None)
def test_any_text_is_read(text: str) -> None:
    judge(text, Truth("nic", ("n7",)))
    causes_in(text)


def test_the_incidents_are_many_cited_and_none_is_of_the_half_for_the_score() -> None:
    found = cases()
    assert len(found) >= 150
    assert {case.cause for case in found} <= GOOD.keys() & BAD.keys() & CAUSES.keys()
    public = [case.report for case in found if case.origin == "public"]
    assert len(public) >= 100
    assert all(report is not None and "#" in report.source and half_of(report) == "even" for report in public)
    assert sum(case.herring is not None for case in found) >= 120
    assert len({bad(case, PLACE) for case in found}) > 60


# Through the product --------------------------------------------------------------------------------------------


def test_two_readers_of_one_incident_are_told_apart_and_nothing_bare_is_shown() -> None:
    result = replay(chosen_cases("Bumblebee-Project/Bumblebee#554", 0))
    assert (result["told_apart"], result["deciding_line_in_first_request"]) == (1, 1)
    assert [result["readers"][which]["right"] for which in ("good", "bad")] == [1, 0]
    assert [result["readers"][which]["unsupported"] for which in ("good", "bad")] == [0, 0]


@pytest.mark.full
def test_a_case_of_the_cluster_and_one_of_each_channel_are_read_through_a_daemon() -> None:
    names = ("cluster: learning rate jump", "huggingface/trl#3436", "NVIDIA/DCGM#263", "rancher/rancher#20485")
    result = replay([case for case in cases() if case.name in names])
    assert (result["incidents"], result["opened"], result["told_apart"]) == (4, 4, 4)
    assert result["readers"]["bad"]["unsupported"] == 0


def test_an_interrupted_run_continues_where_it_ended(tmp_path: Path) -> None:
    chosen, asked = list(cases()[:3]), []

    def read(case: Any) -> str:
        asked.append(case.name)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return f"row of {case.name}"

    with pytest.raises(KeyboardInterrupt):
        kept_rows(chosen, tmp_path / "rows", read)
    assert kept_rows(chosen, tmp_path / "rows", read) == [f"row of {case.name}" for case in chosen]
    assert asked.count(chosen[0].name) == 1


# HolmesGPT, other benchmarks, feedback --------------------------------------------------------------------------


FAKE = """#!{python}
import json, os, sys
if sys.argv[1] == "version":
    print("warning\\n0.0-fake")
    sys.exit()
given = dict(zip(sys.argv[3:], sys.argv[4:]))
log = open(given["--file"]).read()
assert given["--model"] == "openai/m" and os.environ["OPENAI_API_BASE"] == "http://here/v1", sys.argv
if "{answers}" == "no":
    sys.exit("model not found")
answer = {{"result": "The GPU of " + log.split()[1] + " fell off the bus.", "total_tokens": 42, "total_cost": 0.5}}
json.dump(answer, open(given["--json-output-file"], "w"))
"""


def fake(folder: Path, answers: str = "yes") -> Path:
    program = folder / "holmes"
    program.write_text(FAKE.format(python=sys.executable, answers=answers))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def case_named(name: str) -> Any:
    return next(case for case in cases() if case.name == name)


def test_holmes_gets_the_source_s_own_lines_and_its_answer_is_read_by_the_same_scorer(tmp_path: Path) -> None:
    case = case_named("Bumblebee-Project/Bumblebee#554")
    text = record(case).text
    assert case.herring is not None
    assert "fallen off the bus" in text
    assert case.herring.line in text
    llm = {"model": "m", "base_url": "http://here/v1"}
    row = holmes.ask(case, fake(tmp_path), llm, tmp_path / "out")
    assert (row["tokens"], row["usd"], row["failure"]) == (42, 0.5, "")
    assert row["verdict"]["mechanism"]
    assert holmes.version(tmp_path / "holmes") == "0.0-fake"
    failed = holmes.ask(case, fake(tmp_path, "no"), llm, tmp_path / "out")
    assert failed["failure"].startswith("exit 1: model not found")
    assert not failed["verdict"]["right"]
    with pytest.raises(SystemExit, match="--program"):
        holmes.version(tmp_path / "absent")


def module(name: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    return made


class Task:
    """What AIOpsLab's AnalysisTask gives to a problem."""

    def __init__(self, app: Any) -> None:
        self.results: dict[str, Any] = {}
        self.summary = app.get_app_summary()

    def add_result(self, key: str, value: Any) -> None:
        self.results[key] = value

    def eval(self, soln: Any, trace: Any, duration: float) -> None:
        self.add_result("TTA", duration)


def exported(
    form: str, folder: Path, monkeypatch: pytest.MonkeyPatch, stand_ins: dict[str, types.ModuleType]
) -> Any:
    for name, stand_in in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    assert problems.export(form, chosen_cases("", 12), folder) >= 10
    names: dict[str, Any] = {"__file__": str(folder / "gpu_incidents.py"), "__name__": "gpu_incidents"}
    exec(compile((folder / "gpu_incidents.py").read_text(), "gpu_incidents.py", "exec"), names)
    return types.SimpleNamespace(**names)


def test_problems_of_aiopslab_register_and_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins = {"aiopslab.orchestrator.tasks.analysis": module("analysis", AnalysisTask=Task)}
    told = exported("aiopslab", tmp_path, monkeypatch, stand_ins)
    registry = types.SimpleNamespace(PROBLEM_REGISTRY={})
    told.register(registry)
    name, make = next(iter(registry.PROBLEM_REGISTRY.items()))
    problem = make()
    assert name.endswith("-analysis-1")
    assert problem.incident["id"] in problem.summary
    labels = {key: problem.incident[key] for key in ("system_level", "fault_type")}
    assert problem.eval(labels, [], 1.0)["success"]
    assert not make().eval({"system_level": "Application"}, [], 1.0)["success"]
    assert not make().eval(None, [], 1.0)["success"]
    kinds = [item["kind"] for item in problem.incident["manifest"]["items"]]
    assert kinds == ["Namespace", "ConfigMap", "Pod"]


class Problem:
    """What SREGym's Problem gives."""

    def __init__(self, app: Any, namespace: str) -> None:
        self.app, self.namespace = app, namespace

    @staticmethod
    def build_structured_root_cause(*, component: str, namespace: str, description: str) -> str:
        return f"{component}|{namespace}|{description}"


def test_problems_of_sregym_register_with_their_root_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge_module = "sregym.conductor.oracles.llm_as_a_judge.llm_as_a_judge_oracle"
    stand_ins = {
        "sregym.conductor.problems.base": module("base", Problem=Problem),
        judge_module: module("oracle", LLMAsAJudgeOracle=lambda problem, expected: expected),
        "sregym.utils.decorators": module("decorators", mark_fault_injected=lambda call: call),
    }
    told = exported("sregym", tmp_path, monkeypatch, stand_ins)
    registry = types.SimpleNamespace(PROBLEM_REGISTRY={})
    told.register(registry)
    problem = next(iter(registry.PROBLEM_REGISTRY.values()))()
    assert problem.diagnosis_oracle == problem.root_cause
    assert problem.incident["place"] in problem.root_cause


def judged_rows() -> list[dict[str, Any]]:
    bundle = gather([xid_burst(*XID_LINES[:2])], history(XID_LINES[:2]), INVENTORY, NOW_S)
    whole = {
        "incident": "INC-1",
        "headline": "GPU memory errors: uncorrectable ECC",
        "cause": "hbm_degraded",
        "evidence": [plain(item) for item in bundle.items],
        "feedback": [{"right": True, "note": "", "by": "ada", "at_s": 1.0}],
    }
    wrong = {**whole, "incident": "INC-2"}
    wrong["feedback"] = [{"right": False, "note": "it was a bad cable of the NIC", "by": "bob", "at_s": 2.0}]
    short = {"incident": "INC-3", "diagnosis": "NVLink failed", "verdict": "right", "by": "ada", "at": 3.0}
    return [whole, wrong, short]


def test_feedback_becomes_incidents_with_what_people_said_as_the_truth(tmp_path: Path) -> None:
    path = tmp_path / "judged.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in judged_rows()) + "\n")
    first, second, third = feedback.read(path)
    assert [one.truth.cause for one in (first, second, third) if one.truth] == ["gpu_memory", "nic", "nvlink"]
    line = XID_LINES[0][1]
    answer = calls(("conclude", {
        "cause": "unknown", "claims": [], "hypothesis": [
            {"sentence": "GPU memory failed: an uncorrectable double bit error.", "evidence_id": "", "text": line}
        ],
    }))  # fmt: skip
    with scripted(answer) as server:
        llm = ModelSettings(provider="openai", model="m", base_url=f"{server.url}/v1")
        rows = [feedback.ask(one, llm) for one in (first, second)]
    assert [row["verdict"]["right"] for row in rows] == [True, False]
    assert "uncorrectable ECC" not in str(server.asked[0]["messages"]), (
        "the judged answer is not shown to the model"
    )


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"incident": "INC-1"}', '{"incident": "INC-1", "verdict": "perhaps"}']
)
def test_a_line_of_feedback_that_cannot_be_read_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "judged.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(ValueError, match=r"judged\.jsonl:2: "):
        list(feedback.read(path))


def test_the_table_shows_results_side_by_side(tmp_path: Path) -> None:
    row = {"by": "openai m", "incidents": 2, "right": 1, "unsupported": 0, "tokens_median": 9, "usd": 0.1,
           "seconds_p50": 1.0, "seconds_p95": 2.0}  # fmt: skip
    for name in ("a", "b"):
        (tmp_path / name).write_text(json.dumps({**row, "by": name}))
    shown = table([tmp_path / "a", tmp_path / "b"]).split("\n")
    assert shown[2:] == [f"| {name} | 2 | 1 | 0 | 9 | 0.1 | 1.0 | 2.0 |" for name in "ab"]


def ran(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["rca_evals", *map(str, words)])
    main()


@pytest.mark.full
def test_one_command_asks_a_model_at_an_endpoint_and_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = next(case for case in cases() if case.report is not None)
    with endpoint(case) as (reader, server):
        reader.take(filled(case))
        at = ["--model", "served", "--base-url", f"{server.url}/v1", "--usd-in", "1", "--usd-out", "2"]
        ran(monkeypatch, "live", "--only", case.name, *at, "--out", tmp_path / "live.json")
    told = json.loads((tmp_path / "live.json").read_text())
    assert (told["by"], told["opened"], told["right"], told["unsupported"]) == ("openai served", 1, 1, 0)
    assert told["tokens_median"] > 0
    assert told["usd"] > 0
    assert told["seconds_p50"] == told["seconds_p95"] > 0
    printed = capsys.readouterr().out
    assert "| openai served | 1 | 1 | 0 |" in printed
    assert "P95 (s)" in printed


def test_a_persons_word_goes_through_the_export_into_the_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story = Story(tmp_path)
    name = story.tell()
    ann = Person("ann@example.org", frozenset({Role.APPROVER}), "console")
    assert story.gate.judge(name, ann, right=False, note="a bad cable of the NIC").ok
    exported_to = tmp_path / "judged.jsonl"
    exported_to.write_text("".join(json.dumps(row) + "\n" for row in judged(story.store)))
    answer = calls(("conclude", {"cause": "unknown", "claims": [], "hypothesis": []}))
    with scripted(answer) as server:
        at = ["--model", "served", "--base-url", f"{server.url}/v1", "--out", tmp_path / "feedback.json"]
        ran(monkeypatch, "feedback", exported_to, *at)
    told = json.loads((tmp_path / "feedback.json").read_text())
    assert "1 of 1 judged diagnoses have evidence and name a cause" in capsys.readouterr().out
    assert [(row["case"], row["cause"], row["verdict"]["right"]) for row in told["rows"]] == [(name, "nic", False)]
