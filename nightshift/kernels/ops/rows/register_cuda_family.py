"""Softmax, its gradient, RMS and layer normalisation in CUDA C++: a block holds its rows in registers.

Every 16-byte load, the weights' too, is under way before the first value is used. Loads and stores say how long
they want to stay in L2 (PTX ISA, `createpolicy`), and rows may be taken in either order; which is best is measured.
`blocks` bounds how many blocks a multiprocessor runs at once: what is under way takes room in L2.
"""

from __future__ import annotations

from dataclasses import dataclass

from nightshift.kernels.generate.base import Config, GeneratorError
from nightshift.kernels.generate.bulk import READ, SHARED_BYTES, prelude
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

BODY = (
    """
$prelude
#define N $n
#define ROWS $rows
#define THREADS $threads
#define WARPS (THREADS / 32)
#define VECTORS (N / 8)
#define DEPTH (VECTORS / THREADS)
"""
    + READ
    + """__device__ __forceinline__ void write(uint4* p, uint4 v, unsigned long long policy) {
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;"
                 :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy) : "memory");
}
// Each row's sum (or maximum) over the block; `parts` is used once.
template <bool MAXIMUM>
__device__ __forceinline__ void together(float* mine, float (*parts)[WARPS]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        mine[r] = MAXIMUM ? warp_max(mine[r]) : warp_sum(mine[r]);
        if (WARPS > 1 && lane == 0) parts[r][warp] = mine[r];
    }
    if (WARPS == 1) return;
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const float other = lane < WARPS ? parts[r][lane] : (MAXIMUM ? -3.4028234e38f : 0.0f);
        mine[r] = MAXIMUM ? warp_max(other) : warp_sum(other);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) rows($parameters, T* __restrict__ out, int m$numbers) {
    __shared__ float parts[2][ROWS][WARPS];
    unsigned long long reading, writing;
    asm volatile("createpolicy.fractional.L2::$reads.b64 %0, 1.0;" : "=l"(reading));
    asm volatile("createpolicy.fractional.L2::$writes.b64 %0, 1.0;" : "=l"(writing));
    const long long first = (long long)$group * ROWS;
    const long long start = first * VECTORS + threadIdx.x;
    uint4 held[ROWS][DEPTH];
$weights
$hold
$pin
    float v[8];
$statistics
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
$spread
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (first + r < m) {
                unpack(held[r][d], v);
$result
                write(reinterpret_cast<uint4*>(out) + start + (r * DEPTH + d) * THREADS, pack(v), writing);
            }
        }
    }
}
"""
)
HOLD = """#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int d = 0; d < DEPTH; ++d)
            $to[r][d] = first + r < m
                ? read(reinterpret_cast<const uint4*>($from) + start + (r * DEPTH + d) * THREADS, reading)
                : make_uint4(0, 0, 0, 0);
    }
"""
OVER = """#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            unpack(held[r][d], v);
#pragma unroll
            for (int k = 0; k < 8; ++k) $each
        }
    }
"""


def _over(each: str) -> str:
    return OVER.replace("$each", each)


def _hold(*names: tuple[str, str]) -> str:
    return "".join(HOLD.replace("$to", to).replace("$from", source) for to, source in names)


@dataclass(frozen=True)
class RowOperation:
    """What differs between operations: CUDA C++ that holds the rows, makes their statistics, and a vector's result.
    rows: the inputs that are read by rows; weights: those that all rows share; number: a scalar's launch term."""

    hold: str
    statistics: str
    result: str
    rows: tuple[str, ...] = ("x",)
    weights: tuple[str, ...] = ()
    number: str = ""


_PARTS = {
    "softmax": RowOperation(
        _hold(("held", "x")),
        "    float high[ROWS], scale[ROWS];\n"
        "#pragma unroll\n    for (int r = 0; r < ROWS; ++r) { high[r] = -3.4028234e38f; scale[r] = 0.0f; }\n"
        + _over("high[r] = fmaxf(high[r], v[k]);")
        + "    together<true>(high, parts[0]);\n"
        + _over("scale[r] += exp2_((v[k] - high[r]) * LOG2E);")
        + "    together<false>(scale, parts[1]);\n"
        "#pragma unroll\n    for (int r = 0; r < ROWS; ++r) scale[r] = 1.0f / scale[r];\n",
        """#pragma unroll
                for (int k = 0; k < 8; ++k) v[k] = exp2_((v[k] - high[r]) * LOG2E) * scale[r];
""",
    ),
    "softmax_backward": RowOperation(
        "    uint4 other[ROWS][DEPTH];\n" + _hold(("held", "gradient"), ("other", "x")),
        "    float total[ROWS], y[8];\n"
        "#pragma unroll\n    for (int r = 0; r < ROWS; ++r) total[r] = 0.0f;\n"
        + _over("total[r] = fmaf(v[k], y[k], total[r]);").replace(
            "unpack(held[r][d], v);", "unpack(held[r][d], v);\n            unpack(other[r][d], y);"
        )
        + "    together<false>(total, parts[0]);\n",
        """                unpack(other[r][d], y);
#pragma unroll
                for (int k = 0; k < 8; ++k) v[k] = y[k] * (v[k] - total[r]);
""",
        rows=("gradient", "x"),
    ),
    "rmsnorm": RowOperation(
        _hold(("held", "x")),
        "    float scale[ROWS];\n"
        "#pragma unroll\n    for (int r = 0; r < ROWS; ++r) scale[r] = 0.0f;\n"
        + _over("scale[r] = fmaf(v[k], v[k], scale[r]);")
        + "    together<false>(scale, parts[0]);\n"
        "#pragma unroll\n    for (int r = 0; r < ROWS; ++r) scale[r] = rsqrtf(scale[r] / N + eps);\n",
        """#pragma unroll
                for (int k = 0; k < 8; ++k) v[k] = v[k] * scale[r] * weight_[k];
""",
        weights=("weight",),
        number="scalar:in2",
    ),
    "layernorm": RowOperation(
        _hold(("held", "x")),
        "    float mean[ROWS], scale[ROWS];\n"
        "#pragma unroll\n    for (int r = 0; r < ROWS; ++r) mean[r] = scale[r] = 0.0f;\n"
        + _over("mean[r] += v[k];")
        + "    together<false>(mean, parts[0]);\n"
        "#pragma unroll\n    for (int r = 0; r < ROWS; ++r) mean[r] /= N;\n"
        + _over("scale[r] = fmaf(v[k] - mean[r], v[k] - mean[r], scale[r]);")
        + "    together<false>(scale, parts[1]);\n"
        "#pragma unroll\n    for (int r = 0; r < ROWS; ++r) scale[r] = rsqrtf(scale[r] / N + eps);\n",
        """#pragma unroll
                for (int k = 0; k < 8; ++k) v[k] = fmaf((v[k] - mean[r]) * scale[r], weight_[k], bias_[k]);
""",
        weights=("weight", "bias"),
        number="scalar:in3",
    ),
}
_SHARED = """    uint4 {name}s[DEPTH];
#pragma unroll
    for (int d = 0; d < DEPTH; ++d)
        asm volatile("ld.global.v4.u32 {{%0, %1, %2, %3}}, [%4];"
                     : "=r"({name}s[d].x), "=r"({name}s[d].y), "=r"({name}s[d].z), "=r"({name}s[d].w)
                     : "l"(reinterpret_cast<const uint4*>({name}) + d * THREADS + threadIdx.x) : "memory");
"""
_PIN = """    if (m < 0) asm volatile("trap;");  // never: but no load is moved past a branch, to where it is used
"""
_SPREAD = """        float {name}_[8];
        unpack({name}s[d], {name}_);
"""


class RowsDirectCuda:
    name = "rows_direct_cuda"
    problems = ("softmax", "softmax_backward", "rmsnorm", "layernorm")

    def space(self, problem: str, case: Case) -> Space:
        # 32 lanes of 8 elements: no lane asks whether it is inside of the row
        if case.element_bytes != 2 or case["n"] % 256:
            raise GeneratorError(f"{self.name}: needs 16-bit elements and rows that whole warps can share")
        held = len(_PARTS[problem].rows)

        def admits(config: Config) -> bool:
            threads, rows = int(config["threads"]), int(config["rows"])
            # 16-byte vectors of a thread: sixteen are 64 of its 255 registers
            each = case["n"] // 8 // threads * rows * held
            return case["n"] // 8 % threads == 0 and 1 <= each <= 16 and threads * int(config["blocks"]) <= 2048

        return Space.of(
            admits,
            threads=(32, 64, 128, 256, 512, 1024),
            rows=(1, 2, 4),
            reads=("evict_first", "evict_normal", "evict_last"),
            writes=("evict_first", "evict_normal", "evict_last"),
            fetch=(64, 128, 256),
            order=("first", "last"),
            blocks=(0, 2, 4),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        part = _PARTS[problem]
        n, threads, rows, blocks = case["n"], int(config["threads"]), int(config["rows"]), int(config["blocks"])
        names = (*part.rows, *part.weights)
        values = {
            **config,
            "n": n,
            "prelude": prelude(case.dtype, 0),
            "fetch": f".L2::{config['fetch']}B",
            "group": "blockIdx.x" if config["order"] == "first" else "(gridDim.x - 1 - blockIdx.x)",
            "parameters": ", ".join(f"const T* __restrict__ {name}" for name in names),
            "numbers": ", float eps" if part.number else "",
            "hold": part.hold,
            "statistics": part.statistics,
            "weights": "".join(_SHARED.format(name=name) for name in part.weights),
            "pin": _PIN if part.weights else "",
            "spread": "".join(_SPREAD.format(name=name) for name in part.weights),
            "result": part.result,
        }
        room = SHARED_BYTES // blocks - 2048 if blocks else 0  # unused: no more blocks than that find room
        inputs = "; ".join(f"in{i}" for i in range(len(names)))
        tail = f"; {part.number}" if part.number else ""
        launch = f"rows | max(1, cdiv(m, {rows})) | {threads} | {room} | {inputs}; out0; i32:m{tail}"
        keys = {"dtypes": case.dtype, "bounds": f"n {n}..{n}", "launch": launch}
        return render(problem, BODY, values, language="cuda", layouts="contiguous", keys=keys)
