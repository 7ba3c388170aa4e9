"""A policy that writes kernels as words: its grammar, its rewards, its training and what stops it, on one table."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.base import Permanent
from nightshift.kernels.generate import policy
from nightshift.kernels.generate.base import Outcome, Task
from nightshift.kernels.generate.policy import (
    FAILED,
    CheckpointError,
    Grammar,
    LearnedAuthor,
    SentenceError,
    SentenceNetwork,
    VocabularyError,
    author_of,
    encode,
    exemplars,
    load,
    vocabulary,
)
from nightshift.kernels.judge.verdict import Status
from nightshift.kernels.lab.grpo import Buffer, Recipe, Shape, Table, Training, rewritten, shapes_of, table_clock
from nightshift.kernels.lab.reward import (
    Answer,
    RewardHung,
    RewardRaised,
    advantages,
    reward_of,
    robust_s,
    within,
)
from nightshift.kernels.loop.cli import _with_authors
from nightshift.kernels.loop.optimise import work_of
from nightshift.kernels.ops.families import family_named
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

CASE = Case.of("float16", m=4096, n=4096)
SMALL = Recipe(grammar=30, ledger=30, specialist=2, distil=4, generalist=4, contexts=2, group=8, batch=32,
               save_every=2)  # fmt: skip


def seconds_of(config: dict[str, int | str]) -> float:
    """Fewer rows are faster, and 16 warps do not run."""
    if config["warps"] == 16:
        return math.inf
    return 1e-6 * (10 + int(config["rows"]) + (config["load"] == ""))


@pytest.fixture(scope="module")
def shape() -> Shape:
    space = family_named("softmax").space("softmax", CASE)
    times = tuple((dict(c), seconds_of(dict(c))) for c in space)
    (made,) = shapes_of([Table("softmax-softmax-made-up", "softmax", "softmax", CASE, "NVIDIA H200", times)])
    return made


@pytest.fixture(scope="module")
def trained(shape: Shape) -> Training:
    training = Training([shape], 0, Recipe(grammar=120, ledger=60, specialist=0, generalist=4, batch=32))
    training.run()
    return training


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_sentence_is_read_back_as_its_configuration(shape: Shape) -> None:
    for sentence in shape.sentences[::17]:
        variant, config = shape.grammar.read([vocabulary()[w] for w in sentence])
        assert tuple(encode(shape.grammar.words(variant, config))) == sentence


@pytest.mark.parametrize("place", range(5))
def test_a_sentence_with_one_wrong_word_is_refused_by_name(shape: Shape, place: int) -> None:
    words = [vocabulary()[w] for w in shape.sentences[0]]
    words[place if place < 4 else -1] = "operation gelu"
    with pytest.raises(SentenceError):
        shape.grammar.read(words)


def test_problems_and_gpus_outside_the_grammar_are_named() -> None:
    with pytest.raises(SentenceError, match="nothing_known"):
        Grammar.of("nothing_known", CASE)
    with pytest.raises(SentenceError, match="no word 'warps=5000'"):
        encode(["warps=5000"])
    with pytest.raises(SentenceError, match="GPU 'Voodoo'"):
        policy.features(named("softmax"), CASE, "Voodoo")


@given(st.lists(st.floats(0, 2), min_size=1, max_size=20))
def test_advantages_are_relative_to_their_group(rewards: list[float]) -> None:
    found = advantages(rewards)
    assert abs(sum(found)) < 1e-6 * len(found)
    if max(rewards) - min(rewards) == 0:
        assert found == [0.0] * len(rewards)


def test_a_group_without_variance_gives_no_signal(shape: Shape) -> None:
    training = Training([shape], 0, SMALL, clock=lambda s, w: Answer(Status.correct))
    assert training._improve(training.network, Buffer([shape], training.rng)) is None
    assert training.figures["zero_signal_groups"] == training.figures["groups"] == SMALL.contexts


def test_a_fast_wrong_kernel_never_pays() -> None:
    fast = (1e-9,)
    assert reward_of(Answer(None, fast), 1.0) == reward_of(Answer(Status.cheat, fast), 1.0) == 0.0
    assert reward_of(Answer(Status.wrong, fast), 1.0) == 0.1
    assert (
        1.0 == reward_of(Answer(Status.slower, (2.0,)), 1.0) < reward_of(Answer(Status.faster, (0.5,)), 1.0) < 2.0
    )
    assert reward_of(Answer(Status.faster, fast), 1.0) == 2.0


def test_one_lucky_look_is_no_speed_up() -> None:
    assert robust_s((1.0, 1.01, 0.2)) == pytest.approx(1.005)
    assert reward_of(Answer(Status.faster, (1.0, 1.01, 0.2)), 1.0) == 1.0


def test_a_trivial_problem_rests(shape: Shape) -> None:
    other = Shape("other", shape.tables)
    buffer = Buffer([shape, other], Training([shape], 0).rng)
    for _ in range(2):
        buffer.note(shape, signal=False)
    assert buffer.dropped == 1
    assert {buffer.draw().name for _ in range(Buffer.REST - 1)} == {"other"}
    assert shape.name in {buffer.draw().name for _ in range(60)}


def test_a_rewritten_problem_keeps_what_it_is(shape: Shape) -> None:
    made = rewritten(shape.context, Training([shape], 0).rng)
    assert made.operation == shape.context.operation
    assert made.features != shape.context.features
    assert made.features[3:6] == shape.context.features[3:6]


def test_exemplars_contrast_a_fast_with_a_slow_one_that_looks_alike(shape: Shape) -> None:
    tried = list(shape.seconds.items())[:24]
    pairs = exemplars(tried, Training([shape], 0).rng, 1.0)
    assert max(e.score for e in pairs) > min(e.score for e in pairs) >= FAILED
    assert exemplars([(shape.sentences[0], math.inf)], Training([shape], 0).rng, 1.0)[0].score == FAILED


def test_training_finds_the_grammar_and_what_is_fast(trained: Training, shape: Shape) -> None:
    """Untrained it writes no sentence at all."""
    contexts = [shape.context] * 64
    before = SentenceNetwork(len(vocabulary())).sample(contexts, torch.Generator().manual_seed(0))
    after = trained.network.sample(contexts, torch.Generator().manual_seed(0))
    right = [w for w in after if (a := table_clock(shape, w)) is not None and a.status is Status.correct]
    unread = [table_clock(shape, w) for w in before]
    assert all(answer is not None and answer.status is None for answer in unread)
    assert len(right) > 40
    mean = sum(shape.seconds[w] for w in right) / len(right)
    assert mean < shape.baseline_s


def test_a_killed_training_resumes_to_the_same_stages(shape: Shape, tmp_path: Path) -> None:
    """A reward that raises ends it, with the last checkpoint whole."""
    calls = 0

    def dies(which: Shape, sentence: tuple[int, ...]) -> Answer | None:
        nonlocal calls
        calls += 1
        if calls > 60:
            raise OSError("the judge's machine is gone")
        return table_clock(which, sentence)

    path = tmp_path / "policy.pt"
    with pytest.raises(RewardRaised, match="OSError: the judge's machine is gone"):
        Training([shape], 3, SMALL, path, clock=dies).run()
    resumed = Training([shape], 3, SMALL, path)
    assert resumed.done["grammar"] == SMALL.grammar
    assert resumed.done["ledger"] == SMALL.ledger
    resumed.run()
    assert resumed.done["generalist"] == SMALL.generalist
    assert not list(tmp_path.glob("*.part"))
    again = Training([shape], 3, SMALL, path)
    assert again.done == resumed.done


def test_a_reward_that_hangs_is_named() -> None:
    with pytest.raises(RewardHung, match=r"no answer within 0\.05 s"):
        within(0.05, lambda: time.sleep(5))


def test_a_checkpoint_of_other_words_is_refused_by_name(
    trained: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.pt"
    with monkeypatch.context() as patch:
        patch.setattr(policy, "vocabulary", lambda: (*vocabulary()[:-1], "warps=7"))
        policy.save(path, trained.network)
    with pytest.raises(VocabularyError, match=r"warps=7.*Train again"):
        load(path)
    path.write_bytes(b"PK\x03\x04 no checkpoint")
    with pytest.raises(CheckpointError):
        load(path)
    torch.save({"format": 0}, path)
    with pytest.raises(CheckpointError, match="format"):
        load(path)


def test_the_policy_proposes_like_any_author(trained: Training, tmp_path: Path) -> None:
    """Candidates of the families' own writing, none of them twice; what was tried is read from the history."""
    path = tmp_path / "policy.pt"
    policy.save(path, trained.network)
    task = Task(named("softmax"), CASE)
    author = author_of(path, task, [family_named("softmax")])
    author.gpu = "NVIDIA H200"
    first = author.propose(task, [], 4)
    history = [Outcome(p, Status.slower, "", "", 1e-5 * (n + 1)) for n, p in enumerate(first)]
    second = author.propose(task, history, 4)
    assert len({p.candidate.sha256 for p in [*first, *second]}) == len(first) + len(second) >= 6
    assert {p.config["variant"] for p in first} == {"softmax"}
    assert [p.config for p in author.propose(task, [], 4)] == [p.config for p in first]
    with pytest.raises(SentenceError, match="outside the grammar"):
        author_of(path, Task(named("gelu"), Case.of("float16", m=64, n=64)), [family_named("softmax")])
    assert isinstance(author, LearnedAuthor)


def test_the_command_line_adds_the_policy_to_a_search_s_authors(trained: Training, tmp_path: Path) -> None:
    """And refuses a file that is no checkpoint, by the option's name."""
    work = work_of(named("softmax"), CASE, "a test", None, 0)
    path = tmp_path / "policy.pt"
    path.write_bytes(b"no checkpoint")
    with pytest.raises(Permanent, match=r"--policy: .*no checkpoint"):
        _with_authors(work, tmp_path, None, None, path)
    policy.save(path, trained.network)
    made = _with_authors(work, tmp_path, None, None, path)
    assert [author.name for author in made.generators] == [*(a.name for a in work.generators), "policy"]
