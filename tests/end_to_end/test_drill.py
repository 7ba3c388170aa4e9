"""A drill with the real daemon and the real command, each a process of its own, that no one answers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.demo.run import called, slack_configuration
from examples.pager_stand_in.server import StandIn as Pagers
from examples.pager_stand_in.services import ROUTING_KEY
from examples.slack_stand_in.server import StandIn as Chat
from tests.agent.fleet import Exporter, values
from tests.end_to_end.stage import Daemon, until

_ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_a_drill_that_no_one_answers_pages_escalates_and_ends_by_itself(tmp_path: Path) -> None:
    clock, exporter = tmp_path / "clock", Exporter()
    clock.write_text(json.dumps({"began_s": time.time(), "ahead_s": 0.0}))
    (tmp_path / "key").write_text(ROUTING_KEY)
    with Chat() as chat, Pagers() as pagers:
        slack = slack_configuration(chat, tmp_path)
        slack["slack"] = {**slack["slack"], "escalate_s": 60.0}  # type: ignore[dict-item]
        outlets = {
            "pages": [{"outlet": "pagerduty"}],
            "pagerduty": {"routing_key_file": str(tmp_path / "key"), "url": pagers.url},
        }
        settings = values(tmp_path, exporter, **slack, outlets=outlets, lifecycle={"quiet_s": 0.0})
        daemon = Daemon(tmp_path / "replica", clock, settings)
        daemon.start()
        try:
            until(daemon.leads, "a leader")
            command = [sys.executable, "-m", "nightshift.agent", "drill", "gpu-lost", "--minutes", "0.4"]
            config = ["--config", str(tmp_path / "replica" / "nightshift.yaml")]
            drill = subprocess.Popen([*command, *config], cwd=_ROOT, stdout=-1, stderr=-2, text=True)
            until(pagers.pages, "a page")
            (page,) = pagers.pages()
            incident = page.split("/")[2]
            until(lambda: any(chat.workspace.channels.values()), "a card")
            # the pager has called a person: the chat reminds, and mentions no second one
            until(lambda: "no decision yet" in json.dumps(chat.workspace.thread(*_card(chat))), "a reminder")
            assert called(chat.workspace, incident) == []
            said, _ = drill.communicate(timeout=150)
            assert "No decision in time: the drill ends here." in said
            assert drill.returncode == 1
            until(lambda: pagers.pagerduty.alerts[page].state == "closed", "the page's end")
            assert pagers.pages() == [page]
        finally:
            daemon.kill()
            exporter.close()


def _card(chat: Chat) -> tuple[str, str]:
    (channel,) = [name for name, messages in chat.workspace.channels.items() if messages]
    return channel, chat.workspace.messages(channel)[0]["ts"]
