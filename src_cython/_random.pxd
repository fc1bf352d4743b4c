"""Random draws from the caller's bit generator: bounded integers, the order of the log, initial states.

Nothing here depends on the iterate, so draws can be made in blocks ahead of the step that uses them; each step takes
its draws in the same order (record, then initial state), so the stream does not depend on how steps are grouped.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t
from numpy.random cimport bitgen_t

cdef extern from *:
    """
    #include <stdint.h>
    /* The high and low halves of a 64 x 64 bit product. */
    #if defined(__SIZEOF_INT128__)
    static inline uint64_t dpdl_mul_high(uint64_t a, uint64_t b, uint64_t *low) {
        unsigned __int128 product = (unsigned __int128)a * b;
        *low = (uint64_t)product;
        return (uint64_t)(product >> 64);
    }
    #else
    static inline uint64_t dpdl_mul_high(uint64_t a, uint64_t b, uint64_t *low) {
        uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
        uint64_t p00 = a0 * b0, p01 = a0 * b1, p10 = a1 * b0, p11 = a1 * b1;
        uint64_t middle = (p00 >> 32) + (p01 & 0xffffffffu) + (p10 & 0xffffffffu);
        *low = (middle << 32) | (p00 & 0xffffffffu);
        return p11 + (p01 >> 32) + (p10 >> 32) + (middle >> 32);
    }
    #endif
    /* Without the empty asm the compiler removes a function that only prefetches, because it has no effect. */
    #if defined(__GNUC__)
    static inline void dpdl_prefetch(const void *p) { __builtin_prefetch(p, 1); __asm__ __volatile__(""); }
    static inline void dpdl_prefetch_read(const void *p) { __builtin_prefetch(p, 0); __asm__ __volatile__(""); }
    #else
    static inline void dpdl_prefetch(const void *p) { (void)p; }
    static inline void dpdl_prefetch_read(const void *p) { (void)p; }
    #endif
    """
    uint64_t dpdl_mul_high(uint64_t a, uint64_t b, uint64_t *low) noexcept nogil
    void dpdl_prefetch(const void *address) noexcept nogil
    void dpdl_prefetch_read(const void *address) noexcept nogil

cdef enum:
    BLOCK = 4096        # draws made ahead of the steps that use them
    CHUNK = 64          # draws between choosing columns of an alias table and reading them

cdef enum Order:
    REPLACEMENT = 0     # independent draws: Theorem 4.1
    SHUFFLE = 1         # epochs without replacement
    TRAJECTORY = 2      # the log's own order: Theorem 4.6

ctypedef struct Column:         # of Vose's alias table of states or records: one access a draw
    double keep                 # take `state` if a uniform falls below this, else `other`
    int32_t state
    int32_t other

ctypedef struct Draws:
    bitgen_t *bits
    int order
    int64_t n_records
    int64_t position        # in the epoch (shuffle) or in the log (trajectory)
    int32_t *permutation    # of the records, shuffle only
    int64_t n_initial
    const Column *initial   # alias table of the initial distribution, over its support
    const Column *weights   # alias table of the n_records records of a log of counts, replacement only; else NULL


cdef inline uint64_t bounded(bitgen_t *bits, uint64_t n) noexcept nogil:
    """A uniform integer in 0 .. n - 1 by multiplication and rejection (Lemire 2019), without bias."""
    cdef uint64_t low, high, threshold
    if n <= 1:
        return 0
    high = dpdl_mul_high(bits.next_uint64(bits.state), n, &low)
    if low < n:
        threshold = (0 - n) % n     # 2^64 mod n: the size of the incomplete last interval
        while low < threshold:
            high = dpdl_mul_high(bits.next_uint64(bits.state), n, &low)
    return high


cdef inline int32_t next_column(Draws *d, const Column *table, int64_t n, double *uniform) noexcept nogil:
    """The first half of a draw from an alias table of n columns: a column, which is prefetched, and a uniform."""
    cdef int64_t k = <int64_t> bounded(d.bits, <uint64_t> n)
    dpdl_prefetch_read(&table[k])
    uniform[0] = d.bits.next_double(d.bits.state)
    return <int32_t> k


cdef inline int32_t entry(const Column *column, double uniform) noexcept nogil:
    """The second half of a draw from an alias table."""
    return column.state if uniform < column.keep else column.other


cdef inline int64_t next_record(Draws *d) noexcept nogil:
    """The next record of a log of rows."""
    cdef int64_t k, j
    cdef int32_t chosen
    if d.order == REPLACEMENT:
        return <int64_t> bounded(d.bits, <uint64_t> d.n_records)
    k = d.position
    d.position = 0 if k + 1 == d.n_records else k + 1
    if d.order == TRAJECTORY:
        return k
    # Fisher-Yates, one exchange a step: a uniform permutation stays uniform when it is shuffled again,
    # so an epoch starts from the permutation of the last one.
    j = k + <int64_t> bounded(d.bits, <uint64_t> (d.n_records - k))
    chosen = d.permutation[j]
    d.permutation[j] = d.permutation[k]
    d.permutation[k] = chosen
    return chosen


cdef inline void fill(Draws *d, int64_t *records, int32_t *initial, int64_t n) noexcept nogil:
    """The draws of the next n steps.

    Columns of alias tables are chosen a chunk at a time and then read: by then they are in the cache.
    """
    cdef int64_t k, done = 0, size
    cdef double for_record[CHUNK]
    cdef double for_initial[CHUNK]
    while done < n:
        size = min(<int64_t> CHUNK, n - done)
        for k in range(size):
            if d.weights != NULL:
                records[k] = next_column(d, d.weights, d.n_records, &for_record[k])
            else:
                records[k] = next_record(d)
            if d.n_initial > 1:
                initial[k] = next_column(d, d.initial, d.n_initial, &for_initial[k])
        for k in range(size):
            if d.weights != NULL:
                records[k] = entry(&d.weights[records[k]], for_record[k])
            initial[k] = entry(&d.initial[initial[k]], for_initial[k]) if d.n_initial > 1 else d.initial[0].state
        records += size
        initial += size
        done += size
