"""The eager step: Algorithm 1 as stated, O(1 + I) when only the sampled pair moves and O(pairs) otherwise.

The oracle for tests of the lazy core, and its baseline in benchmarks. x = exp(log_x) is derived from log_x.
"""

from libc.math cimport exp
from libc.stdint cimport int32_t, int64_t

from _duals cimport Multiplier, Value, advantage, update_lam, update_V, value_after
from _kkt cimport OK, TOLERANCE, Moments, Pair, Update, is_nearly_all, solve
from _model cimport Counters, Head, Model, read_utilities
from _sums cimport Sum, add, reset, value

ctypedef struct Eager:
    int64_t n                   # coordinates
    const int32_t *state        # of each pair
    const double *c             # 1 / mu_hat
    const double *log_cap
    double *log_x
    double *x
    Sum *sum                    # of x over the steps before `since`
    int64_t *since
    Sum total                   # sum x
    Sum weighted                # sum c x
    Value *V
    Multiplier *lam
    Counters *counters
    double *u                   # u^kappa of the present row
    double V_here               # coefficients of V(s) and V(s') in g_x: -1 and gamma, or as equation (9) prints them
    double V_next
    int64_t refresh             # steps between full recomputations of total and weighted
    int64_t j                   # the sampled pair, for moments_at


cdef inline int moments_at(void *context, double beta, Moments *m) noexcept nogil:
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
    return OK


cdef inline void catch_up_x(Eager *e, int64_t i, int64_t now) noexcept nogil:
    if now > e.since[i]:
        add(&e.sum[i], e.x[i] * <double> (now - e.since[i]))
        e.since[i] = now


cdef inline void recompute_sums(Eager *e) noexcept nogil:
    cdef Sum total, weighted
    cdef int64_t i
    reset(&total, 0.0)
    reset(&weighted, 0.0)
    for i in range(e.n):
        add(&total, e.x[i])
        add(&weighted, e.c[i] * e.x[i])
    e.total = total
    e.weighted = weighted
    e.counters.refreshes += 1


cdef inline int update_x(Eager *e, const Model *m, int64_t j, double step, int64_t now) noexcept nogil:
    """x <- argmin over X of -<g_x, x> + (alpha_x/eta) KL(x || x_old), g_x being zero but at j."""
    cdef Pair pair
    cdef Update u
    cdef int64_t i
    cdef double x_old = e.x[j], x_new
    cdef bint capped
    pair.c = e.c[j]
    pair.log_cap = e.log_cap[j]
    pair.log_free = e.log_x[j] + step
    capped = pair.log_free >= pair.log_cap

    # Case 1, from the running sums: nothing but pair j moves.
    x_new = exp(pair.log_cap if capped else pair.log_free)
    if (not (capped and is_nearly_all(x_new, pair.c, m.B1, m.B2))
            and value(&e.total) + (x_new - x_old) <= m.B1 * (1.0 + TOLERANCE)
            and value(&e.weighted) + pair.c * (x_new - x_old) <= m.B2 * (1.0 + TOLERANCE)):
        catch_up_x(e, j, now)
        e.x[j] = x_new
        e.log_x[j] = pair.log_cap if capped else pair.log_free
        add(&e.total, x_new)
        add(&e.total, -x_old)
        add(&e.weighted, pair.c * x_new)
        add(&e.weighted, -pair.c * x_old)
        e.counters.cases[0] += 1
        e.counters.capped += capped
        return OK

    e.j = j
    solve(&pair, m.B1, m.B2, m.c_min, 0.0, moments_at, e, &u)
    if u.code != OK:
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
    return OK


cdef inline int step(Eager *e, const Model *m, const Head *h, int64_t initial) noexcept nogil:
    """One iteration of Algorithm 1; all gradients are taken at the old iterate."""
    cdef int64_t j = h.pair, s = e.state[h.pair], s_next = h.s_next
    cdef int64_t now = e.counters.steps + 1         # averages over the steps before `now` include the old iterate
    cdef double weight = e.c[j] * e.x[j]            # w = x(s,a) / mu_hat(s,a)
    cdef double g_x
    cdef int code
    read_utilities(m, h, e.u)
    g_x = e.c[j] * advantage(m.reward_slope * h.r + e.V_here * e.V[s].v + e.V_next * value_after(e.V, s_next), e.u,
                             e.lam, m.n_utilities)
    code = update_x(e, m, j, m.rate_x * g_x, now)
    if code != OK:
        return code
    update_V(e.V, now, initial, s, s_next, weight, m.gamma, m.rate_V, m.radius_V)
    update_lam(e.lam, m.n_utilities, e.u, weight, m.rate_lam, m.radius_lam)
    e.counters.steps = now
    if now % e.refresh == 0:
        recompute_sums(e)
    return OK
