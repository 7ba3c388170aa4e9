"""Row sums in CUDA C++: a block for each row, all of a thread's 16-byte loads in flight before the first is used.

A sum only reads, what it leaves in L2 is of no use, and what it pushes out may have to be written back first:
loads ask to leave L2 first, or not to change the order in which lines leave (PTX ISA, `ld.global` with
`L2::cache_hint`), and may fetch `fetch` bytes at once.
"""

from __future__ import annotations

from kernels.generate.base import Config, GeneratorError
from kernels.generate.bulk import prelude
from kernels.generate.space import Space
from kernels.generate.template import render
from kernels.problem import Case

BODY = """
$prelude
#define VECTORS ($n / 8)
#define THREADS $threads
#define DEPTH $depth
#define TURNS (VECTORS / (THREADS * DEPTH))

__device__ __forceinline__ uint4 read(const uint4* p, unsigned long long policy) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint$fetch.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(policy));
    return v;
}

extern "C" __global__ void __launch_bounds__(THREADS) row_sum(const T* __restrict__ x, T* __restrict__ out, int m) {
    __shared__ float parts[THREADS / 32];
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::$keep.b64 %0, 1.0;" : "=l"(policy));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (long long row = blockIdx.x; row < m; row += gridDim.x) {
        const uint4* from = reinterpret_cast<const uint4*>(x) + row * VECTORS + threadIdx.x;
        float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
        for (int turn = 0; turn < TURNS; ++turn) {
            uint4 p[DEPTH];
#pragma unroll
            for (int d = 0; d < DEPTH; ++d) p[d] = read(from + (turn * DEPTH + d) * THREADS, policy);
#pragma unroll
            for (int d = 0; d < DEPTH; ++d) {
                float v[8];
                unpack(p[d], v);
#pragma unroll
                for (int k = 0; k < 8; ++k) total[k & 3] += v[k];
            }
        }
        const float mine = warp_sum((total[0] + total[1]) + (total[2] + total[3]));
        if (lane == 0) parts[warp] = mine;
        __syncthreads();
        if (warp == 0) {
            const float whole = warp_sum(lane < THREADS / 32 ? parts[lane] : 0.0f);
            if (lane == 0) out[row] = (T)narrow(whole, 0.0f);
        }
        __syncthreads();
    }
}
"""
FETCH = {64: ".L2::64B", 128: ".L2::128B", 256: ".L2::256B"}


class ReduceCuda:
    name = "reduce_cuda"
    problems = ("reduce_sum",)

    def space(self, problem: str, case: Case) -> Space:
        if case.element_bytes != 2 or case["n"] % 8:
            raise GeneratorError(f"{self.name}: needs 16-bit elements and rows of whole 16-byte vectors")

        def admits(config: Config) -> bool:
            return case["n"] // 8 % (int(config["threads"]) * int(config["depth"])) == 0

        return Space.of(
            admits,
            threads=(64, 128, 256, 512, 1024),
            depth=(1, 2, 4, 8, 16),
            fetch=(64, 128, 256),
            keep=("evict_first", "evict_unchanged"),
            waves=(0, 1),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        n, threads = case["n"], int(config["threads"])
        values = {**config, "n": n, "prelude": prelude(case.dtype, 0), "fetch": FETCH[int(config["fetch"])]}
        grid = f"max(1, min({132 * 2048 // threads}, m))" if config["waves"] else "max(1, m)"
        launch = f"row_sum | {grid} | {threads} | 0 | in0; out0; i32:m"
        keys = {"dtypes": case.dtype, "bounds": f"n {n}..{n}", "launch": launch}
        return render(problem, BODY, values, language="cuda", layouts="contiguous", keys=keys)
