/* s = transpose(A) * r and q = A * p: the two products of a step of BiCG */
#define N 2000
static double A[N][N], s[N], q[N], p[N], r[N];
void kernel(void) {
    for (int i = 0; i < N; i++)
        s[i] = 0.0;
    for (int i = 0; i < N; i++) {
        q[i] = 0.0;
        for (int j = 0; j < N; j++) {
            s[j] += r[i] * A[i][j];
            q[i] += A[i][j] * p[j];
        }
    }
}
