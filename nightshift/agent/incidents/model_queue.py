"""Holds the incidents and the questions that wait for the language model, and has it read a few at a time, beside
the lifecycle.

Nothing waits for it: the rules' diagnosis and its plan are stored and may be approved before the model is asked.
What it makes of an incident is stored beside the diagnosis when it comes, with its progress meanwhile. What is due
follows from the rows, so a restart or another leader loses nothing but the answer under way. A server that does not
answer is left alone for a while; its incidents wait. A second request keeps what the first one proved."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import structlog

from nightshift.agent.approvals.questions import Question, Questions
from nightshift.agent.approvals.visibility import IncidentWindow
from nightshift.agent.clock import Clock
from nightshift.agent.incidents.advisor import Advisor
from nightshift.agent.rca.investigate import Allowance, Investigator, ModelSpending
from nightshift.agent.rca.model import TRANSIENT, Failure, ModelSettings
from nightshift.agent.store.diagnosis import Answer, Reading, ReadingState
from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.agent.store.incident_store import NoSuchIncident, Store, ToRead
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.subject import Inventory

MAX_AT_ONCE = 2
MAX_ASKED = 3
"""Requests for one diagnosis: the first, and those for lines that came later or after a server that failed."""
DAY_S = 86_400.0
POLL_S = 1.0
LOOK_AGAIN_S, LOOK_FOR_S = 20.0, 900.0
"""How often, and how long after a reading, later lines are looked for."""
LOOKS_A_TURN = 4
MIN_TOKENS = 1000
"""Fewer do not suffice for an answer."""
SHOWN_WAITING = 20
# not OPEN and DIAGNOSED: the plan comes within a second, and the model is to see it
_READ_IN = frozenset(IncidentState) - {IncidentState.OPEN, IncidentState.DIAGNOSED, IncidentState.RESOLVED}
_S = ReadingState


class ModelQueue:
    """One per daemon. `advisor` is who diagnoses an incident here, at present; `leads` whether this replica
    does."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        advisor: Callable[[Incident], Advisor],
        leads: Callable[[], bool],
        configured: Callable[[], bool] = lambda: True,
        inventory: Inventory | None = None,
    ) -> None:
        self._configured = configured
        self._store, self._clock, self._advisor, self._leads = store, clock, advisor, leads
        self._mutex = threading.Lock()
        self._questions, self._inventory = Questions(store.database, clock), inventory
        self._answering: set[int] = set()
        self._running: set[int] = set()
        self._not_ours: set[int] = set()
        """Diagnoses that no model is asked about, such as a drill's."""
        self._look_s: dict[int, float] = {}
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._log = structlog.get_logger("model")

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._loop, name="model-queue", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Looks at the rows now; what was not ours may be, since settings may have changed."""
        self._not_ours.clear()
        self._wake.set()

    def close(self) -> None:
        """Ends the queue. An answer under way is not waited for, and not stored: it is asked for at the next
        start."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until every incident is read as far as it can be now; for stepped clocks and tests."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.turn() == 0 and not self._running and not self._answering:
                return True
            time.sleep(0.02)
        return False

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                self.turn()
            except (Temporary, Permanent) as error:
                self._log.warning("model queue delayed", error=str(error))
            except Exception:  # noqa: BLE001  a defect of ours must not end what reads every later incident
                self._log.exception("model queue crashed")
            self._wake.wait(POLL_S)
            self._wake.clear()

    # What is due ------------------------------------------------------------------------------------------------

    def turn(self) -> int:
        """Begins the answers and readings that are due; returns how many are due or under way."""
        if not self._leads():
            return 0
        begun = self._answer_due()
        if not self._configured():
            return begun
        waiting = looks = 0
        with self._mutex:
            # before the rows: one that ends in between would be read again by its old row
            running = set(self._running)
        for row in self._store.to_read(_READ_IN):
            if row.diagnosis in running:
                begun += 1
                continue
            with self._mutex:
                full = len(self._running) >= MAX_AT_ONCE
            if row.diagnosis in self._not_ours:
                continue
            if row.state in (_S.DONE, _S.FAILED) and (looks >= LOOKS_A_TURN or not self._look_now(row)):
                continue
            looks += row.state in (_S.DONE, _S.FAILED)
            if full:
                waiting += 1
                if row.state is None and waiting <= SHOWN_WAITING:
                    self._hold(row, "waits for the language model: other incidents come first")
                continue
            begun += self._begin(row)
        return begun + waiting

    def _look_now(self, row: ToRead) -> bool:
        """Whether to look for lines that came since a reading that ended."""
        now_s = self._clock.now_s()
        if not row.at_s <= now_s <= row.at_s + LOOK_FOR_S or now_s < self._look_s.get(row.diagnosis, 0.0):
            return False
        self._look_s[row.diagnosis] = now_s + LOOK_AGAIN_S
        return True

    def _begin(self, row: ToRead) -> bool:
        with suppress(NoSuchIncident):
            incident = self._store.incident(row.incident)
            advisor = self._advisor(incident)
            if advisor.investigate is None:
                self._not_ours.add(row.diagnosis)
                return False
            if not self._is_due(row, incident, advisor, advisor.investigate):
                return False
            allowance = self._allowance(row.incident, advisor.investigate.model.settings)
            if isinstance(allowance, str):
                self._hold(row, allowance)
                return False
            with self._mutex:
                self._running.add(row.diagnosis)
            work = (row, incident, advisor, allowance)
            # daemon threads: a model may take minutes, and the end of the daemon does not wait for it
            threading.Thread(target=self._read, args=work, name="model-reading", daemon=True).start()
            return True
        return False

    def _is_due(self, row: ToRead, incident: Incident, advisor: Advisor, investigate: Investigator) -> bool:
        if investigate.model.rests_s > 0:
            if row.state is None:
                self._hold(row, "waits for the language model: its server did not answer just now")
            return False
        reading = incident.reading
        if row.state not in (_S.DONE, _S.FAILED) or reading is None:
            return True
        if reading.asked >= MAX_ASKED:
            return False
        if row.state is _S.FAILED and reading.facts.get("model_failure") in TRANSIENT:
            return True
        return not set(advisor.deciding_lines(incident)) <= set(reading.lines)

    def _allowance(self, incident_id: str, settings: ModelSettings) -> Allowance | str:
        """What a reading may take, or why it has to wait: by the incident's budget and the last 24 hours'."""
        of_all = self._store.spent_on_reading(self._clock.now_s() - DAY_S)
        if of_all[0] >= settings.max_tokens_per_day:
            return f"waits for the language model: {of_all[0]} tokens used in 24 h"
        if of_all[1] >= settings.max_cost_usd_per_day:
            return f"waits for the language model: {of_all[1]:.2f} USD used in 24 h"
        so_far = self._store.spent_on_reading(incident_id=incident_id)
        return Allowance(
            max(0, min(settings.max_tokens - so_far[0], settings.max_tokens_per_day - of_all[0])),
            max(0.0, min(settings.max_cost_usd - so_far[1], settings.max_cost_usd_per_day - of_all[1])),
        )

    def _hold(self, row: ToRead, why: str) -> None:
        """Says on the incident's page why it is not read yet; what was read before stays."""
        before = self._store.incident(row.incident).reading
        held = replace(before, state=_S.WAITING, note=why) if before else Reading(_S.WAITING, "", note=why)
        if held != before or row.state is None:
            self._store.save_reading(row.incident, row.diagnosis, held, row.tokens, row.usd, final=False)

    # One question -----------------------------------------------------------------------------------------------

    def _answer_due(self) -> int:
        """Begins the answers that are due. A person waits for each: no reading takes its place."""
        due = self._questions.due()
        for asked in due:
            with self._mutex:
                if asked.number in self._answering or len(self._answering) >= MAX_AT_ONCE:
                    continue
                self._answering.add(asked.number)
            threading.Thread(target=self._answer, args=(asked,), name="model-answer", daemon=True).start()
        return len(due)

    def _answer(self, asked: Question) -> None:
        """On a thread of its own. The answer is in the store; nothing is raised out of it."""

        def save(answer: Answer, spent: ModelSpending) -> None:
            if not self._stop.is_set() and self._leads():
                investigate = advisor.investigate
                usd = spent.usd(investigate.model.settings) if investigate is not None else 0.0
                self._questions.answered(asked, answer, asked.tokens + spent.tokens, asked.usd + usd)

        try:
            now_s = self._clock.now_s()
            window = IncidentWindow(self._store, asked.reader, self._inventory, now_s)
            incident = window.incident(asked.incident)
            advisor = self._advisor(incident)
            before = [
                (other.text, other.answer)
                for other in self._questions.of(asked.incident)
                if other.number < asked.number and not other.is_open and other.may_be_read_by(asked.reader)
            ]
            allowance = self._allowance_of(asked, advisor)
            save(*advisor.answer(incident, asked.text, window, before, allowance, save))
        except Temporary as error:
            # the row stays as it is, and is taken up again
            self._log.warning("answer delayed", incident=asked.incident, error=str(error))
            self._stop.wait(POLL_S)
        except Exception:  # noqa: BLE001  a defect of ours must not leave a person waiting
            self._log.exception("answer crashed", incident=asked.incident)
            with suppress(Temporary, Permanent):
                failed = Answer(_S.FAILED, note=f"there is no answer: {Failure.DEFECT.says}")
                self._questions.answered(asked, failed, asked.tokens, asked.usd)
        finally:
            with self._mutex:
                self._answering.discard(asked.number)
            self._wake.set()

    def _allowance_of(self, asked: Question, advisor: Advisor) -> Allowance | str:
        """What an answer may take, or why no model is asked; nobody waits for a server that does not answer."""
        if advisor.investigate is None:
            return ""
        model = advisor.investigate.model
        if model.rests_s > 0:
            return "the language model's server did not answer just now: these lines bear the question's words"
        allowance = self._allowance(asked.incident, model.settings)
        if isinstance(allowance, Allowance) and allowance.tokens >= MIN_TOKENS:
            return allowance
        return "the language model's tokens or money are used up: these lines bear the question's words"

    # One reading ------------------------------------------------------------------------------------------------

    def _read(self, row: ToRead, incident: Incident, advisor: Advisor, allowance: Allowance) -> None:
        """On a thread of its own. Its result is in the store; nothing is raised out of it."""

        def save(reading: Reading, spent: ModelSpending, final: bool = False) -> None:
            # after the end of the daemon, or under another leader, the row is not ours to write
            if not self._stop.is_set() and self._leads():
                usd = row.usd + spent.usd(settings)
                self._store.save_reading(
                    row.incident, row.diagnosis, reading, row.tokens + spent.tokens, usd, final=final
                )

        assert advisor.investigate is not None
        settings = advisor.investigate.model.settings
        # a reading of an earlier diagnosis counts its own requests
        mine = row.state is not None
        earlier = incident.reading
        if earlier is not None and not mine:
            earlier = replace(earlier, asked=0, lines=())
        try:
            reading, spent = advisor.read(incident, earlier, allowance, save)
            save(reading, spent, True)
        except (Temporary, Permanent) as error:
            self._log.warning("reading failed", incident=row.incident, error=str(error))
        except Exception:  # noqa: BLE001  the page keeps what the rules said, whatever happens here
            self._log.exception("reading crashed", incident=row.incident)
            with suppress(Temporary, Permanent):
                note = f"the language model added nothing: {Failure.DEFECT.says}; the rules' diagnosis remains"
                failed = earlier or Reading(_S.FAILED, "")
                save(replace(failed, state=_S.FAILED, note=note, asked=MAX_ASKED), ModelSpending(), True)
        finally:
            with self._mutex:
                self._running.discard(row.diagnosis)
            self._wake.set()
