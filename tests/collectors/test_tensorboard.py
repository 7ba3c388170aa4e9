"""TensorBoard's event files as a real writer writes them: followed, cut, damaged and hostile."""

from __future__ import annotations

import math
import os
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboardX import SummaryWriter

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Reason, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.training.signal_names import SignalNames
from nightshift.collectors.training.tensorboard import (
    EventFile,
    EventScalar,
    TensorboardCollector,
    WandbFile,
    crc32c,
    masked,
)

NOW = time.time()


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
    ],
)
def test_the_checksum_is_that_of_rfc_3720(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked(crc32c(head))) + data + struct.pack("<I", masked(crc32c(data)))


def written(folder: Path, steps: int, **more: Any) -> Path:
    """A file by tensorboardX: loss and learning rate per step, an image and text between them."""
    writer = SummaryWriter(str(folder))
    for step in range(steps):
        writer.add_scalar("train/loss", 2.0 / (step + 1), step, walltime=NOW - steps + step)
        writer.add_scalar("train/learning_rate", 1e-3, step, walltime=NOW - steps + step)
        writer.add_scalar("eval/loss", 99.0, step, walltime=NOW - steps + step)
        if step == 2:
            writer.add_image("sample", np.random.default_rng(1).random((3, 64, 64)), step)
            writer.add_text("note", "<script>", step)
    writer.close()
    (path,) = folder.glob("*tfevents*")
    return path


def collected(of: TensorboardCollector, now_s: float = NOW) -> tuple[list[StepSeries], dict[Reason, int]]:
    batch = check_collect(of, now_s, Inventory(), 30.0)
    return list(batch.steps), dict(batch.sources[0].rejected)


def make(opened: Any, folder: Path, **given: Any) -> TensorboardCollector:
    made: TensorboardCollector = opened(
        TensorboardCollector(TensorboardCollector.Settings(directory=folder, **given))
    )
    return made


def test_a_real_writers_run_is_read_with_its_steps_times_and_figures(tmp_path: Path, opened: Any) -> None:
    """The job is told by the path; other tags, an image and text are passed over."""
    written(tmp_path / "ml" / "gpt" / "run1", 5)
    of = make(opened, tmp_path)
    first, rejected = collected(of)
    last, _ = collected(of)
    assert not rejected
    assert [list(s.step) for s in (*first, *last)] == [[0, 1, 2, 3], [4]]
    (series,) = first
    assert series.subject == Subject(SubjectKind.JOB, "ml/gpt")
    np.testing.assert_allclose(series.column("loss"), [2.0, 1.0, 2 / 3, 0.5], rtol=1e-6)
    np.testing.assert_allclose(series.column("learning_rate"), 1e-3, rtol=1e-6)
    np.testing.assert_allclose(series.t_s, NOW - 5 + np.arange(4), atol=1e-3)
    assert collected(of) == ([], {})


def test_a_scalar_as_a_tensor_is_one_too() -> None:
    """TensorFlow 2 writes scalars so: a float tensor with `float_val` or `tensor_content`."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.proto.tensor_pb2 import TensorProto

    tensors = [
        TensorProto(dtype=1, float_val=[0.25]),
        TensorProto(dtype=1, tensor_content=struct.pack("<f", 0.5)),
        TensorProto(dtype=2, double_val=[0.75]),
        TensorProto(dtype=1, float_val=[1.0, 2.0]),
    ]
    values = [Summary.Value(tag=f"t{n}", tensor=tensor) for n, tensor in enumerate(tensors)]
    event = Event(wall_time=5.0, step=-3, summary=Summary(value=values))
    found = read_all(record(event.SerializeToString()))
    assert found == [
        EventScalar("t0", -3, 5.0, 0.25),
        EventScalar("t1", -3, 5.0, 0.5),
        EventScalar("t2", -3, 5.0, 0.75),
    ]


def read_all(data: bytes, folder: Path | None = None) -> list[EventScalar]:
    file = EventFile(Path("x"), 2**22)
    from nightshift.collectors.training.tensorboard import EventsRead

    found = EventsRead()
    file._take(data, found)
    return found.scalars


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("tb"), 6).read_bytes()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whatever_the_pieces_the_same_scalars_are_read(
    sample: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The file grows by arbitrary pieces, also within a record, and is looked at after each."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sample)), max_size=8)))
    path = tmp_path_factory.mktemp("grow") / "f"
    path.touch()
    file, found = EventFile(path, 2**22), []
    for begin, end in zip([0, *cuts], [*cuts, len(sample)], strict=True):
        with path.open("ab") as stream:
            stream.write(sample[begin:end])
        read = file.read()
        assert not read.broken
        found += read.scalars
    assert found == read_all(sample)


@settings(max_examples=100, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), garbage=st.binary(min_size=1, max_size=40))
def test_damage_costs_the_records_it_hits_and_raises_nothing(sample: bytes, place: float, garbage: bytes) -> None:
    """Overwritten bytes anywhere: what is read of it was written, and no damage goes beyond its neighbours."""
    at = int(place * len(sample))
    damaged = sample[:at] + garbage + sample[at + len(garbage) :]
    whole, found = read_all(sample), read_all(damaged[: len(sample)])
    assert set(found) <= set(whole)
    assert len(found) >= len(whole) - 3


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_noise_raises_nothing_and_says_nothing(noise: bytes) -> None:
    """As a file, and as the body of a record whose checksums fit."""
    assert read_all(noise) == []
    assert all(isinstance(scalar.value, float) for scalar in read_all(record(noise)))


def test_a_long_file_is_begun_near_its_end_and_a_large_record_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path, 400)
    file = EventFile(path, 2**13)
    read = file.read()
    assert not read.broken
    assert 0 < len(read.scalars) < 400
    assert read.scalars[-1].step == 399
    big = EventFile(tmp_path / "big", 2**22)
    (tmp_path / "big").write_bytes(record(bytes(3 * 2**20))[: 2**20])
    assert big.read().scalars == []
    with (tmp_path / "big").open("ab") as stream:
        stream.write(record(bytes(3 * 2**20))[2**20 :] + path.read_bytes())
    again = big.read()
    assert not again.replaced
    assert len(again.scalars) == 1200


def test_a_new_file_is_a_new_run_and_a_cut_one_begins_anew(tmp_path: Path, opened: Any) -> None:
    path = written(tmp_path / "ml" / "gpt", 3)
    of = make(opened, tmp_path)
    runs = {s.run for _ in range(2) for s in collected(of)[0]}
    path.write_bytes(path.read_bytes()[:200])
    runs |= {s.run for _ in range(2) for s in collected(of)[0]}
    os.rename(written(tmp_path / "other", 2), path.parent / "events.out.tfevents.2.b")
    runs |= {s.run for _ in range(2) for s in collected(of)[0]}
    assert len(runs) == 3


def test_nan_is_told_as_infinite_and_a_time_that_cannot_be_is_replaced(tmp_path: Path, opened: Any) -> None:
    folder = tmp_path / "ml" / "gpt"
    writer = SummaryWriter(str(folder))
    writer.add_scalar("loss", float("nan"), 1, walltime=NOW)
    writer.add_scalar("loss", 1.0, 2, walltime=1e15)
    writer.close()
    of = make(opened, tmp_path)
    (series,), rejected = collected(of)
    assert math.isinf(series.column("loss")[0])
    assert rejected == {Reason.CLOCK: 1}
    (last,), _ = collected(of)
    assert last.t_s[0] == NOW


TAGS = {
    "loss": [
        "lm loss",
        "train/loss",
        "train_loss",
        "train_loss_step",
        "loss_metrics/global_avg_loss",
        "Loss/train",
    ],
    "grad_norm": ["grad-norm", "train/grad_norm", "grad_norm", "grad_2.0_norm_total"],
    "learning_rate": ["learning-rate", "train/learning_rate", "lr-AdamW", "lr-AdamW/pg1", "lr"],
    "step_time_s": ["iteration-time", "time_metrics/end_to_end(s)"],
    "tokens_per_s": ["throughput(tps)", "tps"],
    "data_s": ["time_metrics/data_loading(s)"],
    None: ["eval/loss", "lm loss vs samples", "val_loss", "test/loss", "loss-scale", "memory/max_active(GiB)"],
}


@pytest.mark.parametrize(("column", "tag"), [(c, tag) for c, tags in TAGS.items() for tag in tags])
def test_trainers_tags_are_known_for_what_they_are(column: str | None, tag: str) -> None:
    assert SignalNames().reader().column(tag) == column


def test_own_names_come_first_and_wrong_ones_are_refused() -> None:
    assert SignalNames(columns={"loss": ["my/.*"]}).reader().column("my/objective") == "loss"
    with pytest.raises(ValueError, match="no figures"):
        SignalNames(columns={"lossy": ["x"]})
    with pytest.raises(ValueError, match="columns"):
        SignalNames(columns={"loss": ["("]})


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def _message(*fields: tuple[int, bytes | int]) -> bytes:
    """Protobuf of (field, varint or bytes)."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            out += _varint(number << 3 | 2) + _varint(len(value)) + value
    return out


def wandb_file(rows: list[dict[str, str]]) -> bytes:
    """A W&B run file of so many steps, by the published formats; before each row a record of another kind."""
    data = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
    for step, row in enumerate(rows):
        items = [(1, _message((1, key.encode()), (16, value.encode()))) for key, value in row.items()]
        history = _message(*items, (2, _message((1, step))))
        for body in (_message((4, b"x" * 9_000)), _message((1, step), (2, history))):
            kinds = [1]
            while body or kinds == [1]:
                left = 2**15 - len(data) % 2**15
                if left < 7:
                    data += bytes(left)
                    continue
                part, body = body[: left - 7], body[left - 7 :]
                first = kinds == [1]
                kind = (1 if not body else 2) if first else (4 if not body else 3)
                data += struct.pack("<IHB", 0, len(part), kind) + part
                kinds.append(kind)
    return data


def test_a_wandb_file_is_read_as_it_grows_over_blocks(tmp_path: Path) -> None:
    rows = [
        {"_step": str(step), "_timestamp": str(NOW - 100 + step), "train/loss": str(2.0 - step / 100)}
        for step in range(40)
    ]
    rows[7]["train/loss"] = "NaN"
    whole, path = wandb_file(rows), tmp_path / "run-a.wandb"
    read: list[EventScalar] = []
    file = WandbFile(path, 2**20)
    for end in range(0, len(whole) + 7_001, 7_001):
        path.write_bytes(whole[:end])
        found = file.read()
        assert (found.broken, found.replaced) == (0, False)
        read += found.scalars
    assert [scalar.step for scalar in read] == list(range(40))
    assert math.isnan(read[7].value)
    assert read[39].value == pytest.approx(1.61)


def test_a_damaged_wandb_file_goes_on_at_its_next_block(tmp_path: Path) -> None:
    rows = [{"_step": str(step), "loss": "2.5"} for step in range(40)]
    data = bytearray(wandb_file(rows))
    data[7:14] = b"\xff" * 7
    path = tmp_path / "run-b.wandb"
    path.write_bytes(data)
    found = WandbFile(path, 2**20).read()
    assert found.broken > 0
    assert found.scalars[-1].step == 39


def test_mlflows_metrics_of_a_step_are_one_point(tmp_path: Path) -> None:
    metrics = tmp_path / "ml/llm/mlruns/0/run1/metrics"
    (metrics / "train").mkdir(parents=True)
    for name, figure in (("train/loss", 2.5), ("train/grad_norm", 1.25)):
        lines = [f"{int((NOW - 50 + step) * 1000)} {figure - step / 100} {step}\n" for step in range(20)]
        (metrics / name).write_text("".join(lines))
    collector = TensorboardCollector(TensorboardCollector.Settings(directory=tmp_path))
    found = [series for _ in range(2) for series in collector.collect(NOW, Inventory(), 60.0).steps]
    assert [str(series.subject) for series in found] == ["job:ml/llm"] * len(found)
    steps = [step for series in found for step in series.step.tolist()]
    assert steps == list(range(20))
    first = found[0]
    assert (first.column("loss")[3], first.column("grad_norm")[3]) == (pytest.approx(2.47), pytest.approx(1.22))
