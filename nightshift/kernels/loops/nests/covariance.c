/* Covariances of M variables over N observations */
#define N 512
#define M 320
static double D[N][M], V[M][M], mean[M];
void kernel(void) {
    for (int j = 0; j < M; j++) {
        mean[j] = 0.0;
        for (int i = 0; i < N; i++)
            mean[j] += D[i][j];
        mean[j] *= 0.001953125;
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < M; j++)
            D[i][j] -= mean[j];
    for (int i = 0; i < M; i++)
        for (int j = i; j < M; j++) {
            V[i][j] = 0.0;
            for (int k = 0; k < N; k++)
                V[i][j] += D[k][i] * D[k][j];
            V[i][j] *= 0.001953125;
            V[j][i] = V[i][j];
        }
}
