"""Commands by which a person decides do not load what they have no use for: each library is time at 3 a.m."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nightshift.agent.clock import SteppedClock
from nightshift.agent.gate_settings import GateSettings
from nightshift.agent.settings import Settings
from nightshift.agent.store.database import Database, schemas
from nightshift.agent.store.incident_store import Store

_PLUGINS = (
    *("nightshift.detectors.plugins", "nightshift.collectors.plugins"),
    "nightshift.controllers.actuators.plugins",
)
_NEVER = (
    *("alembic", "kubernetes", "dbos", "scipy", "pynvml", "fastapi", "opentelemetry", "langchain_core"),
    *_PLUGINS,
)
_OF_A_STORE = ("sqlalchemy", "psycopg", "numpy", "nightshift.agent.approvals.gate")
_RUN = """
import json, sys
from typer.testing import CliRunner
from nightshift.agent.__main__ import app
answer = CliRunner().invoke(app, sys.argv[1:])
print(json.dumps([str(answer.exception), sorted(sys.modules)]))
"""


def loaded_by(arguments: list[str], environ: dict[str, str]) -> tuple[str, set[str]]:
    """How a command ends, and every module that it has loaded by then."""
    command = [sys.executable, "-c", _RUN, *arguments]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=True)
    ended, modules = json.loads(done.stdout.splitlines()[-1])
    return ended, set(modules)


@pytest.mark.parametrize("where", ["on the store", "by token"])
def test_approve_loads_no_plug_in_and_what_migrates_a_store_only_to_migrate(tmp_path: Path, where: str) -> None:
    """Until the answer of a gate that has no such incident; by token not even what a store needs."""
    Store(f"sqlite:///{tmp_path}/nightshift.db", SteppedClock(0.0)).close()
    (tmp_path / "token").write_text("t")
    environ = {"NIGHTSHIFT_STATE_DIR": str(tmp_path)}
    if where == "by token":
        environ |= {"NIGHTSHIFT_API": "http://127.0.0.1:9", "NIGHTSHIFT_TOKEN_FILE": str(tmp_path / "token")}
    ended, modules = loaded_by(["approve", "INC-7"], environ)
    assert ("does not answer" if where == "by token" else "there is no INC-7") in ended
    unwanted = (*_NEVER, "httpx", "psycopg") if where == "on the store" else (*_NEVER, *_OF_A_STORE)
    assert [name for name in unwanted if name in modules] == []


def test_what_a_decision_reads_of_the_configuration_is_what_the_daemon_reads() -> None:
    """Same default, same words, same name; a mistake in another part keeps nobody from deciding."""
    for name, field in GateSettings.model_fields.items():
        assert repr(field) == repr(Settings.model_fields[name])
    read = GateSettings.model_validate({"sources": "nonsense", "people": {"roles": {"ann": "approver"}}})
    assert read.people.roles == {"ann": "approver"}


def test_the_newest_schema_by_name_is_that_of_the_migrations(tmp_path: Path) -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    import nightshift.agent.store

    config = Config()
    config.set_main_option("script_location", str(Path(nightshift.agent.store.__file__).parent / "migrations"))
    script = ScriptDirectory.from_config(config)
    assert schemas() == sorted(entry.revision for entry in script.walk_revisions())
    database = Database(f"sqlite:///{tmp_path}/new.db")
    assert database.schema() == script.get_current_head() == schemas()[-1]
    database.close()
