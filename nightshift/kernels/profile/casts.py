"""What a step that keeps float32 and multiplies in 16 bits would save if its kernels wrote or read the casts."""

from __future__ import annotations

from nightshift.kernels.problem import Case
from nightshift.kernels.profile.hotspots import Hotspot, Profile, timed_sizes
from nightshift.kernels.profile.pattern import PRODUCTS


def cast_problems(profile: Profile, hotspot: Hotspot) -> list[tuple[str, Case, str]]:
    """(problem, case, why in words) to search beside a float32 hotspot's own: an optimiser step that writes 16-bit
    copies of its weights too (all in one launch, and one by one for when no such kernel stands), a norm's
    gradient that comes in 16 bits and goes on in both."""
    narrow = narrow_products(profile)
    if not narrow or hotspot.dtype != "float32":
        return []
    if hotspot.problem == "adamw":
        case = Case.of(narrow, "contiguous", **timed_sizes(hotspot))
        # both: a kernel for all at once may not stand, and without either the step keeps its casts
        return [(name, case, f"weights cast to {narrow}") for name in ("adamw_many", "adamw_cast")]
    if hotspot.problem == "rmsnorm" and hotspot.backward_s > 0:
        case = Case.of(narrow, m=hotspot.sizes["m"], n=hotspot.sizes["n"])
        return [("rmsnorm_cast_backward", case, f"backward, gradients cast to {narrow}")]
    return []


def narrow_products(profile: Profile) -> str:
    """The 16-bit dtype that most of a step's time in matrix products is spent in; empty where it is none."""
    spent: dict[str, float] = {}
    for hotspot in profile.hotspots:
        if hotspot.problem in PRODUCTS:
            spent[hotspot.dtype] = spent.get(hotspot.dtype, 0.0) + hotspot.total_s
    most = max(spent, key=lambda name: spent[name], default="")
    return most if most in ("float16", "bfloat16") else ""


def copies_gain(profile: Profile, hotspot: Hotspot, rate: float) -> float:
    """What the step gains at most if no weight is cast any more: 6 bytes of each element, less 2 of its copy.
    rate: the memory's, bytes/s."""
    if hotspot.problem != "adamw" or hotspot.dtype != "float32" or not narrow_products(profile) or not rate > 0:
        return 0.0
    saved_s = 4 * hotspot.sizes["n"] / rate
    return saved_s / (profile.step_s - saved_s) if profile.step_s > saved_s else 0.0
