"""Writes docs/reference from the code: settings, commands and metrics. `make docs` runs it; a test says when to.

What is generated has no other source, so the reference cannot differ from what the program does.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))
from coverage_rows import coverage_page
from detector_pages import detector_pages
from figures import figures_page
from floors import floors_svg, rooms_table
from kernel_plot import kernels_svg

FOLDER = Path(__file__).resolve().parent / "reference"
_NOTE = "<!-- Written by `make docs` from the code; change it there. -->\n"
_ABOUT_SETTINGS = (
    "One YAML file (`nightshift run --config FILE`). Every field can also be given by an environment variable: "
    "`NIGHTSHIFT_` and its path with `__`, such as `NIGHTSHIFT_STORE__URL`. `nightshift config check FILE` "
    "names every mistake with its line.\n"
)
_ABOUT_DETECTORS = (
    "What each detector finds, what it needs, and the false alarms that it states. *Claim*: the rate is not yet "
    "measured on enough healthy telemetry ([figures](figures.md)); *event*: how often the event itself occurs, "
    "and the share with a fault behind it. [How the rates become pages](../concepts/alarm-budget.md).\n"
)
_SKU_SOURCE = (
    "By NVIDIA's [GPU Memory Error Management](https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html) "
    "and [Dynamic Page Retirement](https://docs.nvidia.com/deploy/dynamic-page-retirement/). Remapped rows cannot "
    "be read while MIG instances are active. Where ECC can be switched off (`nvidia-smi -e 0`) and is, there are "
    "no counts. Each `ecc` alarm tells `signals_seen` and `signals_blind` of its own GPU.\n"
)
_ABOUT_COMMANDS = (
    "`nightshift --version` shows the version and, in a checkout, the commit.\n\n"
    "Each command that has `--json` also has `--output table|json|yaml`. `NO_COLOR=1` turns colours off. "
    "`nightshift --install-completion` completes commands in your shell.\n\n"
    "| exit code | meaning | what to do |\n|---|---|---|\n"
    "| 0 | done, or the answer is yes | |\n"
    "| 1 | the answer is no: refused, not ready, a check failed | read the answer |\n"
    "| 2 | the command or the configuration is wrong | change what standard error names |\n"
    "| 75 | not now: the daemon or its database does not answer | run it again later |\n"
    "| 130 | you pressed Ctrl-C | |\n"
)


def pages() -> dict[str, str]:
    """File name → text."""
    return {
        "settings.md": settings_page(),
        "commands.md": commands_page(),
        "metrics.md": metrics_page(),
        "telemetry.md": telemetry_page(),
        "detectors.md": detectors_page(),
        "coverage.md": _NOTE.replace("the code", "docs/coverage_rows.py") + coverage_page(),
        "figures.md": _NOTE.replace("the code", "benchmarks/results") + figures_page(),
        "../images/kernels.svg": kernels_svg(),
        "../images/floors.svg": floors_svg(),
        "../architecture.md": with_block("architecture.md", "rooms", rooms_table()),
        "../decisions/README.md": with_block("decisions/README.md", "decisions", decisions_table()),
        "../concepts/lifecycle.md": lifecycle_page(),
        "../../helm/nightshift/values.schema.json": chart_schema(),
        "../../nightshift/agent/cli/nightshift.1": man_page(),
    }


def telemetry_page() -> str:
    from nightshift.collectors.telemetry.metrics import table

    return _NOTE + table()


CHARTS_OWN = frozenset(
    {"cluster", "state_dir", "store", "replica", "election", "sources", "actuators", "log", "scheduling", "power"}
)
"""Settings that the chart has values of its own for."""


def chart_schema() -> str:
    """The chart's schema as it stands, with the program's own settings as what `config` may hold."""
    schema = json.loads((FOLDER / "../../helm/nightshift/values.schema.json").read_text())
    from nightshift.agent.settings import Settings

    own = Settings.model_json_schema()
    _accept_former(own)
    fields = {name: field for name, field in own["properties"].items() if name not in CHARTS_OWN}
    power = schema["properties"]["power"]["properties"]
    power["settings"] = {**own["properties"]["power"], "description": power["settings"]["description"]}
    racks = own["$defs"][_named(power["settings"]).pop()]["properties"]["racks"]
    power["racks"] = {**racks, "description": power["racks"]["description"]}
    used: set[str] = set()
    left = _named([fields, power])
    while left:
        used |= left
        left = _named([own["$defs"][name] for name in left]) - used
    schema["properties"]["config"] = {
        "type": "object",
        "description": "The rest of nightshift.yaml, taken as it is (docs/reference/settings.md)",
        "additionalProperties": False,
        "properties": fields,
    }
    schema["$defs"] = {name: own["$defs"][name] for name in sorted(used)}
    _require(schema, yaml.safe_load((FOLDER / "../../helm/nightshift/values.yaml").read_text()))
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _accept_former(own: Any) -> None:
    """Puts former settings into the schema, as deprecated: an upgrade keeps older values."""
    from nightshift.agent.former_settings import GONE, MOVED, REMOVED

    words = dict.fromkeys(REMOVED, "Ignored: the program uses a constant")
    words |= dict.fromkeys(GONE, "Ignored: this part was removed")
    words |= {path: f"Still in effect. Instead, {row.advice}" for path, row in MOVED.items()}
    for path, description in words.items():
        *blocks, name = path.split(".")
        part = own
        for block in blocks:
            part = _block(part, block, own["$defs"])
        if "properties" in part:
            part["properties"].setdefault(name, {"deprecated": True, "description": description})
        elif "enum" in part.get("items", {}):
            part["items"]["enum"].append(name)


def _block(part: Any, name: str, definitions: Mapping[str, Any]) -> Any:
    """A block of the schema; what was a block and is one value today accepts both."""
    field = part.get("additionalProperties") if name == "NAME" else part.get("properties", {}).get(name)
    if field is None:
        return {}
    inside = _target(field, definitions)
    if field.get("type") == "boolean":
        inside = {"type": "object", "properties": {}, "deprecated": True}
        part["properties"][name] = {"anyOf": [{"type": "boolean"}, inside], "description": field["description"]}
    elif "anyOf" in field and inside is field:
        inside = next((option for option in field["anyOf"] if option.get("deprecated")), field)
    return inside


def _require(part: dict[str, object], values: dict[str, object]) -> None:
    """Every value that has a default has to be there: an upgrade with `--reuse-values` keeps an older release's
    defaults, and what is new since would otherwise end as a nil pointer in a template."""
    known = part.get("properties")
    if not isinstance(known, dict):
        return
    part["required"] = [name for name in known if values.get(name) is not None]
    for name, value in values.items():
        if isinstance(value, dict) and name != "config" and name in known:
            _require(known[name], value)


def _named(part: object) -> set[str]:
    """Definitions that a part of a schema refers to."""
    return set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(part)))


def detectors_page() -> str:
    """What each detector promises, in its own words."""
    from nightshift.agent.history.lookback_signals import LOGS, NEEDS
    from nightshift.detectors.alarms.lanes import NEAR_FACTS
    from nightshift.detectors.alarms.promise import LEAST_COMPARED, LEAST_EXPECTED, MOST_RUNS, rates
    from nightshift.detectors.base import RateBasis
    from nightshift.detectors.ecc.sku import page as ecc_sku_page
    from nightshift.detectors.plugins import ALL

    lines = [
        _NOTE,
        "# Detectors\n",
        "[One page each, with a catch and a miss](../detectors/README.md).\n",
        _ABOUT_DETECTORS,
        "| detector | finds | states, per 1,000 series-days | of | basis | where the rate comes from |",
        "|---|---|---|---|---|---|",
    ]
    promised = {kind.plugin: kind().stated for kind in ALL}
    for kind in ALL:
        detector, stated = kind(), promised[kind.plugin]
        basis = "event" if stated.basis is RateBasis.EVENT else "learning on the fleet; the figure is a claim"
        if stated.tail is not None:
            basis = "measured tail" if stated.tail.series_days > 0 else "bound of a model"
        if stated.precision is not None:
            basis += f", precision {stated.precision:.2f}"
        faults = ", ".join(f"`{fault}`" for fault in detector.faults)
        series = ", ".join((stated.series, *stated.also))
        rate = f"{stated.per_1000_series_days:.3g}"
        lines.append(f"| `{detector.name}` | {faults} | {rate} | {series} | {basis} | {stated.source} |")
    lines += [
        "",
        "## Where each rate was measured",
        "",
        "An alarm may page on a population where every measured telemetry *holds*: what waiting costs decides then",
        "([the alarm budget](../concepts/alarm-budget.md)). *Holds* means that its rate is at most twice the",
        f"stated one. Telemetry is *too short to tell* if that rate would bring fewer than {LEAST_EXPECTED:.0f}",
        f"alarms in it. Runs that are counted whole hold if at most {100 * MOST_RUNS:.0f} % of them alarm, by the",
        "upper end of the interval.",
        "",
        "Everywhere else an alarm is a *ticket*, or a line of the digest: the incident opens, but no outlet",
        "pages. It may page after [`nightshift calibrate`](../how-to/calibrate.md) or after one watched week",
        "of this fleet. Events, and what the hardware says of itself, may page everywhere. Where near-facts",
        "("
        + ", ".join(f"`{fault}`" for fault in sorted(NEAR_FACTS))
        + ") may page, they page whatever the budget holds.",
        "",
        f"*Expected*: alarms by the stated rate. From {LEAST_COMPARED:.0f} on, stated and realised rate are",
        "compared; below, the upper end of the interval is the rate.",
        "",
        "The table of each detector below lists the telemetry, with default settings, and the result file in",
        "`benchmarks/results`. `python -m benchmarks.populations` reads these files.",
        "",
        *_lanes([name for name, rate in promised.items() if rate.basis is RateBasis.STATISTICAL]),
    ]
    for kind in ALL:
        about = (sys.modules[kind.__module__].__doc__ or "").strip()
        needs = ", ".join(f"`{name}`" for name in NEEDS.get(kind.plugin, ())) or LOGS[kind.plugin]
        lines += ["", f"## {kind.plugin}", "", about, "", f"Needs: {needs}. [Settings](settings.md)."]
        known = any(rate.detector == kind.plugin for rate in rates())
        if promised[kind.plugin].basis is RateBasis.STATISTICAL or known:
            lines += _measured(kind.plugin)
        if kind.plugin == "ecc":
            lines += ["", "Which signals of memory errors a GPU has (`nightshift lookback` says it of yours):", ""]
            lines.append(ecc_sku_page())
            lines += ["", _SKU_SOURCE]
    return "\n".join(lines) + "\n"


def _lanes(names: list[str]) -> Iterator[str]:
    """Ticket or at most a page, by statistical detector and population."""
    from nightshift.detectors.alarms.promise import Population, unmeasured

    yield "| detector | " + " | ".join(Population) + " |"
    yield "|---" * (1 + len(Population)) + "|"
    for name in names:
        cells = ("ticket" if unmeasured(name, population) else "may page" for population in Population)
        yield f"| `{name}` | " + " | ".join(cells) + " |"


def _measured(name: str) -> Iterator[str]:
    """False alarms of a detector on healthy telemetry, by population."""
    from nightshift.detectors.alarms.promise import LEAST_COMPARED, Population, Unit, rates

    yield from ("", "False alarms on healthy telemetry ([how to read this](#where-each-rate-was-measured)):", "")
    yield "| population | telemetry | exposure | expected | alarms | rate, 90 % interval | verdict | from |"
    yield "|---|---|---|---|---|---|---|---|"
    for population in Population:
        rows = [rate for rate in rates() if rate.detector == name and rate.population is population]
        if not rows:
            yield f"| {population} | none | 0 | – | – | – | not measured | – |"
        for rate in rows:
            scale, unit = (1000.0, " per 1,000 series-days") if rate.unit is Unit.DAYS else (100.0, " % of runs")
            value, low, high = (scale * x for x in (rate.alarms / rate.exposure, rate.low, rate.high))
            exposure = f"{rate.exposure:,.4f}" if rate.exposure < 1 else f"{rate.exposure:,.0f}"
            expected = "–" if rate.unit is Unit.RUNS else f"{rate.expected:.2g}"
            if rate.expected >= LEAST_COMPARED:
                expected += f" (realised {rate.alarms / rate.expected:.1f} times)"
            verdict = "holds" if rate.holds else "too high" if rate.measured else "too short to tell"
            files = ", ".join(f"`{file}`" for file in rate.files)
            yield (
                f"| {population} | {rate.telemetry} | {exposure} {rate.unit} | {expected} | {rate.alarms} "
                f"| {value:,.1f} ({low:,.1f} to {high:,.1f}){unit} | {verdict} | {files} |"
            )


# Settings ---------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    from nightshift.agent.settings import Settings

    schema = Settings.model_json_schema()
    definitions = schema["$defs"]
    lines = [
        _NOTE,
        "# Settings\n",
        _ABOUT_SETTINGS,
        *_table(schema, definitions, skip=frozenset({"sources", "actuators", "detectors"})),
    ]
    for name in ("sources", "actuators"):
        lines += [
            f"\n## {name}\n",
            f"{schema['properties'][name]['description']}. A list; each entry has a `type`.\n",
        ]
        for title, entry in sorted(_entries(schema["properties"][name]["items"], definitions).items()):
            lines += [f"\n### {name}: `{title}`\n", _sentence(entry), *_table(entry, definitions)]
    detectors = _target(schema["properties"]["detectors"], definitions)["properties"]
    entries = {name: _target(field, definitions) for name, field in sorted(detectors.items()) if name != "disabled"}
    lines += ["\n## detectors\n", "All run, without those in `disabled`. These have no settings of their own: "]
    lines[-1] += ", ".join(f"`{name}`" for name, entry in entries.items() if not entry.get("properties")) + ".\n"
    lines += _table({"properties": {"disabled": detectors["disabled"]}}, definitions)
    for name, entry in entries.items():
        if entry.get("properties"):
            lines += [f"\n### detectors: `{name}`\n", _sentence(entry), *_table(entry, definitions)]
    return "\n".join(lines) + "\n"


def _entries(items: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    mapping = items.get("discriminator", {}).get("mapping")
    if mapping:
        return {name: _target({"$ref": ref}, definitions) for name, ref in mapping.items()}
    entry = _target(items, definitions)
    return {entry["properties"]["type"]["const"]: entry}


def _target(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    for option in (field, *field.get("allOf", ()), *field.get("anyOf", ())):
        if "$ref" in option:
            return definitions[str(option["$ref"]).rsplit("/", 1)[-1]]
    return field


def _sentence(entry: Mapping[str, Any]) -> str:
    return str(entry.get("description", "")).split("\n\n", 1)[0].replace("\n", " ") + "\n"


def _table(
    entry: Mapping[str, Any], definitions: Mapping[str, Any], skip: frozenset[str] = frozenset()
) -> Iterator[str]:
    yield "| field | default | meaning |"
    yield "|---|---|---|"
    for path, field in _fields(entry, definitions, "", skip):
        if path == "type":
            continue
        described = str(field.get("description") or _target(field, definitions).get("description", ""))
        yield f"| `{path}` | {_default(path, field)} | {_cell(described)}{_limits(field)} |"


def _fields(
    entry: Mapping[str, Any], definitions: Mapping[str, Any], at: str, skip: frozenset[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, field in entry.get("properties", {}).items():
        if name in skip:
            continue
        inner = _target(field, definitions)
        if inner is not field and "properties" in inner:
            yield from _fields(inner, definitions, f"{at}{name}.", skip)
            continue
        yield f"{at}{name}", {**field, "required": name in entry.get("required", ())}
        for several, inside in (("items", "[]"), ("additionalProperties", ".NAME")):
            entry_of = _target(options, definitions) if isinstance(options := field.get(several), Mapping) else {}
            if "properties" in entry_of:
                yield from _fields(entry_of, definitions, f"{at}{name}{inside}.", skip)


def _default(path: str, field: Mapping[str, Any]) -> str:
    if path == "state_dir":
        return "`/var/lib/nightshift` as root, else `~/.local/state/nightshift`"
    if field.get("required"):
        return "**required**"
    if "default" not in field or field["default"] is None:
        return "–"
    value = sorted(field["default"]) if field.get("uniqueItems") else field["default"]
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value not in ("", [], {}) else "empty"


def _limits(field: Mapping[str, Any]) -> str:
    words = {"minimum": "≥", "maximum": "≤", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}
    limits = [f"{sign} {field[key]:g}" for key, sign in words.items() if key in field]
    if "enum" in field:
        limits.append(", ".join(f"`{value}`" for value in field["enum"]))
    return f" ({', '.join(limits)})" if limits else ""


def _cell(text: str) -> str:
    return text.split("\n\n", 1)[0].replace("\n", " ").replace("|", "\\|").rstrip(".")


# Commands ---------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    import typer.main

    from nightshift.agent.__main__ import app

    lines = [
        _NOTE,
        "# Commands\n",
        _ABOUT_COMMANDS,
    ]
    for name, command in _commands("nightshift", typer.main.get_command(app)):
        lines += [f"\n## `{name}`\n", " ".join(str(command.help or "").split()) + "\n"]
        rows = [_parameter(parameter) for parameter in command.params if parameter.name != "help"]
        if rows:
            lines += ["| parameter | default | meaning |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child in sorted(children):
        yield from _commands(f"{name} {child}", children[child])


def _parameter(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    name = ", ".join(f"`{word}`" for word in parameter.opts) if is_option else f"`{parameter.name.upper()}`"
    environment = f" (`{parameter.envvar}`)" if getattr(parameter, "envvar", None) else ""
    default = "**required**" if parameter.required else "–" if parameter.default in (None, "", False) else None
    return f"| {name} | {default or f'`{parameter.default}`'} | {_cell(str(parameter.help or ''))}{environment} |"


def man_page() -> str:
    """`man nightshift`, from the same commands; installed with the wheel."""
    import typer.main

    from nightshift.agent.__main__ import app

    codes = re.findall(r"^\| (\d+) \| ([^|]*) \| ([^|]*)\|", _ABOUT_COMMANDS, re.M)
    lines = ['.TH NIGHTSHIFT 1 "" "Nightshift" "User commands"', ".SH NAME"]
    lines += ["nightshift \\- on\\-call engineer for GPU clusters"]
    lines += [".SH SYNOPSIS", ".B nightshift", "COMMAND [OPTIONS]", ".SH COMMANDS"]
    for name, command in _commands("nightshift", typer.main.get_command(app)):
        lines += [f".SS {_roff(name)}", _roff(" ".join(str(command.help or "").split()))]
        for parameter in (each for each in command.params if each.name != "help"):
            is_option = parameter.param_type_name == "option"
            shown = ", ".join(parameter.opts) if is_option else parameter.name.upper()
            note = str(parameter.help or "") + (" Required." if parameter.required and is_option else "")
            lines += [".TP", f"\\fB{_roff(shown)}\\fR", _roff(note) or "\\&"]
    lines.append(".SH EXIT STATUS")
    for code, meaning, remedy in codes:
        lines += [".TP", f"\\fB{code}\\fR", _roff(f"{meaning.strip()}. {remedy.strip()}".strip(" "))]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Text as roff prints it: backslashes and hyphens as they are, no line that begins like a request."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "").replace("\n", " ")
    return f"\\&{plain}" if plain[:1] in (".", "'") else plain


# Metrics ----------------------------------------------------------------------------------------------------------


def metrics_page() -> str:
    from nightshift.agent.metrics import Metrics

    lines = [_NOTE, "# Metrics of the daemon\n", "Served at `/metrics` on the console's port.\n"]
    lines += ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    metrics = Metrics("")
    named = {instrument._name: instrument for instrument in vars(metrics).values() if hasattr(instrument, "_name")}
    for name, instrument in sorted(named.items()):
        suffix = "_total" if instrument._type == "counter" else ""
        labels = ", ".join(f"`{label}`" for label in instrument._labelnames) or "–"
        lines.append(f"| `{name}{suffix}` | {instrument._type} | {labels} | {_cell(instrument._documentation)} |")
    lines.append("\nBeside them `nightshift_build_info` and the process metrics of the Prometheus client library.")
    return "\n".join(lines) + "\n"


# The incident's way -----------------------------------------------------------------------------------------------


def lifecycle_page() -> str:
    """The page with its table of transitions."""
    from nightshift.agent.store.incident import TRANSITIONS, IncidentState

    lines = ["| from | because | to |", "|---|---|---|"]
    for state in IncidentState:
        for (before, cause), after in TRANSITIONS.items():
            if before is state:
                states = [str(state).replace("_", " ") for state in (before, after)]
                lines.append(f"| {states[0]} | `{cause}` | {states[1]} |")
    return with_block("concepts/lifecycle.md", "transitions", "\n".join(lines))


def decisions_table() -> str:
    lines = ["| | |", "|---|---|"]
    for path in sorted((FOLDER.parent / "decisions").glob("[0-9]*.md")):
        title = path.read_text().split("\n", 1)[0].removeprefix(f"# {path.name[:3]}").strip(" ·")
        lines.append(f"| [{path.name[:3]}]({path.name}) | {title} |")
    return "\n".join(lines)


def with_block(name: str, block: str, text: str) -> str:
    """A page as people wrote it, with the block between its two marks generated."""
    page = (FOLDER.parent / name).read_text()
    begin, end = page.index("\n", page.index(f"<!-- {block}:")), page.index(f"<!-- end of {block} -->")
    return f"{page[:begin]}\n{text}\n{page[end:]}"


def main() -> int:
    """Writes the pages; returns how many changed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    changed = 0
    FOLDER.joinpath("../detectors").mkdir(exist_ok=True)
    written = pages() | {f"../detectors/{name}": text for name, text in detector_pages()}
    for name, text in written.items():
        path = FOLDER / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed += 1
            print(f"wrote docs/reference/{name}")
    return changed


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
