"""A learned author: a small network that writes a kernel as words, behind the same protocol and the same judge.

A sentence is an operation, a variant (the family that writes the source), a value for each of the variant's
dimensions, and `end`. The network sees the shape, the dtype, the GPU, the variants on offer, a temperature and
exemplars: pairs of kernels that the search has tried, a fast one and a slow one (contrastive exemplars: CUDA-L1,
arXiv 2507.14111), drawn from islands of the history (FunSearch, Nature 625). It may write any word after any other:
what is no sentence of the grammar is dropped here and never judged. After its first samples it writes several times
as many as it proposes, and proposes those that promise most beside what was tried. `kernels.lab` trains it.

    LearnedError (GeneratorError)
    ├── VocabularyError   a checkpoint has other words than this program
    ├── CheckpointError   a file is no checkpoint
    └── SentenceError     words that are no sentence of a problem's grammar
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from nightshift.kernels.draw import mix
from nightshift.kernels.generate.base import Config, GeneratorError, Outcome, Proposal, Spent, Task, Value
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.surrogate import Array, erf
from nightshift.kernels.generate.template import Family, candidate
from nightshift.kernels.ops.families import ALL, families_of
from nightshift.kernels.ops.problems import BY_NAME
from nightshift.kernels.problem import Case, Problem

NOTHING, END = "", "end"
LONGEST = 14
"""Words of a sentence at most, its operation and its `end` included."""
DEVICES: Mapping[str, tuple[float, ...]] = {
    "NVIDIA H100 80GB HBM3": (132 / 200, 3.35 / 8, 50 / 128, 228 / 256, 0.989),
    "NVIDIA H200": (132 / 200, 4.8 / 8, 50 / 128, 228 / 256, 0.989),
    "none": (0.0, 0.0, 0.0, 0.0, 0.0),
}
"""Of each GPU: multiprocessors / 200, memory in TB/s / 8, L2 in MiB / 128, shared memory of a multiprocessor in KiB
/ 256, dense bfloat16 in PFLOP/s (NVIDIA's data sheets)."""
SIZES = ("b", "c", "d", "f", "g", "h", "k", "m", "n", "s", "t", "v", "w")
DTYPES = ("float16", "bfloat16", "float32")
PAIRS, ISLANDS = 3, 4
POOL, REACH = 6, 0.7
"""Samples for each that is chosen of them, and how far apart in a space two kernels still tell of each other."""
FAILED = -1.5
"""The score of an exemplar that the judge refused; others have max(-1, log(best / its time))."""
_FORMAT = 1


class LearnedError(GeneratorError):
    """A learned author cannot work. The message says why."""


class VocabularyError(LearnedError):
    """A checkpoint has other words than this program."""


class CheckpointError(LearnedError):
    """A file is no checkpoint of a kernel policy."""


class SentenceError(LearnedError):
    """Words that are no sentence of a problem's grammar."""


@dataclass(frozen=True)
class Grammar:
    """What may be written for one case: the variants on offer and the space of each."""

    problem: str
    case: Case
    spaces: Mapping[str, Space]

    @classmethod
    def of(cls, problem: str, case: Case, families: Sequence[Family] | None = None) -> Grammar:
        """Raises SentenceError where no family writes the problem, or none has a space for the case."""
        spaces = {}
        for family in families_of(problem) if families is None else families:
            try:
                spaces[family.name] = family.space(problem, case)
            except GeneratorError:
                continue
        if not spaces or f"operation {problem}" not in numbers():
            raise SentenceError(f"policy: {problem} {case} is outside the grammar: no family writes it")
        return cls(problem, case, spaces)

    def words(self, variant: str, config: Config) -> tuple[str, ...]:
        """The sentence of one configuration."""
        chosen = (f"{d.name}={config[d.name]}" for d in self.spaces[variant].dimensions)
        return (f"operation {self.problem}", f"variant {variant}", *chosen, END)

    def read(self, sentence: Sequence[str]) -> tuple[str, dict[str, Value]]:
        """(variant, configuration) of a sentence. Raises SentenceError naming the first word that does not fit."""
        if not sentence or sentence[0] != f"operation {self.problem}":
            raise SentenceError(f"policy: {sentence[:1]} is not the operation {self.problem}")
        variant = sentence[1].removeprefix("variant ") if len(sentence) > 1 else ""
        if variant not in self.spaces:
            raise SentenceError(f"policy: {sentence[1:2]} is no variant on offer")
        space = self.spaces[variant]
        if len(sentence) != len(space.dimensions) + 3 or sentence[-1] != END:
            raise SentenceError(f"policy: {variant} takes {len(space.dimensions)} choices and {END!r}")
        config: dict[str, Value] = {}
        for dimension, word in zip(space.dimensions, sentence[2:-1], strict=True):
            values = {f"{dimension.name}={v}": v for v in dimension.values}
            if word not in values:
                raise SentenceError(f"policy: {word!r} is no value of {dimension.name}")
            config[dimension.name] = values[word]
        return variant, config


@cache
def vocabulary() -> tuple[str, ...]:
    """Every word of every family's grammar, in a fixed order."""
    words: set[str] = set()
    for family in ALL:
        for name in family.problems:
            for case in BY_NAME[name].cases if name in BY_NAME else ():
                try:
                    space = family.space(name, case)
                except GeneratorError:
                    continue
                words |= {f"operation {name}", f"variant {family.name}"}
                words |= {f"{d.name}={v}" for d in space.dimensions for v in d.values}
    return (NOTHING, END, *sorted(words))


@cache
def numbers() -> dict[str, int]:
    return {word: number for number, word in enumerate(vocabulary())}


def encode(sentence: Sequence[str]) -> list[int]:
    """Word numbers of a sentence. Raises SentenceError on a word outside the vocabulary."""
    known = numbers()
    for word in sentence:
        if word not in known:
            raise SentenceError(f"policy: the vocabulary has no word {word!r}")
    return [known[word] for word in sentence]


def features(problem: Problem, case: Case, gpu: str) -> list[float]:
    """What the network sees of a task, each about 0 to 1. Raises SentenceError on a GPU without features."""
    if gpu not in DEVICES:
        raise SentenceError(f"policy: no features of the GPU {gpu!r}; known are {', '.join(DEVICES)}")
    moved, flops = problem.compulsory_bytes(case), problem.flops(case)
    made = [math.log2(1 + moved) / 40, math.log2(1 + flops) / 50, math.log2(1 + flops / max(1, moved)) / 12]
    made += [float(case.dtype == dtype) for dtype in DTYPES]
    made += [math.log2(1 + case.sizes.get(name, 0)) / 24 for name in SIZES]
    return [*made, *DEVICES[gpu]]


FEATURES = 3 + len(DTYPES) + len(SIZES) + 5


@dataclass(frozen=True)
class Exemplar:
    """A tried sentence (word numbers). score: 0 for the fastest so far, less for slower ones, `FAILED` at least."""

    sentence: tuple[int, ...]
    score: float


def exemplars(tried: Sequence[tuple[tuple[int, ...], float]], rng: random.Random, heat: float) -> list[Exemplar]:
    """Up to `PAIRS` contrastive pairs of what was tried (sentence, seconds; infinite where refused), oldest first.

    Each pair comes of one island, every `ISLANDS`-th trial: the fast one by a softmax of log time at 0.05 × heat,
    the slow one is what differs from it in the fewest words.
    """
    ran = [s for _, s in tried if math.isfinite(s)]
    if not ran:
        return [Exemplar(sentence, FAILED) for sentence, _ in tried[-PAIRS:]]
    best = min(ran)

    def scored(item: tuple[tuple[int, ...], float]) -> Exemplar:
        sentence, seconds = item
        return Exemplar(sentence, max(-1.0, math.log(best / seconds)) if math.isfinite(seconds) else FAILED)

    made: list[Exemplar] = []
    for _ in range(PAIRS):
        island = list(tried[rng.randrange(ISLANDS) :: ISLANDS]) or list(tried)
        fast = rng.choices(island, [math.exp(scored(i).score / (0.05 * heat)) + 1e-9 for i in island])[0]
        made.append(scored(fast))
        others = [i for i in island if i[1] > 1.02 * fast[1]]
        if others:
            made.append(scored(min(others, key=lambda i: (_unlike(i[0], fast[0]), rng.random()))))
    return made


def _unlike(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))


@dataclass(frozen=True)
class Context:
    """What one sample is conditioned on. features: `features`; operation, variants: word numbers; tried: trials so
    far, of 32."""

    features: tuple[float, ...]
    operation: int
    variants: tuple[int, ...]
    exemplars: tuple[Exemplar, ...] = ()
    temperature: float = 1.0
    tried: int = 0


class SentenceNetwork(nn.Module):
    """Word by word: a GRU that begins from an embedding of the context. Some 120,000 parameters."""

    def __init__(self, words: int, width: int = 64) -> None:
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.seen = nn.Sequential(nn.Linear(FEATURES + 2, width), nn.Tanh(), nn.Linear(width, width))
        self.exemplar = nn.Sequential(nn.Linear(width + 1, width), nn.Tanh(), nn.Linear(width, width))
        self.start = nn.Sequential(nn.Linear(4 * width, width), nn.Tanh())
        self.cell = nn.GRU(2 * width, width, batch_first=True)
        self.out = nn.Linear(2 * width, words)

    def begin(self, contexts: Sequence[Context]) -> Tensor:
        """[n, width]: the state before the first word."""
        seen = torch.tensor([[*c.features, c.temperature / 2, c.tried / 32] for c in contexts])
        operation = self.word(torch.tensor([c.operation for c in contexts]))
        offered = self._bag([c.variants for c in contexts])
        pairs = torch.zeros(len(contexts), offered.shape[1])
        owners = [n for n, c in enumerate(contexts) for _ in c.exemplars]
        if owners:
            shown = [e for c in contexts for e in c.exemplars]
            told = torch.tensor([[e.score] for e in shown])
            coded = self.exemplar(torch.cat([self._bag([e.sentence[1:-1] for e in shown]), told], 1))
            pairs = pairs.index_add(0, torch.tensor(owners), coded / (2 * PAIRS))
        return cast(Tensor, self.start(torch.cat([self.seen(seen), operation, offered, pairs], 1)))

    def _bag(self, groups: Sequence[Sequence[int]]) -> Tensor:
        """[n, width]: the sum of each group's words."""
        flat = torch.tensor([w for group in groups for w in group], dtype=torch.long)
        owners = torch.tensor([n for n, group in enumerate(groups) for _ in group], dtype=torch.long)
        return torch.zeros(len(groups), self.word.embedding_dim).index_add(0, owners, self.word(flat))

    def logits(self, state: Tensor, sentences: Tensor) -> Tensor:
        """[n, length, words] of what follows each word of sentences [n, length]."""
        always = state[:, None, :].expand(-1, sentences.shape[1], -1)
        hidden, _ = self.cell(torch.cat([self.word(sentences), always], 2), state[None].contiguous())
        return cast(Tensor, self.out(torch.cat([hidden, always], 2)))

    def log_likelihood(self, contexts: Sequence[Context], sentences: Sequence[Sequence[int]]) -> Tensor:
        """[n]: the sum of the log likelihoods of all words after the empty one."""
        longest = max(len(s) for s in sentences)
        padded = torch.tensor([[0, *s, *[0] * (longest - len(s))] for s in sentences])
        logits = self.logits(self.begin(contexts), padded[:, :-1]).log_softmax(2)
        chosen = logits.gather(2, padded[:, 1:, None])[:, :, 0]
        return (chosen * (padded[:, 1:] != 0)).sum(1)

    @torch.no_grad()
    def sample(self, contexts: Sequence[Context], generator: torch.Generator) -> list[tuple[int, ...]]:
        """One sentence for each context, by its temperature; cut off after `LONGEST` words."""
        state = self.begin(contexts)
        heat = torch.tensor([[c.temperature] for c in contexts])
        hidden, word = state[None].contiguous(), torch.zeros(len(contexts), 1, dtype=torch.long)
        columns, ended = [], torch.zeros(len(contexts), dtype=torch.bool)
        for _ in range(LONGEST):
            output, hidden = self.cell(torch.cat([self.word(word), state[:, None, :]], 2), hidden)
            logits = self.out(torch.cat([output[:, 0], state], 1)) / heat
            logits[:, 0] = -math.inf  # the empty word only fills up
            # Gumbel's way to draw from a softmax, which is the quicker one here
            noise = -torch.rand(logits.shape, generator=generator).clamp_min(1e-12).log()
            word = (logits - noise.log()).argmax(1, keepdim=True)
            columns.append(torch.where(ended[:, None], 0, word))
            ended |= word[:, 0] == 1
            if bool(ended.all()):
                break
        return [tuple(w for w in row if w) for row in torch.cat(columns, 1).tolist()]


def save(path: Path, network: SentenceNetwork, **more: Any) -> None:
    """Written beside and renamed, so that a killed training leaves the last whole checkpoint. more: what a training
    resumes from, tensors and plain values."""
    part = path.with_suffix(".part")
    torch.save({"format": _FORMAT, "words": list(vocabulary()), "network": network.state_dict(), **more}, part)
    part.replace(path)


def load(path: Path) -> tuple[SentenceNetwork, dict[str, Any]]:
    """(network, all that the checkpoint holds). Raises CheckpointError or VocabularyError; unpickles nothing."""
    try:
        found = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path}: no checkpoint of a kernel policy ({type(error).__name__})") from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT or "words" not in found:
        raise CheckpointError(f"{path}: no checkpoint of a kernel policy of format {_FORMAT}")
    theirs, ours = set(found["words"]), set(vocabulary())
    if found["words"] != list(vocabulary()):
        unlike = ", ".join(sorted(theirs ^ ours)[:3]) or "their order"
        raise VocabularyError(
            f"{path}: {len(theirs)} words, this program {len(ours)}; unlike: {unlike}. Train again"
        )
    network = SentenceNetwork(len(ours))
    try:
        network.load_state_dict(found["network"])
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: its weights are of another network") from error
    return network, found


@dataclass
class LearnedAuthor:
    """The network as a generator. seed: of its samples; families: those on offer, all where None.

    illegal: sentences that were outside the grammar; they are not judged."""

    network: SentenceNetwork
    gpu: str
    seed: int = 0
    families: Sequence[Family] | None = None
    name: str = "policy"
    illegal: int = field(default=0, init=False)

    def spent(self) -> Spent:
        return Spent()

    def propose(self, task: Task, history: Sequence[Outcome], count: int) -> Sequence[Proposal]:
        grammar = Grammar.of(task.problem.name, task.case, self.families)
        seen = features(task.problem, task.case, self.gpu)
        tried: dict[tuple[int, ...], float] = {}
        for outcome in history:
            variant, config = _apart(outcome.proposal)
            if variant in grammar.spaces and grammar.spaces[variant].holds(config):
                sentence = tuple(encode(grammar.words(variant, config)))
                tried[sentence] = outcome.seconds if outcome.timed else math.inf
        proposals: dict[tuple[int, ...], Proposal] = {}

        def usable(sentence: tuple[int, ...]) -> bool:
            try:
                variant, config = grammar.read([vocabulary()[w] for w in sentence])
            except SentenceError:
                self.illegal += 1
                return False
            made = self._proposal(task, variant, config) if grammar.spaces[variant].admits(config) else None
            if made is not None:
                proposals[sentence] = made
            return made is not None

        draws = Sampler(self.network, grammar, seen, mix(self.seed, len(history)))
        return [proposals[sentence] for sentence in draws.batch(list(tried.items()), count, usable)]

    def _proposal(self, task: Task, variant: str, config: dict[str, Value]) -> Proposal | None:
        """None where the kernel is not for this case."""
        family = next(f for f in ALL if f.name == variant)
        written = candidate(family, task.problem.name, task.case, config)
        if written.domain.outside(task.case.sizes, task.case.dtype, task.case.layout):
            return None
        return Proposal(written, self.name, {"variant": variant, **config}, f"the policy wrote {variant}")


def author_of(path: Path, task: Task, families: Sequence[Family], seed: int = 0) -> LearnedAuthor:
    """The author of a checkpoint, for this machine's GPU and the variants that a search may use.

    Raises LearnedError where the checkpoint does not fit, or the task is outside its grammar."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    network, _ = load(path)
    named = [f for f in families if task.problem.name in f.problems]
    Grammar.of(task.problem.name, task.case, named)
    features(task.problem, task.case, gpu)
    return LearnedAuthor(network, gpu, seed, named)


def _apart(proposal: Proposal) -> tuple[str, dict[str, Value]]:
    """(variant, configuration) of a proposal of ours, or of a family's own author."""
    rest = dict(proposal.config)
    return str(rest.pop("variant", proposal.generator)), rest


@dataclass
class Sampler:
    """Draws sentences for one task. Each round of draws is a little warmer, from 0.7 to 1.3 after 32 trials."""

    network: SentenceNetwork
    grammar: Grammar
    features: Sequence[float]
    seed: int

    @cached_property
    def _random(self) -> tuple[random.Random, torch.Generator]:
        return random.Random(self.seed), torch.Generator().manual_seed(self.seed % (1 << 63))

    def context(self, tried: Sequence[tuple[tuple[int, ...], float]], heat: float) -> Context:
        rng, _ = self._random
        operation, *variants = encode(
            [f"operation {self.grammar.problem}", *(f"variant {v}" for v in self.grammar.spaces)]
        )
        return Context(
            tuple(self.features), operation, tuple(variants), tuple(exemplars(tried, rng, heat)), heat, len(tried)
        )

    def several(self, tried: Sequence[tuple[tuple[int, ...], float]], count: int) -> list[tuple[int, ...]]:
        rng, generator = self._random
        heat = 0.7 + 0.6 * min(1.0, len(tried) / 32)
        # exemplars are drawn anew for every four samples
        contexts = [
            c for _ in range(-(-count // 4)) for c in [self.context(tried, heat * rng.uniform(0.8, 1.2))] * 4
        ]
        return self.network.sample(contexts[:count], generator)

    def batch(
        self,
        tried: Sequence[tuple[tuple[int, ...], float]],
        count: int,
        usable: Callable[[tuple[int, ...]], bool],
    ) -> list[tuple[int, ...]]:
        """At most `count` new sentences that are usable: samples as they come while nothing ran, then the most
        promising of a pool of them."""
        known = {sentence for sentence, _ in tried}
        ran = any(math.isfinite(s) for _, s in tried)
        pool: dict[tuple[int, ...], None] = {}
        for _ in range(12):
            wanted = POOL * count if ran else count
            for sentence in self.several(tried, 2 * wanted):
                if len(pool) < wanted and sentence not in known and sentence not in pool and usable(sentence):
                    pool[sentence] = None
            if len(pool) >= wanted:
                break
        return self._promising(list(pool), tried, count) if ran else list(pool)

    def _promising(
        self, pool: list[tuple[int, ...]], tried: Sequence[tuple[tuple[int, ...], float]], count: int
    ) -> list[tuple[int, ...]]:
        """By expected improvement under a Gaussian process over sentences. Its mean is the network's own opinion:
        log likelihood, as steep as the trials so far bear out; each choice is believed before the next."""
        tried = [(s, seconds) for s, seconds in tried if self._place(s) is not None]
        points = [*(s for s, _ in tried), *pool]
        with torch.no_grad():
            likely = self.network.log_likelihood([self.context((), 1.0)] * len(points), points).double().numpy()
        logs = np.array([math.log(s) if math.isfinite(s) else math.nan for _, s in tried])
        y = np.where(np.isfinite(logs), logs, np.nanmax(logs) + 0.1)
        told = likely[: len(y)]
        slope = float(np.cov(told, y)[0, 1] / max(1e-9, np.var(told))) if len(y) > 3 else 0.0
        mean = y.mean() + min(0.0, slope) * (likely - told.mean())
        gram = np.exp(-self._apart(points) / REACH)
        spread = max(float((y - mean[: len(y)]).std()), 1e-3)
        seen, chosen = list(range(len(y))), list[int]()
        values = list(y - mean[: len(y)])
        best = float(y.min())
        while len(chosen) < min(count, len(pool)):
            inner = gram[np.ix_(seen, seen)] + 0.02 * np.eye(len(seen))
            cross = np.linalg.solve(inner, gram[seen]).T
            expected = mean + cross @ np.array(values)
            deviation = spread * np.sqrt(np.maximum(1e-9, 1.0 - (cross * gram[seen].T).sum(1)))
            z = (best - expected) / deviation
            gain = (best - expected) * 0.5 * (1 + erf(z / math.sqrt(2)))
            gain += deviation * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
            gain[seen] = -math.inf
            pick = int(gain.argmax())
            chosen.append(pick)
            seen.append(pick)
            values.append(float(expected[pick] - mean[pick]))
        return [points[n] for n in chosen]

    def _place(self, sentence: tuple[int, ...]) -> tuple[str, Array] | None:
        """(variant, its point in the space); None where it is no sentence."""
        try:
            variant, config = self.grammar.read([vocabulary()[w] for w in sentence])
        except SentenceError:
            return None
        return variant, self.grammar.spaces[variant].encode((config,))[0]

    def _apart(self, points: Sequence[tuple[int, ...]]) -> Array:
        """[n, n]: the sum of differences along each dimension; 2 between variants."""
        places = [place for p in points if (place := self._place(p)) is not None]
        apart = np.full((len(places), len(places)), 2.0)
        for variant in self.grammar.spaces:
            mine = [n for n, (name, _) in enumerate(places) if name == variant]
            if mine:
                rows = np.stack([places[n][1] for n in mine])
                apart[np.ix_(mine, mine)] = np.abs(rows[:, None] - rows[None]).sum(2)
        return apart
