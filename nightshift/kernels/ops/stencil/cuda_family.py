"""Stencils in CUDA C++: each thread walks down four columns with the unfinished sums in registers.

A row costs one 16-byte load and two halo loads for four outputs. Rows above and below and columns beside the plane
are zero. Compiled by NVRTC; only widths that are multiples of four, so that every row starts on 16 bytes.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

BODY = """
#define SIZE $size
#define REACH $reach
#define HEIGHT $height

extern "C" __global__ void __launch_bounds__($threads) stencil(
    const float* __restrict__ x, const float* __restrict__ weight, float* __restrict__ out, int h, int w) {
    const int j = (blockIdx.x * $threads + threadIdx.x) * 4;
    if (j >= w) return;
    const int i = blockIdx.y * HEIGHT;
    const float* source = x + (long long)blockIdx.z * h * w + j;
    float* target = out + (long long)blockIdx.z * h * w + j;
    float k[SIZE * SIZE];
#pragma unroll
    for (int a = 0; a < SIZE * SIZE; ++a) k[a] = __ldg(weight + a);
    float sum[HEIGHT][4];
#pragma unroll
    for (int r = 0; r < HEIGHT + 2 * REACH; ++r) {
        const int row = i + r - REACH;
        float v[4 + 2 * REACH];
#pragma unroll
        for (int b = 0; b < 4 + 2 * REACH; ++b) v[b] = 0.0f;
        if (row >= 0 && row < h) {
            const float* line = source + (long long)row * w;
            const float4 own = $load(reinterpret_cast<const float4*>(line));
            v[REACH] = own.x; v[REACH + 1] = own.y; v[REACH + 2] = own.z; v[REACH + 3] = own.w;
#if REACH == 2
            if (j > 0) {
                const float2 left = __ldg(reinterpret_cast<const float2*>(line - 2));
                v[0] = left.x; v[1] = left.y;
            }
            if (j + 4 < w) {
                const float2 right = __ldg(reinterpret_cast<const float2*>(line + 4));
                v[6] = right.x; v[7] = right.y;
            }
#else
            if (j > 0) v[0] = __ldg(line - 1);
            if (j + 4 < w) v[5] = __ldg(line + 4);
#endif
        }
#pragma unroll
        for (int a = 0; a < SIZE; ++a) {
            const int t = r - a;
            if (t < 0 || t >= HEIGHT) continue;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                float line_sum = k[a * SIZE] * v[c];  // each row on its own: fewer roundings at the full magnitude
#pragma unroll
                for (int b = 1; b < SIZE; ++b) line_sum = fmaf(k[a * SIZE + b], v[c + b], line_sum);
                sum[t][c] = a == 0 ? line_sum : sum[t][c] + line_sum;
            }
            if (a == SIZE - 1 && i + t < h) {
                const float4 done = make_float4(sum[t][0], sum[t][1], sum[t][2], sum[t][3]);
                $store(reinterpret_cast<float4*>(target + (long long)(i + t) * w), done);
            }
        }
    }
}
"""
_STORE = {"": "*", "streaming": "__stcs"}


class StencilCuda:
    name = "stencil_cuda"
    problems = ("stencil_3x3", "stencil_5x5")

    def space(self, problem: str, case: Case) -> Space:
        return Space.of(
            threads=(32, 64, 128, 256),
            height=(4, 6, 8, 12, 16),
            load=("__ldg", "__ldcs"),
            store=("__stcs", "__stcg"),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        size = 3 if problem == "stencil_3x3" else 5
        values = {**config, "size": size, "reach": size // 2}
        # the grid's third dimension ends at 65,535, and so does the bound on planes
        grid = f"cdiv(w, {4 * int(config['threads'])}), cdiv(h, {config['height']}), c"
        launch = f"stencil | {grid} | {config['threads']} | 0 | in0; in1; out0; i32:h; i32:w"
        keys = {"dtypes": "float32", "bounds": f"c 1..65535, w 4.. /4, k {size}..{size}", "launch": launch}
        return render(problem, BODY, values, language="cuda", layouts="contiguous", keys=keys)
