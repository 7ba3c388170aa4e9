// nightshift candidate
// problem: stencil_3x3
// language: cuda
// kind: own_kernel
// determinism: bitwise
// layouts: contiguous offset
// bounds: c 1..
// launch: stencil | cdiv(w, 32), cdiv(h, 8), c | 32, 8 | 0 | in0; in1; out0; i32:h; i32:w
// needs_cuda: yes

extern "C" __global__ void stencil(const float* x, const float* weight, float* out, int h, int w) {
    int j = blockIdx.x * 32 + threadIdx.x, i = blockIdx.y * 8 + threadIdx.y;
    if (i >= h || j >= w) return;
    const float* plane = x + (long long)blockIdx.z * h * w;
    float total = 0.0f;
    for (int a = 0; a < 3; ++a)
        for (int b = 0; b < 3; ++b) {
            int row = i + a - 1, column = j + b - 1;
            if (row >= 0 && row < h && column >= 0 && column < w) total += weight[a * 3 + b] * plane[row * w + column];
        }
    out[(long long)blockIdx.z * h * w + (long long)i * w + j] = total;
}
