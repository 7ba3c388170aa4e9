"""What the benchmark of published tasks does beside judging: shares a card, shrinks tasks, draws them."""

from __future__ import annotations

import subprocess
import sys
import threading
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.kernels_any import LEVELS, Room, is_even, names, shrunken

CARD = 18
"""GiB, of which 16 are shared when one worker's context takes two: a GiB for each lock."""
HOLDER = """
import sys, time
from argparse import Namespace
from benchmarks.kernels_any import Room
with Room(Namespace(lock=sys.argv[1], workers=1, card=18)).of(10 << 30):
    print("held", flush=True)
    time.sleep(600)
"""


def room(folder: Path) -> Room:
    return Room(Namespace(lock=str(folder / "quiet"), workers=1, card=CARD))


def test_tasks_share_a_card_and_wait_for_what_is_held(tmp_path: Path) -> None:
    together, alone = threading.Event(), threading.Event()

    def second(wanted: int, entered: threading.Event) -> None:
        with room(tmp_path).of(wanted):
            entered.set()

    with room(tmp_path).of(10 << 30):
        small = threading.Thread(target=second, args=(6 << 30, together))
        small.start()
        small.join(60)
        assert together.is_set(), "ten and six of sixteen fit"
        large = threading.Thread(target=second, args=(1 << 62, alone))
        large.start()
        assert not alone.wait(0.3), "the whole card is not free"
    large.join(60)
    assert alone.is_set()


@pytest.mark.full
def test_what_a_killed_task_held_is_free(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "quiet")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.kill()
    with room(tmp_path).of(1 << 62):
        pass


def test_shrunken_sizes_stay_multiples_and_small_numbers_stay() -> None:
    assert shrunken("x = torch.rand(64, 3, 1024)", 12) == "x = torch.rand(8, 3, 8)"


def test_a_draw_takes_even_tasks_of_each_level_alone(tmp_path: Path) -> None:
    for level in LEVELS:
        (tmp_path / level).mkdir()
        for number in range(120):
            (tmp_path / level / f"{number}.py").touch()
    found = names(Namespace(tasks=None, checkout=tmp_path, even=False, draw=1))
    assert [sum(name.startswith(level) for name in found) for level in LEVELS] == [30, 20, 10]
    assert all(map(is_even, found))
    assert {name.split("/")[0] for name in found[:6]} == set(LEVELS), "levels in turn"
    assert len(names(Namespace(tasks=None, checkout=tmp_path, even=False, draw=None))) == 360
