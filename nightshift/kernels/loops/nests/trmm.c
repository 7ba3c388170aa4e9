/* B = transpose(A) * B in place, with A lower triangular and ones on its diagonal */
#define N 480
#define M 400
static double A[N][N], B[N][M];
void kernel(void) {
    for (int i = 0; i < N; i++)
        for (int j = 0; j < M; j++)
            for (int k = i + 1; k < N; k++)
                B[i][j] += A[k][i] * B[k][j];
}
