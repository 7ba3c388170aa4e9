"""CUDA C++ that families share: rows brought into shared memory by Hopper's bulk copies, a ring for each warp.

Every warp works alone: its lane 0 asks for the next rows with `cp.async.bulk` (PTX ISA 8.0, sm_90), all lanes wait
on an mbarrier and read the row from shared memory. No block-wide barrier is needed, loads are as deep as shared
memory, and registers hold no row. Conversions are PTX, so no header is included.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import GeneratorError

SHARED_BYTES = 227 << 10
UNITS = 132
"""Multiprocessors of an H100 or H200 (SXM); a grid of another size is only slower."""

_TYPES = {
    "float16": """
typedef unsigned short T;
__device__ __forceinline__ void widen(unsigned w, float& a, float& b) {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(a), "=f"(b) : "r"(w));
}
__device__ __forceinline__ unsigned narrow(float a, float b) {
    unsigned w;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(w) : "f"(a), "f"(b));
    return w;
}
__device__ __forceinline__ float one(T x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
""",
    "bfloat16": """
typedef unsigned short T;
__device__ __forceinline__ void widen(unsigned w, float& a, float& b) {
    a = __uint_as_float(w << 16);
    b = __uint_as_float(w & 0xffff0000u);
}
__device__ __forceinline__ unsigned narrow(float a, float b) {
    unsigned w;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(w) : "f"(a), "f"(b));
    return w;
}
__device__ __forceinline__ float one(T x) { return __uint_as_float((unsigned)x << 16); }
""",
}

_COMMON = """
#define LOG2E 1.4426950408889634f
__device__ __forceinline__ float exp2_(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ void unpack(uint4 p, float* v) {
    widen(p.x, v[0], v[1]); widen(p.y, v[2], v[3]); widen(p.z, v[4], v[5]); widen(p.w, v[6], v[7]);
}
__device__ __forceinline__ uint4 pack(const float* v) {
    return make_uint4(narrow(v[0], v[1]), narrow(v[2], v[3]), narrow(v[4], v[5]), narrow(v[6], v[7]));
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int k = 16; k; k >>= 1) x += __shfl_xor_sync(~0u, x, k);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int k = 16; k; k >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, k));
    return x;
}
__device__ __forceinline__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void begin(unsigned barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
}
__device__ __forceinline__ void settle() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void fetch(unsigned target, const void* source, unsigned bytes, unsigned barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
#if HINT
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;"
                 :: "r"(target), "l"(source), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(target), "l"(source), "r"(bytes), "r"(barrier) : "memory");
#endif
}
__device__ __forceinline__ void await(unsigned barrier, unsigned phase) {
    asm volatile("{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; "
                 "@done bra over; bra again; over: }" :: "r"(barrier), "r"(phase) : "memory");
}
"""

READ = """
__device__ __forceinline__ uint4 read(const uint4* p, unsigned long long policy) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint$fetch.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(policy));
    return v;
}
"""
"""A 16-byte load past the first cache, with a policy for L2; `$fetch`: how many bytes L2 brings in at once."""


def prelude(dtype: str, hint: int) -> str:
    """Types and helpers for a 16-bit floating-point dtype; `T` is its storage. hint: loads leave L2 first."""
    if dtype not in _TYPES:
        raise GeneratorError(f"bulk copies: {dtype} is none of {', '.join(_TYPES)}")
    return f"#define HINT {hint}\n{_TYPES[dtype]}{_COMMON}"
