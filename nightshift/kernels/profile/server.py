"""Where a server's time goes: the forward passes of a trace, prefill and decode apart, by place in the model.

A kernel in a CUDA graph has no operator and no shape. What a pass computes is known all the same: a transformer's
layers repeat, so that the order of the kernels tells a place (`PLACES`, then `PRODUCTS` in turn), and the model's
`config.json` gives its sizes. A place then has the name that FlashInfer-Bench's definitions have, by which
`nightshift kernels problems` and certified kernels are found.

Passes are what a server marks: SGLang's `step[DECODE bs=64]`, vLLM's `execute_context_0(0)_generation_64(64)`. A
trace without marks is read by its CUDA graphs: each launch that holds every layer's attention is a decode.
"""

from __future__ import annotations

import bisect
import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from nightshift.collectors.training.kineto_steps import COMMUNICATION, COPY, activities_of
from nightshift.collectors.training.kineto_trace import Trace, TraceError
from nightshift.kernels.profile.hotspots import REACHABLE
from nightshift.kernels.profile.roofline import Peaks

_ATTENTION = r"attention|attn|fmha|flash_fwd|BatchDecode|BatchPrefill|mla_|reduce_segments|merge_state"
_PARTS = r"decode_(softmax|reduce)|_fwd_grouped_kernel"
PLACES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (place, re.compile(pattern, re.IGNORECASE))
    for place, pattern in (
        ("cache write", r"reshape_and_cache|store_?kv_?cache|set_(mla_)?kv|append_paged|index_copy"),
        ("attention", f"{_ATTENTION}|{_PARTS}"),
        ("norm", r"rms_?norm|layer_?norm|rsqrt"),
        ("rotary", r"rotary|rope|(cat|cos|sin)_.*(cos|sin)"),
        ("experts", r"moe|expert|matmul_ogs|routing|bitmatrix|finalize_matmul|grouped_gemm|topk_(forward|softmax)"),
        ("gate", r"silu|swiglu|gelu|act_and_mul|sigmoid"),
        ("sampling", r"argmax|sampling|multinomial|top_?[kp]|softmax|sort"),
        ("embedding", r"embedding|gather|index_select"),
        ("product", r"gemm|gemv|Cijk_|nvjet|cutlass|xmma|matmul|split_?k|_mm_|tem_fused|dot_kernel"),
    )
)
"""Of a kernel's name the first that fits; "other" where none does."""
_ATEN = re.compile(r"at::native")
_SCOPE = re.compile(r"^(void |\(anonymous namespace\)::)+")
_REDUCES = re.compile(r"split_?k_?reduce|reduce_kernel", re.IGNORECASE)
"""The second kernel of one product."""
PRODUCTS: Mapping[bool, Mapping[int, tuple[str, ...]]] = {
    False: {
        4: ("qkv", "out", "gate and up", "down"),
        5: ("qkv", "out", "gate", "up", "down"),
        6: ("q", "k", "v", "out", "gate and up", "down"),
        7: ("q", "k", "v", "out", "gate", "up", "down"),
    },
    True: {3: ("qkv", "out", "router"), 5: ("q", "k", "v", "out", "router")},
}
"""Products of a layer in turn, by whether it has experts and by how many there are. One more is the head."""
_MARKS = (
    re.compile(r"step\[(?P<mode>[A-Z_]+) bs=(?P<batch>\d+)(?: toks=(?P<tokens>\d+))?"),
    re.compile(
        r"execute_(?:\d+_)?context_(?P<prompts>\d+)\((?:sq)?(?P<tokens>\d+)[^)]*\)"
        r"_generation_(?P<batch>\d+)\((?:sq\d+sk(?P<context>\d+)|\d+)"
    ),
)


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder, of one GPU's part where its heads and widths are split over several."""

    layers: int
    hidden: int
    heads: int
    kv: int
    head: int
    wide: int
    vocabulary: int
    experts: int = 0
    latent: int = 0
    turned: int = 0
    itemsize: int = 2

    @classmethod
    def read(cls, path: Path, ranks: int = 1) -> ModelShape:
        """Of a model's config.json; ranks: of tensor parallelism. Raises TraceError that names file and field."""
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            value = {**value, **(value.get("text_config") or {})}
            heads, hidden = int(value["num_attention_heads"]), int(value["hidden_size"])
            experts = next((int(value[name]) for name in _EXPERTS if value.get(name)), 0)
            wide = value.get("moe_intermediate_size") if experts else None
            return cls(
                layers=int(value["num_hidden_layers"]),
                hidden=hidden,
                heads=max(1, heads // ranks),
                kv=max(1, int(value.get("num_key_value_heads") or heads) // ranks),
                head=int(value.get("head_dim") or hidden // heads),
                wide=int(wide or value["intermediate_size"]) // ranks,
                vocabulary=int(value["vocab_size"]) // ranks,
                experts=experts,
                latent=int(value.get("kv_lora_rank") or 0),
                turned=int(value.get("qk_rope_head_dim") or 0),
            )
        except KeyError as error:
            raise TraceError(f"{path}: {error.args[0]}: missing; give a decoder's config.json") from error
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise TraceError(f"{path}: no config.json of a model ({type(error).__name__}: {error})") from error

    def product(self, role: str) -> tuple[int, int] | None:
        """(n, k) of a product's weight."""
        queries, keys = self.heads * self.head, self.kv * self.head
        return {
            "qkv": (queries + 2 * keys, self.hidden),
            "q": (queries, self.hidden),
            "k": (keys, self.hidden),
            "v": (keys, self.hidden),
            "out": (self.hidden, queries),
            "gate and up": (2 * self.wide, self.hidden),
            "gate": (self.wide, self.hidden),
            "up": (self.wide, self.hidden),
            "down": (self.hidden, self.wide),
            "router": (self.experts, self.hidden),
            "head": (self.vocabulary, self.hidden),
        }.get(role)


_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class ForwardPass:
    """One forward pass. Zeros where the trace does not say: sequences, new tokens, tokens in the cache."""

    phase: str
    batch: int
    tokens: int
    context: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class ModelPart:
    """What a phase's passes spend in one place of the model. Seconds and calls are of one pass.

    definition: what FlashInfer-Bench calls such a place, a pattern; empty: it has no name there. floor_s: at the
    roofline, NaN where it is not known. gain: the phase's speed-up, less one, with the place at 90 % of it.
    """

    phase: str
    name: str
    definition: str
    calls: float
    seconds: float
    share: float
    floor_s: float
    gain: float
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class Phase:
    """Passes of one kind, their means. period_s: the median from the begin of one to the next; where no two follow
    each other, how long the GPU is busy for one."""

    name: str
    passes: int
    batch: float
    tokens: float
    context: float
    period_s: float
    busy_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.period_s if self.period_s > 0 else math.nan


@dataclass(frozen=True)
class ServerProfile:
    """Where a server's time goes, with the most expensive places first."""

    source: str
    phases: tuple[Phase, ...]
    places: tuple[ModelPart, ...]
    outside_s: float
    """Of GPU time in no pass."""
    notes: tuple[str, ...] = ()


def server_profile(trace: Trace, shape: ModelShape, peaks: Peaks | None = None, batch: int = 0) -> ServerProfile:
    """The profile of a server's trace. batch: sequences of a pass, where the trace does not say. Raises TraceError.

    Example::

        shape = ModelShape.read(Path("Qwen3-8B/config.json"))
        for place in server_profile(read_trace(Path("decode.json.gz")), shape).places[:5]:
            print(place.phase, place.name, place.definition, f"{place.share:.0%}")
    """
    found = activities_of(trace)
    events = trace.events
    if not len(found.row):
        raise TraceError(f"{trace.path}: no GPU activity: a server's profile is of its kernels")
    launched = [
        int(events.begin_ns[launch if launch >= 0 else row])
        for row, launch in zip(found.row.tolist(), found.launch.tolist(), strict=True)
    ]
    names = [trace.names[number] for number in events.name[found.row].tolist()]
    places = [
        {COPY: "copy", COMMUNICATION: "communication"}.get(kind) or place_of(name)
        for kind, name in zip(found.kind.tolist(), names, strict=True)
    ]
    passes, notes = _marked(trace), []
    if not passes:
        passes = _graphs(trace, found.launch.tolist(), places, shape, batch)
        notes.append("no pass is marked: each CUDA graph with every layer's attention is taken for a decode")
    owner = _owners(passes, launched)
    inside = defaultdict[int, list[int]](list)
    for number in sorted(range(len(names)), key=lambda n: (int(events.begin_ns[found.row[n]]), n)):
        inside[owner[number]].append(number)
    outside = float(found.exclusive_ns[inside.pop(-1, [])].sum())
    seconds: dict[tuple[str, str, str], float] = defaultdict(float)
    calls, kernels = Counter[tuple[str, str, str]](), defaultdict[tuple[str, str, str], Counter[str]](Counter)
    spans: dict[int, tuple[int, float]] = {}
    odd = Counter[str]()
    for one, members in inside.items():
        phase = passes[one].phase
        roles, why = roles_of([places[n] for n in members], [names[n] for n in members], shape)
        odd[why] += 1
        for number, role in zip(members, roles, strict=True):
            key = (phase, places[number], role)
            seconds[key] += float(found.exclusive_ns[number]) * 1e-9
            calls[key] += 1
            kernels[key][names[number]] += 1
        begin = int(events.begin_ns[found.row[members]].min())
        spans[one] = (begin, float(found.exclusive_ns[members].sum()) * 1e-9)
    del odd[""]
    notes += [f"{count} passes: {why}" for why, count in odd.items()]
    phases = _phases(passes, spans)
    by_name = {phase.name: phase for phase in phases}
    made = [
        _place(by_name[key[0]], key, spent, calls[key], kernels[key], shape, peaks)
        for key, spent in seconds.items()
    ]
    made.sort(key=lambda place: (place.phase, -place.seconds))
    return ServerProfile(trace.path, phases, tuple(made), outside * 1e-9, tuple(notes))


def place_of(name: str) -> str:
    """A kernel's place by its name, without its arguments and template parameters where it is not torch's own."""
    text = name if _ATEN.search(name) else re.split(r"[<(]", _SCOPE.sub("", name))[0]
    return next((place for place, pattern in PLACES if pattern.search(text)), "other")


def roles_of(kinds: Sequence[str], names: Sequence[str], shape: ModelShape) -> tuple[list[str], str]:
    """Of a pass's kernels in order of time what each is in its place; and why its products are not told apart."""
    products = [n for n, place in enumerate(kinds) if place == "product" and not _REDUCES.search(names[n])]
    per, rest = divmod(len(products), shape.layers)
    turn = PRODUCTS[shape.experts > 0].get(per, ())
    why = "" if turn and rest <= 1 else f"{len(products)} products in {shape.layers} layers: not told apart"
    roles = [""] * len(kinds)
    for number, at in enumerate(products):
        roles[at] = "" if why else turn[number % per] if number < per * shape.layers else "head"
    last = "head"  # a first norm comes before the first product
    for number, place in enumerate(kinds):
        if place == "product":
            last = roles[number] = roles[number] or ("" if why else last)
        elif place == "attention":
            last = "attention"
        elif place == "norm":
            of_heads = not why and last in ("qkv", "q", "k", "v")
            roles[number] = "of heads" if of_heads else "and addition" if "add" in names[number].lower() else ""
    return roles, why


def _marked(trace: Trace) -> list[ForwardPass]:
    """Passes that the server named; those that overlap are one, named twice."""
    events = trace.events
    found: list[ForwardPass] = []
    rows = events.rows("user_annotation")
    for row in sorted(rows.tolist(), key=lambda row: int(events.begin_ns[row])):
        match = next((m for mark in _MARKS if (m := mark.search(trace.names[events.name[row]]))), None)
        if match is None:
            continue
        said = match.groupdict()
        batch, tokens = int(said["batch"]), int(said.get("tokens") or 0)
        begin, end = int(events.begin_ns[row]), int(events.begin_ns[row] + events.dur_ns[row])
        if "mode" in said:
            phase = {"DECODE": "decode", "IDLE": "decode", "MIXED": "mixed"}.get(said["mode"], "prefill")
            batches, new = batch, batch if phase == "decode" else tokens
        else:
            prompts = int(said["prompts"])
            phase = "decode" if not prompts else "mixed" if batch else "prefill"
            batches, new = batch + prompts, batch + tokens * (prompts > 0)
        made = ForwardPass(phase, batches, new, int(said.get("context") or 0), begin, end)
        if found and begin < found[-1].end_ns:
            had = found.pop()
            context = max(had.context, made.context)
            made = ForwardPass(had.phase, had.batch, max(had.tokens, made.tokens), context, had.begin_ns,
                        max(had.end_ns, end))  # fmt: skip
        found.append(made)
    return found


def _graphs(
    trace: Trace, launches: Sequence[int], places: Sequence[str], shape: ModelShape, batch: int
) -> list[ForwardPass]:
    """One pass for each launch with as many kernels of attention as there are layers."""
    attention = Counter(
        launch for launch, place in zip(launches, places, strict=True) if launch >= 0 and place == "attention"
    )
    events = trace.events
    found = sorted(
        (int(events.begin_ns[row]), int(events.begin_ns[row] + events.dur_ns[row]))
        for row, count in attention.items()
        if count >= shape.layers
    )
    if not found:
        raise TraceError(
            f"{trace.path}: no forward pass: neither marks of SGLang's or vLLM's, nor a CUDA graph with "
            f"{shape.layers} layers' attention. Mark passes: torch.profiler.record_function('step[DECODE bs=64]')"
        )
    return [ForwardPass("decode", batch, batch, 0, begin, end) for begin, end in found]


def _owners(passes: Sequence[ForwardPass], launched: Sequence[int]) -> list[int]:
    """The pass of each activity, by when it was launched; −1: none."""
    begins = [one.begin_ns for one in passes]
    found = []
    for at in launched:
        number = bisect.bisect_right(begins, at) - 1
        found.append(number if number >= 0 and at <= passes[number].end_ns else -1)
    return found


def _phases(passes: Sequence[ForwardPass], spans: Mapping[int, tuple[int, float]]) -> tuple[Phase, ...]:
    """spans: when a pass's first kernel began, and for how many seconds the GPU was busy with it."""
    made = []
    for name in ("prefill", "mixed", "decode"):
        mine = [n for n in spans if passes[n].phase == name]
        if not mine:
            continue
        # what follows another pass of its kind shows the whole period, with what the GPU waited for
        periods = [
            (spans[n + 1][0] - spans[n][0]) * 1e-9 for n in mine if n + 1 in spans and passes[n + 1].phase == name
        ] or [spans[n][1] for n in mine]
        mean = statistics.fmean
        made.append(
            Phase(
                name,
                len(mine),
                mean(passes[n].batch for n in mine),
                mean(passes[n].tokens for n in mine),
                mean(passes[n].context for n in mine),
                statistics.median(periods),
                mean(spans[n][1] for n in mine),
            )
        )
    return tuple(made)


def _place(
    phase: Phase,
    key: tuple[str, str, str],
    spent_s: float,
    called: int,
    kernels: Counter[str],
    shape: ModelShape,
    peaks: Peaks | None,
) -> ModelPart:
    """spent_s, called: in all passes."""
    _, place, role = key
    seconds, calls = spent_s / phase.passes, called / phase.passes
    floor_s = math.nan
    if peaks is not None and phase.tokens:
        moved, flops = _cost(place, role, phase, shape, calls)
        floor_s = peaks.floor_s(moved, flops, "bfloat16") if moved else math.nan
    saved = max(0.0, seconds - floor_s / REACHABLE) if math.isfinite(floor_s) else 0.0
    gain = phase.period_s / (phase.period_s - saved) - 1 if saved < phase.period_s else 0.0
    name = f"{place}: {role}" if role else place
    first = tuple(name for name, _ in kernels.most_common(2))
    definition = definition_of_place(place, role, phase.name, shape)
    return ModelPart(phase.name, name, definition, calls, seconds, seconds / phase.busy_s, floor_s, gain, first)


def definition_of_place(kind: str, role: str, phase: str, shape: ModelShape) -> str:
    """FlashInfer-Bench's name of a place, with `*` for what a trace does not say, such as the size of a page."""
    s = shape
    if kind == "product":
        sizes = s.product(role)
        return f"gemm_n{sizes[0]}_k{sizes[1]}" if sizes else ""
    if kind == "attention":
        how = "decode" if phase == "decode" else "prefill_causal"
        if s.latent:
            return f"mla_*{how}_h{s.heads}_ckv{s.latent}_kpe{s.turned}*"
        return f"gqa_*{how}_h{s.heads}_kv{s.kv}_d{s.head}*"
    return {
        "norm": {
            "of heads": f"rmsnorm_h{s.head}", "and addition": f"fused_add_rmsnorm_h{s.hidden}",
        }.get(role, f"rmsnorm_h{s.hidden}"),
        "rotary": f"rope_*d{s.head}*",
        "experts": f"moe_*e{s.experts}_h{s.hidden}_i{s.wide}*",
        "gate": f"silu_*h{s.wide}*",
        "sampling": f"*_v{s.vocabulary}",
        "embedding": f"embedding_v{s.vocabulary}_d{s.hidden}",
    }.get(kind, "")  # fmt: skip


def _cost(place: str, role: str, phase: Phase, shape: ModelShape, calls: float) -> tuple[float, float]:
    """(bytes, floating-point operations) that all calls of a pass cannot do without; zeros where not known."""
    tokens, size = phase.tokens, shape.itemsize
    if place == "product" and (sizes := shape.product(role)):
        n, k = sizes
        rows = phase.batch if role == "head" else tokens  # a server asks for one distribution of each sequence
        return calls * size * (n * k + rows * (n + k)), calls * 2.0 * rows * n * k
    if place == "attention" and phase.name == "decode" and phase.context and not shape.latent:
        across = shape.layers * shape.head
        moved = size * across * 2 * (shape.kv * phase.context + shape.heads * tokens)
        return moved, 4.0 * across * shape.heads * phase.context
    width = {"of heads": shape.head * (shape.heads + shape.kv) / 2}.get(role, float(shape.hidden))
    if place == "norm":
        return calls * size * tokens * width * (4 if role == "and addition" else 2), 0.0
    if place == "gate":
        return calls * size * tokens * shape.wide * 3, 0.0
    if place in ("rotary", "cache write"):
        heads = shape.heads + shape.kv if place == "rotary" else 2 * shape.kv
        return shape.layers * size * tokens * heads * shape.head * 2, 0.0
    return 0.0, 0.0


def as_text(profile: ServerProfile, solutions: Mapping[str, str], count: int = 14) -> str:
    """The profile as tables for a terminal. solutions: definitions by name, and what there is of each."""
    lines = [*profile.notes]
    for phase in profile.phases:
        new = f"{phase.tokens:,.0f} new tokens"
        context = f", {phase.context:,.0f} tokens in the cache" if phase.context else ""
        rate = f"{phase.tokens_per_s:,.0f} tokens/s" if phase.tokens else "tokens/s: give --batch"
        lines += [
            "",
            f"{phase.name}: {phase.passes} passes of {phase.batch:,.0f} sequences, {new}{context}",
            f"  {phase.period_s * 1e3:.2f} ms a pass, the GPU is busy for {phase.busy_s * 1e3:.2f}; {rate}",
            f"{'ms/pass':>9} {'share':>6} {'roof':>5} {'gain':>6}  place",
        ]
        for place in [one for one in profile.places if one.phase == phase.name][:count]:
            roof = f"{place.floor_s / place.seconds:.0%}" if math.isfinite(place.floor_s) else "–"
            fits = [name for name in solutions if place.definition and fnmatchcase(name, place.definition)]
            told = fits[0] + (f" and {len(fits) - 1} more" if len(fits) > 1 else "") if fits else place.definition
            said = next((solutions[name] for name in fits if solutions[name]), "")
            lines.append(
                f"{place.seconds * 1e3:9.3f} {place.share:6.1%} {roof:>5} {place.gain:6.1%}  {place.name}"
                + (f"  {told}" if told else "")
                + (f" ({said})" if said else "")
            )
    return "\n".join(lines).lstrip("\n")


def to_json(profile: ServerProfile) -> dict[str, Any]:
    """The profile as JSON has it: null for what is not known."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    made: dict[str, Any] = plain(asdict(profile))
    return made
