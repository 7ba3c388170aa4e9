/* The lower triangle of C = C / 2 + A * transpose(A) */
#define N 480
#define M 400
static double A[N][M], C[N][N];
void kernel(void) {
    for (int i = 0; i < N; i++) {
        for (int j = 0; j <= i; j++)
            C[i][j] *= 0.5;
        for (int k = 0; k < M; k++)
            for (int j = 0; j <= i; j++)
                C[i][j] += A[i][k] * A[j][k];
    }
}
