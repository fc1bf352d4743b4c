"""Single kernels, loops that repeat them, and the eager core: for tests and benchmarks, never for the product.

The loops take a `LazyCore` of dpdl._core and repeat one part of its step without the GIL, so that what is timed is that
part and not the call. They work on the core itself and change it; each returns a number that depends on the work.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport exp
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memset
from numpy.random cimport bitgen_t

from collections import namedtuple

import numpy as np

from dpdl import _core

cimport _duals
cimport _kkt
cimport _lazy
cimport _model
cimport _random
cimport _sums
from _border cimport bits_of, data_of, read_model

XUpdate = namedtuple("XUpdate", "log_x alpha beta case capped iterations code")


# Single kernels -------------------------------------------------------------------------------------------------------


def x_update(const double[::1] log_x, const double[::1] c, double log_cap, int64_t j, double step, double B1,
             double B2):
    """Solve one x-update: argmin of -step x_j + KL(x || exp(log_x)) over x_j <= cap, sum x <= B1, sum c x <= B2."""
    cdef _kkt.Update u
    solve_dense(log_x, c, log_cap, j, step, B1, B2, 1, &u)
    new = np.array(log_x)
    if u.kind > 1:      # subtracting 0.0 would change the sign of -0.0
        new -= u.alpha + np.asarray(c) * u.beta
    new[j] = u.log_x
    return XUpdate(new, u.alpha, u.beta, u.kind, bool(u.capped), u.iterations, u.code)


def find_root(const double[::1] log_x, const double[::1] c, double log_cap, int64_t j, double step, double B1,
              double B2, int64_t n=1):
    """beta of an x-update over a dense vector, found n times."""
    cdef _kkt.Update u
    solve_dense(log_x, c, log_cap, j, step, B1, B2, n, &u)
    return u.beta


cdef int solve_dense(const double[::1] log_x, const double[::1] c, double log_cap, int64_t j, double step, double B1,
                     double B2, int64_t n, _kkt.Update *u) except -1:
    cdef Eager e
    cdef _kkt.Pair pair
    cdef double c_min = np.min(c)
    cdef double[::1] x = np.exp(log_x)
    e.n = len(log_x)
    e.log_x = <double *> &log_x[0]      # not written to
    e.x = &x[0]
    e.c = &c[0]
    e.j = j
    pair.c = c[j]
    pair.log_cap = _kkt.effective_log_cap(log_cap, c[j], B1, B2)
    pair.log_free = log_x[j] + step
    with nogil:
        for _ in range(n):
            _kkt.solve(&pair, B1, B2, c_min, 0.0, moments_at, &e, u)
    return 0


def lam_update(log_lam, const double[::1] u, double weight, double rate, double radius, int64_t n=1):
    """n entropic steps of lam; returns (log lam, lam)."""
    rows = _core.multiplier_rows(log_lam)
    cdef _duals.Multiplier *lam = <_duals.Multiplier *> data_of(rows, _core.MULTIPLIER_DTYPE, len(u))
    if len(u):
        with nogil:
            for _ in range(n):
                _duals.update_lam(lam, len(u), &u[0], weight, rate, radius)
    return rows["log"].copy(), rows["lam"].copy()


def V_update(V, const int32_t[:, ::1] states, double weight, double gamma, double rate, double radius, int64_t n=1):
    """Projected steps of V for rows (initial, s, s_next) of states, n times over; returns the new V."""
    rows = _core.value_rows(V)
    cdef _duals.Value *values = <_duals.Value *> data_of(rows, _core.VALUE_DTYPE, len(V))
    cdef int64_t k, now = 0
    with nogil:
        for _ in range(n):
            for k in range(states.shape[0]):
                now += 1
                _duals.update_V(values, now, states[k, 0], states[k, 1], states[k, 2], weight, gamma, rate, radius)
    return rows["v"].copy()


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


# Loops over one part of the step of a LazyCore ------------------------------------------------------------------------


cdef _lazy.Parts *parts_of(object core) except NULL:
    return <_lazy.Parts *> PyCapsule_GetPointer(core.capsule, "dpdl.Parts")


def gradients(core, const int64_t[::1] records):
    """w and g_x of records at the present iterate; returns the sum of both over all."""
    cdef _lazy.Parts *p = parts_of(core)
    cdef const _model.Model *m = p.model
    cdef _lazy.Lazy *f = p.lazy
    cdef const _model.Head *h
    cdef const _lazy.Member *j
    cdef double total = 0.0
    cdef int64_t k
    with nogil:
        for k in range(records.shape[0]):
            h = _model.head(m, records[k])
            j = &f.member[h.pair]
            total += j.c * (j.z * (_lazy.fraction(f, j) * _lazy.decay(f, j.c * f.unit)))
            _model.read_utilities(m, h, f.u)
            total += j.c * _duals.advantage(
                m.reward_slope * h.r - p.V[j.state].v + m.gamma * _duals.value_after(p.V, h.s_next), f.u, p.lam,
                m.n_utilities)
    return total


def x_updates(core, const int64_t[::1] records, const double[::1] steps):
    """One x-update a record, of its pair by the given step in the exponent; returns the last code."""
    cdef _lazy.Parts *p = parts_of(core)
    cdef _lazy.Lazy *f = p.lazy
    cdef _lazy.Member *j
    cdef double frac, ratio
    cdef int64_t k
    cdef int code = _kkt.OK
    with nogil:
        for k in range(records.shape[0]):
            j = &f.member[_model.head(p.model, records[k]).pair]
            frac = _lazy.fraction(f, j)
            ratio = frac * _lazy.decay(f, j.c * f.unit)
            code = _lazy.update_x(f, p.model, j, frac, ratio, steps[k], f.counters.steps + 1)
            if code != _kkt.OK:
                break
            f.counters.steps += 1
    return code


def roots(core, int64_t pair, double step, int64_t n, bint powers):
    """Find beta of one x-update n times, from the bins or from the power sums, and do not move; returns beta."""
    cdef _lazy.Parts *p = parts_of(core)
    cdef _lazy.Lazy *f = p.lazy
    cdef const _model.Model *m = p.model
    cdef _lazy.Member *j = &f.member[pair]
    cdef _kkt.Pair free
    cdef _kkt.Update u
    cdef int64_t now = f.counters.steps
    with nogil:
        _lazy.fold(f, now)
        _lazy.collect_powers(f)
        f.sampled = j
        f.x_old = j.z * _lazy.fraction(f, j)
        f.exact = False
        free.c = j.c
        free.log_cap = j.log_cap
        free.log_free = _lazy.log_of(f, j) + step
        for _ in range(n):
            if powers:
                _lazy.leave_out(f, j, f.x_old)
                _kkt.solve(&free, m.B1, m.B2, m.c_min, _lazy.guess_beta(f, j, m.B2, f.x_old * exp(step), False),
                           _lazy.sums_of_powers, f, &u)
            else:
                _kkt.solve(&free, m.B1, m.B2, m.c_min, 0.0, _lazy.sums, f, &u)
    if u.code != _kkt.OK:
        raise ArithmeticError(_core.CODES[u.code])
    return u.beta


def refresh(core, int64_t n):
    """Rebase every bin and recompute the running sums, n times; returns sum x."""
    cdef _lazy.Lazy *f = parts_of(core).lazy
    with nogil:
        for _ in range(n):
            _lazy.refresh(f, f.counters.steps)
    return _sums.value(&f.total)


def rebase(core, int64_t n):
    """Rebase every bin, n times; returns the number of rebases so far."""
    cdef _lazy.Lazy *f = parts_of(core).lazy
    with nogil:
        for _ in range(n):
            _lazy.rebase_all(f, f.counters.steps)
    return f.counters.rebases


def fold(core, int64_t n):
    """Fold the window into the bins and collect the power sums, n times; returns sum x."""
    cdef _lazy.Lazy *f = parts_of(core).lazy
    with nogil:
        for _ in range(n):
            _lazy.fold(f, f.counters.steps)
            _lazy.collect_powers(f)
    return _sums.value(&f.total)


def bare_loop(core, int64_t n):
    """The least work of a step with one utility, n times: a draw, the memory accesses, two exponentials.

    The floor of the benchmarks. Does not change the iterate.
    """
    cdef int64_t records[_random.BLOCK]
    cdef _lazy.Parts *p = parts_of(core)
    cdef _random.Draws draws
    cdef int64_t block, k
    cdef const _model.Head *h
    cdef _lazy.Member *j
    cdef bint far = core.far
    cdef double x, total = 0.0
    memset(&draws, 0, sizeof(draws))
    draws.bits = bits_of(core.sampler.bit_generator)
    draws.order = _random.REPLACEMENT
    draws.n_records = len(core.layout.records)
    with core.sampler.bit_generator.lock, nogil:
        while n > 0:
            block = min(_random.BLOCK, n)
            for k in range(block):
                records[k] = _random.next_record(&draws)
            for k in range(block):
                if far:
                    _lazy.prefetch(p, records, NULL, k, block)
                h = _model.head(p.model, records[k])
                j = &p.lazy.member[h.pair]
                x = exp(j.log_z + 1e-9 * (h.r - p.V[j.state].v + _duals.value_after(p.V, h.s_next)))
                total += x + exp(-1e-9 * x)
            n -= block
    return total


# The eager core: Algorithm 1 as stated, oracle of the lazy one in tests and its baseline in benchmarks ----------------

ctypedef struct Eager:
    int64_t n                   # coordinates; x = exp(log_x) is derived from log_x
    const int32_t *state        # of each pair
    const double *c             # 1 / mu_hat
    const double *log_cap
    double *log_x
    double *x
    _sums.Sum *sum              # of x over the steps before `since`
    int64_t *since
    _sums.Sum total             # sum x
    _sums.Sum weighted          # sum c x
    _duals.Value *V
    _duals.Multiplier *lam
    _model.Counters *counters
    double *u                   # u^kappa of the present row
    double V_here               # coefficients of V(s) and V(s') in g_x: -1 and gamma, or as equation (9) prints them
    double V_next
    int64_t refresh             # steps between full recomputations of total and weighted
    int64_t j                   # the sampled pair, for moments_at


cdef inline int moments_at(void *context, double beta, _kkt.Moments *m) noexcept nogil:
    """Sums of y exp(-c beta) over all pairs but j, by direct summation."""
    cdef Eager *e = <Eager *> context
    cdef int64_t i
    cdef double y, cy
    m.s0 = m.s1 = m.s2 = 0.0
    for i in range(e.n):
        if i != e.j:
            y = e.x[i] if beta == 0.0 else exp(e.log_x[i] - e.c[i] * beta)
            cy = e.c[i] * y
            m.s0 += y
            m.s1 += cy
            m.s2 += e.c[i] * cy
    return _kkt.OK


cdef inline void catch_up_x(Eager *e, int64_t i, int64_t now) noexcept nogil:
    if now > e.since[i]:
        _sums.add(&e.sum[i], e.x[i] * <double> (now - e.since[i]))
        e.since[i] = now


cdef inline void recompute_sums(Eager *e) noexcept nogil:
    cdef _sums.Sum total, weighted
    cdef int64_t i
    _sums.reset(&total, 0.0)
    _sums.reset(&weighted, 0.0)
    for i in range(e.n):
        _sums.add(&total, e.x[i])
        _sums.add(&weighted, e.c[i] * e.x[i])
    e.total = total
    e.weighted = weighted
    e.counters.refreshes += 1


cdef inline int eager_update(Eager *e, const _model.Model *m, int64_t j, double step, int64_t now) noexcept nogil:
    """x <- argmin over X of -<g_x, x> + (alpha_x/eta) KL(x || x_old), g_x being zero but at j."""
    cdef _kkt.Pair pair
    cdef _kkt.Update u
    cdef int64_t i
    cdef double x_old = e.x[j], x_new
    cdef bint capped
    pair.c = e.c[j]
    pair.log_cap = e.log_cap[j]
    pair.log_free = e.log_x[j] + step
    capped = pair.log_free >= pair.log_cap

    # Case 1, from the running sums: nothing but pair j moves.
    x_new = exp(pair.log_cap if capped else pair.log_free)
    if (not (capped and _kkt.is_nearly_all(x_new, pair.c, m.B1, m.B2))
            and _sums.value(&e.total) + (x_new - x_old) <= m.B1 * (1.0 + _kkt.TOLERANCE)
            and _sums.value(&e.weighted) + pair.c * (x_new - x_old) <= m.B2 * (1.0 + _kkt.TOLERANCE)):
        catch_up_x(e, j, now)
        e.x[j] = x_new
        e.log_x[j] = pair.log_cap if capped else pair.log_free
        _sums.add(&e.total, x_new)
        _sums.add(&e.total, -x_old)
        _sums.add(&e.weighted, pair.c * x_new)
        _sums.add(&e.weighted, -pair.c * x_old)
        e.counters.cases[0] += 1
        e.counters.capped += capped
        return _kkt.OK

    e.j = j
    _kkt.solve(&pair, m.B1, m.B2, m.c_min, 0.0, moments_at, e, &u)
    if u.code != _kkt.OK:
        return u.code
    for i in range(e.n):
        catch_up_x(e, i, now)
        if i != j:
            e.log_x[i] -= u.alpha + e.c[i] * u.beta
            e.x[i] = exp(e.log_x[i])
    e.log_x[j] = u.log_x
    e.x[j] = u.x
    recompute_sums(e)
    e.counters.cases[u.kind - 1] += 1
    e.counters.capped += u.capped
    e.counters.iterations += u.iterations
    return _kkt.OK


cdef inline int eager_step(Eager *e, const _model.Model *m, const _model.Head *h, int64_t initial) noexcept nogil:
    """One iteration of Algorithm 1; all gradients are taken at the old iterate."""
    cdef int64_t j = h.pair, s = e.state[h.pair], s_next = h.s_next
    cdef int64_t now = e.counters.steps + 1         # averages over the steps before `now` include the old iterate
    cdef double weight = e.c[j] * e.x[j]            # w = x(s,a) / mu_hat(s,a)
    cdef double advantage, g_x
    cdef int code
    _model.read_utilities(m, h, e.u)
    advantage = m.reward_slope * h.r + e.V_here * e.V[s].v + e.V_next * _duals.value_after(e.V, s_next)
    g_x = e.c[j] * _duals.advantage(advantage, e.u, e.lam, m.n_utilities)
    code = eager_update(e, m, j, m.rate_x * g_x, now)
    if code != _kkt.OK:
        return code
    _duals.update_V(e.V, now, initial, s, s_next, weight, m.gamma, m.rate_V, m.radius_V)
    _duals.update_lam(e.lam, m.n_utilities, e.u, weight, m.rate_lam, m.radius_lam)
    e.counters.steps = now
    if now % e.refresh == 0:
        recompute_sums(e)
    return _kkt.OK


cdef class EagerCore:
    """The eager step: O(pairs) if more than the sampled pair moves. The same iterates as the lazy one up to rounding.

    Parameters
    ----------
    layout, sampler, log_x, V, log_lam
        As for dpdl._core.LazyCore.
    refresh : int, optional
        Steps between full recomputations of the running sums. In between, each sum accumulates one rounding for each
        changed term: an error of at most refresh * 2^-53 of its bound, 1e-11 at the default.
    printed_sign : bool
        Take g_x as equation (9) prints it, with r + gamma V(s) - V(s'), to show that this fails.
    """

    cdef Eager eager
    cdef _model.Model model
    cdef readonly object layout, sampler, log_x, V_rows, lam_rows, counts
    cdef object x_values, sums, since, log_cap, utilities, u

    def __init__(self, layout, sampler, log_x, V, log_lam, int64_t refresh=1 << 16, bint printed_sign=False):
        cdef int64_t n = len(log_x)
        coordinates = layout.coordinates
        self.layout, self.sampler = layout, sampler
        self.utilities = _core.utility_rows(layout.constants.affine)
        read_model(&self.model, layout, self.utilities)
        self.V_rows, self.lam_rows = _core.value_rows(V), _core.multiplier_rows(log_lam)
        self.counts = np.zeros(len(_core.COUNTERS), dtype=np.int64)
        self.log_x = np.array(log_x, dtype=np.float64)
        self.x_values = np.exp(self.log_x)
        self.sums = np.zeros((n, 2))
        self.since = np.zeros(n, dtype=np.int64)
        self.log_cap = _core.effective_log_caps(layout)
        self.u = np.zeros(len(log_lam))
        self.eager.n = n
        self.eager.state = <const int32_t *> data_of(coordinates.state, np.int32, n)
        self.eager.c = <const double *> data_of(coordinates.c, np.float64, n)
        self.eager.log_cap = <const double *> data_of(self.log_cap, np.float64, n)
        self.eager.log_x = <double *> data_of(self.log_x, np.float64, n)
        self.eager.x = <double *> data_of(self.x_values, np.float64, n)
        self.eager.sum = <_sums.Sum *> data_of(self.sums, np.float64, 2 * n)
        self.eager.since = <int64_t *> data_of(self.since, np.int64, n)
        self.eager.V = <_duals.Value *> data_of(self.V_rows, _core.VALUE_DTYPE, len(V))
        self.eager.lam = <_duals.Multiplier *> data_of(self.lam_rows, _core.MULTIPLIER_DTYPE, len(self.utilities))
        self.eager.counters = <_model.Counters *> data_of(self.counts, np.int64, len(_core.COUNTERS))
        self.eager.u = <double *> data_of(self.u, np.float64, len(self.utilities))
        self.eager.V_here, self.eager.V_next = (self.model.gamma, -1.0) if printed_sign else (-1.0, self.model.gamma)
        self.eager.refresh = refresh
        recompute_sums(&self.eager)

    def run(self, int64_t n):
        """Take n steps; returns a code, OK unless the arithmetic failed."""
        cdef const int64_t[::1] records
        cdef const int32_t[::1] initial
        cdef int64_t k
        cdef int code
        while n > 0:
            records, initial = self.sampler.draw(min(n, _random.BLOCK))
            with nogil:
                for k in range(records.shape[0]):
                    code = eager_step(&self.eager, &self.model, _model.head(&self.model, records[k]), initial[k])
                    if code != _kkt.OK:
                        break
            if code != _kkt.OK:
                return code
            n -= records.shape[0]
        return _kkt.OK

    @property
    def n_steps(self):
        """Steps taken."""
        return int(self.counts[0])

    @property
    def diagnostics(self):
        """Counts, by the names of dpdl._core.COUNTERS."""
        return dict(zip(_core.COUNTERS, map(int, self.counts), strict=True))

    @property
    def x(self):
        """The present x, one entry a coordinate."""
        return self.x_values.copy()

    @property
    def log_lam(self):
        """Logarithm of the present lam."""
        return self.lam_rows["log"].copy()

    @property
    def point(self):
        """The present iterate (x, V, lam)."""
        return self.x, self.V_rows["v"].copy(), self.lam_rows["lam"].copy()

    @property
    def x_sum(self):
        """The sum of x over the iterates before each step taken."""
        return self.sums[:, 0] + (self.sums[:, 1] + self.x_values * (self.n_steps - self.since))

    @property
    def means(self):
        """Averages (x, V, lam) over the iterates before each step taken; the start itself if none was."""
        if self.n_steps == 0:
            return self.point
        return self.x_sum / self.n_steps, *_core.dual_means(self.V_rows, self.lam_rows, self.n_steps)

    @property
    def running_sums(self):
        """(sum x, sum c x) as kept by increments."""
        return _sums.value(&self.eager.total), _sums.value(&self.eager.weighted)
