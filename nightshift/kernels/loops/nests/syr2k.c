/* The lower triangle of C = C / 2 + A * transpose(B) + B * transpose(A) */
#define N 400
#define M 320
static double A[N][M], B[N][M], C[N][N];
void kernel(void) {
    for (int i = 0; i < N; i++) {
        for (int j = 0; j <= i; j++)
            C[i][j] *= 0.5;
        for (int k = 0; k < M; k++)
            for (int j = 0; j <= i; j++)
                C[i][j] += A[j][k] * B[i][k] + B[j][k] * A[i][k];
    }
}
