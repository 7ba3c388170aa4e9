"""What the benchmark of published tasks does beside judging: shares a card, shrinks tasks, draws them."""

from __future__ import annotations

import faulthandler
import json
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks import kernels_any
from benchmarks.kernels_any import (
    LEVELS,
    Bench,
    Driver,
    Need,
    Room,
    Waiting,
    Worker,
    is_even,
    names,
    needed,
    shrunken,
)
from nightshift.kernels.judge.race.gpu_access import Quiet

CARD = 19
"""GiB, of which 16 are shared when one worker's contexts take three: a GiB for each lock."""
HOLDER = """
import sys, time
from argparse import Namespace
from benchmarks.kernels_any import Room
with Room(Namespace(lock=sys.argv[1], workers=1, card=19)).of(10 << 30):
    print("held", flush=True)
    time.sleep(600)
"""


READS = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        steps = [int(x.item()) for x in torch.linspace(1, 3, 3)]
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(1 << 10, 1 << 10) for _ in steps))
    def forward(self, x):
        return self.layers(x)
def get_inputs():
    return [torch.rand(1 << 10, 1 << 10)]
def get_init_inputs():
    return []
"""


def test_what_a_model_needs_is_counted_where_it_reads_numbers_while_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text(READS)
    assert 1 << 30 < needed(tmp_path / "reads.py").load < needed(tmp_path / "reads.py").judge < 8 << 30


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


def test_who_waits_long_for_the_whole_card_comes_before_ever_new_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Room, "PATIENCE_S", 0.0)
    order: list[str] = []

    def enter(name: str, wanted: int) -> None:
        with room(tmp_path).of(wanted):
            order.append(name)

    with room(tmp_path).of(10 << 30):
        large = threading.Thread(target=enter, args=("large", 1 << 62))
        large.start()
        time.sleep(0.5)  # it is the next one by now
        monkeypatch.setattr(Room, "PATIENCE_S", 60.0)
        small = threading.Thread(target=enter, args=("small", 1 << 30))
        small.start()
        small.join(0.5)
        assert not order, "six of sixteen are free, and kept for the large one"
    for thread in (large, small):
        thread.join(60)
    assert order == ["large", "small"]


def test_waiting_for_the_gpu_takes_nothing_of_a_tasks_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[dict[str, Any]] = []
    monkeypatch.setattr(kernels_any, "tell", words.append)
    judge, other = Namespace(device="cpu", quiet=Quiet(tmp_path / "quiet")), Quiet(tmp_path / "quiet")
    bench = Bench(Namespace(lock=None, workers=1, card=0, each=9.0), judge)
    bench._tell({"attempted": True}, 9.0)

    def examine() -> None:
        with judge.quiet.shared():
            pass

    with other.alone():
        examiner = threading.Thread(target=examine)
        examiner.start()
        examiner.join(0.5)
        assert examiner.is_alive()
    examiner.join(60)
    faulthandler.cancel_dump_traceback_later()
    assert [word["attempted"] for word in words] == [True] * 3, "what is known of the task stays"
    assert words[1]["next_s"] > 60, "it is not lost while others race"
    assert words[2]["next_s"] > 8.0
    assert words[2]["waited_s"] > 0.3


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


def test_large_tasks_come_last_and_one_worker_begins_with_them() -> None:
    waiting = Waiting(["small", "whole", "large", "other"])
    for name, gib in (("whole", 200), ("large", 80), ("other", 5)):
        waiting.add(name, Need(0, gib << 30))
    begun: list[str] = []

    def take(most: float | None) -> None:
        while (one := waiting.take(most)) is not None:
            begun.append(one[0])

    assert waiting.take(105 << 30) == ("large", Need(0, 80 << 30)), "the largest that needs no GPU alone"
    rest = threading.Thread(target=take, args=(None,))
    rest.start()
    while len(begun) < 2:
        time.sleep(0.01)
    assert rest.is_alive(), "one is not counted yet"
    waiting.add("small", Need(0, 0))
    rest.join(60)
    assert begun == ["other", "whole", "small"]
    assert waiting.take() is None


class Asked(Worker):
    """A worker without a process. together: each waits with its first answer until all have been asked."""

    asked: ClassVar[list[tuple[str, str, str]]] = []
    together: ClassVar[threading.Barrier] = threading.Barrier(1)
    slow: ClassVar[threading.Event] = threading.Event()

    def start(self) -> None:
        self.environment, self.total = {}, CARD << 30

    def ask(self, line: str) -> dict[str, Any]:
        name, *_ = json.loads(line)
        lock = str(self.command[self.command.index("--lock") + 1])
        first, self.begun = not getattr(self, "begun", False), True
        self.asked.append((name, self.settings["CUDA_VISIBLE_DEVICES"], Path(lock).name))
        if "slow" in name:
            self.slow.wait(60)
        elif first:
            self.together.wait(60)
        return {"attempted": True, "status": "correct"}


def suite(folder: Path, files: Sequence[str]) -> Namespace:
    for level in LEVELS:
        (folder / level).mkdir()
    for name in files:
        (folder / name).touch()
    return Namespace(
        checkout=folder, tasks=None, even=False, draw=None, out=folder / "out.json", until=60.0, end=60.0, each=9.0,
        workers=2, cards=3, trials=1, tiny=12, card=0, attempt=False, again=False, compile=True, high=False,
        harness=False,
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> type[Asked]:
    monkeypatch.setattr(kernels_any, "Worker", Asked)
    monkeypatch.setattr(Asked, "asked", [])
    monkeypatch.setattr(Asked, "slow", threading.Event())
    return Asked


def test_every_card_has_workers_with_a_lock_of_its_own(
    tmp_path: Path, asked: type[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked, "together", threading.Barrier(6))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    given = suite(tmp_path, [f"level{1 + n % 3}/{n}.py" for n in range(30)])
    Driver(given).run()
    assert Counter(name for name, _, _ in asked.asked) == Counter(names(given)), "each task once"
    begun = Counter((gpu, lock) for _, gpu, lock in asked.asked[:6])
    assert begun == {("4", "gpu0"): 2, ("6", "gpu1"): 2, ("7", "gpu2"): 2}


def test_what_is_under_way_at_the_end_is_done_by_the_next_run(tmp_path: Path, asked: type[Asked]) -> None:
    given = suite(tmp_path, ["level1/1.py", "level2/2_slow.py", "level3/3.py"])
    driver = Driver(given)
    running = threading.Thread(target=driver.run)
    running.start()
    while len(driver.rows) < 2:
        time.sleep(0.01)
    driver.stop()
    running.join(60)
    asked.slow.set()
    assert set(json.loads(given.out.read_text())["rows"]) == {"level1/1.py", "level3/3.py"}
    Driver(given).run()
    assert set(json.loads(given.out.read_text())["rows"]) == set(names(given))
    assert Counter(name for name, _, _ in asked.asked)["level1/1.py"] == 1
