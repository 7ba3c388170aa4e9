/* T = A * B, then D = D / 2 + T * C */
#define N 320
static double A[N][N], B[N][N], C[N][N], D[N][N], T[N][N];
void kernel(void) {
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            T[i][j] = 0.0;
            for (int k = 0; k < N; k++)
                T[i][j] += A[i][k] * B[k][j];
        }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            D[i][j] *= 0.5;
            for (int k = 0; k < N; k++)
                D[i][j] += T[i][k] * C[k][j];
        }
}
