"""The configuration: one YAML file, overridden by environment variables, assembled from every room's own settings.

A setting lives beside what it configures (`class Settings` in the plug-in's or room's file); this file only says
where each stands in the YAML. `NIGHTSHIFT_STORE__URL` overrides `store: {url: …}`, and so on for every field.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_settings import SettingsError

from nightshift.agent import former_settings
from nightshift.agent.approvals.scoreboard import Settings as AutonomySettings
from nightshift.agent.config_file import ConfigError, Document, explain, place, read
from nightshift.agent.console.settings import Settings as ConsoleSettings
from nightshift.agent.gate_settings import ApprovalRules, FileAndEnvironment, People, StateDir, Store, store_url
from nightshift.agent.incidents.retention import Settings as KeepingSettings
from nightshift.agent.incidents.stages import LifecycleSettings
from nightshift.agent.notify.outlets.settings import Settings as OutletSettings
from nightshift.agent.notify.slack.settings import Settings as SlackSettings
from nightshift.agent.notify.tickets.settings import Settings as TicketSettings
from nightshift.agent.rca.log_stores import LogStoreSettings
from nightshift.agent.rca.model import ModelSettings
from nightshift.agent.rca.redact import Settings as RedactSettings
from nightshift.agent.store.election import Settings as ElectionSettings
from nightshift.collectors.http import HttpSettings
from nightshift.collectors.kubernetes.agent_pods import Settings as NodeAgentSettings
from nightshift.collectors.kubernetes.api import AccessSettings
from nightshift.collectors.kubernetes.nodes_and_pods import LabelSettings
from nightshift.collectors.plugins import ALL as COLLECTORS
from nightshift.collectors.shared_settings import stated
from nightshift.collectors.slurm import SLURM
from nightshift.collectors.slurm.client import SlurmAccess
from nightshift.collectors.training.signal_names import SignalNames
from nightshift.collectors.training.workload import WorkloadRule
from nightshift.controllers.actuators.kubernetes import DrainSettings
from nightshift.controllers.actuators.plugins import ALL as ACTUATORS
from nightshift.controllers.guard import Settings as GuardSettings
from nightshift.controllers.playbooks.ladder import RepairLadder
from nightshift.controllers.playbooks.plan import Economy
from nightshift.controllers.power.settings import PowerSettings
from nightshift.controllers.scheduling.settings import SchedulingSettings
from nightshift.detectors.alarms.budget import BudgetSettings
from nightshift.detectors.plugins import ALL as DETECTORS
from nightshift.kernels.profile.trigger import Settings as KernelSettings


class Plugin(Protocol):
    """What a plug-in's class says of itself."""

    plugin: ClassVar[str]
    Settings: ClassVar[type[BaseModel]]


def _entry(plugins: Sequence[type[Plugin]]) -> Any:
    """The type of one entry of a list of plug-ins: each one's own settings, told apart by `type`."""
    models: list[Any] = []
    for plugin in plugins:
        # `Literal[name]` in an annotation takes constants alone; this makes the same type from a value.
        kind: Any = (Literal.__getitem__(plugin.plugin), Field(description=f"`{plugin.plugin}`"))
        name = f"{plugin.__name__}Entry"
        models.append(create_model(name, __base__=plugin.Settings, __doc__=_first_line(plugin), type=kind))
    # pydantic refuses a discriminator over a union of one.
    return models[0] if len(models) == 1 else Annotated[reduce(or_, models), Field(discriminator="type")]


def _each(plugins: Sequence[type[Plugin]]) -> type[BaseModel]:
    """One optional field per detector: its settings; and which do not run."""
    names: Any = Literal.__getitem__(tuple(plugin.plugin for plugin in plugins))
    disabled: Any = (frozenset[names], Field(frozenset(), description="Detectors that do not run"))
    fields: dict[str, Any] = {"disabled": disabled}
    for plugin in plugins:
        model = create_model(f"{plugin.__name__}Entry", __base__=plugin.Settings, __doc__=_first_line(plugin))
        fields[plugin.plugin] = (model, Field(default_factory=model, description=_first_line(plugin)))
    return create_model(
        "Detectors", __config__=ConfigDict(extra="forbid"), __doc__="One entry per detector.", **fields
    )


def _first_line(plugin: type[Plugin]) -> str:
    """What its docstring says before the example, which is for readers of the code."""
    return (plugin.__doc__ or plugin.plugin).strip().splitlines()[0]


if TYPE_CHECKING:
    # mypy cannot follow types that are made from a table of plug-ins.
    SourceEntry: TypeAlias = BaseModel
    ActuatorEntry: TypeAlias = BaseModel
    DetectorEntries: TypeAlias = BaseModel
else:
    SourceEntry = _entry(COLLECTORS)
    ActuatorEntry = _entry(ACTUATORS)
    DetectorEntries = _each(DETECTORS)


class LogSettings(BaseModel):
    """The daemon's own log, on standard error."""

    model_config = ConfigDict(extra="forbid")

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is written")
    format: Literal["text", "json"] = Field("text", description="`json` for log collectors")


def _is_zone(zone: str) -> str:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"{zone!r} is not a time zone of the IANA database") from error
    return zone


_BLOCKS = (
    *("node_agents", "labels", "workload", "signal_names", "node_names", "node_name", "pull_secrets"),
    *("trial_namespaces", "time_zone", "proxy", "drain", "slurm"),
)


def _of(block: Any, name: str) -> Any:
    """A field of a block, in a file's values or in settings that were made already."""
    return block.get(name) if isinstance(block, Mapping) else getattr(block, name, None)


def _shared(values: Mapping[str, Any]) -> dict[str, Any]:
    """What parts of a configuration take from its shared blocks. What is wrong in a block counts as not given: the
    block's own field names the mistake, and the parts need not repeat it."""

    def valid(kind: Any, value: Any) -> Any:
        with suppress(ValidationError):
            return TypeAdapter(kind).validate_python(value)
        return None

    shared: dict[str, Any] = {}
    for name in _BLOCKS:
        if (value := valid(Settings.model_fields[name].annotation, values.get(name))) is not None:
            shared[name] = value
    kinds: Mapping[str, type[BaseModel]] = {"connections": HttpSettings, "kubernetes": AccessSettings}
    for name, kind in kinds.items():
        given = values.get(name) if isinstance(values.get(name), Mapping) else {}
        shared[name] = {key: valid(kind, value) or kind() for key, value in (given or {}).items()}
    shared["kubernetes"].setdefault("pod", AccessSettings())
    if "workload" in shared:
        shared["workload.namespace"] = shared["workload"].namespace
    shared["power.max_w"] = valid(float, _of(values.get("power"), "max_w")) or PowerSettings().max_w
    url = _of(values.get("console"), "public_url")
    return shared | {"console.public_url": url if isinstance(url, str) else ""}


class Settings(FileAndEnvironment):
    """Everything that can be configured."""

    cluster: str = Field("cluster", min_length=1, max_length=200, description="Name of the cluster, for messages")
    state_dir: StateDir
    tick_s: float = Field(5.0, gt=0, le=3600, description="Time between two detection ticks (s)")
    connections: dict[str, HttpSettings] = Field(
        default_factory=dict, description="Credentials and TLS by name; sources refer to one as `connection`"
    )
    kubernetes: dict[str, AccessSettings] = Field(
        default_factory=dict,
        description="Access to the Kubernetes API by name; parts refer to one as `access`. `pod` is always there: "
        "the pod's service account",
    )
    node_agents: NodeAgentSettings | None = Field(
        None, description="Where the node agents (`nightshift node`) run as pods"
    )
    labels: LabelSettings = Field(
        default_factory=LabelSettings, description="What the cluster calls its GPUs, racks and NVLink domains"
    )
    workload: WorkloadRule = Field(
        default_factory=WorkloadRule, description="How names tell jobs and ranks, for sources without Kubernetes"
    )
    signal_names: SignalNames = Field(
        default_factory=SignalNames, description="Metrics and tags of your own trainer"
    )
    node_names: dict[str, str] = Field(
        default_factory=dict, description="Node name by address of a page, for pages that do not say it"
    )
    node_name: str = Field(
        default_factory=socket.gethostname, description="This machine's name as a node; none: its host name"
    )
    pull_secrets: tuple[str, ...] = Field(
        (), description="Secrets with the registry's credentials, for the Jobs of repairs and searches"
    )
    trial_namespaces: frozenset[str] = Field(
        frozenset(), description="Namespaces with owners' consent to randomised trials of a policy"
    )
    time_zone: Annotated[str, AfterValidator(_is_zone)] = Field(
        "UTC", description="IANA time zone of maintenance windows and quiet hours, e.g. Europe/Zurich"
    )
    proxy: str = Field("", description="HTTP proxy for calls to Slack, PagerDuty and Opsgenie")
    drain: DrainSettings = Field(default_factory=DrainSettings, description="What a drain may do to pods")
    slurm: SlurmAccess = Field(default_factory=SlurmAccess, description="How Slurm's commands are found")
    sources: tuple[SourceEntry, ...] = Field(
        (), description="Where telemetry comes from; none: this machine's GPUs and kernel log"
    )
    detectors: DetectorEntries = Field(default_factory=DetectorEntries, description="Settings per detector")
    budget: BudgetSettings = Field(
        default_factory=BudgetSettings, description="How many false pages a week may cost"
    )
    actuators: tuple[ActuatorEntry, ...] = Field(
        (), description="What may change the world; none: Nightshift proposes and cannot act"
    )
    economy: Economy = Field(default_factory=Economy, description="What time costs on this cluster")
    ladder: RepairLadder = Field(
        default_factory=RepairLadder,
        description="How often a repair is tried on one device before the next harder one",
    )
    redact: RedactSettings = Field(
        default_factory=RedactSettings, description="What is taken out of evidence besides secrets"
    )
    llm: ModelSettings = Field(
        default_factory=ModelSettings,
        description="A language model that investigates beside the rules; none: rules",
    )
    runbooks: tuple[str, ...] = Field(
        (), description="Folders and git URLs of Markdown: runbooks and post-mortems to search and to quote"
    )
    log_stores: tuple[LogStoreSettings, ...] = Field(
        (), description="Loki and Elasticsearch, for look-ups of a model and of questions"
    )
    guard: GuardSettings = Field(
        default_factory=GuardSettings, description="What no plan may exceed, whoever approves"
    )
    approval: ApprovalRules
    autonomy: AutonomySettings = Field(
        default_factory=AutonomySettings,
        description="Approval history that a kind needs before it runs automatically",
    )
    keeping: KeepingSettings = Field(
        default_factory=KeepingSettings, description="How long incidents, evidence and the audit log are kept"
    )
    lifecycle: LifecycleSettings = Field(
        default_factory=LifecycleSettings, description="How incidents are carried through"
    )
    kernels: KernelSettings = Field(
        default_factory=KernelSettings, description="When a search for a faster kernel is proposed"
    )
    power: PowerSettings = Field(
        default_factory=PowerSettings,
        description="Control of GPUs' power limits; off, and a shadow when switched on",
    )
    scheduling: SchedulingSettings = Field(
        default_factory=SchedulingSettings,
        description="Order of waiting jobs; off, and a shadow when switched on",
    )
    replica: str = Field(
        "nightshift-0", min_length=1, max_length=100, description="Stable name of this replica, e.g. of its pod"
    )
    election: ElectionSettings = Field(
        default_factory=ElectionSettings, description="How a leader is found among several replicas"
    )
    store: Store
    people: People
    slack: SlackSettings = Field(default_factory=SlackSettings, description="Slack")
    outlets: OutletSettings = Field(
        default_factory=OutletSettings, description="PagerDuty, Opsgenie and Alertmanager: who is paged, by which"
    )
    ticketing: TicketSettings | None = Field(None, description="Jira, ServiceNow or a webhook for tickets")
    console: ConsoleSettings = Field(default_factory=ConsoleSettings, description="The web console")
    log: LogSettings = Field(default_factory=LogSettings, description="The daemon's own log")
    _former: tuple[tuple[former_settings.Field, str], ...] = PrivateAttr(())
    _moves: tuple[tuple[former_settings.Field, former_settings.SettingMove], ...] = PrivateAttr(())
    _warnings: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _without_former(cls, values: Any, handler: ModelWrapValidatorHandler[Settings]) -> Settings:
        """Takes former settings out of the file's and the environment's values, and remembers where they are."""
        former = tuple(former_settings.found(values))
        moves = tuple(former_settings.moves(values))
        values = former_settings.moved(former_settings.without(values, frozenset(at for at, _ in former)))
        with stated(_shared(values)):
            settings = handler(values)
        settings._former, settings._moves = former, moves
        return settings

    @model_validator(mode="after")
    def _sees_the_slurm_that_it_acts_on(self) -> Settings:
        # who manages a node is a fact that the source tells: without it every plan would go to Kubernetes
        acts, sees = ({getattr(entry, "type", "") for entry in part} for part in (self.actuators, self.sources))
        if SLURM in acts - sees:
            raise ValueError("actuators: `slurm` acts on what a source of type `slurm` reads: add one to `sources`")
        return self

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to change about each former setting, and what of Slurm this machine lacks."""
        reads = any(getattr(entry, "type", "") == SLURM for entry in self.sources)
        lacks = self.slurm.missing() if reads else ()
        return (*self._warnings, *(f"slurm.{what} on this machine" for what in lacks))

    @property
    def store_url(self) -> str:
        return store_url(self.store, self.state_dir)


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of a file (none: defaults) and the environment. Raises ConfigError, naming every place."""
    # A document in either case, so that errors of the environment are explained alike.
    document = Document(Path("settings"), {}) if path is None else read(path)
    environ = os.environ if environ is None else environ
    try:
        settings = Settings(**document.values)
    except ValidationError as error:
        schema = Settings.model_json_schema()
        found = document.followed(former_settings.new_places(document.values)) if path else None
        raise ConfigError(explain(error.errors(), found, schema, environ)) from error
    except SettingsError as error:
        raise ConfigError([f"environment: {error}: {error.__cause__}"]) from error
    from_file = document if path else None
    settings._warnings = tuple(
        former_settings.warning(place(at, from_file, environ), where)
        for at, where in settings._former
        # A block is said by its fields, each of which has a constant to name.
        if where != former_settings.BLOCK
    ) + tuple(former_settings.advice(place(at, from_file, environ), row) for at, row in settings._moves)
    return settings
