/* A random walk on the flip graph of decompositions of one tensor over GF(2): flips, reductions, plus transitions
 * (Kauers and Moosbauer, arXiv 2212.01175; Arai, Ichikawa and Hukushima, arXiv 2312.16960).
 *
 * A term is three sets of coefficients, a bit each: terms[axis * room + i]. Terms are indexed by a hash of each
 * factor, and slots of two or more are listed: each step then draws a flip, none draws a term without a partner.
 * `flip_graph.py` holds the same walk in Python; a test holds both to the same steps. */
#include <stdint.h>
#include <string.h>

#define SLOTS 512  /* of each axis */
#define ALL (3 * SLOTS)
#define WORDS 9  /* 576 terms: the definition of 8x8x8, and more */

static uint64_t state;
static uint64_t *terms;
static int room, rank;
static uint64_t masks[WORDS][ALL];  /* which terms a slot holds; a word's slots lie together, for the cache */
static uint16_t sizes[ALL], crowded[ALL], places[ALL];  /* places: where `crowded` has a slot */
static int crowds;

/* SplitMix64 (Steele, Lea and Flood 2014): the same numbers in C and Python. */
static inline uint64_t number(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

static inline uint32_t scaled(uint32_t drawn, uint32_t bound) { return (uint32_t)(((uint64_t)drawn * bound) >> 32); }
static inline uint32_t below(uint32_t bound) { return scaled(number() >> 32, bound); }
static inline uint64_t *factor(int axis, int i) { return terms + axis * room + i; }

static inline int slot(int axis, int i) {
    return axis * SLOTS + (int)(*factor(axis, i) * 0x9e3779b97f4a7c15ULL >> 55);
}

static inline void enter(int axis, int i) {
    int s = slot(axis, i);
    masks[i >> 6][s] |= 1ULL << (i & 63);
    if (sizes[s]++ == 1) { places[s] = crowds; crowded[crowds++] = s; }
}

static inline void leave(int axis, int i) {
    int s = slot(axis, i);
    masks[i >> 6][s] &= ~(1ULL << (i & 63));
    if (--sizes[s] == 1) {
        int last = crowded[--crowds];
        crowded[places[s]] = last;
        places[last] = places[s];
    }
}

static inline void add(int axis, int i, int j) {
    leave(axis, i);
    *factor(axis, i) ^= *factor(axis, j);
    enter(axis, i);
}

static void enter_all(void) {
    memset(masks, 0, sizeof masks[0] * (size_t)((room + 63) / 64));
    memset(sizes, 0, sizeof sizes);
    crowds = 0;
    for (int axis = 0; axis < 3; axis++)
        for (int i = 0; i < rank; i++) enter(axis, i);
}

static void drop_vanished(int i) {
    if (*factor(0, i) && *factor(1, i) && *factor(2, i)) return;
    int last = --rank;
    for (int axis = 0; axis < 3; axis++) {
        leave(axis, last);
        if (i == last) continue;
        leave(axis, i);
        *factor(axis, i) = *factor(axis, last);
        enter(axis, i);
    }
}

/* The n-th term of a slot. */
static inline int member(int s, int n) {
    for (int word = 0;; word++)
        for (uint64_t bits = masks[word][s]; bits; bits &= bits - 1)
            if (!n--) return word * 64 + __builtin_ctzll(bits);
}

/* Two terms of one slot, in either order: a flip where they have the same factor. */
static inline void flip(void) {
    uint64_t drawn = number();
    if (!crowds) return;
    int s = crowded[scaled(drawn >> 32, crowds)], axis = s / SLOTS, others = sizes[s] - 1;
    int pair = scaled((uint32_t)drawn, (others + 1) * others), first = pair / others, second = pair % others;
    int i = member(s, first), j = member(s, second + (second >= first));
    if (*factor(axis, i) != *factor(axis, j)) return;
    int b = (axis + 1) % 3, c = (axis + 2) % 3;
    add(b, i, j);
    add(c, j, i);
    if (*factor(b, i) && *factor(c, j)) return;
    /* the later place first: a drop moves the last term */
    drop_vanished(i > j ? i : j);
    drop_vanished(i > j ? j : i);
}

/* Two terms become three: a way out of a component without reductions. */
static void plus(void) {
    int i = below(rank), j = below(rank - 1), a = below(3), b = (a + 1) % 3, c = (a + 2) % 3, k = rank;
    if (j >= i) j++;
    for (int axis = 0; axis < 3; axis++)
        if (*factor(axis, i) == *factor(axis, j)) return;
    *factor(a, k) = *factor(a, i);
    *factor(b, k) = *factor(b, j);
    *factor(c, k) = *factor(c, i) ^ *factor(c, j);
    for (int axis = 0; axis < 3; axis++) enter(axis, k);
    add(b, i, j);
    add(a, j, i);
    rank++;
}

/* Walks until `target` terms remain, or for `steps` steps without a new best rank; the best scheme ends up in
 * `given`. patience: steps without a reduction before a plus transition. margin: how far above the best rank it may
 * be. Returns the steps taken; *given_rank is the best rank. */
int64_t walk(uint64_t *given, int given_room, int *given_rank, int target, int64_t steps, int64_t patience,
             int margin, uint64_t *seed) {
    uint64_t best[3 * given_room];
    int best_rank = *given_rank;
    int64_t step = 0, since = 0, last = 0;
    terms = given; room = given_room; rank = best_rank; state = *seed;
    memcpy(best, terms, sizeof best);
    enter_all();
    for (; step - last < steps && best_rank > target; step++) {
        int before = rank;
        flip();
        since = rank < before ? 0 : since + 1;
        if (since == 0 && rank <= best_rank) {
            if (rank < best_rank) last = step;
            memcpy(best, terms, sizeof best);
            best_rank = rank;
        }
        if (since < patience) continue;
        since = 0;
        if (rank == best_rank) memcpy(best, terms, sizeof best);  /* as good, and further from the start */
        if (rank < best_rank + margin && rank < room) {
            plus();
        } else {
            memcpy(terms, best, sizeof best);
            rank = best_rank;
            enter_all();
        }
    }
    memcpy(terms, best, sizeof best);
    *given_rank = best_rank;
    *seed = state;
    return step;
}
