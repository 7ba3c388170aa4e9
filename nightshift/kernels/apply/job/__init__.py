"""The parts of the file that a job imports: `kernels.apply.bundle` joins them, in the order of `PARTS`.

Each part is an ordinary module here, so that it is typed, tested and read by itself; none may import anything but
the standard library, torch, Triton, CuTe DSL and earlier parts. In the job's file all names share one namespace.
"""

from __future__ import annotations

PARTS = (
    "names",
    "state",
    "passes.folds",
    "passes.masks",
    "passes.groups",
    "passes.logits",
    "passes.gates",
    "demotion",
    "forwards",
    "heads",
    "problems",
    "checks",
    "launch",
    "operators",
    "guards",
    "products",
    "rotary",
    "modules",
    "functions",
    "copies",
    "optimizer",
    "start",
    "canary.readings",
    "canary.trial",
    "canary.first_steps",
    "interface",
)
"""Bottom first: a part imports from earlier ones only."""
