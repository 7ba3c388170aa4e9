"""Softmax, RMS and layer normalisation in CUDA C++: a row for each warp, brought in by bulk copies.

The row is read from shared memory once for its statistics and once for its result, so no register holds it.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config, GeneratorError
from nightshift.kernels.generate.bulk import SHARED_BYTES, UNITS, prelude
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

BODY = """
$prelude
#define N $n
#define WARPS $warps
#define STAGES $stages
#define VECTORS (N / 8)
#define TURNS ((VECTORS + 31) / 32)
#define WHOLE (VECTORS % 32 == 0)

extern "C" __global__ void __launch_bounds__(WARPS * 32) rows($parameters, T* __restrict__ out, int m$numbers) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ __align__(8) unsigned long long barriers[WARPS * STAGES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint4* ring = reinterpret_cast<uint4*>(memory) + warp * STAGES * VECTORS;
    const unsigned gate = address(barriers + warp * STAGES);
    const int worker = blockIdx.x * WARPS + warp, workers = gridDim.x * WARPS;
    if (lane == 0) {
        for (int s = 0; s < STAGES; ++s) begin(gate + 8 * s);
        settle();
        for (int s = 0; s < STAGES; ++s) {
            const long long row = worker + (long long)s * workers;
            if (row < m) fetch(address(ring + s * VECTORS), x + row * N, N * 2, gate + 8 * s);
        }
    }
$weights
    __syncwarp();
    int stage = 0;
    unsigned phase = 0;
    for (long long row = worker; row < m; row += workers) {
        const uint4* held = ring + stage * VECTORS;
        uint4* target = reinterpret_cast<uint4*>(out + row * N);
        await(gate + 8 * stage, phase);
        float v[8];
$statistics
#pragma unroll $unroll
        for (int t = 0; t < TURNS; ++t) {
            const int i = t * 32 + lane;
            if (WHOLE || i < VECTORS) {
                unpack(held[i], v);
$result
                $store(target + i, pack(v));
            }
        }
        __syncwarp();
        const long long next = row + (long long)STAGES * workers;
        if (lane == 0 && next < m) fetch(address(held), x + next * N, N * 2, gate + 8 * stage);
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
    }
}
"""
LOOP = """#pragma unroll $unroll
        for (int t = 0; t < TURNS; ++t) {
            const int i = t * 32 + lane;
            if (WHOLE || i < VECTORS) {
                unpack(held[i], v);
"""
SOFTMAX = (
    """        float high = -3.4028234e38f, total = 0.0f;
"""
    + LOOP
    + """                float peak = high;
#pragma unroll
                for (int k = 0; k < 8; ++k) peak = fmaxf(peak, v[k]);
                total *= exp2_((high - peak) * LOG2E);
#pragma unroll
                for (int k = 0; k < 8; ++k) total += exp2_((v[k] - peak) * LOG2E);
                high = peak;
            }
        }
        const float top = warp_max(high);
        const float scale = 1.0f / warp_sum(total * exp2_((high - top) * LOG2E));
"""
)
SOFTMAX_RESULT = """#pragma unroll
                for (int k = 0; k < 8; ++k) v[k] = exp2_((v[k] - top) * LOG2E) * scale;
"""
RMS = (
    """        float total = 0.0f;
"""
    + LOOP
    + """#pragma unroll
                for (int k = 0; k < 8; ++k) total = fmaf(v[k], v[k], total);
            }
        }
        const float scale = rsqrtf(warp_sum(total) / N + eps);
"""
)
RMS_RESULT = """                float w[8];
                unpack(shared_weight[i], w);
#pragma unroll
                for (int k = 0; k < 8; ++k) v[k] = v[k] * scale * w[k];
"""
LAYER = (
    """        float total = 0.0f;
"""
    + LOOP
    + """#pragma unroll
                for (int k = 0; k < 8; ++k) total += v[k];
            }
        }
        const float mean = warp_sum(total) / N;
        float squares = 0.0f;
"""
    + LOOP
    + """#pragma unroll
                for (int k = 0; k < 8; ++k) squares = fmaf(v[k] - mean, v[k] - mean, squares);
            }
        }
        const float scale = rsqrtf(warp_sum(squares) / N + eps);
"""
)
LAYER_RESULT = """                float w[8], b[8];
                unpack(shared_weight[i], w);
                unpack(shared_bias[i], b);
#pragma unroll
                for (int k = 0; k < 8; ++k) v[k] = fmaf((v[k] - mean) * scale, w[k], b[k]);
"""
_SHARE = """    uint4* shared_{name} = reinterpret_cast<uint4*>(memory) + (WARPS * STAGES + {place}) * VECTORS;
    for (int i = threadIdx.x; i < VECTORS; i += WARPS * 32)
        shared_{name}[i] = reinterpret_cast<const uint4*>({name})[i];
"""
_PARTS = {
    "softmax": (SOFTMAX, SOFTMAX_RESULT, (), ""),
    "rmsnorm": (RMS, RMS_RESULT, ("weight",), "scalar:in2"),
    "layernorm": (LAYER, LAYER_RESULT, ("weight", "bias"), "scalar:in3"),
}


class RowsCuda:
    name = "rows_cuda"
    problems = ("softmax", "rmsnorm", "layernorm")

    def space(self, problem: str, case: Case) -> Space:
        # the copy engine moves multiples of 16 bytes from addresses on 16 bytes, so every row has to begin there
        if case.element_bytes != 2 or case["n"] % 8:
            raise GeneratorError(f"{self.name}: needs 16-bit elements and rows of whole 16-byte vectors")
        weights = len(_PARTS[problem][2])

        def admits(config: Config) -> bool:
            rows = int(config["warps"]) * int(config["stages"]) * int(config["blocks"])
            return 48 << 10 <= 2 * case["n"] * (rows + weights * int(config["blocks"])) <= SHARED_BYTES - 2048

        return Space.of(
            admits,
            warps=(4, 8, 12, 16, 24),
            stages=(1, 2, 3, 4),
            blocks=(1, 2),
            unroll=(2, 4),
            hint=(0, 1),
            store=("__stcs", "__stcg"),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        statistics, result, shared, number = _PARTS[problem]
        n, warps, stages = case["n"], int(config["warps"]), int(config["stages"])
        words = {**config, "n": n}
        for key in ("unroll",):
            statistics = statistics.replace(f"${key}", str(config[key]))
        values = {
            **words,
            "prelude": prelude(case.dtype, int(config["hint"])),
            "parameters": ", ".join(f"const T* __restrict__ {p}" for p in ("x", *shared)),
            "numbers": ", float eps" if number else "",
            "weights": "".join(_SHARE.format(name=s, place=i) for i, s in enumerate(shared))
            + ("    __syncthreads();" if shared else ""),
            "statistics": statistics,
            "result": result,
        }
        room = 2 * n * (warps * stages + len(shared))
        inputs = "; ".join(f"in{i}" for i in range(1 + len(shared)))
        # persistent: so many blocks as run at once walk all rows, and each begins its ring once
        grid = f"max(1, min({UNITS * int(config['blocks'])}, cdiv(m, {warps})))"
        tail = f"; {number}" if number else ""
        launch = f"rows | {grid} | {32 * warps} | {room} | {inputs}; out0; i32:m{tail}"
        keys = {"dtypes": case.dtype, "bounds": f"n {n}..{n}", "launch": launch}
        return render(problem, BODY, values, language="cuda", layouts="contiguous", keys=keys)
