/* y = transpose(A) * (A * x) */
#define N 2000
static double A[N][N], x[N], y[N], t[N];
void kernel(void) {
    for (int i = 0; i < N; i++)
        y[i] = 0.0;
    for (int i = 0; i < N; i++) {
        t[i] = 0.0;
        for (int j = 0; j < N; j++)
            t[i] += A[i][j] * x[j];
        for (int j = 0; j < N; j++)
            y[j] += A[i][j] * t[i];
    }
}
