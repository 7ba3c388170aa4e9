"""Each contract of `.importlinter` can fail: an import that breaks it is planted in a copy and must be named."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PLANTS = {
    "floors": [
        ("nightshift/collectors/telemetry/derived_metrics.py", "import nightshift.detectors.base"),
        ("nightshift/controllers/guard.py", "import nightshift.kernels.loop.ledger"),
        ("nightshift/kernels/loop/ledger.py", "import nightshift.agent.clock"),
    ],
    "agent": [
        ("nightshift/agent/store/audit.py", "import nightshift.agent.incidents.stages"),
        ("nightshift/agent/notify/slack/card.py", "import nightshift.agent.cli.terminal"),
        ("nightshift/agent/rca/redact.py", "import nightshift.agent.settings"),
    ],
    "lab": [
        ("nightshift/controllers/scheduling/whatif.py", "import nightshift.controllers.lab.scheduling.trace"),
        ("nightshift/controllers/promotion.py", "import nightshift.controllers.lab.learnable"),
    ],
    "training": [
        ("nightshift/agent/drill.py", "import nightshift.controllers.lab.scheduling.simulate"),
        ("nightshift/agent/cli/policy_steps.py", "import nightshift.controllers.lab.learnable"),
        ("nightshift/agent/cli/policy.py", "import nightshift.controllers.lab.power.learn"),
    ],
    "lessons": [
        ("nightshift/kernels/loop/search.py", "import nightshift.kernels.lab.grpo"),
        ("nightshift/agent/drill.py", "import nightshift.kernels.lab.reward"),
    ],
    "judge": [
        ("nightshift/kernels/judge/verdict.py", "import nightshift.kernels.generate.space"),
        ("nightshift/kernels/judge/verdict.py", "import nightshift.kernels.ops.families"),
        ("nightshift/kernels/judge/verdict.py", "import nightshift.kernels.ops.rows.stream_cuda_family"),
    ],
    "rca": [("nightshift/agent/rca/redact.py", "import nightshift.controllers.actuators.kubernetes")],
    "heavy": [
        ("nightshift/agent/control/power_loop.py", "import torch"),
        ("nightshift/detectors/progress/hang.py", "import triton"),
        ("nightshift/collectors/telemetry/derived_metrics.py", "import torch.nn"),
    ],
    "slack": [
        ("nightshift/agent/control/power_loop.py", "import slack_sdk"),
        ("nightshift/agent/notify/outlets/pages.py", "from slack_bolt import App"),
        ("nightshift/kernels/loop/ledger.py", "import slack_sdk.web"),
    ],
    "kubernetes": [
        ("nightshift/agent/rca/redact.py", "import kubernetes"),
        ("nightshift/collectors/telemetry/derived_metrics.py", "from kubernetes import client"),
        ("nightshift/controllers/actuators/kube_client.py", "import kubernetes.client"),
    ],
    "nvml": [
        ("nightshift/agent/rca/redact.py", "import pynvml"),
        ("nightshift/collectors/telemetry/derived_metrics.py", "import pynvml"),
    ],
    "langchain": [
        ("nightshift/agent/approvals/gate.py", "import langchain"),
        ("nightshift/kernels/judge/verdict.py", "from langchain_core import messages"),
    ],
}
"""By contract: the file and the import that is planted in it. A new contract needs a row here."""


def contracts() -> dict[str, str]:
    """Contract: its name, as `.importlinter` has them."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    prefix = "importlinter:contract:"
    return {section.removeprefix(prefix): config[section]["name"] for section in config if prefix in section}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What lint-imports says of a copy with every plant in it."""
    folder = tmp_path_factory.mktemp("planted")
    shutil.copytree(ROOT / "nightshift", folder / "nightshift", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", folder)
    for file, line in (plant for plants in PLANTS.values() for plant in plants):
        path = folder / file
        path.write_text(path.read_text() + f"\n{line}\n")
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(folder), "COLUMNS": "400"},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_every_contract_has_a_plant() -> None:
    assert set(PLANTS) == set(contracts())


@pytest.mark.parametrize("contract", PLANTS)
def test_a_contract_names_what_breaks_it(contract: str, planted: str) -> None:
    assert f"{contracts()[contract]} BROKEN" in planted
    for file, line in PLANTS[contract]:
        importer = file.removesuffix(".py").replace("/", ".")
        imported = line.split()[1]
        if not imported.startswith("nightshift."):  # of other people's packages only the name is looked at
            imported = imported.partition(".")[0]
        assert f"{importer} -> {imported}" in planted
