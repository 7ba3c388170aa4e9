/* A random walk on the flip graph of decompositions of one tensor over GF(2): flips, reductions, plus transitions
 * (Kauers and Moosbauer, arXiv 2212.01175; Arai, Ichikawa and Hukushima, arXiv 2312.16960).
 *
 * A term is three sets of coefficients, a bit each: terms[axis * room + i]. `flip_graph.py` holds the same walk in
 * Python; a test holds both to the same steps. */
#include <stdint.h>
#include <string.h>

static uint64_t state;

/* SplitMix64 (Steele, Lea and Flood 2014): the same numbers in C and Python. */
static uint32_t below(uint32_t bound) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    return (uint32_t)(((z >> 32) * bound) >> 32);
}

static void drop(uint64_t *terms, int room, int *rank, int i) {
    int last = --*rank;
    for (int axis = 0; axis < 3; axis++) terms[axis * room + i] = terms[axis * room + last];
}

static int vanished(const uint64_t *terms, int room, int i) {
    return !terms[i] || !terms[room + i] || !terms[2 * room + i];
}

/* The i-th term and a partner with the same factor: one flip. 0 where there is no partner. */
static int flip(uint64_t *terms, int room, int *rank) {
    int i = below(*rank), axis = below(3), count = 0;
    const uint64_t *row = terms + axis * room;
    uint64_t same = row[i];
    for (int j = 0; j < *rank; j++) count += row[j] == same;
    if (count < 2) return 0;
    int chosen = below(count - 1), j = 0;
    for (;; j++)
        if (j != i && row[j] == same && chosen-- == 0) break;
    int b = (axis + 1) % 3, c = (axis + 2) % 3;
    if (below(2)) { int swap = b; b = c; c = swap; }
    terms[b * room + i] ^= terms[b * room + j];
    terms[c * room + j] ^= terms[c * room + i];
    /* the later place first: a drop moves the last term */
    int high = i > j ? i : j, low = i > j ? j : i;
    if (vanished(terms, room, high)) drop(terms, room, rank, high);
    if (vanished(terms, room, low)) drop(terms, room, rank, low);
    return 1;
}

/* Two terms become three: a way out of a component without reductions. */
static void plus(uint64_t *terms, int room, int *rank) {
    int i = below(*rank), j = below(*rank - 1), a = below(3), b = (a + 1) % 3, c = (a + 2) % 3, k = *rank;
    if (j >= i) j++;
    uint64_t *A = terms + a * room, *B = terms + b * room, *C = terms + c * room;
    if (A[i] == A[j] || B[i] == B[j] || C[i] == C[j]) return;
    A[k] = A[i]; B[k] = B[j]; C[k] = C[i] ^ C[j];
    B[i] ^= B[j];
    A[j] ^= A[k];
    *rank = k + 1;
}

/* Walks until `target` terms are left or `steps` are over; the best scheme ends up in `terms`.
 * patience: steps without a reduction before a plus transition. margin: how far above the best rank it may be.
 * Returns the steps taken; *rank is the best rank. */
int64_t walk(uint64_t *terms, int room, int *rank, int target, int64_t steps, int64_t patience, int margin,
             uint64_t *seed) {
    uint64_t best[3 * room];
    int best_rank = *rank;
    int64_t step = 0, since = 0;
    state = *seed;
    memcpy(best, terms, sizeof best);
    for (; step < steps && best_rank > target; step++) {
        int before = *rank;
        flip(terms, room, rank);
        since = *rank < before ? 0 : since + 1;
        if (*rank <= best_rank) {
            if (*rank < best_rank || since == 0) memcpy(best, terms, sizeof best);
            best_rank = *rank;
        }
        if (since < patience) continue;
        since = 0;
        if (*rank < best_rank + margin && *rank < room) {
            plus(terms, room, rank);
        } else {
            memcpy(terms, best, sizeof best);
            *rank = best_rank;
        }
    }
    memcpy(terms, best, sizeof best);
    *rank = best_rank;
    *seed = state;
    return step;
}
