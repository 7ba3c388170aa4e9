"""What deciding from the command line needs of the configuration: the store, approval rules and people.

`agent.settings` reads the whole configuration and loads every plug-in, which takes seconds. `nightshift approve`
reads these settings alone, so a mistake elsewhere in the file does not block a decision. For a mistake in these,
the error message is that of `agent.settings`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from nightshift.agent import former_settings
from nightshift.agent.approvals.people import Settings as PeopleSettings
from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.config_file import read


def default_state_dir() -> Path:
    """`/var/lib/nightshift` for root, else the user's state directory (XDG base directory specification)."""
    if os.geteuid() == 0:
        return Path("/var/lib/nightshift")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "nightshift"


class StoreSettings(BaseModel):
    """Where incidents are kept."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(
        "",
        description="`sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`; empty: nightshift.db in `state_dir`. "
        "More than one replica needs PostgreSQL",
    )


# Once for both classes, so that none has another default or name for them.
StateDir = Annotated[
    Path,
    Field(default_factory=default_state_dir, description="Folder for the SQLite file and the console's key"),
]
Store = Annotated[StoreSettings, Field(default_factory=StoreSettings, description="Where incidents are kept")]
ApprovalRules = Annotated[
    ApprovalSettings,
    Field(default_factory=ApprovalSettings, description="Approval rules: who must approve what"),
]
People = Annotated[
    PeopleSettings, Field(default_factory=PeopleSettings, description="Who may do what, who owns what")
]


class FileAndEnvironment(BaseSettings):
    """Settings of a file, each of which the environment may override (`NIGHTSHIFT_STORE__URL`)."""

    model_config = SettingsConfigDict(extra="forbid", env_prefix="NIGHTSHIFT_", env_nested_delimiter="__")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The environment comes first: a Deployment overrides one field of a file that it mounts. No .env files:
        # what a folder happens to hold must not configure a daemon.
        return env_settings, init_settings


def store_url(store: StoreSettings, state_dir: Path) -> str:
    """The database's URL: as configured, or the SQLite file of the state directory."""
    return store.url or f"sqlite:///{state_dir / 'nightshift.db'}"


class GateSettings(FileAndEnvironment):
    """The store and who may decide; the rest of a configuration is not looked at."""

    model_config = SettingsConfigDict(extra="ignore")

    state_dir: StateDir
    approval: ApprovalRules
    store: Store
    people: People

    @model_validator(mode="before")
    @classmethod
    def _of_today(cls, values: dict[str, Any]) -> Any:
        mine = {name: value for name, value in values.items() if name in cls.model_fields}
        former = frozenset(at for at, _ in former_settings.found(mine))
        return former_settings.moved(former_settings.without(mine, former))

    @property
    def store_url(self) -> str:
        return store_url(self.store, self.state_dir)


def load(path: Path | None = None) -> GateSettings:
    """These settings of a file (none: defaults) and the environment. Raises ConfigError, naming every place."""
    try:
        return GateSettings(**(read(path).values if path is not None else {}))
    except (ValidationError, SettingsError):
        from nightshift.agent.settings import load as load_everything

        load_everything(path)
        raise
