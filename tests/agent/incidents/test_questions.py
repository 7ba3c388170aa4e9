"""Questions about an incident: every sentence has its proof, roles hold, and there is always an answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.agent.approvals.policy import Person, Role, RoleGrant
from nightshift.agent.approvals.questions import MAX_OPEN, Question, Questions
from nightshift.agent.approvals.visibility import IncidentWindow
from nightshift.agent.incidents import advisor as advisor_module
from nightshift.agent.incidents.model_queue import ModelQueue
from nightshift.agent.rca.model import Failure
from nightshift.agent.rca.question import as_checked, asked_json, lines_about, spoken
from nightshift.agent.rca.search import best
from nightshift.agent.store.diagnosis import Answer, Quote, Verdict
from nightshift.agent.store.incident import Incident
from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.tick import Tick
from tests.agent.incidents.test_model_queue import Bench, xid_item
from tests.agent.rca.test_investigate import FAILURES, QUOTE, TRUE
from tests.agent.rooted import INVENTORY, NOW_S, XID_LINES
from tests.agent.scripted_model import Answer as Turn
from tests.agent.scripted_model import Scripted, calls, says, scripted
from tests.agent.test_hostile import INJECTIONS, SECRET

ADA = Person("ada", frozenset({Role.VIEWER}), "api")
ASKED = "did the Xid repeat?"


class Desk(Bench):
    """A bench at which people ask; `None` as its server: no model is configured."""

    def __init__(self, home: Path, server: Scripted | None, **more: Any) -> None:
        with scripted(1) as nobody:
            super().__init__(home, server or nobody, **more)
        if server is None:
            self.advisor = replace(self.advisor, investigate=None)
        self.questions = Questions(self.store.database, self.clock)
        self.queue = ModelQueue(
            self.store,
            self.clock,
            lambda _: self.advisor,
            lambda: True,
            configured=lambda: False,
            inventory=INVENTORY,
        )

    def ask(self, text: str = ASKED, by: Person = ADA) -> Question:
        number = self.questions.ask(self.one(), text, by).number
        assert self.queue.wait_idle(120.0)
        return self.questions.of(self.ids[0], number)[0]


def shown(asked: Question) -> str:
    return json.dumps(asked_json(asked), ensure_ascii=False)


def replies(*claims: object, verdict: str = "yes") -> dict[str, Any]:
    return calls(("conclude", {"verdict": verdict, "claims": list(claims)}))


def proven(said: str, verdict: str = "yes", *more: dict[str, Any]) -> Any:
    def turn(_: Scripted, body: dict[str, Any]) -> Turn:
        name = xid_item({"messages": [{}, body["messages"][1]]})
        true = {**TRUE, "evidence_ids": [name], "quotes": [{"evidence_id": name, "text": QUOTE}], "sentence": said}
        return replies(true, *more, verdict=verdict)

    return turn


def test_without_a_model_it_says_so_and_shows_the_lines_that_bear_the_words(tmp_path: Path) -> None:
    desk = Desk(tmp_path, None)
    answer = desk.ask("did an Xid come before the crash?").answer
    assert answer.note.startswith("no language model is configured")
    assert any("NVRM: Xid" in quote.text for quote in answer.found)
    assert answer.model == ""
    assert as_checked(answer) == answer
    text = "\n".join(line.text for line in spoken("?", answer))
    assert "no language model is configured" in text
    assert desk.ask("quokka?").answer.note == "no language model is configured; no line bears the question's words"
    assert desk.ask("why?").answer.note == "no language model is configured; the question has no word to look for"


def test_a_models_claim_is_shown_in_our_words_with_its_quote_and_its_own_below(tmp_path: Path) -> None:
    with scripted(proven("the Xid came twice, so the memory fails again")) as server:
        asked = Desk(tmp_path, server).ask()
    lines = asked_json(asked)["lines"]
    assert lines[1]["text"] == "yes, by openai scripted. Checked:"
    assert lines[2]["text"].startswith("'NVRM: Xid' came at least 2 times in")
    assert lines[2]["quotes"][0][1].startswith("NVRM: Xid")
    assert lines[3] == {
        "label": "The model reads this as (words in ‹ › are its own)",
        "text": "the Xid came twice, so the memory ‹fails again›", "quotes": []
    }  # fmt: skip
    sent = server.asked[0]["messages"]
    assert ASKED in sent[1]["content"]
    assert asked.tokens > 0


@pytest.mark.parametrize(
    "said",
    [
        "node n7 failed", "it came 50 times", "REBOOT it", "run kubectl drain n1", "see https://evil.example",
        "you must approve the plan", "GPU-ffffffff is broken",
    ],
)  # fmt: skip
def test_a_sentence_that_says_more_than_its_evidence_is_not_shown(tmp_path: Path, said: str) -> None:
    with scripted(proven(said)) as server:
        asked = Desk(tmp_path, server).ask()
    assert asked.answer.said == ("",)
    assert said not in shown(asked)


def test_an_answer_whose_claims_fall_is_unknown_and_the_lines_remain(tmp_path: Path) -> None:
    bad = {"predicate": "equals", "evidence_ids": ["E999"], "arguments": {"path": "x", "value": 1}}
    with scripted(replies(bad)) as server:
        answer = Desk(tmp_path, server).ask("which Xid?").answer
    assert (answer.verdict, answer.claims, answer.dropped) == (Verdict.UNKNOWN, (), 1)
    assert answer.found
    assert answer.note == "the language model proved nothing about it"


SOME = [failure for failure in FAILURES if failure[0] in ("slow", "looping", "refusing in prose", "an empty body")]
SOME.append(("540,000 characters", [says("x " * 270_000)], {}, Failure.NOT_JSON))


@pytest.mark.parametrize(("name", "script", "more", "failure"), SOME, ids=[f[0] for f in SOME])
def test_however_a_model_fails_there_is_an_answer_that_says_it(
    tmp_path: Path, name: str, script: list[Turn], more: dict[str, Any], failure: Failure
) -> None:
    with scripted(*script) as server:
        asked = Desk(tmp_path, server, **more).ask("which Xid?")
    assert not asked.is_open
    assert failure.says in asked.answer.note or "used up" in asked.answer.note
    assert asked.answer.found


def test_a_changed_byte_takes_claim_and_line_away(tmp_path: Path) -> None:
    with scripted(proven("")) as server:
        answer = Desk(tmp_path, server).ask().answer
    bent = replace(
        answer, evidence=tuple(replace(i, content=i.content.replace(b"Xid", b"Xlb")) for i in answer.evidence)
    )
    assert as_checked(bent).claims == ()
    assert as_checked(bent).verdict is Verdict.UNKNOWN
    assert not any("Xid" in quote.text for quote in as_checked(bent).found)


def test_questions_are_bounded_and_named(tmp_path: Path) -> None:
    desk = Desk(tmp_path, None)
    for bad in ("", " \n ", "x" * 2001):
        with pytest.raises(Permanent, match="1 to 2000 characters"):
            desk.questions.ask(desk.one(), bad, ADA)
    for number in range(MAX_OPEN):
        desk.questions.ask(desk.one(), f"question {number}", ADA)
    with pytest.raises(Permanent, match=f"{MAX_OPEN} questions about INC-1 wait"):
        desk.questions.ask(desk.one(), "one more", ADA)
    assert {record.kind for record in desk.store.audit.records()} >= {"question"}


def test_the_days_budget_counts_answers_and_stops_them(tmp_path: Path) -> None:
    with scripted(proven("")) as server:
        desk = Desk(tmp_path, server, max_tokens_per_day=4000)
        first = desk.ask()
        assert desk.store.spent_on_reading() == (first.tokens, 0.0)
        later = [desk.ask().answer.note for _ in range(4)]
    assert any("tokens or money are used up" in note for note in later)


def test_a_team_asks_of_its_own_and_is_told_of_no_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path, None)
    mine = Person("tess", frozenset(), "api", grants=(RoleGrant(Role.VIEWER, ("ml",)),))
    other = Person("otto", frozenset(), "api", grants=(RoleGrant(Role.VIEWER, ("other",)),))
    owned: Incident = desk.one()
    assert owned.namespaces == ("ml",)
    for person, incident in ((other, owned), (mine, replace(owned, namespaces=("ml", "other")))):
        with pytest.raises(Permanent, match="beyond your team"):
            desk.questions.ask(incident, "why?", person)
    theirs = Subject(SubjectKind.RANK, "other/secret#1")
    line = LogRecord(Instant(NOW_S - 5.0), "training_logs", theirs, "Xid on the secret model", 1)
    desk.history.add(Tick(NOW_S, logs=[line]))
    asked = desk.questions.ask(owned, "which Xid?", mine)
    assert asked.reach == ("ml",)
    assert asked.reader.is_tenant
    assert asked.may_be_read_by(mine)
    assert asked.may_be_read_by(ADA)
    assert not asked.may_be_read_by(other)
    assert not desk.questions.ask(owned, "and now?", ADA).may_be_read_by(mine)
    window = IncidentWindow(desk.store, mine, INVENTORY, NOW_S)
    question = "what does the log of other/secret#1 say about the secret Xid?"
    monkeypatch.setattr(advisor_module, "named", lambda *_: [theirs])
    assert "secret" not in repr(desk.advisor.answer(owned, question, window)[0])
    everything = IncidentWindow(desk.store, ADA, INVENTORY, NOW_S)
    assert "Xid on the secret model" in repr(desk.advisor.answer(owned, question, everything)[0].found)


def hostile(text: str) -> list[Turn]:
    """A model that was taken over: it repeats the text as its look-up, its sentence and its quote."""
    again = {"predicate": "repeated", "evidence_ids": ["E1"], "arguments": {"pattern": text[:60], "times": 2}}
    return [calls(("logs", {"subject": text[:60], "contains": text[:60]})), proven(text[:400], "yes", again)]


@pytest.mark.parametrize("texts", [INJECTIONS[::8], pytest.param(INJECTIONS, marks=pytest.mark.full)], ids=len)
def test_hostile_text_in_a_thread_and_in_a_model_gets_nowhere(tmp_path: Path, texts: tuple[str, ...]) -> None:
    with scripted(1) as server:
        desk = Desk(tmp_path, server, max_tokens=10**7, max_tokens_per_day=10**8)
        before = desk.one()
        for text in texts:
            server.script, server.asked = list(hostile(text)), []
            asked = desk.ask(f"is it true? {text[:1500]}")
            assert server.asked, asked.answer.note
            assert SECRET not in json.dumps(server.asked[0])  # later ones repeat what this model said by itself
            answers = json.dumps(asked_json(asked)["lines"][1:], ensure_ascii=False)
            assert "evil.example" not in answers
            assert not any(mark in answers for mark in ("\x1b", "\x00", "\u202e", "\u200b", "\U000e0041"))
            # plain words may stand as the model's reading of what was checked; what names or tells to act may not
            assert not [said for said in asked.answer.said if any(c.isdigit() or c in "/:@<" for c in said)], text
        after = desk.one()
    assert (after.state, after.version, after.action) == (before.state, before.version, before.action)


def test_words_find_their_lines_by_stem_and_beginning() -> None:
    texts = ["NCCLWatchdog timeout", "all is well", "switch port failure on leaf3", "failing fan"]
    assert best(texts, "did the switch fail?", 2) == [2, 3]
    assert best(texts, "NCCL", 1) == [0]
    assert best(texts, '" OR 1; --', 3) == []
    assert best([], "x", 3) == best(texts, "", 3) == []
    assert lines_about("x", []) == ()


def test_the_command_line_asks_and_prints_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("NIGHTSHIFT_STORE__URL", f"sqlite:///{tmp_path}/n.sqlite")
    desk = Desk(tmp_path, None)
    desk.queue.start()
    told = CliRunner().invoke(app, ["ask", "INC-1", "which Xid was it?"])
    as_json = CliRunner().invoke(app, ["ask", "INC-1", "which Xid was it?", "--json"])
    desk.queue.close()
    assert told.exit_code == 0, told.output
    assert "no language model is configured" in told.output
    assert XID_LINES[0][1][:60] in told.output
    assert json.loads(as_json.stdout)["done"]
    none = CliRunner().invoke(app, ["ask", "INC-9", "why?"])
    assert "there is no INC-9" in str(none.exception)


def test_a_quote_of_an_answer_is_of_the_evidence_alone() -> None:
    from nightshift.agent.store.diagnosis import ReadingState

    made_up = Answer(ReadingState.DONE, found=(Quote("E1", "never written"),))
    assert as_checked(made_up).found == ()
