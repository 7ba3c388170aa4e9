/* x1 += A * y1 and x2 += transpose(A) * y2 */
#define N 2000
static double A[N][N], x1[N], x2[N], y1[N], y2[N];
void kernel(void) {
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            x1[i] += A[i][j] * y1[j];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            x2[i] += A[j][i] * y2[j];
}
