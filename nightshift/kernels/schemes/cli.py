"""`nightshift kernels algorithm`: search for a bilinear scheme, verify it, keep it, compile it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nightshift.kernels.schemes.scheme import Format, Scheme


def _fail(text: str) -> typer.Exit:
    typer.echo(text, err=True)
    return typer.Exit(2)


def algorithm(
    product: Annotated[str, typer.Argument(help="Product: 4x5x5, upper-4, or a scheme's file to verify")],
    rank: Annotated[int, typer.Option(min=0, help="End at this rank; 0: the published one, if any")] = 0,
    seconds: Annotated[float, typer.Option(min=0.1, help="Most seconds of the search")] = 60.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed takes the same steps")] = 0,
    method: Annotated[str, typer.Option(help="flips, or game (PPO, 2x2x2 alone)")] = "flips",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the schemes")] = None,
    kernel: Annotated[Path | None, typer.Option(help="Also write a candidate file for `judge`")] = None,
    levels: Annotated[int, typer.Option(min=1, max=3, help="Levels of recursion of --kernel")] = 1,
    middle: Annotated[str, typer.Option(help="Who multiplies the blocks: triton or library")] = "triton",
) -> None:
    """Search for a product with fewer multiplications. Exit code 1: the rank was not reached."""
    from nightshift.kernels.schemes import flip_graph, lifting, scheme

    try:
        if product.endswith(".json"):
            found = scheme.read(Path(product))
        else:
            form = scheme.Format.of(product)
            target = rank or flip_graph.RANKS.get(product, 0)
            found = _search(form, target, seed, seconds, method)
        whole = found if found.ring == "Z" else lifting.lifted(found)
        kept = [found] if whole is found or whole is None else [found, whole]
        paths = [scheme.write(each, output) for each in kept] if output is not None else []
        if kernel is not None:
            from nightshift.kernels.schemes.kernel import source

            if whole is None:
                raise scheme.SchemeError(f"{found.name}: has no lift to the integers, so no kernel")
            kernel.write_text(source(whole, levels, middle))
            paths.append(kernel)
    except (scheme.SchemeError, OSError) as error:
        raise _fail(str(error)) from error
    typer.echo(f"{found.name}: exact, {found.rank} multiplications instead of {len(found.format.definition())}")
    typer.echo(f"found by: {json.dumps(found.origin)}")
    typer.echo("over the integers: " + ("no lift: it holds modulo 2 alone" if whole is None else "exact"))
    for path in paths:
        typer.echo(f"written: {path}")
    if rank and found.rank > rank:
        raise typer.Exit(1)


def _search(form: Format, target: int, seed: int, seconds: float, method: str) -> Scheme:
    """A verified scheme by one of the methods. Raises SchemeError."""
    from nightshift.kernels.schemes import flip_graph, scheme

    if method == "flips":
        return flip_graph.search(form, target, seed, seconds)
    if method != "game":
        raise scheme.SchemeError(f"method: {method!r} is neither flips nor game")
    try:
        from nightshift.kernels.schemes import tensor_game
    except ImportError as error:
        raise scheme.SchemeError("game: needs the extra: pip install '.[rl]'") from error
    if form != tensor_game.FORMAT:
        raise scheme.SchemeError(f"game: {form}: the game is played for {tensor_game.FORMAT} alone")
    return tensor_game.learned(target, seed, seconds)[0]
