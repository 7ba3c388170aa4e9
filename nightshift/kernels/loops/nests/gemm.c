/* C = C / 2 + A * B */
#define N 400
static double A[N][N], B[N][N], C[N][N];
void kernel(void) {
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            C[i][j] *= 0.5;
            for (int k = 0; k < N; k++)
                C[i][j] += A[i][k] * B[k][j];
        }
}
