"""An author of kernels for any operation: its own graph, cut into regions, over a space of schedules.

The space is small and one for all regions of an operation: a search that is given seconds tries what usually wins
first (`BEGINNINGS`), and the surrogate goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from nightshift.kernels.generate.base import Config, GeneratorError, Value
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import Template, Warm
from nightshift.kernels.problem import Case, Inputs, Problem
from nightshift.kernels.regions.composition import Composer, Composition, GraphPlan
from nightshift.kernels.regions.graph import GraphError, captured, is_forwarded
from nightshift.kernels.regions.kernel import Schedule
from nightshift.kernels.regions.product import ProductSchedule, writes_product

TILES = {
    "128x128x32": (128, 128, 32, 8, 3), "128x64x32": (128, 64, 32, 4, 3), "64x64x32": (64, 64, 32, 4, 3),
    "128x256x32": (128, 256, 32, 8, 3), "64x32x32": (64, 32, 32, 4, 4), "32x32x16": (32, 32, 16, 4, 1),
}  # fmt: skip
"""Rows, columns and depth of a product's tiles, its warps and stages."""


@dataclass
class RegionFamily:
    """The schedules of one problem's graph, as a family of one problem. forms: of its inputs, on a device."""

    problem: Problem
    forms: Inputs
    device: str
    name: str = "regions"
    made: dict[str, Composition] = field(default_factory=dict)

    @property
    def problems(self) -> tuple[str, ...]:
        return (self.problem.name,)

    @cached_property
    def graph(self) -> torch.fx.GraphModule:
        """Raises GeneratorError where the operation has no graph."""
        try:
            return captured(self.problem.reference, self.forms, self.device)
        except GraphError as error:
            raise GeneratorError(f"{self.name}: {error}") from error

    @cached_property
    def products(self) -> tuple[bool, bool]:
        """Whether there are matrix products, and whether there are convolutions, that a kernel here writes."""
        found = [n for n in self.graph.graph.nodes if n.op == "call_function" and writes_product(n)]
        turned = ["convolution" in str(n.target) for n in found]
        return not all(turned), any(turned)

    @cached_property
    def convolutions(self) -> list[torch.fx.Node]:
        """Written here or not."""
        return [node for node in self.graph.graph.nodes if str(node.target) == "aten.convolution.default"]

    @property
    def turns(self) -> bool:
        """Whether there is a transposed convolution that another can stand for."""
        return any(map(is_forwarded, self.convolutions))

    def space(self, problem: str, case: Case) -> Space:
        product, convolution = self.products
        tiles = tuple(TILES)
        return Space.of(
            block=(512, 1024, 2048, 4096, 8192),
            warps=(4, 8),
            rows=(0, 1, 16, 64),
            persistent=(2048, 8192, 16384),
            product=("torch", *tiles) if product else ("torch",),
            convolution=("torch", *["forward"] * self.turns, *(tiles if convolution else ())),
            precision=("tf32x3", "tf32", "ieee") if product or convolution else ("tf32x3",),
            channels=("first", "last") if self.convolutions else ("first",),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        return self.composed(case, config).candidate.source

    def composed(self, case: Case, config: Config) -> Composition:
        """The candidate of one configuration. Raises GeneratorError that names the operator that cannot be cut."""
        numbers = {key: int(config[key]) for key in ("block", "warps", "rows", "persistent")}
        product, convolution = (self._tiles(config, key) for key in ("product", "convolution"))
        turned = config["channels"] == "last" and convolution is None
        plan = GraphPlan(Schedule(**numbers), product, convolution, turned, config["convolution"] == "forward")
        try:
            made = Composer(self.graph, plan).composed(self.problem.name, case)
        except GraphError as error:
            raise GeneratorError(f"{self.name}: {error}") from error
        made = replace(made, config=config)
        self.made[made.candidate.sha256] = made
        return made

    def _tiles(self, config: Config, key: str) -> ProductSchedule | None:
        tile = TILES.get(str(config[key]))
        return ProductSchedule(*tile, str(config["precision"])) if tile else None


def beginnings(family: RegionFamily) -> tuple[Config, ...]:
    """What usually wins, the best first: kernels of one's own between torch's calls, then products of one's own."""
    product, _ = family.products
    exact = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"  # as precise as eager's own products
    usual: dict[str, Value] = {"block": 2048, "warps": 4, "rows": 0, "persistent": 8192, "precision": exact}
    usual |= {"product": "torch", "convolution": "torch", "channels": "first"}
    owned: dict[str, Value] = {**usual, **({"product": "128x128x32"} if product else {})}
    found: list[Config] = [owned, usual]
    if family.convolutions:
        last = {**owned, "channels": "last"}
        forward = [{**one, "convolution": "forward"} for one in (last, owned) if family.turns]
        found = [owned, last, *forward, usual]
    found += [{**usual, "block": 4096, "warps": 8, "persistent": 16384}, {**usual, "block": 1024}]
    if product:
        found += [{**owned, "product": tile} for tile in ("128x64x32", "64x64x32", "128x256x32")]
    return tuple(dict(pairs) for pairs in dict.fromkeys(tuple(config.items()) for config in found))


def region_author(problem: Problem, forms: Inputs, device: str, seed: int = 0) -> Template:
    """The author as a search takes it. Raises GeneratorError where the operation has no graph."""
    family = RegionFamily(problem, forms, device)
    return Template(family, seed, Warm(beginnings(family)), spread=4)


def contestants(author: Template, case: Case) -> list[Composition]:
    """What an author begins with, each text once, without what only calls torch. Raises GeneratorError."""
    family = author.family
    assert isinstance(family, RegionFamily)
    kept: dict[str, Composition] = {}
    for config in author.warm.configs:
        made = family.composed(case, config)
        if made.candidate.kind != "library":
            kept.setdefault(made.candidate.sha256, made)
    return list(kept.values())


def attempted(author: Template, case: Case) -> Composition:
    """The first candidate of an author, without a judge. Raises GeneratorError."""
    family = author.family
    assert isinstance(family, RegionFamily)
    return family.composed(case, author.warm.configs[0])
