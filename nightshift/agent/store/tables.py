"""The tables that hold incidents, approvals, intents and the audit log. `agent/store/migrations` creates them.

JSON columns are text in canonical JSON (`agent.store.records`), so that what was hashed is what is stored. Times
are Unix seconds in the daemon's clock; only `leases` uses the database's own clock.
"""

from __future__ import annotations

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, LargeBinary, MetaData, Table, Text

metadata = MetaData()

incidents = Table(
    "incidents",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("opened_s", Float, nullable=False),
    Column("updated_s", Float, nullable=False),
    Column("entered_s", Float, nullable=False, doc="when the present state was entered"),
    Column("moved_by", Text, doc="the cause of the last move"),
    Column("clear_since_s", Float, doc="every finding is clear since then; null: one is firing or has no data"),
    Column("news", Integer, nullable=False, doc="1: a fault was attached that the diagnosis has not seen"),
    Column("attempt", Integer, nullable=False, doc="counts plans; keys actions and stages"),
    Column("version", Integer, nullable=False, doc="rises with every move: compare-and-set"),
    Column("diagnosis", Integer, doc="number of the current diagnosis"),
    Column("cause", Text),
    Column("plan_sha256", Text, doc="of the current plan"),
    Column("action_kind", Text),
    Column("expires_s", Float, doc="of the current plan"),
    Column("approval_rule", Text, doc="of the current plan, when it was proposed"),
    Column("stage_runs", Integer, nullable=False, doc="runs of the present stage: part of the next one's key"),
    Column("stage_failures", Integer, nullable=False, doc="those that failed and may be tried again"),
    Column("due_s", Float, doc="the present stage is not tried again before"),
    Column("waited_s", Float, nullable=False, server_default="0", doc="waited in the present state, up to due_s"),
    Column("runner", Text, doc="which stage run holds the incident"),
    Column("runner_term", Integer, doc="the leader's term in which it took it"),
    # the lifecycle asks for due rows several times a second
    Index("incidents_by_state", "state", "expires_s", "clear_since_s"),
    sqlite_autoincrement=True,
)

findings = Table(
    "findings",
    metadata,
    Column("incident", ForeignKey("incidents.number"), primary_key=True),
    Column("episode", Text, primary_key=True),
    Column("detector", Text, nullable=False),
    Column("fault", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("since_s", Float, nullable=False),
    Column("last_seen_s", Float, nullable=False),
    Column("changed_s", Float, nullable=False, doc="when the state last changed"),
    Column("diagnosed", Integer, nullable=False, doc="1: its fault was known to the current diagnosis"),
    Column("body", Text, nullable=False),
    Index("findings_by_episode", "episode"),
)

steps = Table(
    "steps",
    metadata,
    Column("incident", ForeignKey("incidents.number"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("at_s", Float, nullable=False),
    Column("before", Text),
    Column("after", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("note", Text, nullable=False),
)

diagnoses = Table(
    "diagnoses",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("incident", ForeignKey("incidents.number"), nullable=False, index=True),
    Column("at_s", Float, nullable=False),
    Column("body", Text, nullable=False),
    sqlite_autoincrement=True,
)

readings = Table(
    "readings",
    metadata,
    Column("diagnosis", ForeignKey("diagnoses.number"), primary_key=True),
    Column("incident", ForeignKey("incidents.number"), nullable=False),
    Column("at_s", Float, nullable=False, doc="when it was last written"),
    Column("state", Text, nullable=False, doc="waiting, reading, done or failed"),
    Column("tokens", Integer, nullable=False, doc="spent on it so far, both ways: the budgets count by these"),
    Column("usd", Float, nullable=False),
    Column("body", Text, nullable=False),
    Index("readings_by_incident", "incident"),
    Index("readings_by_time", "at_s"),
)

questions = Table(
    "questions",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("incident", ForeignKey("incidents.number"), nullable=False),
    Column("at_s", Float, nullable=False),
    Column("by", Text, nullable=False),
    Column("channel", Text, nullable=False, doc="cli, api, console or slack"),
    Column("text", Text, nullable=False),
    Column("reach", Text, doc="JSON list of the namespaces that the answer may mention; null: all"),
    Column("state", Text, nullable=False, doc="waiting, reading, done or failed"),
    Column("tokens", Integer, nullable=False, doc="spent on it so far: the budgets count by these"),
    Column("usd", Float, nullable=False),
    Column("body", Text, nullable=False, doc="the answer"),
    Index("questions_by_incident", "incident"),
    Index("questions_by_state", "state", "at_s"),
    sqlite_autoincrement=True,
)

reports = Table(
    "reports",
    metadata,
    Column("episode", Text, primary_key=True),
    Column("at_s", Float, nullable=False, doc="when it was last told of"),
    Column("body", Text, nullable=False, doc="the finding, until a look has placed it"),
)

tenancies = Table(
    "tenancies",
    metadata,
    Column("incident", ForeignKey("incidents.number"), primary_key=True),
    Column("namespace", Text, primary_key=True, doc="namespaces of the jobs that the incident touches"),
    Index("tenancies_by_namespace", "namespace", "incident"),
)

plans = Table(
    "plans",
    metadata,
    Column("incident", ForeignKey("incidents.number"), primary_key=True),
    Column("plan_sha256", Text, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("at_s", Float, nullable=False),
    Column("reason", Text, nullable=False),
    Column("body", Text, nullable=False),
)

approvals = Table(
    "approvals",
    metadata,
    Column("incident", ForeignKey("incidents.number"), primary_key=True),
    Column("plan_sha256", Text, primary_key=True),
    Column("person", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("channel", Text, nullable=False),
    Column("at_s", Float, nullable=False),
    Column("expires_s", Float, nullable=False),
    Column("groups", Text, nullable=True),
)

intents = Table(
    "intents",
    metadata,
    Column("action_id", Text, primary_key=True),
    Column("phase", Text, primary_key=True, doc="act or undo"),
    Column("incident", ForeignKey("incidents.number"), nullable=False, index=True),
    Column("plan_sha256", Text, nullable=False),
    Column("at_s", Float, nullable=False),
    Column("runner", Text, nullable=False),
    Column("ended_s", Float),
    Column("outcome", Text),
)

controls = Table(
    "controls",
    metadata,
    Column("name", Text, primary_key=True, doc="halt"),
    Column("at_s", Float, nullable=False),
    Column("by", Text, nullable=False),
    Column("body", Text, nullable=False),
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False, doc="power or scheduling"),
    Column("at_s", Float, nullable=False),
    Column("mode", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("chance", Float, nullable=False, doc="that the executed action was the policy's"),
    Column("treated", Integer, nullable=False, doc="1: it was"),
    Column("fallback", Integer, nullable=False, doc="1: the baseline proposed, since the policy could not"),
    Column("reward", Float, doc="what came of it; null: not known yet"),
    Column("slowdown", Float),
    Column("violated", Integer),
    Column("void", Text, doc="why its outcome will never be known"),
    Column("body", Text, nullable=False, doc="the receipt"),
    # evidence for a promotion is read by kind and mode since a time
    Index("decisions_by_kind", "kind", "mode", "at_s"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("term", Integer, nullable=False, doc="rises with every change of holder: the fencing token"),
    Column("expires_s", Float, nullable=False, doc="in the database's clock"),
)

memberships = Table(
    "memberships",
    metadata,
    Column("child", Text, primary_key=True),
    Column("parent", Text, primary_key=True),
    Column("since_s", Float, primary_key=True),
    Column("until_s", Float, doc="null: still, as far as was seen"),
)

kept = Table(
    "kept",
    metadata,
    Column("name", Text, primary_key=True, doc="e.g. detector/ecc or cursor/node_log n1"),
    Column("at_s", Float, nullable=False),
    Column("content", LargeBinary, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("incident", Integer, index=True),
    Column("record", Text, nullable=False, doc="canonical JSON, with the hash of the record before"),
    Column("sha256", Text, nullable=False),
)

audit_head = Table(
    "audit_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", Integer, nullable=False),
    Column("sha256", Text, nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("key", Text, primary_key=True, doc="e.g. INC-7/card, storm/C1/1700000000 or pagerduty/INC-7/page"),
    Column("outlet", Text, nullable=False, doc="slack, pagerduty, jira or the like; empty for a round"),
    Column("kind", Text, nullable=False, doc="card, thread, storm, proposal; page, shown; round; ticket"),
    Column("incident", ForeignKey("incidents.number"), index=True),
    Column("channel", Text, nullable=False, doc="the chat's; of a ticket its project; else empty"),
    Column("thread", Text, doc="timestamp of the message that it replies to; of a ticket its key"),
    Column("ts", Text, doc="the chat's name for it; null: not there, as far as is known"),
    Column("shows", Text, doc="hash of the message, or phase of the alert, as the outlet shows it; null: not sent"),
    Column("tried_s", Float, doc="wall time of a send without an answer so far"),
    Column("told_s", Float, doc="wall time of the last answer"),
    Column("watch_until_s", Float, doc="wall time until which a second copy may still turn up"),
    Column("posted_s", Float, doc="when it was first shown"),
    Column("steps", Integer, nullable=False, doc="length of the history when it was first shown"),
    Column("seen_s", Float, doc="card, round: incidents.updated_s that is shown; null: not all know"),
    Column("seen_version", Integer, doc="card, round: incidents.version that is shown"),
    Column("held_until_s", Float, doc="card, round: not told before: quiet hours, a silence or maintenance"),
    Column("storm", Text, doc="key of the storm's message that stands for it"),
    Column("snoozed_until_s", Float),
    Column("reminders", Integer, nullable=False),
    Column("turn", Integer, nullable=False, doc="page, shown: counts the times that a person was newly needed"),
    Column("severity", Text, doc="page, shown: when it was first told: an alert is known by it"),
    Column("due_s", Float, doc="page: wall time at which this turn became due: failover counts from it"),
    Column(
        "withdrawn", Integer, nullable=False, doc="1: another outlet took its page over; a person closed the ticket"
    ),
    Index("deliveries_by_channel", "channel", "kind", "posted_s"),
    Index("deliveries_by_outlet", "outlet", "shows", "told_s"),
)

vendor_files = Table(
    "vendor_files",
    metadata,
    Column("incident", ForeignKey("incidents.number"), primary_key=True),
    Column("action_id", Text, primary_key=True),
    Column("name", Text, primary_key=True, doc="empty: nothing was collected, and why"),
    Column("at_s", Float, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("content", LargeBinary, nullable=False, doc="redacted, gzip"),
)

returns = Table(
    "returns",
    metadata,
    Column("incident", ForeignKey("incidents.number"), primary_key=True),
    Column("gpu", Text, primary_key=True, doc="UUID of the unit that left service"),
    Column("node", Text, nullable=False),
    Column("slot", Text, nullable=False, doc="its place in the node; empty: not known"),
    Column("vendor", Text, nullable=False, doc="who made the server, as its firmware says; empty: not known"),
    Column("fault", Text, nullable=False),
    Column("out_s", Float, nullable=False),
    Column("replaced_by", Text, doc="UUID of the unit in its place; null: not seen yet"),
    Column("replaced_s", Float),
    Column("back_s", Float, doc="the node takes work with a unit in that place; null: not yet"),
    Column("serial", Text, doc="serial number of the unit that left; null: not known"),
    Column("new_serial", Text, doc="serial number of the unit in its place; null: not known"),
    Column("qualified_by", Text, doc="probe or person; null: not yet"),
    Index("returns_by_end", "back_s", "out_s"),
)

silences = Table(
    "silences",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("matcher", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at_s", Float, nullable=False),
    Column("until_s", Float, nullable=False),
    sqlite_autoincrement=True,
)

sessions = Table(
    "sessions",
    metadata,
    Column("id_sha256", Text, primary_key=True, doc="of the cookie's value, which is kept nowhere"),
    Column("person", Text, nullable=False),
    Column("how", Text, nullable=False, doc="token or oidc"),
    Column("groups", Text, nullable=False, doc="JSON list of what the identity provider said"),
    Column("provider_subject", Text, doc="the identity provider's `sub`"),
    Column("provider_session", Text, doc="and its `sid`, for back-channel logout"),
    Column("since_s", Float, nullable=False, doc="wall time of the sign-in"),
    Column("proved_s", Float, nullable=False, doc="wall time at which the person last proved who they are"),
    Column("until_s", Float, nullable=False),
    Index("sessions_by_person", "person"),
)

goodput = Table(
    "goodput",
    metadata,
    Column("start_s", Float, primary_key=True),
    Column("span_s", Float, primary_key=True, doc="an hour; a day once it is a week old"),
    Column("account", Text, primary_key=True),
    Column("job", Text, primary_key=True, doc="empty: no job held it"),
    Column("node", Text, primary_key=True, doc="empty: of a job that waits"),
    Column("cause", Text, primary_key=True, doc="a fault or what a job says; empty: none is known"),
    Column("incident", Text, primary_key=True),
    Column("team", Text, nullable=False, doc="the job's namespace"),
    Column("gpu_s", Float, nullable=False),
    Index("goodput_by_team", "team", "start_s"),
)
