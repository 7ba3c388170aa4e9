"""The fixtures give real parts: a database of one's own, a Prometheus that scrapes, a browser that renders."""

from __future__ import annotations

import json
import urllib.request

import psycopg
import pytest
from playwright.sync_api import Page

from tests.conftest import PrometheusFactory


@pytest.mark.parametrize("attempt", [1, 2])
def test_each_test_has_an_empty_postgresql_database(postgres_url: str, attempt: int) -> None:
    """A table made by one test is not there in the next, on a real server that keeps what it is told."""
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        connection.execute("CREATE TABLE mine (x integer)")
        connection.execute("INSERT INTO mine VALUES (%s)", (attempt,))
        assert connection.execute("SELECT x FROM mine").fetchall() == [(attempt,)]


def test_prometheus_comes_back_with_its_data(prometheus_server: PrometheusFactory) -> None:
    """A stopped server refuses connections; the same one started again answers queries."""
    server = prometheus_server("global: {scrape_interval: 1s}\n")
    server.stop()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{server.url}/-/ready", timeout=1)
    server.start()
    with urllib.request.urlopen(f"{server.url}/api/v1/query?query=vector(7)", timeout=60) as answer:
        assert json.load(answer)["data"]["result"][0]["value"][1] == "7"


def test_chromium_renders(page: Page) -> None:
    """The browser fixture lays out a page and runs its script."""
    page.set_content("<h1>night</h1><script>document.querySelector('h1').append('shift')</script>")
    assert page.inner_text("h1") == "nightshift"
