"""Rolling back: an earlier program refuses a newer schema in words; the newer one takes the schema back for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.agent.clock import SteppedClock
from nightshift.agent.store import tables
from nightshift.agent.store.database import Database, StoreUnusable, schemas
from nightshift.agent.store.incident_store import Store
from tests.agent.incidents import a_finding

URLS = pytest.mark.parametrize("kind", ["sqlite", "postgresql"])


@pytest.fixture
def url(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/store.sqlite"
    return str(request.getfixturevalue("postgres_url"))


@URLS
def test_each_schema_is_taken_back_and_up_again_and_incidents_and_the_audit_log_stay(url: str) -> None:
    """For every earlier schema that this program knows."""
    store = Store(url, SteppedClock(1000.0))
    name = store.open_incident("leak", [a_finding()])
    store.close()
    for earlier in reversed(schemas()[:-1]):
        database = Database(url, migrate=False)
        assert database.downgrade(earlier) == schemas()[-1]
        assert database.schema() == earlier
        with database.engine.connect() as connection:
            kept = connection.execute(sa.select(sa.func.count()).select_from(tables.audit)).scalar_one()
        assert kept > 0
        database.close()
        again = Store(url, SteppedClock(1000.0))
        assert again.incident(name).title == "leak"
        assert again.audit.verify().ok
        again.close()


@URLS
def test_a_schema_that_an_earlier_program_does_not_know_is_refused_with_the_way_back(url: str) -> None:
    database = Database(url)
    with database.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreUnusable, match=rf"newer than this program.*store downgrade {schemas()[-1]}"):
        Database(url)
    with pytest.raises(StoreUnusable, match="no way from schema 9999"):
        database.downgrade("0001")
    database.close()


def test_the_command_takes_it_back_and_says_what_comes_next(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    Database(url).close()
    config = tmp_path / "nightshift.yaml"
    config.write_text(f"store: {{url: '{url}'}}\nstate_dir: {tmp_path}\n")
    run = CliRunner().invoke
    done = run(app, ["store", "downgrade", "0001", "--config", str(config)])
    assert (done.exit_code, "-> 0001" in done.output) == (0, True)
    assert "schema 0001" in run(app, ["store", "version", "--config", str(config)]).output
    assert Database(url, migrate=False).schema() == "0001"
    refused = run(app, ["store", "downgrade", "0042", "--config", str(config)])
    assert refused.exit_code != 0
