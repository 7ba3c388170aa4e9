"""Attacks on the console: each fails, and each succeeds once its defence is taken away, so no test here is
hollow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from jinja2 import Environment
from starlette.testclient import TestClient

from nightshift.agent.console import api, defence, entrance, sessions, site
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import ProxySettings, Settings
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.incident import IncidentState
from tests.agent.story import TOKEN, Story

HOSTILE = "</pre><script>alert(1)</script>"
PLANTED = "P" * 43


class Target:
    """A console to attack, with an incident that waits, and a person signed in who is the victim."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.story = Story(folder)
        self.incident = self.story.tell()
        action = self.story.store.incident(self.incident).action
        assert action is not None
        self.plan = action.plan_sha256
        self.settings = Settings(**settings)
        self.app = build_console(self.story.parts, self.settings)
        self.victim = self.client()

    def client(self) -> TestClient:
        return TestClient(
            self.app, base_url="http://127.0.0.1", follow_redirects=False, raise_server_exceptions=False
        )

    def sign_in(self) -> str:
        self.victim.post("/sign-in", data={"token": TOKEN})
        found = re.search(r'name="form" value="([0-9a-f]+)"', self.victim.get("/").text)
        return found[1] if found else ""

    @property
    def approved(self) -> bool:
        return self.story.store.incident(self.incident).state is not IncidentState.AWAITING_APPROVAL

    def close(self) -> None:
        self.story.store.close()


@pytest.fixture
def aim(tmp_path: Path) -> Iterator[Callable[..., Target]]:
    made: list[Target] = []

    def aimed(**settings: Any) -> Target:
        made.append(Target(tmp_path, **settings))
        return made[-1]

    yield aimed
    for target in made:
        target.close()


Aim = Callable[..., Target]


@dataclass(frozen=True)
class Attack:
    """`succeeds` attacks; `disarm` takes the one defence away."""

    succeeds: Callable[[Aim], bool]
    disarm: Callable[[pytest.MonkeyPatch], None]


def _posted_by_another_site(aim: Aim) -> bool:
    """CSRF: the victim's browser is made to post; the form's token has somehow become known."""
    target = aim()
    form = target.sign_in()
    target.victim.post(
        f"/incidents/{target.incident}/approve",
        data={"form": form, "plan": target.plan},
        headers={"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    )
    return target.approved


def _posted_without_the_forms_token(aim: Aim) -> bool:
    """CSRF by a browser that says nothing of where a request comes from."""
    target = aim()
    target.sign_in()
    target.victim.post(f"/incidents/{target.incident}/approve", data={"form": "0" * 64, "plan": target.plan})
    return target.approved


def _called_with_a_cookie_alone(aim: Aim) -> bool:
    """CSRF on the JSON API."""
    target = aim()
    target.sign_in()
    target.victim.post(
        f"{api.PREFIX}/incidents/{target.incident}/approve", json={"plan_sha256": target.plan}
    )  # fmt: skip
    return target.approved


def _markup_in_a_title(aim: Aim) -> bool:
    """XSS through what telemetry says: titles, quotes, notes and reasons."""
    target = aim()
    store = target.story.store
    name = store.open_incident(HOSTILE, [target.story.finding()], note=HOSTILE)
    store.save_diagnosis(store.incident(name), target.story.diagnosis(quote=HOSTILE), by=HOSTILE)
    pages = [target.victim.get(path).text for path in ("/", "/incidents", f"/incidents/{name}", "/audit")]
    return any(HOSTILE in page for page in pages)


def _markup_in_an_address(aim: Aim) -> bool:
    """Reflected XSS: an error page that repeats what was asked for."""
    target = aim()
    paths = ("/gpus/<script>alert(1)<", "/incidents/<script>alert(1)<", "/sign-in?next=/<script>alert(1)<")
    return any("<script>alert" in target.victim.get(path).text for path in paths)


def _led_away(aim: Aim) -> bool:
    """Open redirect: the page after the sign-in is the attacker's."""
    target = aim()
    wanted = ("//evil.example/", "/\\evil.example", "https://evil.example/", "/\t/evil.example", "javascript:x")
    places = [
        target.client().post("/sign-in", data={"token": TOKEN, "next": place}).headers["location"]
        for place in wanted
    ]
    return any(place != "/" for place in places)


def _fixed_session(aim: Aim) -> bool:
    """Session fixation: the attacker plants an id in the victim's browser and uses it after the sign-in."""
    target = aim(behind_tls=False, host="0.0.0.0")
    name = sessions.cookie_name(secure=False)
    target.victim.cookies.set(name, PLANTED)
    target.victim.post("/sign-in", data={"token": TOKEN})
    thief = target.client()
    thief.cookies.set(name, PLANTED)
    return thief.get("/incidents").status_code == 200


def _session_after_sign_out(aim: Aim) -> bool:
    """A stolen cookie that is used after its owner has signed out."""
    target = aim(host="0.0.0.0")
    target.victim.post("/sign-in", data={"token": TOKEN})
    found = re.search(r'name="form" value="([0-9a-f]+)"', target.victim.get("/").text)
    assert found is not None
    name = sessions.cookie_name(secure=False)
    stolen = target.victim.cookies[name]
    target.victim.post("/sign-out", data={"form": found[1]})
    thief = target.client()
    thief.cookies.set(name, stolen)
    return thief.get("/incidents").status_code == 200


def _climbed_out_of_the_folder(aim: Aim) -> bool:
    """Path traversal: files of the program through the static folder."""
    target = aim()
    paths = ("/static/../site.py", "/static/%2e%2e/site.py", "/static/..%2fsite.py", "/static/..%5csite.py")
    return any("class Site" in target.victim.get(path).text for path in paths)


def _more_fields_than_asked(aim: Aim) -> bool:
    """Mass assignment: a body that also says who approves, in which role, and until when."""
    target = aim()
    body = {"plan_sha256": target.plan, "person": "boss", "role": "admin", "expires_s": 9e12}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = target.client().post(
        f"{api.PREFIX}/incidents/{target.incident}/approve", json=body, headers=headers
    )  # fmt: skip
    return answer.status_code == 200


def _enormous_body(aim: Aim) -> bool:
    """A body of 8 MB without a length that is announced."""
    target = aim()
    chunks = (b"x" * 65_536 for _ in range(128))
    return target.client().post("/sign-in", content=chunks).status_code != 413


def _another_hosts_name(aim: Aim) -> bool:
    """DNS rebinding: a site points its name at the console and reads it as its own."""
    answers = [
        aim().client().get("/", headers={"Host": "evil.example"}),
        aim(host="0.0.0.0", public_url="http://nightshift.example")
        .client()
        .get("/sign-in", headers={"Host": "evil.example"}),
    ]
    return any(answer.status_code == 200 for answer in answers)


def _framed(aim: Aim) -> bool:
    """Clickjacking: an answer that another site may put into a frame."""
    target = aim()
    answers = [target.victim.get(path) for path in ("/", "/sign-in", "/nowhere", "/static/console.css", "/healthz")]
    answers.append(target.victim.get("/", headers={"Host": "evil.example"}))
    return any("frame-ancestors 'none'" not in a.headers.get("content-security-policy", "") for a in answers)


def _named_by_nobodys_proxy(aim: Aim) -> bool:
    """A header that only the proxy may set, sent by somebody who is not the proxy."""
    target = aim(host="0.0.0.0", proxy=ProxySettings(addresses=("10.9.9.9",)))
    server = Server(target.app, "127.0.0.1", 0)
    server.start()
    try:
        headers = {"X-Forwarded-Email": "root@example.org", "X-Forwarded-For": "10.9.9.9"}
        return httpx.get(f"{server.url}/incidents", headers=headers).status_code == 200
    finally:
        server.stop()


def _guessed_cookie(aim: Aim) -> bool:
    """A database that is read by somebody gives no session: the cookie's value is not in it."""
    target = aim(host="0.0.0.0")
    target.victim.post("/sign-in", data={"token": TOKEN})
    with target.story.store.database.read() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM sessions").all()
    thief = target.client()
    for value in (str(cell) for row in rows for cell in row):
        thief.cookies.set(sessions.cookie_name(secure=False), value)
        if thief.get("/incidents").status_code == 200:
            return True
    return False


def _unescaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "Environment", lambda **kw: Environment(**(kw | {"autoescape": False})))


def _believing_uvicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = uvicorn.Config
    monkeypatch.setattr(
        "nightshift.agent.console.server.uvicorn.Config",
        lambda app, **kw: honest(app, **(kw | {"proxy_headers": True, "forwarded_allow_ips": "*"})),
    )


def _forgetting_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions.Doorkeeper, "end", lambda self, session: None)


def _taking_over_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    _forgetting_nothing(monkeypatch)
    monkeypatch.setattr(sessions.secrets, "token_urlsafe", lambda n: PLANTED)


def _naming_ids_openly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "sha256_hex", lambda content: content.decode())


def _taking_any_field(monkeypatch: pytest.MonkeyPatch) -> None:
    loose = type("Approve", (api.BaseModel,), {"__annotations__": {"plan_sha256": str}})
    monkeypatch.setattr(api, "Approve", loose)
    monkeypatch.setitem(api.Api.approve.__annotations__, "body", loose)


def _set(owner: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


ATTACKS = {
    "CSRF, another site": Attack(_posted_by_another_site, _set(defence, "_from_our_pages", lambda request: True)),
    "CSRF, no token": Attack(
        _posted_without_the_forms_token, _set(sessions.Doorkeeper, "form_is_ours", lambda *_: True)
    ),
    "CSRF on the API": Attack(
        _called_with_a_cookie_alone, _set(sessions.Doorkeeper, "form_is_ours", lambda *_: True)
    ),
    "stored XSS": Attack(_markup_in_a_title, _unescaped),
    "reflected XSS": Attack(_markup_in_an_address, _unescaped),
    "open redirect": Attack(_led_away, _set(entrance, "local", lambda path: path)),
    "session fixation": Attack(_fixed_session, _taking_over_ids),
    "session after sign-out": Attack(_session_after_sign_out, _forgetting_nothing),
    "session from the database": Attack(_guessed_cookie, _naming_ids_openly),
    "path traversal": Attack(
        _climbed_out_of_the_folder,
        lambda m: m.setattr("starlette.staticfiles.os.path.commonpath", lambda paths: str(list(paths)[-1])),
    ),
    "mass assignment": Attack(_more_fields_than_asked, _taking_any_field),
    "huge body": Attack(_enormous_body, _set(defence, "MOST_BYTES", 1 << 40)),
    "host header": Attack(_another_hosts_name, _set(defence, "_hosts", lambda settings: None)),
    "clickjacking": Attack(_framed, lambda m: m.delitem(defence.HEADERS, "Content-Security-Policy")),
    "forged proxy": Attack(_named_by_nobodys_proxy, _believing_uvicorn),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_the_attack_fails(name: str, aim: Aim) -> None:
    assert not ATTACKS[name].succeeds(aim)


@pytest.mark.parametrize("name", ATTACKS)
def test_without_its_defence_the_attack_succeeds(name: str, aim: Aim, monkeypatch: pytest.MonkeyPatch) -> None:
    ATTACKS[name].disarm(monkeypatch)
    assert ATTACKS[name].succeeds(aim)


def test_a_token_in_an_address_signs_nobody_in(aim: Aim) -> None:
    """Addresses end up in logs and histories: no query parameter is ever read as a credential."""
    target = aim(host="0.0.0.0")
    for path in (f"/sign-in?token={TOKEN}", f"/incidents?token={TOKEN}", f"{api.PREFIX}/me?access_token={TOKEN}"):
        web = target.client()
        web.get(path)
        assert not web.cookies
        assert web.get("/incidents").status_code == 303


@pytest.mark.parametrize(
    "body",
    ["[" * 30_000, '{"a":' * 12_000, '{"note": 1e999}', '{"note": "\\ud800"}', "NaN", "", '{"note": null}', "\x00"],
)
def test_a_json_bomb_is_a_mistake_of_the_callers(aim: Aim, body: str) -> None:
    """Deep nesting, odd numbers, lone surrogates: an answer of the 400s, and the daemon goes on."""
    target = aim()
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    answer = target.client().post(f"{api.PREFIX}/incidents/INC-1/close", content=body, headers=headers)
    assert 400 <= answer.status_code < 500, answer.text
    assert target.client().get("/healthz").status_code == 200


def test_what_was_sent_is_not_repeated_in_an_error(aim: Aim) -> None:
    """A mistyped request with a secret in it leaves no copy in the answer."""
    secret = "hunter2" * 100
    answer = aim().client().post("/sign-in", data={"token": secret})
    assert answer.status_code == 422
    assert "hunter2" not in answer.text
    assert json.loads(answer.text)["detail"][0]["loc"] == ["body", "token"]


def test_cookies_are_for_us_alone(aim: Aim) -> None:
    """Over TLS: __Host-, Secure, HttpOnly, SameSite, for all paths and no domain."""
    target = aim(behind_tls=True, public_url="https://nightshift.example")
    web = TestClient(target.app, base_url="https://nightshift.example", follow_redirects=False)
    cookie = web.post("/sign-in", data={"token": TOKEN}).headers["set-cookie"]
    assert cookie.startswith("__Host-nightshift_session=")
    for part in ("Secure", "HttpOnly", "SameSite=lax", "Path=/"):
        assert part in cookie
    assert "domain" not in cookie.lower()


@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
def test_a_trusted_proxy_names_people_and_they_write_with_the_forms_token(aim: Aim, host: str) -> None:
    """From its address the header counts, with the directory's role; two headers or an odd one count as none. A
    socket of both families tells IPv4 addresses as ::ffff:127.0.0.1."""
    target = aim(host="0.0.0.0", proxy=ProxySettings(addresses=("127.0.0.0/8",)))
    server = Server(target.app, host, 0)
    server.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", follow_redirects=False) as web:
            assert web.get("/incidents").status_code == 303
            who = {"X-Forwarded-Email": "ann@example.org"}
            page = web.get("/incidents", headers=who)
            assert "ann@example.org" in page.text
            form = page.text.partition('name="form" value="')[2].partition('"')[0]
            where, data = f"/incidents/{target.incident}/approve", {"form": form, "plan": target.plan}
            assert web.post(where, data=data).status_code == 401
            assert web.post(where, data=data, headers=who).status_code == 303
            assert not target.approved, "ann is a viewer"
            twice = [("X-Forwarded-Email", "ann@example.org"), ("X-Forwarded-Email", "root@example.org")]
            assert web.get("/incidents", headers=twice).status_code == 303
    finally:
        server.stop()


def test_evidence_is_never_a_page(aim: Aim) -> None:
    """Bytes that somebody else wrote are downloaded, not rendered."""
    target = aim()
    for path in (
        f"/incidents/{target.incident}/evidence/E2",
        f"{api.PREFIX}/incidents/{target.incident}/evidence/E2",
    ):
        answer = target.client().get(path)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_policy_for_content_allows_nothing_inline(aim: Aim) -> None:
    """A strict CSP: our own files alone, no inline script or style, no object, no other base, no other form."""
    policy = aim().client().get("/").headers["content-security-policy"]
    told = dict(part.strip().partition(" ")[::2] for part in policy.split(";"))
    assert told["default-src"] == "'none'"
    assert {told[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == {"'self'"}
    assert "unsafe" not in policy
    assert (told["base-uri"], told["frame-ancestors"]) == ("'none'", "'none'")
