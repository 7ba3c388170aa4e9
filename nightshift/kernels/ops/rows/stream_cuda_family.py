"""Row sums and cross-entropy in CUDA C++: a row for each warp, streamed through shared memory by bulk copies."""

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
#define CHUNK ($chunk * 32)
#define CHUNKS ((VECTORS + CHUNK - 1) / CHUNK)

extern "C" __global__ void __launch_bounds__(WARPS * 32) stream($parameters, T* __restrict__ out, int m) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ __align__(8) unsigned long long barriers[WARPS * STAGES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint4* ring = reinterpret_cast<uint4*>(memory) + warp * STAGES * CHUNK;
    const unsigned gate = address(barriers + warp * STAGES);
    const int worker = blockIdx.x + warp * gridDim.x, workers = gridDim.x * WARPS;
    long long ahead = worker;  // the row and chunk that is asked for next
    int part = 0;
    if (lane == 0) {
        for (int s = 0; s < STAGES; ++s) begin(gate + 8 * s);
        settle();
        for (int s = 0; s < STAGES; ++s) {
            if (ahead < m) fetch(address(ring + s * CHUNK), x + ahead * N + (long long)part * CHUNK * 8,
                                 16 * min(CHUNK, VECTORS - part * CHUNK), gate + 8 * s);
            if (++part == CHUNKS) { part = 0; ahead += workers; }
        }
    }
    __syncwarp();
    int stage = 0;
    unsigned phase = 0;
    for (long long row = worker; row < m; row += workers) {
$start
        for (int c = 0; c < CHUNKS; ++c) {
            const uint4* held = ring + stage * CHUNK;
            const int count = min(CHUNK, VECTORS - c * CHUNK);
            await(gate + 8 * stage, phase);
            if (count == CHUNK) {
#pragma unroll
                for (int t = 0; t < $chunk; t += $group) {
                    uint4 p[$group];
#pragma unroll
                    for (int g = 0; g < $group; ++g) p[g] = held[(t + g) * 32 + lane];
$step
                }
            } else {
                for (int i = lane; i < count; i += 32) {
                    uint4 p[1] = {held[i]};
$last
                }
            }
            __syncwarp();
            if (lane == 0) {
                if (ahead < m) fetch(address(held), x + ahead * N + (long long)part * CHUNK * 8,
                                     16 * min(CHUNK, VECTORS - part * CHUNK), gate + 8 * stage);
                if (++part == CHUNKS) { part = 0; ahead += workers; }
            }
            if (++stage == STAGES) { stage = 0; phase ^= 1; }
        }
$finish
    }
}
"""
SUM_STEP = """#pragma unroll
                    for (int g = 0; g < COUNT; ++g) {
                        float v[8];
                        unpack(p[g], v);
#pragma unroll
                        for (int k = 0; k < 8; ++k) total[k & 3] += v[k];
                    }
"""
LOSS_STEP = """                    float v[COUNT * 8], peak = high;
#pragma unroll
                    for (int g = 0; g < COUNT; ++g) unpack(p[g], v + 8 * g);
#pragma unroll
                    for (int k = 0; k < COUNT * 8; ++k) peak = fmaxf(peak, v[k]);
                    const float shift = peak * -LOG2E;
                    total *= exp2_(fmaf(high, LOG2E, shift));
                    float other = 0.0f;
#pragma unroll
                    for (int k = 0; k < COUNT * 8; k += 2) {
                        total += exp2_(fmaf(v[k], LOG2E, shift));
                        other += exp2_(fmaf(v[k + 1], LOG2E, shift));
                    }
                    total += other;
                    high = peak;
"""
_PARTS = {
    "reduce_sum": (
        "const T* __restrict__ x",
        "        float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};",
        SUM_STEP,
        """        const float whole = warp_sum((total[0] + total[1]) + (total[2] + total[3]));
        if (lane == 0) out[row] = (T)narrow(whole, 0.0f);""",
        "in0",
        "n",
    ),
    "cross_entropy": (
        "const T* __restrict__ x, const long long* __restrict__ target",
        """        float high = -3.0e38f, total = 0.0f;
        const float hit = one(x[row * N + target[row]]);""",
        LOSS_STEP,
        """        const float top = warp_max(high);
        const float whole = warp_sum(total * exp2_((high - top) * LOG2E));
        float loss = logf(whole) + (top - hit);
        if (top <= -3.0e38f) loss = __int_as_float(0x7fc00000);  // a row of minus infinities has no softmax
        if (lane == 0) out[row] = (T)narrow(loss, 0.0f);""",
        "in0; in1",
        "v",
    ),
}


class StreamCuda:
    name = "stream_cuda"
    problems = ("reduce_sum", "cross_entropy")

    def space(self, problem: str, case: Case) -> Space:
        # the copy engine moves multiples of 16 bytes from addresses on 16 bytes, so every row has to begin there
        if case.element_bytes != 2 or case[_PARTS[problem][5]] % 8:
            raise GeneratorError(f"{self.name}: needs 16-bit elements and rows of whole 16-byte vectors")

        def admits(config: Config) -> bool:
            warps, stages, chunk, blocks, group = (
                int(config[k]) for k in ("warps", "stages", "chunk", "blocks", "group")
            )
            room = 512 * chunk * warps * stages * blocks
            return 96 << 10 <= room <= SHARED_BYTES - 2048 and chunk % group == 0

        return Space.of(
            admits,
            warps=(4, 8, 16),
            stages=(2, 3, 4),
            chunk=(4, 8, 16),
            group=(1, 2, 4),
            blocks=(1, 2),
            hint=(0, 1),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        parameters, start, step, finish, inputs, name = _PARTS[problem]
        n, warps = case[name], int(config["warps"])
        values = {
            **config,
            "n": n,
            "prelude": prelude(case.dtype, int(config["hint"])),
            "parameters": parameters,
            "start": start,
            "step": step.replace("COUNT", str(config["group"])),
            # what is left of a row is no whole group of vectors
            "last": step.replace("COUNT", "1"),
            "finish": finish,
        }
        room = 512 * int(config["chunk"]) * warps * int(config["stages"])
        grid = f"max(1, min({UNITS * int(config['blocks'])}, m))"
        launch = f"stream | {grid} | {32 * warps} | {room} | {inputs}; out0; i32:m"
        keys = {"dtypes": case.dtype, "bounds": f"{name} {n}..{n}", "launch": launch}
        return render(problem, BODY, values, language="cuda", layouts="contiguous", keys=keys)
