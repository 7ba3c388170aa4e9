// nightshift candidate
// problem: swiglu
// language: cuda
// kind: own_kernel
// determinism: bitwise
// dtypes: float32
// layouts: contiguous offset
// bounds: m 1..
// launch: swiglu | cdiv(m * n, 256) | 256 | 0 | in0; in1; out0; i64:m * n
// needs_cuda: yes

extern "C" __global__ void swiglu(const float* gate, const float* up, float* out, long long count) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}
