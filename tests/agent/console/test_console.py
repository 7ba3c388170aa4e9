"""The console in a real browser and over real HTTP: what it shows, what it lets through, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.approvals.questions import Questions
from nightshift.agent.console.defence import HEADERS
from nightshift.agent.console.server import Server
from nightshift.agent.console.sessions import cookie_name
from nightshift.agent.console.settings import Settings
from nightshift.agent.console.sign_in import console_key, operator_token
from nightshift.agent.console.site import DaemonHealth
from nightshift.agent.notify.slack.card import card
from nightshift.agent.rca.summary import as_text, summarise
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.diagnosis import LOG, Answer, Claim, Evidence, Predicate, Quote, ReadingState
from nightshift.agent.store.incident import Cause, IncidentState
from nightshift.collectors.base import Permanent
from nightshift.detectors.base import Fault
from tests.agent.incidents import contested
from tests.agent.story import TOKEN, Story

COOKIE = cookie_name(secure=False)
HOSTILE = "</pre><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'\"&{{7*7}}"


@pytest.fixture
def web(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, follow_redirects=False) as client:
        yield client


def sign_in(web: httpx.Client) -> str:
    """Signs in and returns the form token that pages carry."""
    assert web.post("/sign-in", data={"token": TOKEN}).status_code == 303
    found = re.search(r'name="form" value="([0-9a-f]+)"', web.get("/").text)
    assert found is not None
    return found[1]


def test_a_person_signs_in_by_link_reads_and_approves_by_click(page: Page, url: str, story: Story) -> None:
    """From the ready link to an approved plan in three clicks; the gate's answer is shown and the store agrees."""
    incident_id = story.tell()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{url}/sign-in#token={TOKEN}")
    page.wait_for_url(f"{url}/")
    page.get_by_role("link", name=re.compile("Host memory leak in sft-12 rank 4")).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Host memory leak in sft-12 rank 4")
    expect(page.locator("svg.chart .onset").first).to_be_attached()
    expect(page.locator(".plan")).to_contain_text("6.4 GPU-h")
    page.keyboard.press("a")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_contain_text("Approved: restart_pod")
    assert story.store.incident(incident_id).state is IncidentState.APPROVED
    assert [a.person for a in story.gate.approvals(incident_id)] == ["ada"]
    assert said == [], "neither an error nor a refused resource"


def test_single_keys_can_be_switched_off_and_stay_off(page: Page, url: str, story: Story) -> None:
    """WCAG 2.1.4: whoever dictates, or whose hand shakes, is not moved about by a letter."""
    page.goto(f"{url}/incidents")
    button = page.get_by_role("button", name="Single-key shortcuts")
    expect(button).to_have_attribute("aria-pressed", "true")
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "false")
    page.reload()
    expect(button).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("/")
    page.keyboard.press("g")
    assert page.evaluate("document.activeElement.tagName") == "BODY"
    assert page.url.endswith("/incidents")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("g")
    page.wait_for_url(f"{url}/")


def test_an_open_page_follows_the_incident(page: Page, url: str, story: Story) -> None:
    """Somebody else's decision shows without a reload by hand; the buttons are gone."""
    incident_id = story.tell()
    page.goto(f"{url}/sign-in?next=/incidents/{incident_id}#token={TOKEN}")
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    action = story.store.incident(incident_id).action
    assert action is not None
    grace = Person("grace", frozenset({Role.RESPONDER}), "cli")
    assert story.gate.reject(incident_id, action.plan_sha256, grace, "the owner will fix it").ok
    expect(page.locator(".timeline")).to_contain_text("the owner will fix it")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)


def test_a_question_is_asked_on_the_incidents_page_and_its_answer_comes_there(
    page: Page, url: str, story: Story
) -> None:
    incident = story.tell()
    page.goto(f"{url}/sign-in#token={TOKEN}")
    page.wait_for_url(f"{url}/")
    page.goto(f"{url}/incidents/{incident}")
    page.fill("#question", "did the <b>switch</b> fail first?")
    page.click("text=Ask >> nth=-1")
    page.wait_for_selector("#answers article")
    questions = Questions(story.store.database, story.clock)
    (asked,) = questions.of(incident)
    assert (asked.by, asked.channel) == ("ada", "console")
    item = Evidence("E1", "kernel log", "node:n1", 0.0, 1.0, LOG, b"1.0\t<b>port</b> down\n", "log of n1")
    found = (Quote("E1", "<b>port</b> down"),)
    questions.answered(asked, Answer(ReadingState.DONE, found=found, evidence=(item,), note="no model"), 0, 0.0)
    page.wait_for_selector("#answers blockquote")
    assert "<b>port</b> down" in page.inner_text("#answers")
    assert "did the <b>switch</b> fail first?" in page.inner_text("#answers")


def test_text_from_outside_is_never_markup(page: Page, url: str, story: Story) -> None:
    """Labels, log lines and names that try to be HTML or a template are shown as the text that they are."""
    finding = story.finding()
    incident_id = story.store.open_incident(HOSTILE, [finding])
    story.store.save_diagnosis(story.store.incident(incident_id), story.diagnosis(quote=HOSTILE), by=HOSTILE)
    story.store.save_plan(story.store.incident(incident_id), story.action(why=HOSTILE), HOSTILE, by="nightshift")
    story.store.open_incident(HOSTILE, [story.finding(Fault.ANOMALY, story.gpus[0])])
    story.inventory.describe(story.gpus[0], model=HOSTILE, index=HOSTILE)
    story.waiting.append((replace(story.finding(), summary=HOSTILE), HOSTILE))
    for path in ("/", "/incidents", f"/incidents/{incident_id}", "/waiting", "/sources", "/audit"):
        page.goto(url + path)
        assert page.title() != "owned"
        assert page.locator("script:not([src])").count() == 0
        assert page.locator("img").count() == 0
    page.goto(f"{url}/incidents/{incident_id}")
    assert "{{7*7}}" in page.inner_text("main")


def test_alarms_that_wait_are_listed_with_the_reason(page: Page, url: str, story: Story) -> None:
    """Why an alarm is a ticket is a click away from the incidents."""
    story.waiting.append((story.finding(), "the false pages of this week are spent"))
    page.goto(url + "/incidents")
    page.get_by_role("link", name="1 alarm without a page").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("Anonymous memory grew 8.2 GiB/h")
    expect(page.get_by_role("row").nth(1)).to_contain_text("the false pages of this week are spent")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_pages_fit_a_phone_in_both_themes(page: Page, url: str, story: Story, theme: str) -> None:
    """Nothing is wider than a 390 px screen, and text keeps its contrast (WCAG 2.2: at least 4.5 to 1)."""
    incident_id = story.tell()
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": 390, "height": 844})
    story.waiting.append((story.finding(), "the false pages of this week are spent"))
    for path in ("/", f"/incidents/{incident_id}", "/waiting", "/sources", "/kernels"):
        page.goto(url + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    ratio = page.evaluate(
        """() => {
            const probe = document.body.appendChild(document.createElement("p"));
            const light = (name) => {
                probe.style.color = `var(${name})`;
                const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number)
                    .map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const ground = light("--raised");
            const against = (v) => (Math.max(v, ground) + 0.05) / (Math.min(v, ground) + 0.05);
            const names = ["--text", "--soft", "--link", "--accent", "--critical", "--warning"];
            return Math.min(...names.map((name) => against(light(name))));
        }"""
    )
    assert ratio >= 4.5


def test_every_answer_carries_the_security_headers(web: httpx.Client, story: Story) -> None:
    """Pages, errors, redirects, evidence and static files alike."""
    incident_id = story.tell()
    for path in ("/", "/nowhere", f"/incidents/{incident_id}/evidence/E2", "/static/console.css", "/healthz"):
        answer = web.get(path)
        for name in HEADERS:
            assert name.lower() in answer.headers, (path, name)
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_nothing_is_written_without_sign_in_form_token_and_our_own_origin(web: httpx.Client, story: Story) -> None:
    """A stranger, a forged form, another site and a forged cookie each leave the incident as it was."""
    incident_id = story.tell()
    action = story.store.incident(incident_id).action
    assert action is not None
    where, plan = f"/incidents/{incident_id}/approve", action.plan_sha256
    assert web.post(where, data={"form": "0" * 64, "plan": plan}).status_code == 401
    form = sign_in(web)
    assert web.post(where, data={"form": "0" * 64, "plan": plan}).status_code == 403
    foreign = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
    assert web.post(where, data={"form": form, "plan": plan}, headers=foreign).status_code == 403
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}):
        assert web.post(where, data={"form": form, "plan": plan}, headers=headers).status_code == 403
    assert web.get(where).status_code == 405
    cookie = web.cookies[COOKIE]
    web.cookies.clear()
    web.cookies.set(COOKIE, cookie[:-1] + ("0" if cookie[-1] != "0" else "1"))
    assert web.post(where, data={"form": form, "plan": plan}).status_code == 401
    assert story.store.incident(incident_id).state is IncidentState.AWAITING_APPROVAL


def test_a_plan_that_changed_since_the_page_was_loaded_is_not_approved(web: httpx.Client, story: Story) -> None:
    """The form names the plan that was shown, and the answer says to look again."""
    incident_id = story.tell()
    form = sign_in(web)
    answer = web.post(f"/incidents/{incident_id}/approve", data={"form": form, "plan": "f" * 64})
    assert "Reload it and decide again" in web.get(answer.headers["location"]).text
    assert story.store.incident(incident_id).state is IncidentState.AWAITING_APPROVAL


BOOTER = "NVRM: GPU0 kgspExecuteBooterUnloadIfNeeded: failed to execute Booter Unload: 0x62"


def test_a_contested_plan_is_shown_beside_approve_and_confirmed_by_one_more_click(
    web: httpx.Client, story: Story
) -> None:
    incident_id = story.tell()
    contested(story.store, incident_id, BOOTER)
    form = sign_in(web)
    page = web.get(f"/incidents/{incident_id}").text
    plan = page.partition('<aside class="right">')[2].partition("</aside>")[0]
    assert "The reset will fail." in plan
    assert BOOTER in plan
    assert 'name="plan"' in plan, "the quote stands where the button is"
    action = story.store.incident(incident_id).action
    assert action is not None
    said = []
    for _ in range(2):
        answer = web.post(f"/incidents/{incident_id}/approve", data={"form": form, "plan": action.plan_sha256})
        said.append(web.get(answer.headers["location"]).text)
        story.clock.wait_until(story.clock.now_s() + 2.0)
    assert "Approve again to confirm" in said[0]
    assert "Approved: " in said[1]
    assert story.store.incident(incident_id).state is IncidentState.APPROVED


@pytest.mark.parametrize("text", ["fix: kubectl delete node n1", "see https://evil.example/fix for the fix"])
def test_what_can_be_pasted_or_followed_stands_nowhere_beside_approve(
    web: httpx.Client, story: Story, text: str
) -> None:
    """A log's line and a model's words; the evidence itself stays to be read, folded, in its own section."""
    incident_id = story.store.open_incident("a leak", [story.finding()])
    item = Evidence("E1", "log", "", 0.0, 9.0, LOG, f"1.0\t{text}\n2.0\t{text}".encode(), "log of sft-12")
    said, shas = {"pattern": "fix", "times": 2.0}, {"E1": item.sha256}
    claim = Claim("it failed twice", Predicate.REPEATED, ("E1",), (Quote("E1", text),), said, shas)
    told = replace(story.diagnosis(), claims=(claim,), evidence=(item,))
    story.store.save_diagnosis(story.store.incident(incident_id), told, by="rules")
    story.store.save_plan(story.store.incident(incident_id), story.action(), "least disruptive", by="nightshift")
    sign_in(web)
    page = web.get(f"/incidents/{incident_id}").text
    evidence = page.partition('<section id="evidence"')
    beside = evidence[0] + evidence[2].partition("</section>")[2]
    incident = story.store.incident(incident_id)
    shown = [beside, as_text(summarise(incident, story.clock.now_s()))]
    shown.append(str(card(incident, story.clock.now_s(), "", 3600.0)))
    for place in shown:
        assert "kubectl" not in place
        assert "evil.example" not in place
    assert "it holds an address or a command" in beside


def test_the_emergency_stop_shows_everywhere_and_is_lifted_here(web: httpx.Client, story: Story) -> None:
    """Halting takes one click; every page says so until somebody resumes."""
    form = sign_in(web)
    web.post("/halt", data={"form": form})
    assert story.gate.halted().halted
    assert "Emergency stop: no action" in web.get("/incidents").text
    web.post("/resume", data={"form": form})
    assert not story.gate.halted().halted


def test_an_action_whose_outcome_is_unknown_is_resumed_here(web: httpx.Client, story: Story) -> None:
    """The page says what the cluster says of it; one click has it finished."""
    incident_id = story.tell()
    form = sign_in(web)
    plan = story.store.incident(incident_id).action
    assert plan is not None
    web.post(f"/incidents/{incident_id}/approve", data={"form": form, "plan": plan.plan_sha256})
    for cause in (Cause.INTENT_STORED, Cause.OUTCOME_UNKNOWN):
        story.store.move(incident_id, cause, "act", "", story.store.incident(incident_id).version)
    assert "No answer yet" in web.get(f"/incidents/{incident_id}").text
    story.store.remark(story.store.incident(incident_id), Cause.WORLD_READ, "look", "running: drain of node:n1 (x)")
    assert "Running: drain of node:n1 (x)" in web.get(f"/incidents/{incident_id}").text
    web.post(f"/incidents/{incident_id}/resume", data={"form": form, "choice": "finish"})
    assert story.store.incident(incident_id).state is IncidentState.ACTING


@pytest.mark.parametrize(
    "next_page", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:x"]
)
def test_signing_in_leads_nowhere_else(web: httpx.Client, next_page: str) -> None:
    """The page after sign-in is one of ours, whatever the link says."""
    answer = web.post("/sign-in", data={"token": TOKEN, "next": next_page})
    assert answer.headers["location"] == "/"


def test_a_wrong_token_and_an_unknown_host_are_refused(web: httpx.Client) -> None:
    """A guess gets 403 and no cookie; a name that is not ours gets 400, so no site can rebind its name to us."""
    answer = web.post("/sign-in", data={"token": "guess"})
    assert (answer.status_code, answer.cookies.get(COOKIE)) == (403, None)
    assert web.get("/", headers={"Host": "evil.example"}).status_code == 400


def test_reading_needs_a_sign_in_elsewhere_than_on_loopback(story: Story) -> None:
    """A console that listens on all addresses shows strangers the sign-in page alone."""
    story.tell()
    app = build_console(story.parts, Settings(host="0.0.0.0"))
    server = Server(app, "127.0.0.1", 0)
    server.start()
    try:
        for path in ("/", "/incidents", "/incidents/INC-1", "/sources", "/audit", "/gpus/x"):
            answer = httpx.get(server.url + path)
            assert (answer.status_code, answer.headers["location"].startswith("/sign-in")) == (303, True), path
        assert httpx.get(server.url + "/healthz").status_code == 200
    finally:
        server.stop()


def test_health_says_why_not(url: str, story: Story) -> None:
    """An orchestrator reads 503 and a person the reason."""
    assert httpx.get(f"{url}/readyz").json() == {"ready": True, "reasons": []}
    parts = replace(story.parts, health=lambda: DaemonHealth(False, False, ("no look for 61 s",)))
    server = Server(build_console(parts, Settings()), "127.0.0.1", 0)
    server.start()
    try:
        answer = httpx.get(f"{server.url}/healthz")
        assert (answer.status_code, answer.json()["reasons"]) == (503, ["no look for 61 s"])
        assert "no look for 61 s" in httpx.get(server.url).text
    finally:
        server.stop()


def test_unknown_things_are_404_pages(web: httpx.Client) -> None:
    """A wrong incident, GPU, evidence or list says what is missing."""
    for path in ("/incidents/INC-99", "/incidents/x", "/gpus/GPU-no", "/incidents?state=lost", "/incidents?page=0"):
        assert web.get(path).status_code == 404, path
    assert "INC-99" in web.get("/incidents/INC-99").text


def test_a_taken_port_is_said_before_anything_starts(story: Story) -> None:
    """The message names the setting and the address."""
    app = build_console(story.parts, Settings())
    first = Server(app, "127.0.0.1", 0)
    with pytest.raises(Permanent, match=rf"console\.port: cannot listen on 127\.0\.0\.1:{first.port}"):
        Server(app, "127.0.0.1", first.port)
    first.start()
    first.stop()


def test_secrets_are_made_once_and_are_private(tmp_path: Path) -> None:
    """The token and key survive a restart; one that others can read is refused by name."""
    token, key = operator_token(tmp_path), console_key(tmp_path)
    assert (operator_token(tmp_path), console_key(tmp_path)) == (token, key)
    assert (tmp_path / "operator.token").stat().st_mode & 0o777 == 0o600
    (tmp_path / "console.key").chmod(0o644)
    with pytest.raises(Permanent, match=r"console\.key can be read by others"):
        console_key(tmp_path)


def test_the_fleet_marks_the_gpu_behind_a_container(web: httpx.Client, story: Story) -> None:
    """A leak in a container colours the GPU that its pod holds; one without data is not shown as healthy."""
    story.tell()
    html = web.get("/").text
    found = re.findall(r'class="cell (\w+) load\d+" href="[^"]*" title="GPU \d · (GPU-[0-9a-f]+-aaaa)', html)
    cells = {gpu: state for state, gpu in found}
    assert cells[story.gpus[4].name] == "warning"
    assert cells[story.gpus[13].name] == "no_data"
    assert sum(state == "ok" for state in cells.values()) == 14


def test_a_job_wide_fault_touches_all_its_gpus(web: httpx.Client, story: Story) -> None:
    """A diverged loss is the job's: its GPUs are marked as affected, not as broken."""
    job = story.inventory.parents(story.inventory.parents(story.gpus[4], 1.79e9)[1], 1.79e9)[0]
    story.store.open_incident("Loss diverged", [story.finding(Fault.LOSS_DIVERGED, job)])
    assert "cell touched" in web.get("/").text.partition('class="nodes"')[2]


def test_given_secrets_are_taken_as_they_are_and_never_made(tmp_path: Path) -> None:
    """A mounted Secret, which its group may read, serves all replicas; one that is absent or open to all is
    refused."""
    given = tmp_path / "given"
    given.mkdir()
    with pytest.raises(Permanent, match=r"operator\.token: No such file"):
        operator_token(tmp_path, given)
    for name, text in (("operator.token", "t" * 43), ("console.key", "ab" * 32)):
        (given / name).write_text(text)
        (given / name).chmod(0o440)
    assert operator_token(tmp_path, given) == "t" * 43
    assert console_key(tmp_path, given) == bytes.fromhex("ab" * 32)
    (given / "console.key").chmod(0o444)
    with pytest.raises(Permanent, match="mode 0440"):
        console_key(tmp_path, given)
    assert list(tmp_path.iterdir()) == [given]


def test_changed_versions_stand_on_the_timeline_and_the_minority_is_named(web: httpx.Client, story: Story) -> None:
    name = story.store.open_incident("lost", [story.finding(Fault.GPU_LOST, story.gpus[9])])
    sign_in(web)
    timeline = web.get(f"/incidents/{name}").text.partition('class="timeline"')[2]
    assert "565.57.01 → 570.86.10" in timeline.partition("<b>Onset</b>")[0], "it changed a day before"
    assert "Driver changed" in timeline
    assert timeline.count(" changed</b>") == 1
    other = story.store.open_incident("lost", [story.finding(Fault.GPU_LOST, story.gpus[0])])
    assert " changed</b>" not in web.get(f"/incidents/{other}").text, "another node"
    assert "570.86.10" in web.get("/versions").text
