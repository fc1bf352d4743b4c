"""The compiled core of dpdl: Python classes around the inline functions in the .pxd files of this folder.

Python validates and allocates; everything here trusts its inputs, runs without the GIL and returns a status code.
"""

from cpython.pycapsule cimport PyCapsule_New
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint8_t
from numpy.random cimport bitgen_t

import threading

import numpy as np

cimport _duals
cimport _interrupt
cimport _kkt
cimport _lazy
cimport _model
cimport _random
cimport _sums
from _border cimport bits_of, data_of, read_model

CODES = {
    _kkt.OK: "ok",
    _kkt.NO_CONVERGENCE: "the root finder of the x-update did not converge",
    _kkt.NOT_FINITE: "a sum in the x-update is not finite",
    _kkt.OUT_OF_REACH: "the x-update left the range of the binned sums",
}

# The fields of _model.Counters, in order.
COUNTERS = ("steps", "case_1", "case_2", "case_3", "case_4", "capped", "iterations", "refreshes", "rebases",
            "jumps")

cdef enum:
    CACHED = 1 << 20    # bytes up to which all data fits into the caches


def layout_of(size, **fields):
    """A structured dtype with the offsets that the C compiler chose: name=(offset, format)."""
    offsets, formats = zip(*fields.values(), strict=True)
    return np.dtype({"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": size})


# Structs that Python fills in; a `Sum` is two doubles, of which the second one ends in _low.
cdef _duals.Value value
cdef _duals.Multiplier multiplier
cdef _random.Column column
cdef _lazy.Member member
cdef _model.Head head
cdef _model.Utility utility
VALUE_DTYPE = layout_of(
    sizeof(_duals.Value),
    v=(<char *> &value.v - <char *> &value, "f8"),
    sum=(<char *> &value.sum.high - <char *> &value, "f8"),
    low=(<char *> &value.sum.low - <char *> &value, "f8"),
    since=(<char *> &value.since - <char *> &value, "i8"),
)
MULTIPLIER_DTYPE = layout_of(
    sizeof(_duals.Multiplier),
    log=(<char *> &multiplier.log - <char *> &multiplier, "f8"),
    lam=(<char *> &multiplier.lam - <char *> &multiplier, "f8"),
    sum=(<char *> &multiplier.sum.high - <char *> &multiplier, "f8"),
    low=(<char *> &multiplier.sum.low - <char *> &multiplier, "f8"),
)
COLUMN_DTYPE = layout_of(
    sizeof(_random.Column),
    keep=(<char *> &column.keep - <char *> &column, "f8"),
    state=(<char *> &column.state - <char *> &column, "i4"),
    other=(<char *> &column.other - <char *> &column, "i4"),
)
MEMBER_DTYPE = layout_of(
    sizeof(_lazy.Member),
    log_z=(<char *> &member.log_z - <char *> &member, "f8"),
    z=(<char *> &member.z - <char *> &member, "f8"),
    acc=(<char *> &member.acc - <char *> &member, "f8"),
    mark=(<char *> &member.mark - <char *> &member, "f8"),
    c=(<char *> &member.c - <char *> &member, "f8"),
    log_cap=(<char *> &member.log_cap - <char *> &member, "f8"),
    d=(<char *> &member.d - <char *> &member, "f8"),
    state=(<char *> &member.state - <char *> &member, "i4"),
    bin=(<char *> &member.bin - <char *> &member, "i4"),
)
HEAD_DTYPE = layout_of(
    sizeof(_model.Head),
    pair=(<char *> &head.pair - <char *> &head, "i4"),
    s_next=(<char *> &head.s_next - <char *> &head, "i4"),
    r=(<char *> &head.r - <char *> &head, "f8"),
)
UTILITY_DTYPE = layout_of(
    sizeof(_model.Utility),
    share=(<char *> &utility.share - <char *> &utility, "(2,)f8"),
    slope=(<char *> &utility.slope - <char *> &utility, "f8"),
    column=(<char *> &utility.column - <char *> &utility, "i8"),
)
if sizeof(_sums.Sum) != 16 or sizeof(_model.Counters) != 8 * len(COUNTERS) or sizeof(_lazy.Member) != 64:
    raise ImportError("the C compiler has laid out a struct in an unexpected way")


def aligned(n, dtype):
    """Zeros in cache lines of their own, so that runs in two threads never write to the same line."""
    size = n * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, dtype=np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip:skip + size].view(dtype)


def value_rows(V):
    """V of every state as the core stores it."""
    rows = aligned(len(V), VALUE_DTYPE)
    rows["v"] = V
    return rows


def multiplier_rows(log_lam):
    """lam of every utility as the core stores it."""
    rows = aligned(len(log_lam), MULTIPLIER_DTYPE)
    rows["log"] = log_lam
    rows["lam"] = np.exp(log_lam)
    return rows


def dual_means(V, lam, now):
    """Averages of V and lam over the `now` iterates before each step taken, from their rows."""
    return (V["sum"] + (V["low"] + V["v"] * (now - V["since"]))) / now, (lam["sum"] + lam["low"]) / now


def utility_rows(affine):
    """How utilities follow from the stored columns, as the core reads it; `affine` is a dpdl.question.Question."""
    rows = aligned(len(affine.slope), UTILITY_DTYPE)
    rows["share"] = affine.share.T
    rows["slope"] = affine.slope
    rows["column"] = affine.columns
    return rows


def effective_log_caps(layout):
    """Caps of all coordinates; those that a sum implies are replaced by larger ones."""
    caps = np.empty(len(layout.log_cap))
    cdef double[::1] effective = caps
    cdef const double[::1] c = layout.coordinates.c, log_cap = layout.log_cap
    cdef double B1 = layout.constants.B1, B2 = layout.constants.B2
    cdef int64_t k
    for k in range(len(caps)):
        effective[k] = _kkt.effective_log_cap(log_cap[k], c[k], B1, B2)
    return caps


handler_lock = threading.Lock()
cdef int64_t n_open = 0         # open Interrupts


cdef class Interrupts:
    """While open, SIGINT is counted before Python handles it, so that a run in any thread sees it.

    On a platform without sigaction nothing is counted.

    Parameters
    ----------
    guarded : bool
        The previous handler, usually Python's, is not called: only runs of this process see the signal.
    """

    cdef int64_t before
    cdef readonly bint guarded

    def __init__(self, bint guarded=False):
        self.guarded = guarded

    def __enter__(self):
        global n_open
        with handler_lock:
            n_open += 1
            _interrupt.dpdl_guard(self.guarded)
            _interrupt.dpdl_watch()
        self.before = _interrupt.dpdl_interrupt_count()
        return self

    def __exit__(self, *exception):
        global n_open
        with handler_lock:
            n_open -= 1
            _interrupt.dpdl_guard(-self.guarded)
            if n_open == 0:
                _interrupt.dpdl_unwatch()

    def came(self):
        """Whether a SIGINT came since the last call, or since this was opened."""
        cdef int64_t before = self.before
        with handler_lock:
            _interrupt.dpdl_watch()     # the handler may have been replaced meanwhile
        self.before = _interrupt.dpdl_interrupt_count()
        return self.before != before


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
    cdef object table, permutation, weights         # what `draws` points to

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
        self.draws.permutation = <int32_t *> data_of(self.permutation, np.int32, len(self.permutation))
        self.table = alias_columns(initial, probabilities)
        self.draws.n_initial = len(self.table)
        self.draws.initial = <const _random.Column *> data_of(self.table, COLUMN_DTYPE, len(self.table))
        self.draws.weights = NULL
        if repeats is not None and order == "replacement":
            self.weights = alias_columns(np.arange(len(repeats), dtype=np.int32), repeats / np.sum(repeats))
            self.draws.n_records = len(repeats)
            self.draws.weights = <const _random.Column *> data_of(self.weights, COLUMN_DTYPE, len(repeats))

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


cdef class LazyCore:
    """A run: iterate, averages, counters and draws; the lazy step costs O(1 + I) amortised.

    Parameters
    ----------
    layout : dpdl.learner.layout.Layout
        Packed log, coordinates and constants; never written to.
    sampler : Sampler
    log_x, V, log_lam : float64 arrays
        Starting point; log_x has one entry a coordinate.
    refresh : int, optional
        Steps between full recomputations; by default that of the layout.
    threshold : float
        A bin is rebased when its tau exceeds this; 0 rebases every bin at every move.
    reach : float
        An x-update that would make some tau exceed this is solved by summation over all pairs.
    """

    cdef _model.Model model
    cdef _lazy.Lazy lazy
    cdef _lazy.Parts parts
    cdef _duals.Value *V
    cdef _duals.Multiplier *lam
    cdef _model.Counters *counters
    cdef readonly object layout, bins, V_rows, lam_rows, counts, members, settled
    cdef object utilities, u, frame, moments        # what the structs point to, with the readonly arrays
    cdef object window, powers                      # views of the structs of `lazy`
    cdef readonly Sampler sampler
    cdef readonly bint far      # the data does not fit the caches
    # Record numbers and initial states, drawn in blocks; those from `used` on are not used yet.
    cdef int64_t drawn[_random.BLOCK]
    cdef int32_t initial[_random.BLOCK]
    cdef int64_t used, n_drawn

    def __init__(self, layout, Sampler sampler, log_x, V, log_lam, refresh=None, double threshold=_lazy.THRESHOLD,
                 double reach=_lazy.REACH):
        self.layout, self.bins, self.sampler = layout, layout.coordinates.bins, sampler
        self.used = self.n_drawn = 0
        self.utilities = utility_rows(layout.constants.affine)
        read_model(&self.model, layout, self.utilities)
        self.V_rows = value_rows(V)
        self.V = <_duals.Value *> data_of(self.V_rows, VALUE_DTYPE, len(V))
        self.lam_rows = multiplier_rows(log_lam)
        self.lam = <_duals.Multiplier *> data_of(self.lam_rows, MULTIPLIER_DTYPE, len(self.utilities))
        self.counts = aligned(len(COUNTERS), np.int64)
        self.counters = <_model.Counters *> data_of(self.counts, np.int64, len(COUNTERS))
        self.place_members(log_x)
        self.place_bins()
        self.lazy.threshold = threshold
        self.lazy.reach = reach
        self.lazy.refresh = layout.refresh if refresh is None else refresh
        self.lazy.counters = self.counters
        self.parts.lazy, self.parts.model, self.parts.V, self.parts.lam = &self.lazy, &self.model, self.V, self.lam
        self.far = self.members.nbytes + self.V_rows.nbytes + layout.records.nbytes > CACHED
        with nogil:
            _lazy.refresh(&self.lazy, 0)
        self.counts[:] = 0

    cdef int place_members(self, log_x) except -1:
        """The pairs, one cache line each, and what concerns all of them."""
        coordinates, bins = self.layout.coordinates, self.bins
        cdef int64_t n = len(coordinates.c), n_seen = n - (coordinates.n_unseen > 0)
        self.members = aligned(n, MEMBER_DTYPE)
        self.members["log_z"] = log_x
        self.members["z"] = np.exp(log_x)
        self.members["c"] = coordinates.c
        self.members["log_cap"] = effective_log_caps(self.layout)
        self.members["d"] = bins.d
        self.members["state"] = coordinates.state
        self.members["bin"] = bins.bin
        self.settled = aligned(2 * n, np.float64).reshape(n, 2)
        self.u = aligned(len(self.utilities), np.float64)
        self.lazy.n = n
        self.lazy.member = <_lazy.Member *> data_of(self.members, MEMBER_DTYPE, n)
        self.lazy.settled = <_sums.Sum *> data_of(self.settled, np.float64, 2 * n)
        self.lazy.u = <double *> data_of(self.u, np.float64, len(self.utilities))
        self.lazy.unseen = &self.lazy.member[n_seen] if n_seen < n else NULL
        self.lazy.top = coordinates.c[:n_seen].max()
        self.lazy.unit = 1 / self.lazy.top
        return 0

    cdef int place_bins(self) except -1:
        """The bins of the pairs, and the window over them."""
        cdef int64_t n = len(self.bins.centre), size = _lazy.ROW * n
        bins = self.bins
        self.frame = aligned(4 * n, np.float64).reshape(4, n)     # shift, tau, factor, trial
        self.frame[2] = 1.0
        self.moments = aligned(2 * size, np.float64).reshape(2, n, _lazy.ROW)     # m and q
        self.lazy.n_bins = n
        self.lazy.n_wide = bins.n_wide
        self.lazy.order = <const int32_t *> data_of(bins.order, np.int32, self.lazy.n)
        self.lazy.first = <const int64_t *> data_of(bins.first, np.int64, n + 1)
        self.lazy.centre = <const double *> data_of(bins.centre, np.float64, n)
        self.lazy.half = <const double *> data_of(bins.half, np.float64, n)
        self.lazy.shift = <double *> data_of(self.frame, np.float64, 4 * n)
        self.lazy.tau = self.lazy.shift + n
        self.lazy.factor = self.lazy.shift + 2 * n
        self.lazy.trial = self.lazy.shift + 3 * n
        self.lazy.moment = <double *> data_of(self.moments, np.float64, 2 * size)
        self.lazy.past = self.lazy.moment + size
        _lazy.open_window(&self.lazy, 0)
        self.window = np.asarray(<double[:sizeof(_lazy.Window) // 8]> <double *> &self.lazy.window)
        self.powers = np.asarray(<double[:sizeof(_lazy.Powers) // 8]> <double *> &self.lazy.powers)
        return 0

    def run(self, int64_t n, double seconds=INFINITY):
        """Take n steps, or fewer if time runs out or a SIGINT is counted.

        Returns a code, OK unless the arithmetic failed (the state is then that of the last step). Where a call stops
        does not affect the numbers.
        """
        cdef int64_t block, done
        cdef int code = _kkt.OK
        cdef _interrupt.StopCondition stop
        stop.deadline = _interrupt.dpdl_clock() + seconds
        stop.interrupts = _interrupt.dpdl_interrupt_count()
        stop.work = 0
        with self.sampler.bit_generator.lock, nogil:
            while n > 0 and code == _kkt.OK:
                if self.used == self.n_drawn:
                    self.n_drawn = min(_random.BLOCK, n)
                    self.used = 0
                    _random.fill(&self.sampler.draws, self.drawn, self.initial, self.n_drawn)
                block = min(self.n_drawn - self.used, n)
                done = self.counters.steps
                code = self.advance(self.drawn + self.used, self.initial + self.used, block, &stop)
                done = self.counters.steps - done
                self.used += done
                n -= done
                if done < block:
                    break
        return code

    cdef int advance(self, const int64_t *records, const int32_t *initial, int64_t n,
                     _interrupt.StopCondition *stop) noexcept nogil:
        """Take n steps, or fewer if `stop` applies."""
        cdef int64_t k
        cdef int code
        # Every operation that takes O(pairs), a refresh or a jump, rebases bins. With many utilities any step is slow.
        cdef int64_t *work = &self.counters.rebases if self.model.n_utilities < 256 else &self.counters.steps
        for k in range(n):
            if self.far:
                _lazy.prefetch(&self.parts, records, initial, k, n)
            code = _lazy.step(&self.lazy, &self.model, _model.head(&self.model, records[k]), initial[k],
                              self.V, self.lam)
            if code != _kkt.OK or _interrupt.must_stop(stop, k, work[0]):
                return code
        return _kkt.OK

    def state(self):
        """Everything that changes as steps are taken, but for the bit generator: named arrays, copied."""
        lazy, waiting = &self.lazy, slice(self.used, self.n_drawn)
        return {
            "V": np.stack([self.V_rows[name] for name in ("v", "sum", "low")]),
            "V_since": self.V_rows["since"].copy(),
            "lam": np.stack([self.lam_rows[name] for name in ("log", "lam", "sum", "low")]),
            "counters": self.counts.copy(),
            "records_ahead": np.asarray(<int64_t[:_random.BLOCK]> self.drawn)[waiting].copy(),
            "initial_ahead": np.asarray(<int32_t[:_random.BLOCK]> self.initial)[waiting].copy(),
            "position": np.array([self.sampler.draws.position], dtype=np.int64),
            "permutation": self.sampler.permutation.copy(),
            "x": np.stack([*(self.members[name] for name in ("log_z", "z", "acc", "mark")), *self.settled.T]),
            "frame": self.frame[:3].copy(),
            "moments": self.moments.copy(),
            "window": self.window.copy(),
            "powers": self.powers.copy(),
            "sums": np.array([lazy.total.high, lazy.total.low, lazy.weighted.high, lazy.weighted.low]),
            "steps": np.array([lazy.since, lazy.next_refresh], dtype=np.int64),
        }

    def restore(self, state):
        """Restore what `state` returned for a core of the same layout; sizes are not checked."""
        for name, values in zip(("v", "sum", "low"), state["V"], strict=True):
            self.V_rows[name] = values
        self.V_rows["since"] = state["V_since"]
        for name, values in zip(("log", "lam", "sum", "low"), state["lam"], strict=True):
            self.lam_rows[name] = values
        self.counts[:] = state["counters"]
        self.used, self.n_drawn = 0, len(state["records_ahead"])
        np.asarray(<int64_t[:_random.BLOCK]> self.drawn)[:self.n_drawn] = state["records_ahead"]
        np.asarray(<int32_t[:_random.BLOCK]> self.initial)[:self.n_drawn] = state["initial_ahead"]
        self.sampler.draws.position = state["position"][0]
        self.sampler.permutation[:] = state["permutation"]
        for name, values in zip(("log_z", "z", "acc", "mark"), state["x"][:4], strict=True):
            self.members[name] = values
        self.settled[:] = state["x"][4:].T
        self.frame[:3] = state["frame"]
        self.moments[:] = state["moments"]
        self.window[:], self.powers[:] = state["window"], state["powers"]
        self.lazy.total.high, self.lazy.total.low, self.lazy.weighted.high, self.lazy.weighted.low = state["sums"]
        self.lazy.since, self.lazy.next_refresh = state["steps"]

    @property
    def n_steps(self):
        """Steps taken."""
        return int(self.counts[0])

    @property
    def diagnostics(self):
        """Counts: steps in each case of the x-update, steps that capped the pair, root-finder work, refreshes."""
        return dict(zip(COUNTERS, map(int, self.counts), strict=True))

    @property
    def point(self):
        """The present iterate (x, V, lam)."""
        return self.x, self.V_rows["v"].copy(), self.lam_rows["lam"].copy()

    @property
    def log_lam(self):
        """Logarithm of the present lam."""
        return self.lam_rows["log"].copy()

    @property
    def means(self):
        """Averages (x, V, lam) over the iterates before each step taken; the start itself if none was."""
        if self.n_steps == 0:
            return self.point
        return self.x_sum / self.n_steps, *self.dual_means

    @property
    def dual_means(self):
        """Averages (V, lam) over the iterates before each step taken; at least one must have been."""
        return dual_means(self.V_rows, self.lam_rows, self.n_steps)

    def summary(self, double divisor=1.0):
        """(Sum of x over the iterates before each step taken, divided; logarithm of the present x).

        Both are computed in one pass over the members; nothing is changed.
        """
        sums, logs = np.empty(self.lazy.n), np.empty(self.lazy.n)
        cdef double[::1] x_sum = sums, log_x = logs
        cdef int64_t k, now = self.counters.steps
        cdef const _lazy.Lazy *f = &self.lazy
        cdef const _lazy.Member *i
        cdef double recent
        with nogil:
            for k in range(f.n):
                if k + _lazy.AHEAD < f.n:
                    _random.dpdl_prefetch_read(&f.member[k + _lazy.AHEAD])
                i = &f.member[k]
                recent = _lazy.unsettled(i, _lazy.visits(f, i, _lazy.position(f, i), _lazy.fraction(f, i), now))
                x_sum[k] = (f.settled[k].high + (f.settled[k].low + recent)) / divisor
                log_x[k] = _lazy.log_of(f, i)
        return sums, logs

    @property
    def log_x(self):
        """Logarithm of the present x."""
        return self.summary()[1]

    @property
    def x(self):
        """The present x, one entry a coordinate."""
        return np.exp(self.log_x)

    @property
    def x_sum(self):
        """The sum of x over the iterates before each step taken."""
        return self.summary()[0]

    @property
    def running_sums(self):
        """(sum x, sum c x) as kept by increments."""
        return _sums.value(&self.lazy.total), _sums.value(&self.lazy.weighted)

    @property
    def capsule(self):
        """The C structs (_lazy.Parts), for dpdl._kernels; valid as long as this object."""
        return PyCapsule_New(&self.parts, "dpdl.Parts", NULL)
