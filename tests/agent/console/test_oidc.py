"""Sign-in through an identity provider: the whole way in a real browser, and every check seen to hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import OctKey
from playwright.sync_api import Page, expect

from nightshift.agent.approvals.people import Directory, Owner
from nightshift.agent.approvals.people import Settings as People
from nightshift.agent.approvals.policy import ApprovalSettings, Role
from nightshift.agent.console.oidc import BACK_CHANNEL
from nightshift.agent.console.server import Server
from nightshift.agent.console.sessions import cookie_name, end_sessions
from nightshift.agent.console.settings import OidcSettings, Settings
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.incident import IncidentState
from nightshift.controllers.action import ActionKind
from tests.agent.oidc_provider import CLIENT, SECRET, Claims, OidcProvider, User
from tests.agent.story import Story

COOKIE = cookie_name(secure=False)
ADA, MIA, EVE = User("ada@example.org", ("sre",)), User("mia@example.org", ("sft-leads",)), User("eve@example.org")
PEOPLE = People(
    groups={"sre": Role.APPROVER},
    owners=(Owner(team="sft", namespaces=("sft",), groups={"sft-leads": Role.APPROVER}),),
)


class House:
    """A console, its provider, and clocks that can be moved apart."""

    def __init__(self, folder: Path, **oidc: Any) -> None:
        self.ahead_s = 0.0
        self.provider = OidcProvider({user.email: user for user in (ADA, MIA, EVE)})
        self.provider.start()
        secret = folder / "client.secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        self.story = Story(folder)
        self.story.gate.policy = ApprovalSettings(fresh_sign_in=frozenset({ActionKind.RESTART_POD}))
        parts = replace(
            self.story.parts,
            directory=Directory(PEOPLE),
            wall_s=lambda: time.time() + self.ahead_s,
        )
        # the address has to be known before the server is built: a free port is looked for first
        probe = Server(build_console(parts, Settings()), "127.0.0.1", 0)
        port = probe.port
        probe.stop()
        self.url = f"http://127.0.0.1:{port}"
        settings = Settings(
            public_url=self.url,
            oidc=OidcSettings(issuer=self.provider.issuer, client_id=CLIENT, client_secret_file=secret, **oidc),
        )
        self.server = Server(build_console(parts, settings), "127.0.0.1", port)
        self.server.start()

    def close(self) -> None:
        self.server.stop()
        self.provider.stop()
        self.story.store.close()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, follow_redirects=False)

    def through(self, web: httpx.Client, user: User, start: str = "/sign-in/oidc", **tamper: str) -> httpx.Response:
        """Signs in without a browser: to the provider and back; `tamper` changes what comes back."""
        there = web.get(start)
        asked = {name: values[0] for name, values in parse_qs(urlsplit(there.headers["location"]).query).items()}
        back = httpx.post(f"{self.provider.issuer}/login", data=asked | {"user": user.email})
        answer = {n: v[0] for n, v in parse_qs(urlsplit(back.headers["location"]).query).items()} | tamper
        return web.get("/oidc/callback", params={name: value for name, value in answer.items() if value})


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


@pytest.fixture(scope="module")
def _standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("house"))
    yield house
    house.close()


@pytest.fixture
def liar(_standing: House) -> Iterator[House]:
    """A house that stands for the whole module; its provider tells the truth again after each test."""
    yield _standing
    provider = _standing.provider
    provider.lie, provider.header, provider.now_s = (lambda claims: claims), {}, time.time
    provider.sign_with = provider.keys[0]


@pytest.fixture
def web(house: House) -> Iterator[httpx.Client]:
    with house.client() as client:
        yield client


def test_a_person_signs_in_by_browser_and_again_to_approve(page: Page, house: House) -> None:
    """The provider's session signs in silently; a plan that asks for a fresh sign-in asks the person again."""
    incident_id = house.story.tell()
    house.ahead_s = -400.0  # the first sign-in will be older than the policy's five minutes
    house.provider.now_s = lambda: time.time() + house.ahead_s
    page.goto(f"{house.url}/incidents/{incident_id}")
    page.get_by_role("link", name="Sign in with single sign-on").click()
    page.get_by_label("User").fill(MIA.email)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{house.url}/incidents/{incident_id}")
    expect(page.locator("header.bar")).to_contain_text(MIA.email)
    house.ahead_s = 0.0
    page.reload()
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    page.get_by_role("link", name="Sign in again to approve").click()
    page.get_by_label("User").fill(MIA.email)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("#said")).to_contain_text("Approved: restart_pod")
    assert house.provider.logins == 2
    (approval,) = house.story.gate.approvals(incident_id)
    assert (approval.person, approval.role) == (MIA.email, Role.APPROVER)
    page.get_by_role("button", name=MIA.email).click()
    expect(page.locator("#said")).to_contain_text("You are signed out")
    page.goto(f"{house.url}/incidents")
    page.wait_for_url("**/sign-in**")


def test_an_old_sign_in_does_not_approve_even_by_a_forged_form(house: House, web: httpx.Client) -> None:
    """The server judges the age of the sign-in; the page's missing button is not the defence."""
    incident_id = house.story.tell()
    house.ahead_s = -400.0
    house.provider.now_s = lambda: time.time() + house.ahead_s
    house.through(web, ADA)
    house.ahead_s = 0.0
    action = house.story.store.incident(incident_id).action
    assert action is not None
    form = _form(web)
    web.post(f"/incidents/{incident_id}/approve", data={"form": form, "plan": action.plan_sha256})
    assert "sign in again" in web.get(f"/incidents/{incident_id}").text
    assert house.story.store.incident(incident_id).state is IncidentState.AWAITING_APPROVAL


def test_a_provider_that_does_not_ask_again_gives_no_fresh_sign_in(house: House, web: httpx.Client) -> None:
    """`prompt=login` can be ignored; `auth_time` shows it."""
    house.provider.ignores_prompt = True
    house.provider.lie = lambda claims: claims | {"auth_time": int(time.time()) - 3600}
    answer = house.through(web, ADA, "/sign-in/oidc?fresh=true")
    assert (answer.status_code, COOKIE in web.cookies) == (403, False)
    assert "did not ask you again" in answer.text


def test_without_auth_time_nobody_is_freshly_signed_in(house: House, web: httpx.Client) -> None:
    """An ordinary sign-in works without the claim, and counts as of unknown age; a fresh one needs it."""
    house.provider.lie = lambda claims: {name: v for name, v in claims.items() if name != "auth_time"}
    assert house.through(web, ADA).status_code == 303
    assert house.through(web, ADA, "/sign-in/oidc?fresh=true").status_code == 403


def test_a_fresh_sign_in_has_to_be_as_strong_as_the_settings_say(tmp_path: Path) -> None:
    """Where `acr_values` are set, a fresh sign-in with another `acr` is refused."""
    house = House(tmp_path, acr_values=("mfa",))
    with house.client() as web:
        assert house.through(web, ADA, "/sign-in/oidc?fresh=true").status_code == 403
        house.provider.acr = "mfa"
        assert house.through(web, ADA, "/sign-in/oidc?fresh=true").status_code == 303
    house.close()


def _other_key(house: House) -> None:
    house.provider.sign_with = house.provider.other_key()


def _with_our_secret(house: House) -> None:
    house.provider.sign_with = OctKey.import_key(SECRET)
    house.provider.header = {"alg": "HS256", "kid": house.provider.keys[0].kid}


def _lie(**claims: Any) -> Callable[[House], None]:
    def tell(house: House) -> None:
        def lie(told: Claims) -> Claims:
            return {name: value for name, value in (told | claims).items() if value is not None}

        house.provider.lie = lie

    return tell


NOW = int(time.time())
LIES: dict[str, Callable[[House], None]] = {
    "signed by a key that is not the provider's": _other_key,
    "signed by the client secret": _with_our_secret,
    "another issuer": _lie(iss="https://evil.example"),
    "another audience": _lie(aud="other"),
    "several audiences without azp": _lie(aud=[CLIENT, "other"]),
    "made for another party": _lie(azp="other"),
    "expired": _lie(exp=NOW - 3600),
    "no expiry": _lie(exp=None),
    "made long ago": _lie(iat=NOW - 7200, exp=NOW + 7200),
    "from the future": _lie(iat=NOW + 3600, exp=NOW + 7200),
    "not yet valid": _lie(nbf=NOW + 3600),
    "another sign-in's nonce": _lie(nonce="x"),
    "no nonce": _lie(nonce=None),
    "no subject": _lie(sub=""),
    "an unverified address": _lie(email_verified=False),
    "an address that is not called verified": _lie(email_verified=None),
    "no address": _lie(email=None),
    "an address with a line break": _lie(email="ada@example.org\nX: y"),
    "a sign-in of the future": _lie(auth_time=NOW + 7200),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_token_that_is_not_right_signs_nobody_in(liar: House, lie: str) -> None:
    """Each claim and signature is checked: the answer is 403 and no session, until the provider tells the truth."""
    with liar.client() as web:
        LIES[lie](liar)
        answer = liar.through(web, ADA)
        assert (answer.status_code, COOKIE in web.cookies) == (403, False), answer.text
        liar.provider.lie, liar.provider.header = (lambda claims: claims), {}
        liar.provider.sign_with = liar.provider.keys[0]
        assert liar.through(web, ADA).status_code == 303


def test_an_unsigned_token_signs_nobody_in(house: House, web: httpx.Client) -> None:
    """`alg: none` is no algorithm that is taken."""
    honest = house.provider.sign
    house.provider.sign = lambda user, claims: _unsigned(honest(user, claims))  # type: ignore[method-assign]
    assert house.through(web, ADA).status_code == 403


def _unsigned(token: str) -> str:
    return f"eyJhbGciOiJub25lIn0.{token.split('.')[1]}."


@pytest.mark.parametrize(
    "tamper", [{"state": "x" * 43}, {"state": ""}, {"code": "other"}, {"iss": "https://evil.example"}, {"iss": ""}]
)
def test_an_answer_that_is_not_of_this_sign_in_is_refused(liar: House, tamper: dict[str, str]) -> None:
    """State, code and issuer (RFC 9207) each have to be those of the sign-in that this browser began."""
    with liar.client() as web:
        answer = liar.through(web, ADA, **tamper)
        assert (answer.status_code, COOKIE in web.cookies) == (403, False)


def test_another_browsers_answer_signs_nobody_in(house: House, web: httpx.Client) -> None:
    """Login CSRF: an attacker's callback link, opened in a victim's browser, is worth nothing; nor is it twice."""
    there = web.get("/sign-in/oidc")
    asked = {name: values[0] for name, values in parse_qs(urlsplit(there.headers["location"]).query).items()}
    back = httpx.post(f"{house.provider.issuer}/login", data=asked | {"user": EVE.email}).headers["location"]
    with house.client() as victim:
        assert victim.get(back).status_code == 403
        victim.get("/sign-in/oidc")  # with a sign-in of their own under way
        assert victim.get(back).status_code == 403
    assert web.get(back).status_code == 303
    assert web.get(back).status_code == 403


def test_the_verifier_never_leaves_this_browser_and_the_code_alone_is_worth_nothing(
    house: House, web: httpx.Client
) -> None:
    """PKCE: the provider refuses a code whose verifier is another's."""
    asked = parse_qs(urlsplit(web.get("/sign-in/oidc").headers["location"]).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert len(asked["code_challenge"][0]) == 43
    assert "verifier" not in str(asked)


def test_keys_rotate_without_anybody_noticing(house: House, web: httpx.Client) -> None:
    """An unknown key is asked for once; a flood of tokens with unknown keys asks no more often than every 10 s."""
    assert house.through(web, ADA).status_code == 303
    calls = house.provider.key_calls
    house.ahead_s = 11.0
    house.provider.rotate()
    assert house.through(web, ADA).status_code == 303
    assert house.provider.key_calls == calls + 1
    house.provider.sign_with = house.provider.other_key()
    for _ in range(3):
        assert house.through(web, ADA).status_code == 403
    assert house.provider.key_calls == calls + 1


@pytest.mark.parametrize(("off_s", "status"), [(55, 303), (-55, 303), (-700, 403), (120, 403)])
def test_clocks_may_be_a_minute_apart(liar: House, off_s: float, status: int) -> None:
    """The skew of the settings is allowed and no more."""
    liar.provider.now_s = lambda: time.time() + off_s
    with liar.client() as web:
        assert liar.through(web, ADA).status_code == status


def test_a_provider_that_calls_itself_otherwise_is_not_used(house: House, web: httpx.Client) -> None:
    """The discovery document's issuer has to be the configured one, and its endpoints no less safe."""
    house.provider.lie_discovery = {"issuer": "https://evil.example"}
    assert web.get("/sign-in/oidc").status_code == 503
    house.provider.lie_discovery = {"authorization_endpoint": "javascript:alert(1)"}
    assert web.get("/sign-in/oidc").status_code == 503


def test_the_provider_signs_people_out(house: House, web: httpx.Client) -> None:
    """Back-channel logout ends the session at the next request; a token that is no logout token ends nothing."""
    house.through(web, ADA)
    post = f"{house.url}{BACK_CHANNEL}"
    for wrong in (
        house.provider.sign(ADA, {"sid": "session-1"}),
        house.provider.logout_token(ADA, nonce="x"),
        "x.y.z",
    ):
        assert httpx.post(post, data={"logout_token": wrong}).status_code == 400
    assert web.get("/incidents").status_code == 200
    assert httpx.post(post, data={"logout_token": house.provider.logout_token(ADA)}).status_code == 200
    assert web.get("/incidents").headers["location"].startswith("/sign-in")


def test_who_is_removed_is_out_at_the_next_click(house: House, web: httpx.Client) -> None:
    """`nightshift sign-out` ends sessions; a person without a role is told so and sees nothing."""
    house.through(web, ADA)
    assert end_sessions(house.story.store.database, " ADA@example.org ") == 1
    assert web.get("/incidents").status_code == 303
    house.through(web, EVE)
    answer = web.get("/incidents")
    assert (answer.status_code, "have no role yet" in answer.text) == (403, True)


def test_a_session_id_from_before_the_sign_in_is_worth_nothing(house: House, web: httpx.Client) -> None:
    """Session fixation: the id that a browser brings is never taken over, and the old session ends."""
    planted = "A" * 43
    web.cookies.set(COOKIE, planted)
    house.through(web, ADA)
    first = [c.value for c in web.cookies.jar if c.name == COOKIE][-1]
    assert first not in (None, planted)
    with house.client() as thief:
        thief.cookies.set(COOKIE, planted)
        assert thief.get("/incidents").status_code == 303
        web.cookies.clear()
        web.cookies.set(COOKIE, str(first))
        house.through(web, MIA)
        thief.cookies.clear()
        thief.cookies.set(COOKIE, str(first))
        assert thief.get("/incidents").status_code == 303


def test_a_sign_in_ends_in_time(house: House, web: httpx.Client) -> None:
    """A session lasts as long as the settings say; one that was begun and not finished, ten minutes."""
    house.through(web, ADA)
    house.ahead_s = 3601.0
    assert web.get("/incidents").status_code == 303


def _form(web: httpx.Client) -> str:
    found = web.get("/incidents").text.partition('name="form" value="')[2]
    return found.partition('"')[0]
