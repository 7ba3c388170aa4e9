/* A += u1 * v1' + u2 * v2', then x += transpose(A) * y and w += A * x */
#define N 1600
static double A[N][N], u1[N], v1[N], u2[N], v2[N], w[N], x[N], y[N];
void kernel(void) {
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            A[i][j] += u1[i] * v1[j] + u2[i] * v2[j];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            x[i] += A[j][i] * y[j];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            w[i] += A[i][j] * x[j];
}
