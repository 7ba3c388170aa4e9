// nightshift candidate
// problem: softmax
// language: cuda
// kind: own_kernel
// determinism: bitwise
// dtypes: float32
// layouts: contiguous offset
// bounds: m 1..
// launch: softmax | m | 256 | 0 | in0; out0; i32:n
// needs_cuda: yes

// One block a row, three sweeps; sums in a fixed order, so results repeat bit for bit.
__device__ float reduce(float v, float* shared, bool largest) {
    for (int step = 16; step > 0; step >>= 1) {
        float other = __shfl_xor_sync(0xffffffffu, v, step);
        v = largest ? (v > other || v != v ? v : other) : v + other;
    }
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    v = shared[0];
    for (int warp = 1; warp < 8; ++warp) {
        float other = shared[warp];
        v = largest ? (v > other || v != v ? v : other) : v + other;
    }
    __syncthreads();
    return v;
}

extern "C" __global__ void softmax(const float* x, float* out, int n) {
    __shared__ float shared[8];
    const float* row = x + (long long)blockIdx.x * n;
    float* result = out + (long long)blockIdx.x * n;
    float high = -__int_as_float(0x7f800000);
    for (int i = threadIdx.x; i < n; i += 256) {
        float v = row[i];
        high = v > high || v != v ? v : high;
    }
    high = reduce(high, shared, true);
    float total = 0.0f;
    for (int i = threadIdx.x; i < n; i += 256) total += expf(row[i] - high);
    total = reduce(total, shared, false);
    for (int i = threadIdx.x; i < n; i += 256) result[i] = expf(row[i] - high) / total;
}
