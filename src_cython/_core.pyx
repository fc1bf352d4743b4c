"""The compiled core of dpdl: Python classes around the inline functions in the .pxd files of this folder.

Python validates and allocates; everything here trusts its inputs, runs without the GIL and returns a status code.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport INFINITY, exp
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset
from numpy.random cimport bitgen_t

import threading
from collections import namedtuple

import numpy as np

cimport _duals
cimport _eager
cimport _interrupt
cimport _kkt
cimport _lazy
cimport _model
cimport _random
cimport _sums

XUpdate = namedtuple("XUpdate", "log_x alpha beta case capped iterations code")
Root = namedtuple("Root", "alpha beta iterations code")

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
    BLOCK = 4096        # draws made ahead of the steps that use them
    AHEAD = 8           # steps between two stages of prefetching
    CACHED = 1 << 20    # bytes up to which all data fits into the caches

# Constants that dpdl.learner.state needs.
BLOCK_SIZE = BLOCK
N_MOMENTS = _lazy.N_MOMENTS
N_TERMS = _lazy.N_TERMS
MAX_ITERATIONS = _kkt.MAX_ITERATIONS
THRESHOLD = 0.25        # of tau: a bin beyond it is rebased


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


cdef void *address(object array) except? NULL:
    return <void *> <size_t> array.ctypes.data


def aligned(n, dtype):
    """Zeros in cache lines of their own, so that runs in two threads never write to the same line."""
    size = n * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, dtype=np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip:skip + size].view(dtype)


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


cdef bitgen_t *bits_of(object bit_generator) except NULL:
    return <bitgen_t *> PyCapsule_GetPointer(bit_generator.capsule, "BitGenerator")


include "_sampling.pxi"


cdef class Core:
    """The state that both cores share: the duals with their sums, the counters, the draws.

    Parameters
    ----------
    layout : dpdl.learner.layout.Layout
        Packed log, coordinates and constants; never written to.
    sampler : Sampler
    V, log_lam : float64 arrays
        Starting point.
    """

    cdef _model.Model model
    cdef _duals.Value *V
    cdef _duals.Multiplier *lam
    cdef _model.Counters *counters
    cdef readonly object layout, V_rows, lam_rows, counts
    cdef object record_bytes, utilities, u
    cdef readonly Sampler sampler
    # Record numbers and initial states, drawn in blocks; those from `used` on are not used yet.
    cdef int64_t drawn[BLOCK]
    cdef int32_t initial[BLOCK]
    cdef int64_t used, n_drawn

    def __init__(self, layout, Sampler sampler, V, log_lam):
        constants, records = layout.constants, layout.records
        self.layout = layout
        self.record_bytes = records
        self.sampler = sampler
        self.model.records = <const char *> address(records)
        self.model.stride = records.strides[0]
        self.model.n_utilities = len(log_lam)
        self.model.gamma = constants.gamma
        affine = constants.affine
        self.utilities = np.zeros(len(log_lam), dtype=UTILITY_DTYPE)
        self.utilities["share"] = affine.share.T
        self.utilities["slope"] = affine.slope
        self.utilities["column"] = affine.columns
        self.model.utility = <const _model.Utility *> address(self.utilities)
        self.model.reward_slope = affine.reward_slope
        self.u = aligned(len(log_lam), np.float64)
        self.model.margin = constants.margin
        self.model.end_margin = constants.end_margin
        self.model.rate_V = constants.rate_V
        self.model.rate_lam = constants.rate_lam
        self.model.rate_x = constants.rate_x
        self.model.radius_V = constants.radius_V
        self.model.radius_lam = constants.radius_lam
        self.model.B1 = constants.B1
        self.model.B2 = constants.B2
        self.model.c_min = layout.coordinates.c.min()
        self.V_rows = aligned(len(V), VALUE_DTYPE)
        self.V_rows["v"] = V
        self.lam_rows = aligned(len(log_lam), MULTIPLIER_DTYPE)
        self.lam_rows["log"] = log_lam
        self.lam_rows["lam"] = np.exp(log_lam)
        self.counts = aligned(len(COUNTERS), np.int64)
        self.used = self.n_drawn = 0
        self.V = <_duals.Value *> address(self.V_rows)
        self.lam = <_duals.Multiplier *> address(self.lam_rows)
        self.counters = <_model.Counters *> address(self.counts)

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
                    self.n_drawn = BLOCK if n > BLOCK else n
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
        return _kkt.OK

    @property
    def n_steps(self):
        """Steps taken."""
        return int(self.counts[0])

    def state(self):
        """Everything that changes as steps are taken, but for the bit generator: named arrays, copied."""
        waiting = slice(self.used, self.n_drawn)
        return {
            "V": np.stack([self.V_rows[name] for name in ("v", "sum", "low")]),
            "V_since": self.V_rows["since"].copy(),
            "lam": np.stack([self.lam_rows[name] for name in ("log", "lam", "sum", "low")]),
            "counters": self.counts.copy(),
            "records_ahead": np.asarray(<int64_t[:BLOCK]> self.drawn)[waiting].copy(),
            "initial_ahead": np.asarray(<int32_t[:BLOCK]> self.initial)[waiting].copy(),
            "position": np.array([self.sampler.draws.position], dtype=np.int64),
            "permutation": self.sampler.permutation.copy(),
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
        np.asarray(<int64_t[:BLOCK]> self.drawn)[:self.n_drawn] = state["records_ahead"]
        np.asarray(<int32_t[:BLOCK]> self.initial)[:self.n_drawn] = state["initial_ahead"]
        self.sampler.draws.position = state["position"][0]
        self.sampler.permutation[:] = state["permutation"]

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
        now, V, lam = self.n_steps, self.V_rows, self.lam_rows
        return (V["sum"] + (V["low"] + V["v"] * (now - V["since"]))) / now, (lam["sum"] + lam["low"]) / now


cdef class EagerCore(Core):
    """The eager step: O(pairs) if more than the sampled pair moves.

    Parameters
    ----------
    log_x : float64 array
        Logarithm of the starting point, one entry a coordinate.
    refresh : int, optional
        Steps between full recomputations of the running sums. In between, each sum accumulates one rounding for each
        changed term: an error of at most refresh * 2^-53 of its bound, 1e-11 at the default.
    printed_sign : bool
        Take g_x as equation (9) prints it, with r + gamma V(s) - V(s'), to show that this fails.
    """

    cdef _eager.Eager eager
    cdef readonly object log_x, x_values, sums, since
    cdef object log_cap

    def __init__(self, layout, Sampler sampler, log_x, V, log_lam, int64_t refresh=1 << 16,
                 bint printed_sign=False):
        super().__init__(layout, sampler, V, log_lam)
        self.log_x = np.array(log_x, dtype=np.float64)
        self.x_values = np.exp(self.log_x)
        self.sums = np.zeros((len(log_x), 2))
        self.since = np.zeros(len(log_x), dtype=np.int64)
        self.eager.n = len(log_x)
        self.eager.state = <const int32_t *> address(layout.coordinates.state)
        self.eager.c = <const double *> address(layout.coordinates.c)
        self.log_cap = effective_log_caps(layout)
        self.eager.log_cap = <const double *> address(self.log_cap)
        self.eager.log_x = <double *> address(self.log_x)
        self.eager.x = <double *> address(self.x_values)
        self.eager.sum = <_sums.Sum *> address(self.sums)
        self.eager.since = <int64_t *> address(self.since)
        self.eager.V = self.V
        self.eager.lam = self.lam
        self.eager.counters = self.counters
        self.eager.u = <double *> address(self.u)
        self.eager.V_here, self.eager.V_next = (self.model.gamma, -1.0) if printed_sign else (-1.0, self.model.gamma)
        self.eager.refresh = refresh
        _eager.recompute_sums(&self.eager)

    cdef int advance(self, const int64_t *records, const int32_t *initial, int64_t n,
                     _interrupt.StopCondition *stop) noexcept nogil:
        cdef int64_t k
        cdef int code
        for k in range(n):
            code = _eager.step(&self.eager, &self.model, _model.head(&self.model, records[k]), initial[k])
            if code != _kkt.OK or _interrupt.must_stop(stop, k, self.counters.steps):      # any step may be slow
                return code
        return _kkt.OK

    @property
    def x(self):
        """The present x, one entry a coordinate."""
        return self.x_values.copy()

    @property
    def x_sum(self):
        """The sum of x over the iterates before each step taken."""
        return self.sums[:, 0] + (self.sums[:, 1] + self.x_values * (self.n_steps - self.since))

    @property
    def running_sums(self):
        """(sum x, sum c x) as kept by increments."""
        return _sums.value(&self.eager.total), _sums.value(&self.eager.weighted)


cdef class LazyCore(Core):
    """The lazy step: O(1 + I) amortised, the same iterates as the eager one up to rounding.

    Parameters
    ----------
    log_x : float64 array
        Logarithm of the starting point, one entry a coordinate.
    refresh : int, optional
        Steps between full recomputations; by default that of the layout.
    threshold : float
        A bin is rebased when its tau exceeds this; 0 rebases every bin at every move.
    reach : float
        An x-update that would make some tau exceed this is solved by summation over all pairs.
    """

    cdef _lazy.Lazy lazy
    cdef readonly object bins, members, settled
    cdef object frame, moments
    cdef object window, powers      # views of the structs of `lazy`
    cdef bint far       # the data does not fit the caches

    def __init__(self, layout, Sampler sampler, log_x, V, log_lam, refresh=None, double threshold=THRESHOLD,
                 double reach=0.375):
        coordinates = layout.coordinates
        self.bins = bins = coordinates.bins
        cdef int64_t n = len(log_x), n_bins = len(bins.centre)
        super().__init__(layout, sampler, V, log_lam)
        self.members = aligned(n, MEMBER_DTYPE)     # one cache line a member
        self.members["log_z"] = log_x
        self.members["z"] = np.exp(log_x)
        self.members["c"] = coordinates.c
        self.members["log_cap"] = effective_log_caps(layout)
        self.members["d"] = bins.d
        self.members["state"] = coordinates.state
        self.members["bin"] = bins.bin
        self.frame = aligned(4 * n_bins, np.float64).reshape(4, n_bins)     # shift, tau, factor, trial
        self.frame[2] = 1.0
        self.moments = aligned(2 * n_bins * _lazy.ROW, np.float64).reshape(2, n_bins, _lazy.ROW)     # m and q
        self.lazy.n = n
        self.lazy.member = <_lazy.Member *> address(self.members)
        self.settled = aligned(2 * n, np.float64).reshape(n, 2)
        self.lazy.settled = <_sums.Sum *> address(self.settled)
        self.lazy.order = <const int32_t *> address(bins.order)
        self.lazy.first = <const int64_t *> address(bins.first)
        self.lazy.n_bins = n_bins
        self.lazy.n_wide = bins.n_wide
        self.lazy.centre = <const double *> address(bins.centre)
        self.lazy.half = <const double *> address(bins.half)
        self.lazy.shift = <double *> address(self.frame[0])
        self.lazy.tau = <double *> address(self.frame[1])
        self.lazy.factor = <double *> address(self.frame[2])
        self.lazy.trial = <double *> address(self.frame[3])
        self.lazy.moment = <double *> address(self.moments[0])
        self.lazy.past = <double *> address(self.moments[1])
        self.far = self.members.nbytes + self.V_rows.nbytes + self.record_bytes.nbytes > CACHED
        n_seen = n - (coordinates.n_unseen > 0)
        self.lazy.unseen = &self.lazy.member[n_seen] if n_seen < n else NULL
        self.lazy.top = coordinates.c[:n_seen].max()
        self.lazy.unit = 1 / self.lazy.top
        _lazy.open_window(&self.lazy, 0)
        self.window = np.asarray(<double[:sizeof(_lazy.Window) // 8]> <double *> &self.lazy.window)
        self.powers = np.asarray(<double[:sizeof(_lazy.Powers) // 8]> <double *> &self.lazy.powers)
        self.lazy.threshold = threshold
        self.lazy.reach = reach
        self.lazy.refresh = layout.refresh if refresh is None else refresh
        self.lazy.counters = self.counters
        self.lazy.u = <double *> address(self.u)
        with nogil:
            _lazy.refresh(&self.lazy, 0)
        self.counts[:] = 0

    cdef int advance(self, const int64_t *records, const int32_t *initial, int64_t n,
                     _interrupt.StopCondition *stop) noexcept nogil:
        cdef int64_t k
        cdef int code
        # Every operation that takes O(pairs), a refresh or a jump, rebases bins. With many utilities any step is slow.
        cdef int64_t *work = &self.counters.rebases if self.model.n_utilities < 256 else &self.counters.steps
        for k in range(n):
            if self.far:
                self.prefetch(records, initial, k, n)
            code = _lazy.step(&self.lazy, &self.model, _model.head(&self.model, records[k]), initial[k],
                              self.V, self.lam)
            if code != _kkt.OK or _interrupt.must_stop(stop, k, work[0]):
                return code
        return _kkt.OK

    def state(self):
        """Everything that changes as steps are taken, but for the bit generator: named arrays, copied."""
        lazy = &self.lazy
        return super().state() | {
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
        super().restore(state)
        for name, values in zip(("log_z", "z", "acc", "mark"), state["x"][:4], strict=True):
            self.members[name] = values
        self.settled[:] = state["x"][4:].T
        self.frame[:3] = state["frame"]
        self.moments[:] = state["moments"]
        self.window[:], self.powers[:] = state["window"], state["powers"]
        self.lazy.total.high, self.lazy.total.low, self.lazy.weighted.high, self.lazy.weighted.low = state["sums"]
        self.lazy.since, self.lazy.next_refresh = state["steps"]

    cdef inline void prefetch(self, const int64_t *records, const int32_t *initial, int64_t k,
                              int64_t n) noexcept nogil:
        """Prefetch what later steps read: first the record, then its pair and next state, then the pair's state."""
        cdef const _model.Head *h
        if k + 3 * AHEAD < n:
            _random.dpdl_prefetch_read(_model.head(&self.model, records[k + 3 * AHEAD]))
        if k + 2 * AHEAD < n:
            h = _model.head(&self.model, records[k + 2 * AHEAD])
            _random.dpdl_prefetch(&self.lazy.member[h.pair])
            if h.s_next >= 0:
                _random.dpdl_prefetch(&self.V[h.s_next])
            _random.dpdl_prefetch(&self.V[initial[k + 2 * AHEAD]])
        if k + AHEAD < n:
            _random.dpdl_prefetch(&self.V[self.lazy.member[_model.head(&self.model, records[k + AHEAD]).pair].state])

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

    def bare_loop(self, int64_t n):
        """The least work of a step with one utility, n times: a draw, the memory accesses, two exponentials.

        The baseline of the benchmarks. Does not change the iterate; returns a number that depends on all of the work.
        """
        cdef int64_t records[BLOCK]
        cdef int32_t nowhere[BLOCK]
        cdef int64_t block, k
        cdef const _model.Head *h
        cdef _lazy.Member *j
        cdef double x, total = 0.0
        memset(nowhere, 0, sizeof(nowhere))
        with self.sampler.bit_generator.lock, nogil:
            while n > 0:
                block = BLOCK if n > BLOCK else n
                for k in range(block):
                    records[k] = _random.next_record(&self.sampler.draws)
                for k in range(block):
                    if self.far:
                        self.prefetch(records, nowhere, k, block)
                    h = _model.head(&self.model, records[k])
                    j = &self.lazy.member[h.pair]
                    x = exp(j.log_z + 1e-9 * (h.r - self.V[j.state].v + _duals.value_after(self.V, h.s_next)))
                    total += x + exp(-1e-9 * x)
                n -= block
        return total


include "_kernels.pxi"
