"""Matrix products for Hopper in CUDA C++, alone or in clusters of blocks that bring tiles for each other.

`down` blocks below each other can share the right operand's tile and `across` blocks beside each other the left
one's: each brings a part, and the bulk copy engine writes it into the shared memory of all of them
(`.multicast::cluster`, PTX ISA 8.0). One warp brings tiles, two warpgroups multiply (`wgmma`, sm_90a), and a block
makes one tile. Of 2048³ on an H200 the tiles fill the GPU once, so all blocks begin and end together, and what can
be gained lies there (`benchmarks/results/kernels_tables/` holds every configuration's time):

- The first tiles of the ring each block brings for itself, before it knows that its neighbours are there.
- When all that is left lies in the ring, the second warpgroup lets the first one finish: either alone keeps the
  tensor cores busy, and half of the result leaves while the other half is being made.
- A warpgroup's result goes where its own left tiles were, so it waits for nobody.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config, GeneratorError
from nightshift.kernels.generate.bulk import SHARED_BYTES, prelude
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

DEPTH = 64
"""Of k, a step: 128 bytes, the widest swizzle of the copy engine and of `wgmma`."""
BODY = """
$prelude
#define BM $bm
#define BN $bn
#define STAGES $stages
#define DOWN $down
#define ACROSS $across
#define GROUP $group
#define BLOCKS (BM / 128)
#define A_BYTES (BM * 128)
#define B_BYTES (BN * 128)
#define RING (A_BYTES + B_BYTES)
#define SHARING (DOWN + ACROSS - 1)
struct alignas(64) Map { unsigned long long words[16]; };

__device__ __forceinline__ void begin(unsigned barrier, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}
// Without `.cluster` as its scope: the room was only read, and a release so wide waits for all of the GPU's memory.
__device__ __forceinline__ void release(unsigned barrier, unsigned block) {
    asm volatile("{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
                 "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
                 :: "r"(barrier), "r"(block) : "memory");
}
__device__ __forceinline__ void expect(unsigned barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(RING) : "memory");
}
__device__ __forceinline__ void bring(unsigned target, const Map* map, int column, int row, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :: "r"(target), "l"(map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
__device__ __forceinline__ void bring_to(
    unsigned short blocks, unsigned target, const Map* map, int column, int row, unsigned barrier
) {
    if (DOWN * ACROSS == 1) bring(target, map, column, row, barrier);
    else
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                     :: "r"(target), "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks) : "memory");
}
// PTX ISA, "Matrix descriptor": 16-byte units; the leading offset joins 64 columns each, the stride 8 rows each.
__device__ __forceinline__ unsigned long long tile(unsigned place, unsigned leading) {
    return 1ull << 62 | 64ull << 32 | (unsigned long long)(leading >> 4) << 16 | (place & 0x3ffff) >> 4;
}
__device__ __forceinline__ void multiply(float* d, unsigned long long a, unsigned long long b, int add) {
    asm volatile("{.reg .pred add; setp.ne.b32 add, $add_at, 0; "
                 "wgmma.mma_async.sync.aligned.m64n${bn}k16.f32.$kind.$kind {$numbers}, $left_at, $right_at, "
                 "add, 1, 1, 0, 1;}"
                 : $results : "l"(a), "l"(b), "r"(add));
}

extern "C" __global__ void __cluster_dims__(DOWN * ACROSS, 1, 1) __launch_bounds__(288, 1) product(
    const __grid_constant__ Map a, const __grid_constant__ Map b, const __grid_constant__ Map out,
    int m, int n, int k
) {
    if (threadIdx.x == 256)
        asm volatile("prefetch.tensormap [%0]; prefetch.tensormap [%1];" :: "l"(&a), "l"(&b) : "memory");
    extern __shared__ char raw[];
    __shared__ unsigned long long barriers[2 * STAGES + 1];
    const unsigned ring = (address(raw) + 1023) & ~1023u, full = address(barriers), empty = full + 8 * STAGES;
    const unsigned asked = empty + 8 * STAGES;  // the first warpgroup has asked for all its products
    if (threadIdx.x == 256) {
        for (int s = 0; s < STAGES; ++s) { begin(full + 8 * s, 1); begin(empty + 8 * s, 2 * SHARING); }
        begin(asked, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const int low = rank / ACROSS, right = rank % ACROSS;
    const int tiles_m = (m + BM * DOWN - 1) / (BM * DOWN), tiles_n = (n + BN * ACROSS - 1) / (BN * ACROSS);
    const int number = blockIdx.x / (DOWN * ACROSS), first = number / (GROUP * tiles_n) * GROUP;
    const int high = min(tiles_m - first, GROUP), within = number % (GROUP * tiles_n);
    const int row = ((first + within % high) * DOWN + low) * BM;
    const int column = (within / high * ACROSS + right) * BN;
    const int turns = (k + 63) / 64, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int rows = BM / ACROSS, parts = BN / 64 / DOWN;  // of a tile, what a block brings for its neighbours too
    if (threadIdx.x == 256)
        for (int t = 0; t < STAGES && t < turns; ++t) {
            const unsigned room = ring + t * RING, done = full + 8 * t;
            expect(done);
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) bring(room + j * rows * 128, &a, t * 64, row + j * rows, done);
#pragma unroll
            for (int c = 0; c < BN / 64; ++c) bring(room + A_BYTES + c * 8192, &b, column + c * 64, t * 64, done);
        }
    __syncthreads();
    if (DOWN * ACROSS > 1)
        asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::: "memory");

    if (warp == 8) {
        if (lane == 0) {
            unsigned short beside = 0, below = 0;
            for (int j = 0; j < ACROSS; ++j) beside |= 1 << (low * ACROSS + j);
            for (int i = 0; i < DOWN; ++i) below |= 1 << (i * ACROSS + right);
            for (int t = STAGES; t < turns; ++t) {
                const int slot = t % STAGES;
                const unsigned room = ring + slot * RING, done = full + 8 * slot;
                await(empty + 8 * slot, (t / STAGES & 1) ^ 1);
                expect(done);
                bring_to(beside, room + right * rows * 128, &a, t * 64, row + right * rows, done);
#pragma unroll
                for (int c = low * parts; c < low * parts + parts; ++c)
                    bring_to(below, room + A_BYTES + c * 8192, &b, column + c * 64, t * 64, done);
            }
        }
    } else {
        const int group = warp / 4, pause = group ? max(0, turns - STAGES) : -1;
        float total[BLOCKS][BN / 2];
        // whom this thread tells that a room is free: the blocks beside it, then those below and above. Only of
        // rooms that are filled again: so nobody is told of any when it may have ended
        const int me = threadIdx.x % 128, there = me < ACROSS ? low * ACROSS + me
            : (me - ACROSS < low ? me - ACROSS : me - ACROSS + 1) * ACROSS + right;
        auto free = [&](int t) {
            if (me < SHARING && t >= 0 && t + STAGES < turns) release(empty + 8 * (t % STAGES), there);
        };
        for (int t = 0; t < turns; ++t) {
            const int slot = t % STAGES;
            const unsigned room = ring + slot * RING;
            if (t == pause) {
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                free(t - 1);
                await(asked, 0);
            }
            await(full + 8 * slot, t / STAGES & 1);
#pragma unroll
            for (int r = 0; r < BLOCKS; ++r)
#pragma unroll
                for (int e = 0; e < BN / 2; ++e) asm volatile("" : "+f"(total[r][e]) :: "memory");
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int p = 0; p < 4; ++p)
#pragma unroll
                for (int r = 0; r < BLOCKS; ++r)
                    multiply(total[r], tile(room + (group * BLOCKS + r) * 8192 + p * 32, 16),
                             tile(room + A_BYTES + p * 2048, 8192), t + p > 0);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (t != pause) free(t - 1);
        }
        if (threadIdx.x == 0)
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(asked) : "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int r = 0; r < BLOCKS; ++r)
#pragma unroll
            for (int e = 0; e < BN / 2; ++e) asm volatile("" : "+f"(total[r][e]) :: "memory");
        asm volatile("bar.sync %0, 128;" :: "r"(1 + group) : "memory");  // its left tiles made room for its result
#pragma unroll
        for (int r = 0; r < BLOCKS; ++r) {
            const int top = row + (group * BLOCKS + r) * 64 + warp % 4 * 16;
#pragma unroll
            for (int c = 0; c < BN / 64; ++c) {
                const int place = r * (BN / 64) + c, block = group * BLOCKS + place % BLOCKS;
                const unsigned room = ring + place / BLOCKS * RING + block * 8192 + warp % 4 * 2048;
#pragma unroll
                for (int j = 0; j < 8; j += 2) {
                    const float* d = total[r] + (c * 8 + j) * 4;
                    const unsigned at = room + (lane % 16) * 128 + ((j + lane / 16) ^ lane % 8) * 16;
                    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                                 :: "r"(at), "r"(narrow(d[0], d[1])), "r"(narrow(d[2], d[3])),
                                    "r"(narrow(d[4], d[5])), "r"(narrow(d[6], d[7])) : "memory");
                }
                asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                __syncwarp();
                if (lane == 0)
                    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                                 :: "l"(&out), "r"(column + c * 64), "r"(top), "r"(room) : "memory");
            }
        }
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}
"""


class MatmulCuda:
    name = "matmul_cuda"
    problems = ("matmul",)

    def space(self, problem: str, case: Case) -> Space:
        if case.dtype not in _KINDS:
            raise GeneratorError(f"{self.name}: {case.dtype} is none of {', '.join(_KINDS)}")

        def admits(config: Config) -> bool:
            bm, bn, stages, down = (int(config[k]) for k in ("bm", "bn", "stages", "down"))
            # 2^15 float32 sums are 128 registers of each of the 256 threads that multiply
            fits = stages * _stage_bytes(config) + 2048 <= SHARED_BYTES and bm * bn <= 1 << 15
            return fits and bn // DEPTH % down == 0 and bn // DEPTH <= stages  # the last: the result's room

        return Space.of(
            admits,
            bm=(128, 256),
            bn=(64, 128, 192, 256),
            stages=(3, 4, 5, 6, 7),
            down=(1, 2, 4),
            across=(1, 2),
            group=(1, 2, 4, 8, 16),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        bm, bn, down, across = (int(config[k]) for k in ("bm", "bn", "down", "across"))
        held = bn // 2
        values = {
            **config,
            "prelude": prelude(case.dtype, 0),
            "kind": _KINDS[case.dtype],
            "numbers": ", ".join(f"%{i}" for i in range(held)),
            "results": ", ".join(f'"+f"(d[{i}])' for i in range(held)),
            "left_at": f"%{held}",
            "right_at": f"%{held + 1}",
            "add_at": f"%{held + 2}",
        }
        # whole clusters, also at the edges: the hardware starts no part of one
        count = f"cdiv(m, {bm * down}) * cdiv(n, {bn * across}) * {down * across}"
        maps = f"map:in0:2:m:k:{bm // across}:{DEPTH}; map:in1:2:k:n:{DEPTH}:{DEPTH}; map:out0:2:m:n:16:{DEPTH}"
        room = int(config["stages"]) * _stage_bytes(config) + 1024
        keys = {
            "dtypes": case.dtype,
            # the copy engine wants rows that begin on 16 bytes
            "bounds": "m 1.., n 8.. /8, k 8.. /8",
            # two warpgroups that multiply and one warp that brings: 2 · 128 + 32 threads
            "launch": f"product | {count} | 288 | {room} | {maps}; i32:m; i32:n; i32:k",
        }
        return render(problem, BODY, values, language="cuda", layouts="contiguous", keys=keys)


_KINDS = {"float16": "f16", "bfloat16": "bf16"}


def _stage_bytes(config: Config) -> int:
    return (int(config["bm"]) + int(config["bn"])) * DEPTH * 2
