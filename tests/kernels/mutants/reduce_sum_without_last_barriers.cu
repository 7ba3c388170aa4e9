// nightshift candidate
// problem: reduce_sum
// language: cuda
// kind: own_kernel
// determinism: bitwise
// class: race
// refused: racecheck rmse worst_row max_ulp determinism nan_placement
// dtypes: float32
// layouts: contiguous offset
// bounds: m 1..
// launch: total | m | 256 | 0 | in0; out0; i32:n
// needs_cuda: yes

// The last warp reduces without barriers, as one did before Volta let the threads of a warp go their own ways.
extern "C" __global__ void total(const float* x, float* out, int n) {
    __shared__ float part[256];
    const float* row = x + (long long)blockIdx.x * n;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 256) sum += row[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int step = 128; step > 32; step >>= 1) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        volatile float* warp = part;
        for (int step = 32; step > 0; step >>= 1) warp[threadIdx.x] += warp[threadIdx.x + step];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
