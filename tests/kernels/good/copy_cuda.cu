// nightshift candidate
// problem: copy
// language: cuda
// kind: own_kernel
// determinism: bitwise
// dtypes: float32 int32
// layouts: contiguous offset
// bounds: m 1..
// launch: copy | min(cdiv(m * n, 256), 4096) | 256 | 0 | in0; out0; i64:m * n
// needs_cuda: yes

extern "C" __global__ void copy(const unsigned* x, unsigned* out, long long count) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) out[i] = x[i];
}
