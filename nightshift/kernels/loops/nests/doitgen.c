/* Each row of each plane of A, times a matrix */
#define R 60
#define N 128
static double A[R][N][N], T[R][N][N], W[N][N];
void kernel(void) {
    for (int r = 0; r < R; r++)
        for (int q = 0; q < N; q++) {
            for (int p = 0; p < N; p++) {
                T[r][q][p] = 0.0;
                for (int s = 0; s < N; s++)
                    T[r][q][p] += A[r][q][s] * W[s][p];
            }
            for (int p = 0; p < N; p++)
                A[r][q][p] = T[r][q][p];
        }
}
