"""Row sums in CUDA C++: a block for each row, the next 16-byte loads under way while the last are added up.

A sum only reads, and what it leaves in L2 is of no use; but what it pushes out may have to be written back first,
and after another kernel L2 is full of such lines. So loads ask to leave L2 first (PTX ISA, `ld.global` with its
cache hint), and `blocks` can bound how many blocks a multiprocessor runs at once: what is under way takes room
in L2 too. Loads may fetch `fetch` bytes at once, and rows be taken in either order.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config, GeneratorError
from nightshift.kernels.generate.bulk import READ, SHARED_BYTES, prelude
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

BODY = (
    """
$prelude
#define VECTORS ($n / 8)
#define THREADS $threads
#define DEPTH $depth
#define TURNS (VECTORS / (THREADS * DEPTH))
"""
    + READ
    + """__device__ __forceinline__ void add(const uint4* held, float* total) {
#pragma unroll
    for (int d = 0; d < DEPTH; ++d) {
        float v[8];
        unpack(held[d], v);
#pragma unroll
        for (int k = 0; k < 8; ++k) total[k & 3] += v[k];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) row_sum(const T* __restrict__ x, T* __restrict__ out, int m) {
    __shared__ float parts[THREADS / 32];
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long row = $row;
    const uint4* from = reinterpret_cast<const uint4*>(x) + row * VECTORS + threadIdx.x;
    float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    uint4 held[DEPTH];
    if (row < m) {
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) held[d] = read(from + d * THREADS, policy);
#pragma unroll 1
        for (int turn = 1; turn < TURNS; ++turn) {
            uint4 next[DEPTH];
#pragma unroll
            for (int d = 0; d < DEPTH; ++d) next[d] = read(from + (turn * DEPTH + d) * THREADS, policy);
            add(held, total);
#pragma unroll
            for (int d = 0; d < DEPTH; ++d) held[d] = next[d];
        }
        add(held, total);
    }
    const float mine = warp_sum((total[0] + total[1]) + (total[2] + total[3]));
    if (lane == 0) parts[warp] = mine;
    __syncthreads();
    if (warp == 0) {
        const float whole = warp_sum(lane < THREADS / 32 ? parts[lane] : 0.0f);
        if (lane == 0 && row < m) out[row] = (T)narrow(whole, 0.0f);
    }
}
"""
)


class ReduceCuda:
    name = "reduce_cuda"
    problems = ("reduce_sum",)

    def space(self, problem: str, case: Case) -> Space:
        if case.element_bytes != 2 or case["n"] % 8:
            raise GeneratorError(f"{self.name}: needs 16-bit elements and rows of whole 16-byte vectors")

        def admits(config: Config) -> bool:
            threads, blocks = int(config["threads"]), int(config["blocks"])
            # no thread asks whether it is inside of the row; 2,048 threads are a multiprocessor's most
            return case["n"] // 8 % (threads * int(config["depth"])) == 0 and threads * blocks <= 2048

        return Space.of(
            admits,
            threads=(64, 128, 256, 512, 1024),
            depth=(1, 2, 4, 8, 16),
            fetch=(64, 128, 256),
            order=("first", "last"),
            blocks=(0, 3),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        n, threads, blocks = case["n"], int(config["threads"]), int(config["blocks"])
        row = "blockIdx.x" if config["order"] == "first" else "(long long)gridDim.x - 1 - blockIdx.x"
        values = {**config, "n": n, "prelude": prelude(case.dtype, 0), "row": row}
        values["fetch"] = f".L2::{config['fetch']}B"
        room = SHARED_BYTES // blocks - 2048 if blocks else 0  # unused: no more blocks than that find room
        launch = f"row_sum | max(1, m) | {threads} | {room} | in0; out0; i32:m"
        keys = {"dtypes": case.dtype, "bounds": f"n {n}..{n}", "launch": launch}
        return render(problem, BODY, values, language="cuda", layouts="contiguous", keys=keys)
