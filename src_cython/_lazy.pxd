"""The lazy step: updates of all pairs at a cost that does not grow with their number.

All coordinates but the sampled one move by a factor exp(-alpha - c_i beta) that depends on c_i alone. So pairs are
sorted by c into bins, and each bin stores the factor of its members. With bin centre c_b, half-width h_b and
d_i = (c_i - c_b)/h_b in [-1, 1],

    x_i = z_i exp(-shift_b - d_i tau_b),    shift_b = sum (alpha + c_b beta),    tau_b = sum h_b beta

over the steps since the bin was last rebased. Only the sampled pair's z changes. Sums over a bin come from moments:

    sum_{i in b} d_i^p x_i = exp(-shift_b) sum_k (-tau_b)^k / k!  m_{b,k+p},    m_{b,k} = sum_{i in b} z_i d_i^k.

Five operations maintain this; the first three are O(1) or O(bins):

    touch     one pair's z changes                      -> its bin's moments, its accumulator
    move      all pairs but one move                    -> every bin's shift and tau
    sums      sum c^p x exp(-c beta) for a trial beta   <- moments (for the root finder)
    rebase    fold a bin's factor into its members' z   O(members), when tau_b passes `threshold`
    refresh   rebase all bins, recompute running sums      O(pairs), every `refresh` steps

Accuracy. Series are truncated after k = DEGREE. tau_b <= `threshold` (1/4) when a step begins, and `sums` returns
OUT_OF_REACH beyond `reach` (3/8), so the remainder is below (3/8)^DEGREE / DEGREE! = 2e-14 of m_{b,0}, and below 2e-16
in all steps but those that jump. Moments accumulate one rounding a touch: at most refresh * 2^-53 of their largest
value between two refreshes. The running sums are compensated and recomputed from the moments at every move, so they
have the same bound.

Averages. Let P_i be the sum of f_i = x_i / z_i over the steps since the bin's last rebase. It is sum_k d_i^k q_{b,k} +
quiet f_i, where q_{b,k} sums exp(-shift_b) (-tau_b)^k / k! over the steps before the last move and quiet counts the
steps since. While z_i is unchanged, the sum of x_i is z_i times the growth of P_i. So a pair stores P_i at the last
change of its z (`mark`), and when z_i changes again, acc_i increases by z_i (P_i - mark). Every term is nonnegative,
and so is the sum; P_i grows by at least e^-5/4 a step and is at most `refresh`, so the relative error of a term, and
hence of an average of any size, is below 4 refresh 2^-53: 3e-11 at the smallest default of `refresh`. A rebase adds the
sum since the last one to `settled`, which is compensated.
"""

from libc.math cimport exp
from libc.stdint cimport int32_t, int64_t

from _duals cimport Multiplier, Value, advantage, update_lam, update_V, value_after
from _kkt cimport OK, OUT_OF_REACH, TOLERANCE, Moments, Pair, Update, is_nearly_all, solve
from _model cimport Counters, Head, Model, margin, utilities
from _random cimport dpdl_prefetch
from _sums cimport Sum, add, reset, value

cdef enum:
    DEGREE = 12
    N_MOMENTS = 13      # DEGREE + 1
    ROW = 16            # a bin's moments start on a cache line
    AHEAD = 16          # members of a bin are scattered in memory: prefetch this many ahead

cdef extern from *:
    """
    static const double dpdl_inverse[14] = {0.0, 1.0, 1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5, 1.0 / 6, 1.0 / 7, 1.0 / 8,
                                            1.0 / 9, 1.0 / 10, 1.0 / 11, 1.0 / 12, 1.0 / 13};
    """
    const double *INVERSE "dpdl_inverse"     # 1 / k

ctypedef struct Member:         # one pair, one cache line
    double log_z                # z is derived from it: x may fall to e^-5000 and grow again
    double z                    # exp(log_z)
    double acc                  # sum of x from the bin's last rebase to the last change of z
    double mark                 # P at the last change of z
    double c                    # 1 / mu_hat
    double log_cap
    double d                    # position in its bin, -1 .. 1
    int32_t state
    int32_t bin

ctypedef struct Lazy:
    int64_t n                   # pairs
    Member *member
    Sum *settled                # sum of each pair's x before its bin's last rebase
    const int32_t *order        # pairs by bin
    const int64_t *first        # bin b holds order[first[b]] .. order[first[b + 1] - 1]
    int64_t n_bins
    int64_t n_wide              # the bins before this one have h > 0, all others hold one value of c
    const double *centre
    const double *half
    double *shift
    double *tau
    double *factor              # exp(-shift)
    double *moment              # m[ROW b + k]
    double *past                # q[ROW b + k]
    double *trial               # exp(-c_b beta), workspace of sums
    int64_t since               # the step of the last move or rebase_all: quiet = now - since
    Sum total                   # sum x
    Sum weighted                # sum c x
    double threshold            # of tau: a bin beyond it is rebased
    double reach                # of tau: the series are accurate up to here
    int64_t refresh
    int64_t next_refresh
    Counters *counters
    Member *sampled             # the pair that `sums` leaves out, with its x_old
    double x_old
    bint exact                  # whether `sums` sums over the pairs instead of the moments


cdef inline double fraction(const Lazy *f, const Member *i) noexcept nogil:
    """f_i = x_i / z_i."""
    cdef double tau = f.tau[i.bin]
    if tau == 0.0 or i.d == 0.0:
        return f.factor[i.bin]
    return f.factor[i.bin] * exp(-i.d * tau)


cdef inline double log_of(const Lazy *f, const Member *i) noexcept nogil:
    """log x_i."""
    return i.log_z - (f.shift[i.bin] + i.d * f.tau[i.bin])


cdef inline double past_of(const Lazy *f, const Member *i) noexcept nogil:
    """sum_k d_i^k q_{b,k}: the sum of f_i over the steps before the last move."""
    cdef const double *q = f.past + ROW * i.bin
    cdef double even, odd, square = i.d * i.d
    cdef int k
    if f.tau[i.bin] == 0.0:                 # tau only grows, so that it was zero in all these steps
        return q[0]
    even = q[DEGREE]
    odd = q[DEGREE - 1]
    for k in range(DEGREE - 2, 0, -2):      # two independent chains of operations run in parallel
        even = even * square + q[k]
        odd = odd * square + q[k - 1]
    return even * square + q[0] + i.d * odd


cdef inline double visits(const Lazy *f, const Member *i, double frac, int64_t now) noexcept nogil:
    """P_i: the sum of f_i over the steps since the bin's last rebase and before `now`; frac = f_i.

    Everything that needs P_i calls this: two expressions could differ by a rounding, which a large z would amplify.
    """
    cdef double total = frac * <double> (now - f.since)
    if f.past[ROW * i.bin] != 0.0:
        total += past_of(f, i)
    return total


cdef inline double unsettled(const Member *i, double total) noexcept nogil:
    """The sum of x since the bin's last rebase, total = P_i. P does not decrease, but for its rounding."""
    return i.acc + (i.z * (total - i.mark) if total > i.mark else 0.0)


cdef inline void add_to_moments(Lazy *f, const Member *i, double dz) noexcept nogil:
    cdef double *m = f.moment + ROW * i.bin
    cdef double odd = dz * i.d, square = i.d * i.d
    cdef int k
    m[0] += dz
    if i.bin < f.n_wide:
        m[1] += odd
        for k in range(2, DEGREE, 2):
            dz *= square
            odd *= square
            m[k] += dz
            m[k + 1] += odd
        m[DEGREE] += dz * square


cdef inline void touch(Lazy *f, Member *i, double log_z, double z, double frac, int64_t now) noexcept nogil:
    """Give a pair a new z; frac = f_i. Invariant: settled + unsettled is the sum of x over the steps before `now`."""
    cdef double total = visits(f, i, frac, now)
    i.acc = unsettled(i, total)
    i.mark = total
    add_to_moments(f, i, z - i.z)
    i.log_z = log_z
    i.z = z


cdef inline void sums_of_bins(Lazy *f, double beta, Moments *m) noexcept nogil:
    """sum c^p x exp(-c beta), p = 0, 1, 2, over all pairs; leaves exp(-c_b beta) in `trial`."""
    cdef int64_t b, n = f.n_bins
    cdef int k
    cdef const double *q
    cdef double p0, p1, p2, t, h, c, weight
    cdef double s0 = 0.0, s1 = 0.0, s2 = 0.0
    for b in range(n):
        f.trial[b] = exp(-f.centre[b] * beta) if beta != 0.0 else 1.0
    for b in range(f.n_wide):
        q = f.moment + ROW * b
        t = -(f.tau[b] + f.half[b] * beta)
        # p_q = sum_k t^k / k! m_{k+q}, by Horner.
        p2 = q[DEGREE]
        p1 = q[DEGREE - 1] + p2 * (t * INVERSE[DEGREE - 1])
        p0 = q[DEGREE - 2] + (q[DEGREE - 1] + p2 * (t * INVERSE[DEGREE])) * (t * INVERSE[DEGREE - 1])
        for k in range(DEGREE - 2, 0, -1):
            p2 = q[k + 1] + p2 * (t * INVERSE[k])
            p1 = q[k] + p1 * (t * INVERSE[k])
            p0 = q[k - 1] + p0 * (t * INVERSE[k])
        h = f.half[b]
        c = f.centre[b]
        weight = f.factor[b] * f.trial[b]
        s0 += weight * p0
        s1 += weight * (c * p0 + h * p1)
        s2 += weight * (c * (c * p0 + 2.0 * h * p1) + h * (h * p2))
    for b in range(f.n_wide, n):
        c = f.centre[b]
        weight = f.factor[b] * f.trial[b] * f.moment[ROW * b]
        s0 += weight
        s1 += c * weight
        s2 += c * (c * weight)
    m.s0 = s0
    m.s1 = s1
    m.s2 = s2


cdef inline void sums_of_others(Lazy *f, double beta, Moments *m) noexcept nogil:
    """The same by direct summation, without the sampled pair, for a beta out of reach of the series.

    All bins must have been rebased since the last move.
    """
    cdef int64_t k
    cdef Member *i
    cdef double x
    m.s0 = m.s1 = m.s2 = 0.0
    for k in range(f.n):
        i = &f.member[k]
        if i != f.sampled:
            x = exp(i.log_z - i.c * beta)
            m.s0 += x
            m.s1 += i.c * x
            m.s2 += i.c * (i.c * x)


cdef inline int sums(void *context, double beta, Moments *m) noexcept nogil:
    """The sums of the root finder: sum c^p x exp(-c beta) over all pairs but the sampled one.

    beta = 0 is computed like any other beta, not from the running sums: a difference of one rounding between the two
    could leave the root finder without a root.
    """
    cdef Lazy *f = <Lazy *> context
    cdef int64_t b
    cdef double c = f.sampled.c, x
    if f.exact:
        sums_of_others(f, beta, m)
        return OK
    for b in range(f.n_wide):
        if f.tau[b] + f.half[b] * beta > f.reach:
            return OUT_OF_REACH
    sums_of_bins(f, beta, m)
    x = f.x_old * exp(-c * beta)
    # The difference may round below zero when the sampled pair has nearly all of the mass.
    m.s0 = m.s0 - x if m.s0 > x else 0.0
    m.s1 = m.s1 - c * x if m.s1 > c * x else 0.0
    m.s2 = m.s2 - c * (c * x) if m.s2 > c * (c * x) else 0.0
    return OK


cdef inline void catch_up_bins(Lazy *f, int64_t now) noexcept nogil:
    """Bring q up to the steps before `now`. Invariant: quiet = now - since = 0 afterwards."""
    cdef int64_t b
    cdef int k
    cdef double term, quiet = <double> (now - f.since)
    if now == f.since:
        return
    for b in range(f.n_bins):
        term = quiet * f.factor[b]
        f.past[ROW * b] += term
        if b < f.n_wide:
            for k in range(1, N_MOMENTS):
                term *= -f.tau[b] * INVERSE[k]
                f.past[ROW * b + k] += term
    f.since = now


cdef inline void rebase(Lazy *f, int64_t b, int64_t now) noexcept nogil:
    """Fold the factor of a bin into its members' z, and recompute its moments; acc, mark and q become zero.

    Invariant: x of every member, and the sum of it over the steps before `now`, are the same before and after.
    """
    cdef int64_t k
    cdef int p
    cdef Member *i
    for p in range(N_MOMENTS):
        f.moment[ROW * b + p] = 0.0
    for k in range(f.first[b], f.first[b + 1]):
        if k + AHEAD < f.first[b + 1]:
            dpdl_prefetch(&f.member[f.order[k + AHEAD]])
            dpdl_prefetch(&f.settled[f.order[k + AHEAD]])
        i = &f.member[f.order[k]]
        add(&f.settled[f.order[k]], unsettled(i, visits(f, i, fraction(f, i) if now > f.since else 0.0, now)))
        i.acc = 0.0
        i.mark = 0.0
        i.log_z -= f.shift[b] + i.d * f.tau[b]
        i.z = exp(i.log_z)
        add_to_moments(f, i, i.z)
    for p in range(N_MOMENTS):
        f.past[ROW * b + p] = 0.0
    f.shift[b] = 0.0
    f.tau[b] = 0.0
    f.factor[b] = 1.0
    f.counters.rebases += 1


cdef inline void rebase_all(Lazy *f, int64_t now) noexcept nogil:
    cdef int64_t b
    for b in range(f.n_bins):
        rebase(f, b, now)
    f.since = now


cdef inline void refresh(Lazy *f, int64_t now) noexcept nogil:
    """Rebase every bin and recompute the running sums from the pairs."""
    cdef Sum total, weighted
    cdef int64_t k
    cdef Member *i
    rebase_all(f, now)
    reset(&total, 0.0)
    reset(&weighted, 0.0)
    for k in range(f.n):
        i = &f.member[k]
        add(&total, i.z)
        add(&weighted, i.c * i.z)
    f.total = total
    f.weighted = weighted
    f.next_refresh = now + f.refresh
    f.counters.refreshes += 1


cdef inline void move(Lazy *f, double alpha, double beta, int64_t now) noexcept nogil:
    """Multiply x of all pairs by exp(-alpha - c beta), and rebase the bins that pass the threshold."""
    cdef int64_t b
    catch_up_bins(f, now)
    for b in range(f.n_bins):
        f.shift[b] += alpha + f.centre[b] * beta
        f.factor[b] = exp(-f.shift[b])
    for b in range(f.n_wide):
        f.tau[b] += f.half[b] * beta
    for b in range(f.n_bins):
        # A large shift does not harm the series, but P has terms from when the factor was larger: growth by small
        # terms would be lost to rounding.
        if f.tau[b] > f.threshold or f.shift[b] > 4.0 * f.threshold:
            rebase(f, b, now)


cdef inline void move_alone(Lazy *f, Member *j, double log_z, double z, double dx, double frac,
                            int64_t now) noexcept nogil:
    """Case 1: only one pair moves; update the running sums."""
    touch(f, j, log_z, z, frac, now)
    add(&f.total, dx)
    add(&f.weighted, j.c * dx)
    f.counters.cases[0] += 1


cdef inline int update_x(Lazy *f, const Model *m, Member *j, double x_old, double frac, double step,
                         int64_t now) noexcept nogil:
    """x <- argmin over X of -<g_x, x> + (alpha_x/eta) KL(x || x_old), g_x being zero but at j; frac = x_old / z_j."""
    cdef Pair pair
    cdef Update u
    cdef double log_z = j.log_z + step, lift = f.shift[j.bin] + j.d * f.tau[j.bin], x_new, z
    cdef bint capped = log_z - lift >= j.log_cap

    # Case 1, from the running sums: nothing but pair j moves.
    if capped:
        log_z = j.log_cap + lift
    z = exp(log_z)
    x_new = z * frac
    f.exact = capped and is_nearly_all(x_new, j.c, m.B1, m.B2)
    if (not f.exact and value(&f.total) + (x_new - x_old) <= m.B1 * (1.0 + TOLERANCE)
            and value(&f.weighted) + j.c * (x_new - x_old) <= m.B2 * (1.0 + TOLERANCE)):
        move_alone(f, j, log_z, z, x_new - x_old, frac, now)
        f.counters.capped += capped
        return OK

    pair.c = j.c
    pair.log_cap = j.log_cap
    pair.log_free = j.log_z - lift + step
    f.sampled = j
    f.x_old = x_old
    if f.exact:
        rebase_all(f, now)
        lift = 0.0
        f.counters.jumps += 1
    solve(&pair, m.B1, m.B2, m.c_min, sums, f, &u)
    if u.code == OUT_OF_REACH:
        rebase_all(f, now)
        lift = 0.0
        f.exact = True
        f.counters.jumps += 1
        solve(&pair, m.B1, m.B2, m.c_min, sums, f, &u)
    if u.code != OK:
        return u.code
    f.counters.capped += u.capped
    f.counters.iterations += u.iterations
    if u.kind == 1:         # within rounding of a bound the solver may still find that no other pair moves
        move_alone(f, j, u.log_x + lift, exp(u.log_x + lift), u.x - x_old, fraction(f, j), now)
        return OK
    move(f, u.alpha, u.beta, now)
    if f.exact:
        rebase_all(f, now)
    log_z = u.log_x + f.shift[j.bin] + j.d * f.tau[j.bin]
    touch(f, j, log_z, exp(log_z), 0.0, now)
    reset(&f.total, exp(-u.alpha) * u.others.s0 + u.x)
    reset(&f.weighted, exp(-u.alpha) * u.others.s1 + j.c * u.x)
    f.counters.cases[u.kind - 1] += 1
    return OK


cdef inline int step(Lazy *f, const Model *m, const Head *h, int64_t initial, Value *V,
                     Multiplier *lam) noexcept nogil:
    """One iteration of Algorithm 1; all gradients are taken at the old iterate."""
    cdef const double *u = utilities(h)
    cdef Member *j = &f.member[h.pair]
    cdef int64_t s = j.state, s_next = h.s_next
    cdef int64_t now = f.counters.steps + 1         # averages over the steps before `now` include the old iterate
    cdef double frac = fraction(f, j)
    cdef double x_old = j.z * frac
    cdef double weight = j.c * x_old                # w = x(s,a) / mu_hat(s,a)
    cdef double g_x = j.c * advantage(h.r, u, m.n_utilities, V[s].v, value_after(V, s_next), lam, m.V_here, m.V_next,
                                      margin(m, h))
    cdef int code = update_x(f, m, j, x_old, frac, m.rate_x * g_x, now)
    if code != OK:
        return code
    update_V(V, now, initial, s, s_next, weight, m.gamma, m.rate_V, m.radius_V)
    update_lam(lam, m.n_utilities, u, margin(m, h), weight, m.rate_lam, m.radius_lam)
    f.counters.steps = now
    if now == f.next_refresh:
        refresh(f, now)
    return OK
