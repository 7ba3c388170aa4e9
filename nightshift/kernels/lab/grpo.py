"""A kernel policy by GRPO (DeepSeekMath, arXiv 2402.03300): groups of samples, each judged beside its own group.

Stages, in order: `grammar` (sentences drawn from the spaces alone, which are code: no time is seen), `ledger`
(imitation of what was fast, the softer the warmer the temperature that the network sees), a specialist for each
operation by GRPO, `distil` (the generalist learns what the specialists write), and `generalist` by GRPO. In a group
sentences that were written twice share one speed-up, because a search counts them once. A checkpoint names stage
and step; a killed training resumes there.

It learns on measured tables: every configuration of one family that was timed on one case
(`benchmarks.kernels_tables`). Configurations that were never timed have no answer: they are drawn again and count
for no one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from nightshift.kernels.generate.base import Config, GeneratorError
from nightshift.kernels.generate.policy import (
    FAILED,
    Context,
    Exemplar,
    Grammar,
    SentenceError,
    SentenceNetwork,
    encode,
    exemplars,
    features,
    load,
    numbers,
    save,
    vocabulary,
)
from nightshift.kernels.judge.verdict import Status
from nightshift.kernels.lab.reward import Answer, advantages, reward_of, within
from nightshift.kernels.ops.families import family_named
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

Sentence = tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """One measured table. times: (configuration, seconds), infinite where it failed."""

    name: str
    family: str
    problem: str
    case: Case
    gpu: str
    times: tuple[tuple[Config, float], ...]

    @property
    def shape(self) -> str:
        """Its name without the family's."""
        return self.name.split("-", 1)[1]

    @property
    def held_out(self) -> bool:
        """For the score only: the md5 of its name is odd."""
        return hashlib.md5(self.name.encode(), usedforsecurity=False).digest()[-1] % 2 == 1


def table_of(name: str, raw: Mapping[str, Any]) -> Table | None:
    """None where the family has no such space today. Raises KeyError where the file is no table."""
    case = Case.of(raw["case"]["dtype"], raw["case"]["layout"], **raw["case"]["params"])
    try:
        space = family_named(raw["family"]).space(raw["problem"], case)
    except GeneratorError:
        return None
    dimensions = raw["dimensions"]
    times = []
    for row, micro in zip(raw["configs"], raw["microseconds"], strict=True):
        config = {n: dimensions[n][i] for n, i in zip(dimensions, row, strict=True)}
        if space.holds(config):
            times.append((config, math.inf if micro is None else micro * 1e-6))
    return Table(name, raw["family"], raw["problem"], case, raw["environment"]["gpu"], tuple(times))


def read_tables(folder: Path) -> list[Table]:
    """All tables of a folder, by name."""
    found = (table_of(path.stem, json.loads(path.read_text())) for path in sorted(folder.glob("*.json")))
    return [table for table in found if table is not None and table.times]


@dataclass(frozen=True)
class Shape:
    """One case of one problem and the tables that answer for it."""

    name: str
    tables: tuple[Table, ...]

    @property
    def problem(self) -> str:
        return self.tables[0].problem

    @cached_property
    def grammar(self) -> Grammar:
        return Grammar.of(self.problem, self.tables[0].case, [family_named(t.family) for t in self.tables])

    @cached_property
    def seconds(self) -> dict[Sentence, float]:
        """Seconds of each measured sentence; infinite where the sweep refused it."""
        return {
            tuple(encode(self.grammar.words(table.family, config))): seconds
            for table in self.tables
            for config, seconds in table.times
        }

    @cached_property
    def sentences(self) -> list[Sentence]:
        return list(self.seconds)

    @cached_property
    def best_s(self) -> float:
        return min(self.seconds.values())

    @cached_property
    def baseline_s(self) -> float:
        """The median of what ran: what a speed-up is over, since a table holds no baseline."""
        return statistics.median(s for s in self.seconds.values() if math.isfinite(s))

    @cached_property
    def context(self) -> Context:
        """What the network sees of it, without a history."""
        operation, *variants = encode([f"operation {self.problem}", *(f"variant {v}" for v in self.grammar.spaces)])
        seen = features(named(self.problem), self.tables[0].case, self.tables[0].gpu)
        return Context(tuple(seen), operation, tuple(variants))

    def answer(self, sentence: Sentence) -> float | None:
        """Seconds; infinite where the grammar admits it and the sweep refused it; None where it was never timed.

        Raises SentenceError where it is no sentence of the grammar, or its family refuses the combination."""
        if sentence in self.seconds:
            return self.seconds[sentence]
        variant, config = self.grammar.read([vocabulary()[w] for w in sentence])
        if not self.grammar.spaces[variant].admits(config):
            raise SentenceError(f"policy: {variant} does not admit {config}")
        return None


def shapes_of(tables: Iterable[Table]) -> list[Shape]:
    """The tables by shape. A table with a word that the vocabulary lacks keeps its other rows."""
    groups: dict[str, list[Table]] = {}
    for table in tables:
        groups.setdefault(table.shape, []).append(_speakable(table))
    return [Shape(name, tuple(t for t in group if t.times)) for name, group in groups.items()]


def _speakable(table: Table) -> Table:
    words = set(vocabulary())
    times = tuple((c, s) for c, s in table.times if all(f"{k}={v}" in words for k, v in c.items()))
    return Table(table.name, table.family, table.problem, table.case, table.gpu, times)


def split(tables: Sequence[Table]) -> tuple[list[Shape], list[Shape]]:
    """(to learn from, for the score only), by the md5 of each table's name."""
    return shapes_of(t for t in tables if not t.held_out), shapes_of(t for t in tables if t.held_out)


Clock = Callable[[Shape, Sentence], Answer | None]
"""What answers for a sample; None where nothing is known of it, and it counts for nothing."""
Reward = Callable[[Answer, float], float]


def table_clock(shape: Shape, sentence: Sentence) -> Answer | None:
    """The measured table's own answer."""
    try:
        seconds = shape.answer(sentence)
    except SentenceError:
        return Answer(None)
    if seconds is None:
        return None
    return Answer(Status.correct, (seconds,)) if math.isfinite(seconds) else Answer(Status.wrong)


@dataclass(frozen=True)
class Recipe:
    """Steps of each stage, and how they learn. group: samples of one context; contexts: of one step."""

    grammar: int = 300
    ledger: int = 200
    specialist: int = 2
    distil: int = 20
    generalist: int = 15
    contexts: int = 6
    group: int = 16
    batch: int = 64
    rate: float = 3e-3
    rl_rate: float = 3e-4
    ratio: float = 0.2
    entropy: float = 0.005
    save_every: int = 50
    reward_s: float = 60.0


@dataclass
class Buffer:
    """Problems in turn. One without a signal twice in a row is trivial and rests for `REST` draws."""

    shapes: Sequence[Shape]
    rng: random.Random
    quiet: dict[str, int] = field(default_factory=dict)
    rests: dict[str, int] = field(default_factory=dict)
    dropped: int = 0

    REST = 20

    def draw(self) -> Shape:
        awake = [s for s in self.shapes if self.rests.get(s.name, 0) <= 0] or list(self.shapes)
        self.rests = {name: left - 1 for name, left in self.rests.items() if left > 1}
        return self.rng.choice(awake)

    def note(self, shape: Shape, signal: bool) -> None:
        self.quiet[shape.name] = 0 if signal else self.quiet.get(shape.name, 0) + 1
        if self.quiet[shape.name] >= 2:
            self.quiet[shape.name] = 0
            self.rests[shape.name] = self.REST
            self.dropped += 1


def rewritten(context: Context, rng: random.Random) -> Context:
    """The same work, described otherwise: sizes, bytes and operations a little off, and sizes in half of the cases
    only."""
    told = list(context.features)
    blank = rng.random() < 0.5
    for place in range(6, len(told) - 5):
        told[place] = 0.0 if blank else told[place] * (1 + rng.uniform(-0.02, 0.02))
    for place in range(3):
        told[place] *= 1 + rng.uniform(-0.02, 0.02)
    return replace(context, features=tuple(told))


@dataclass
class Training:
    """One run. checkpoint: written every `save_every` steps; an existing one continues. say: hears each stage."""

    shapes: Sequence[Shape]
    seed: int
    recipe: Recipe = field(default_factory=Recipe)
    checkpoint: Path | None = None
    clock: Clock = table_clock
    reward: Reward = reward_of
    say: Callable[[str], None] = lambda text: None
    spoken: Sequence[Shape] = ()
    """Shapes that have a grammar to learn and no times to see; `shapes` are always among them."""

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.rng = random.Random(self.seed)
        self.draws = torch.Generator().manual_seed(self.seed)
        self.network = SentenceNetwork(len(vocabulary()))
        self.done: dict[str, int] = {}
        self.figures: dict[str, Any] = {"zero_signal_groups": 0, "groups": 0, "trivial": 0}
        self.experts: dict[str, SentenceNetwork] = {}
        self._grammars: dict[str, Grammar] = {}
        self._lessons: list[tuple[Context, Sentence]] = []
        if self.checkpoint is not None and self.checkpoint.exists():
            self._resume(self.checkpoint)

    @property
    def operations(self) -> list[str]:
        return sorted({shape.problem for shape in self.shapes})

    def run(self) -> SentenceNetwork:
        """All stages that are not done. Raises RewardError, after which the last checkpoint stands."""
        recipe = self.recipe
        self._stage(
            "grammar", self.network, recipe.grammar, recipe.rate, lambda n: self._imitate(n, self._spoken())
        )
        self._stage("ledger", self.network, recipe.ledger, recipe.rate, lambda n: self._imitate(n, self._fast()))
        if recipe.specialist:
            for operation in self.operations:
                own = [s for s in self.shapes if s.problem == operation]
                self.experts.setdefault(operation, copy.deepcopy(self.network))
                self._rl(f"specialist {operation}", self.experts[operation], recipe.specialist, own)
            self._stage("distil", self.network, recipe.distil, recipe.rate / 3,
                        lambda n: self._imitate(n, self._taught()))  # fmt: skip
        self._rl("generalist", self.network, recipe.generalist, self.shapes)
        self._save()
        return self.network

    def _rl(self, stage: str, network: SentenceNetwork, steps: int, shapes: Sequence[Shape]) -> None:
        buffer = Buffer(shapes, self.rng)
        self._stage(stage, network, steps, self.recipe.rl_rate, lambda n: self._improve(n, buffer))
        self.figures["trivial"] += buffer.dropped

    def _stage(
        self,
        stage: str,
        network: SentenceNetwork,
        steps: int,
        rate: float,
        loss_of: Callable[[SentenceNetwork], torch.Tensor | None],
    ) -> None:
        begun = self.done.get(stage, 0)
        if begun >= steps:
            return
        optimiser = torch.optim.Adam(network.parameters(), lr=rate)
        for step in range(begun, steps):
            for group in optimiser.param_groups:
                group["lr"] = rate * (1 - 0.9 * step / steps)
            loss = loss_of(network)
            if loss is not None:
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimiser.step()
            self.done[stage] = step + 1
            if self.checkpoint is not None and (step + 1) % self.recipe.save_every == 0:
                self._save()
        self.say(f"{stage}: {steps} steps")

    # Imitation -------------------------------------------------------------------------------------------------

    def _imitate(self, network: SentenceNetwork, lessons: Sequence[tuple[Context, Sentence]]) -> torch.Tensor:
        likely = network.log_likelihood([c for c, _ in lessons], [s for _, s in lessons])
        return -likely.mean() / 8

    def _spoken(self) -> list[tuple[Context, Sentence]]:
        """Sentences drawn from the spaces of every shape that is spoken of, whatever exemplars are before them: no
        time is seen. Any of the problem's variants are on offer."""
        made = []
        for shape in self.rng.choices([*self.shapes, *self.spoken], k=self.recipe.batch // 2):
            spaces = self._whole(shape).spaces
            offered = self.rng.sample(sorted(spaces), self.rng.randint(1, len(spaces)))
            shown = [self._drawn(shape, self.rng.choice(offered)) for _ in range(self.rng.choice((0, 0, 4)))]
            context = replace(
                self._seen(shape, ()),
                variants=tuple(encode([f"variant {v}" for v in offered])),
                exemplars=tuple(Exemplar(s, self.rng.uniform(FAILED, 0.0)) for s in shown),
                tried=self.rng.choice((0, 8, 16, 24)),
            )
            made += [(context, self._drawn(shape, self.rng.choice(offered))) for _ in range(2)]
        return made

    def _whole(self, shape: Shape) -> Grammar:
        if shape.name not in self._grammars:
            self._grammars[shape.name] = Grammar.of(shape.problem, shape.tables[0].case)
        return self._grammars[shape.name]

    def _drawn(self, shape: Shape, variant: str) -> Sentence:
        """One sentence of a variant's space; none with a word that the vocabulary lacks."""
        grammar = self._whole(shape)
        while True:
            words = grammar.words(variant, self.rng.choice(grammar.spaces[variant].configs))
            if all(word in numbers() for word in words):
                return tuple(encode(words))

    def _fast(self) -> list[tuple[Context, Sentence]]:
        """Measured sentences, each shape's by a softmax of the time over its best, at 0.03 × its temperature."""
        made = self._spoken()
        for shape in self.rng.choices(self.shapes, k=self.recipe.batch // 8):
            context = self._seen(shape, self._history(shape))
            tilt = [
                math.exp(-(s / shape.best_s - 1) / (0.03 * context.temperature)) for s in shape.seconds.values()
            ]
            known = {e.sentence for e in context.exemplars}
            tilt = [w * (0.05 if s in known else 1.0) for w, s in zip(tilt, shape.sentences, strict=True)]
            made += [(context, s) for s in self.rng.choices(shape.sentences, tilt, k=8)]
        return made

    def _taught(self) -> list[tuple[Context, Sentence]]:
        """What the specialists write; drawn once, then a batch at a time."""
        if not self._lessons:
            for shape in self.shapes:
                contexts = [self._seen(shape, self._history(shape)) for _ in range(96)]
                written = self.experts[shape.problem].sample(contexts, self.draws)
                self._lessons += [(c, s) for c, s in zip(contexts, written, strict=True)
                                  if s and (a := table_clock(shape, s)) and a.status is Status.correct]  # fmt: skip
        return [*self._spoken(), *self.rng.choices(self._lessons, k=self.recipe.batch)]

    def _seen(self, shape: Shape, tried: Sequence[tuple[Sentence, float]]) -> Context:
        heat = self.rng.uniform(0.5, 1.5)
        made = replace(
            shape.context, exemplars=tuple(exemplars(tried, self.rng, heat)), temperature=heat, tried=len(tried)
        )
        return rewritten(made, self.rng) if self.rng.random() < 0.5 else made

    def _history(self, shape: Shape) -> list[tuple[Sentence, float]]:
        count = self.rng.choice((0, 0, 4, 8, 16, 24))
        tried = self.rng.sample(shape.sentences, min(count, len(shape.sentences) // 3))
        return [(s, shape.seconds[s]) for s in tried]

    # GRPO ------------------------------------------------------------------------------------------------------

    def _improve(self, network: SentenceNetwork, buffer: Buffer) -> torch.Tensor | None:
        """The loss of one step: None where no group has a signal."""
        contexts: list[Context] = []
        sentences: list[Sentence] = []
        gains: list[float] = []
        shapes = [buffer.draw() for _ in range(self.recipe.contexts)]
        seen = [self._seen(shape, self._history(shape)) for shape in shapes]
        written = network.sample([c for c in seen for _ in range(self.recipe.group)], self.draws)
        for number, shape in enumerate(shapes):
            group = written[number * self.recipe.group : (number + 1) * self.recipe.group]
            judged = within(self.recipe.reward_s, lambda g=group, s=shape: self._judged(s, g))  # type: ignore[misc]
            relative = advantages([r for _, r in judged])
            signal = any(relative)
            self.figures["groups"] += 1
            self.figures["zero_signal_groups"] += not signal
            buffer.note(shape, signal)
            if signal:
                contexts += [seen[number]] * len(judged)
                sentences += [s for s, _ in judged]
                gains += relative
        if not gains:
            return None
        # what has no times keeps its grammar
        spoken = self._imitate(network, self._spoken()) if network is self.network else 0.0
        likely = network.log_likelihood(contexts, sentences)
        # on policy the ratio is 1, and its gradient that of the log likelihood; one step for each batch
        ratio = (likely - likely.detach()).exp()
        weight = torch.tensor(gains)
        clipped = ratio.clamp(1 - self.recipe.ratio, 1 + self.recipe.ratio)
        # the last term is the score's estimate of entropy's gradient
        spread = (likely.detach() / 8 * likely).mean()
        return -torch.minimum(ratio * weight, clipped * weight).mean() + self.recipe.entropy * spread + spoken

    def _judged(self, shape: Shape, group: Sequence[Sentence]) -> list[tuple[Sentence, float]]:
        """(sentence, reward) of those that something is known of; a sentence's twins share its speed-up."""
        made = []
        for sentence in group:
            answer = self.clock(shape, sentence)
            if answer is not None and sentence:
                value = self.reward(answer, shape.baseline_s)
                twins = group.count(sentence)
                made.append((sentence, min(value, 1.0) + max(0.0, value - 1.0) / twins))
        return made

    # Checkpoints -----------------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        experts = {name: network.state_dict() for name, network in self.experts.items()}
        save(
            self.checkpoint, self.network, seed=self.seed, done=self.done, figures=self.figures, experts=experts,
            random=_plain(self.rng.getstate()), draws=self.draws.get_state(),
        )  # fmt: skip

    def _resume(self, path: Path) -> None:
        self.network, found = load(path)
        self.done, self.figures = dict(found["done"]), dict(found["figures"])
        state = found["random"]
        self.rng.setstate((state[0], tuple(state[1]), state[2]))
        self.draws.set_state(found["draws"])
        for name, weights in found["experts"].items():
            self.experts[name] = SentenceNetwork(len(vocabulary()))
            self.experts[name].load_state_dict(weights)


def _plain(state: Any) -> list[Any]:
    return [state[0], list(state[1]), state[2]]
