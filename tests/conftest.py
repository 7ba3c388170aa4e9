"""Real parts for tests: PostgreSQL, Prometheus and Chromium, each started here and thrown away afterwards.

A part that is not installed skips its tests with a reason, and fails them where the environment sets CI.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.processes import await_answer, end, free_port

pytest_plugins = [
    "tests.one_thread",
    "tests.in_memory",
    "tests.garbage",
    "tests.collecting",
    "tests.determinism",
    "tests.kubernetes_api.cluster",
    "tests.slurm_lab",
]

_NUMBER = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what runs on a cluster by the fixture that it asks for, so that none is forgotten."""
    for item in items:
        if {"cluster", "tls_cluster"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)


def absent(part: str) -> NoReturn:
    """Ends the test because a real part is missing: a skip for a person, a failure in CI."""
    message = f"{part} is not installed (.ci/debian-packages installs it as root)"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def _postgres_commands() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    if not found:
        absent("PostgreSQL")
    return found[-1].parent


@dataclass(frozen=True)
class PostgresServer:
    """`url`: `postgresql+psycopg://…` without a database at its end. `restart`: at once, as after a crash."""

    url: str
    restart: Callable[[], None]


@pytest.fixture(scope="session")
def postgres_server(postgres: PostgresServer) -> str:
    """The address of a PostgreSQL of our own on loopback, without a database at its end."""
    return postgres.url


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server of a session's tests."""
    commands = _postgres_commands()
    home = Path(tempfile.mkdtemp(prefix="nightshift-pg-"))
    run_as: dict[str, Any] = {}
    if os.getuid() == 0:  # PostgreSQL refuses to run as root
        account = pwd.getpwnam("postgres")
        os.chown(home, account.pw_uid, account.pw_gid)
        run_as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    port, data = free_port(), home / "data"

    def call(*command: str | Path) -> None:
        # into a file, not a pipe: the server inherits pg_ctl's output and a pipe would never close
        with (home / "log").open("w+") as output:
            done = subprocess.run(command, check=False, cwd=home, stdout=output, stderr=output, **run_as)
            output.seek(0)
            assert done.returncode == 0, f"{command[0]}: {output.read()}"

    call(commands / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "--no-locale", "-E", "UTF8")
    options = f"-h 127.0.0.1 -p {port} -k {home} -F -c max_connections=60"
    start = ("-D", data, "-w", "-t", "180", "-o", options, "-l", home / "server.log")
    try:
        call(commands / "pg_ctl", *start, "start")
        yield PostgresServer(
            f"postgresql+psycopg://postgres@127.0.0.1:{port}",
            lambda: call(commands / "pg_ctl", *start, "-m", "immediate", "restart"),
        )
    finally:
        with contextlib.suppress(AssertionError):
            call(commands / "pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty database of its own for each test, on one server for the session."""
    name = f"t{os.getpid()}_{next(_NUMBER)}"
    admin = postgres_server.replace("+psycopg", "") + "/postgres"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')  # type: ignore[arg-type]  # a name we made
    yield f"{postgres_server}/{name}"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')  # type: ignore[arg-type]


@dataclass
class PrometheusServer:
    """A running Prometheus. `stop` and `start` keep its data; `reload` reads the configuration again."""

    url: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await_answer(f"{self.url}/-/ready", self.process)

    def reload(self) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/-/reload", method="POST"), timeout=60)

    def stop(self) -> None:
        if self.process is not None:
            end(self.process)
            self.process = None


PrometheusFactory = Callable[[str], PrometheusServer]


@pytest.fixture
def prometheus_server(tmp_path: Path) -> Iterator[PrometheusFactory]:
    """Starts a real Prometheus per call with the given configuration (YAML text)."""
    binary = shutil.which("prometheus")
    if binary is None:
        absent("Prometheus")
    servers: list[PrometheusServer] = []

    def start(configuration: str) -> PrometheusServer:
        home = tmp_path / f"prometheus{len(servers)}"
        home.mkdir()
        (home / "prometheus.yml").write_text(configuration)
        url = f"127.0.0.1:{free_port()}"
        command = [
            binary,
            f"--config.file={home}/prometheus.yml",
            f"--storage.tsdb.path={home}/data",
            f"--web.listen-address={url}",
            "--web.enable-lifecycle",
            "--log.level=error",
        ]
        server = PrometheusServer(f"http://{url}", command)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


def chromium_path() -> str:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        absent("Chromium")
    return path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser per module: Playwright's event loop runs in the test's thread as long as it lives, and code that
    brings an event loop of its own cannot run beside it. As root, Chromium has no sandbox to offer."""
    expect.set_options(timeout=120_000)
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb"]
    path = chromium_path()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments, timeout=120_000)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page in a fresh context of the system's Chromium."""
    context = chromium.new_context()
    context.set_default_timeout(120_000)
    yield context.new_page()
    context.close()
