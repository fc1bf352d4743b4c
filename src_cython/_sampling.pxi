"""Python interface of random draws: the draws of a run, alias tables, bounded integers, trajectories."""


cdef class Sampler:
    """The draws of a run: one record of the log and one initial state a step.

    Parameters
    ----------
    bit_generator : numpy.random.BitGenerator
        Advanced by every draw, with its lock held.
    n_records : int
    order : {"replacement", "shuffle", "trajectory"}
    initial, probabilities : int32 and float64 arrays
        Support of the initial distribution and its positive probabilities.
    repeats : int64 array or None
        How many of the n_records each record of a log of counts stands for.
    """

    cdef _random.Draws draws
    cdef readonly object bit_generator
    cdef readonly str order
    cdef object table, permutation, weights

    def __init__(self, bit_generator, int64_t n_records, str order, initial, probabilities, repeats=None):
        self.bit_generator = bit_generator
        self.order = order
        self.draws.bits = bits_of(bit_generator)
        self.draws.order = ("replacement", "shuffle", "trajectory").index(order)
        self.draws.n_records = n_records
        self.draws.position = 0
        if order != "shuffle":
            self.permutation = np.arange(0, dtype=np.int32)
        elif repeats is None:
            self.permutation = np.arange(n_records, dtype=np.int32)
        else:
            self.permutation = np.repeat(np.arange(len(repeats), dtype=np.int32), repeats)
        self.draws.permutation = <int32_t *> address(self.permutation)
        self.table = alias_columns(initial, probabilities)
        self.draws.n_initial = len(self.table)
        self.draws.initial = <const _random.Column *> address(self.table)
        self.draws.weights = NULL
        if repeats is not None and order == "replacement":
            self.weights = alias_columns(np.arange(len(repeats), dtype=np.int32), repeats / np.sum(repeats))
            self.draws.n_records = len(repeats)
            self.draws.weights = <const _random.Column *> address(self.weights)

    def draw(self, int64_t n):
        """The next n draws as (records, initial states)."""
        records = np.empty(n, dtype=np.int64)
        initial = np.empty(n, dtype=np.int32)
        cdef int64_t[::1] r = records
        cdef int32_t[::1] s = initial
        if n:
            with self.bit_generator.lock, nogil:
                _random.fill(&self.draws, &r[0], &s[0], n)
        return records, initial


def alias_columns(values, probabilities):
    """The alias table of a distribution over `values`, as the core reads it."""
    keep, alias = alias_table(probabilities)
    table = np.empty(len(keep), dtype=COLUMN_DTYPE)
    table["keep"] = keep
    table["state"] = values
    table["other"] = np.asarray(values)[alias]
    return table


def alias_table(const double[::1] probabilities):
    """Vose's alias table: keep column k if a uniform falls below keep[k], else take alias[k]."""
    cdef int64_t n = probabilities.shape[0], n_small = 0, n_large = 0, k, small, large
    keep_array, alias_array = np.ones(n), np.arange(n, dtype=np.int32)
    cdef double[::1] keep = keep_array, share = np.asarray(probabilities) * (n / np.sum(probabilities))
    cdef int32_t[::1] alias = alias_array, smalls = np.empty(n, np.int32), larges = np.empty(n, np.int32)
    with nogil:
        for k in range(n):
            if share[k] < 1.0:
                smalls[n_small] = <int32_t> k
                n_small += 1
            else:
                larges[n_large] = <int32_t> k
                n_large += 1
        while n_small and n_large:
            n_small -= 1
            small = smalls[n_small]
            large = larges[n_large - 1]
            keep[small] = share[small]
            alias[small] = <int32_t> large
            share[large] -= 1.0 - share[small]
            if share[large] < 1.0:
                n_large -= 1
                smalls[n_small] = <int32_t> large
                n_small += 1
    return keep_array, alias_array


def bounded_integers(bit_generator, uint64_t bound, int64_t n):
    """n uniform integers below `bound`, by rejection."""
    out = np.empty(n, dtype=np.uint64)
    cdef uint64_t[::1] view = out
    cdef bitgen_t *bits = bits_of(bit_generator)
    cdef int64_t k
    with bit_generator.lock, nogil:
        for k in range(n):
            view[k] = _random.bounded(bits, bound)
    return out


cdef inline int64_t locate(const double *cdf, int64_t low, int64_t high, double u) noexcept nogil:
    """The first k in low .. high - 1 with cdf[k] > u; cdf[high - 1] > u by construction."""
    cdef int64_t middle
    high -= 1
    while low < high:
        middle = (low + high) // 2
        if cdf[middle] > u:
            high = middle
        else:
            low = middle + 1
    return low


def rollout(int64_t n, int32_t s0, const double[:, ::1] policy_cdf, const int64_t[::1] indptr,
            const int32_t[::1] indices, const double[::1] row_cdf, const double[::1] going_on,
            const double[::1] initial_cdf, bit_generator):
    """n steps: states (n + 1), actions (n), and whether each ended its episode; the next state is then a new start."""
    cdef int64_t A = policy_cdf.shape[1], S = initial_cdf.shape[0], t, row
    cdef double uniform
    cdef bitgen_t *bits = bits_of(bit_generator)
    states_array, actions_array, ended_array = np.empty(n + 1, np.int32), np.empty(n, np.int32), np.zeros(n, np.bool_)
    cdef int32_t[::1] states = states_array, actions = actions_array
    cdef uint8_t[::1] ended = ended_array.view(np.uint8)
    states[0] = s0
    with bit_generator.lock, nogil:
        for t in range(n):
            actions[t] = <int32_t> locate(&policy_cdf[states[t], 0], 0, A, bits.next_double(bits.state))
            row = states[t] * A + actions[t]
            uniform = bits.next_double(bits.state)
            if uniform < going_on[row]:
                states[t + 1] = indices[locate(&row_cdf[0], indptr[row], indptr[row + 1], uniform)]
            else:
                ended[t] = True
                states[t + 1] = <int32_t> locate(&initial_cdf[0], 0, S, bits.next_double(bits.state))
    return states_array, actions_array, ended_array
