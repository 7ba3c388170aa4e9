"""The gradient of an embedding table in CUDA C++, one kernel: each block owns a span of table rows.

A block reads all indices and packs the tokens of its rows into shared memory, in order: a warp's share is counted
by ballots before it is written. Then its warps count and deal out one row's tokens each, and at last each adds up
a part of the columns of a row. Sums are in the tokens' order and nothing is added atomically, so they are the same
every time; what rounding loses is carried along (Kahan 1965).
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config, GeneratorError
from nightshift.kernels.generate.bulk import prelude
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

BODY = """
#define D $d
#define SPAN $span
#define WARPS $warps
#define THREADS (32 * WARPS)
#define VECTORS $vectors
#define LANES $lanes
#define DEPTH 16

$types

extern "C" __global__ void __launch_bounds__(THREADS, $blocks) add_rows(
    const uint4* __restrict__ gradient, const long long* __restrict__ index, uint4* __restrict__ out, int t, int v
) {
    extern __shared__ __align__(16) unsigned char memory[];
    int* list = reinterpret_cast<int*>(memory);
    unsigned short* order = reinterpret_cast<unsigned short*>(list + t);
    __shared__ int shares[WARPS], count[SPAN], first[SPAN];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, low = blockIdx.x * SPAN;
    const unsigned before = (1u << lane) - 1;
    int held = 0;
    for (int begin = 0; begin < t; begin += DEPTH * THREADS) {
        int key[DEPTH], mine = 0;
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) {
            const int token = begin + (warp * DEPTH + j) * 32 + lane;
            const long long row = token < t ? index[token] - low : -1;
            key[j] = row >= 0 && row < SPAN ? (int)row << 16 | token : -1;
        }
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) mine += __popc(__ballot_sync(~0u, key[j] >= 0));
        if (lane == 0) shares[warp] = mine;
        __syncthreads();
        int place = held;
        for (int w = 0; w < WARPS; ++w) {
            const int share = shares[w];
            if (w < warp) place += share;
            held += share;
        }
#pragma unroll
        for (int j = 0; j < DEPTH; ++j) {
            const unsigned hits = __ballot_sync(~0u, key[j] >= 0);
            if (key[j] >= 0) list[place + __popc(hits & before)] = key[j];
            place += __popc(hits);
        }
        __syncthreads();
    }
    for (int row = warp; row < SPAN; row += WARPS) {
        int found = 0;
        for (int i = 0; i < held; i += 32)
            found += __popc(__ballot_sync(~0u, i + lane < held && list[i + lane] >> 16 == row));
        if (lane == 0) count[row] = found;
    }
    __syncthreads();
    for (int row = threadIdx.x; row < SPAN; row += THREADS) {
        int place = 0;
        for (int r = 0; r < row; ++r) place += count[r];
        first[row] = place;
    }
    __syncthreads();
    for (int row = warp; row < SPAN; row += WARPS) {
        int place = first[row];
        for (int i = 0; i < held && count[row]; i += 32) {
            const int key = i + lane < held ? list[i + lane] : -1;
            const unsigned hits = __ballot_sync(~0u, key >= 0 && key >> 16 == row);
            if (hits >> lane & 1) order[place + __popc(hits & before)] = (unsigned short)(key & 65535);
            place += __popc(hits);
        }
    }
    __syncthreads();
    const int parts = (D / LANES + 32 * VECTORS - 1) / (32 * VECTORS), rows = min(SPAN, v - low);
    for (int item = warp; item < rows * parts; item += WARPS) {
        const int row = item / parts, column = item % parts * 32 * VECTORS + lane;
        float total[VECTORS * LANES], lost[VECTORS * LANES];
#pragma unroll
        for (int k = 0; k < VECTORS * LANES; ++k) total[k] = lost[k] = 0.0f;
        const int end = first[row] + count[row];
        for (int i = first[row]; i < end; ++i) {
            const uint4* from = gradient + (long long)order[i] * (D / LANES);
            uint4 p[VECTORS];
#pragma unroll
            for (int j = 0; j < VECTORS; ++j)
                if (column + 32 * j < D / LANES) p[j] = __ldcs(from + column + 32 * j);
                else p[j] = make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int j = 0; j < VECTORS; ++j) {
                float x[LANES];
                unpack(p[j], x);
#pragma unroll
                for (int k = 0; k < LANES; ++k) {
                    const float y = x[k] - lost[j * LANES + k], whole = total[j * LANES + k] + y;
                    const float rest = (whole - total[j * LANES + k]) - y;
                    lost[j * LANES + k] = rest == rest ? rest : 0.0f;
                    total[j * LANES + k] = whole;
                }
            }
        }
        uint4* to = out + (long long)(low + row) * (D / LANES);
#pragma unroll
        for (int j = 0; j < VECTORS; ++j)
            if (column + 32 * j < D / LANES) $store(to + column + 32 * j, pack(total + j * LANES));
    }
}
"""
FLOATS = """
__device__ __forceinline__ void unpack(uint4 p, float* v) {
    v[0] = __uint_as_float(p.x); v[1] = __uint_as_float(p.y);
    v[2] = __uint_as_float(p.z); v[3] = __uint_as_float(p.w);
}
__device__ __forceinline__ uint4 pack(const float* v) {
    return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
}
"""
PUT = "__device__ __forceinline__ void put(uint4* p, uint4 v) { *p = v; }\n"


class EmbeddingGradientCuda:
    name = "embedding_gradient_cuda"
    problems = ("embedding_gradient",)

    def space(self, problem: str, case: Case) -> Space:
        lanes = 16 // case.element_bytes
        # tokens are packed into shared memory, 6 bytes each: 32,768 of them are 192 KiB of a block's 227
        if case["d"] % lanes or case["t"] > 32768:
            raise GeneratorError(f"{self.name}: needs rows of whole 16-byte vectors and at most 32,768 tokens")
        return Space.of(
            # so that each thread has at least 64 of a multiprocessor's 65,536 registers
            lambda c: int(c["warps"]) * int(c["blocks"]) <= 32,
            span=(16, 32, 64, 128, 256),
            warps=(8, 16, 32),
            blocks=(1, 2),
            vectors=(1, 2, 4),
            store=("__stcs", "put"),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        d, lanes = case["d"], 16 // case.element_bytes
        types = FLOATS if case.dtype == "float32" else prelude(case.dtype, 0)
        values = {**config, "d": d, "lanes": lanes, "types": types + PUT}
        # a grid of no block is an error to the driver, so there is one even where the table has no row
        shape = f"max(1, cdiv(v, {config['span']})) | {32 * int(config['warps'])} | 6 * t + 16"
        launch = f"add_rows | {shape} | in0; in1; out0; i32:t; i32:v"
        keys = {"dtypes": case.dtype, "bounds": f"d {d}..{d}, t 1..32768", "launch": launch}
        return render(problem, BODY, values, language="cuda", layouts="contiguous", keys=keys)
