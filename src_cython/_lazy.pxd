"""The lazy step: updates of all pairs at a cost that does not grow with their number.

All coordinates but the sampled one move by a factor exp(-alpha - c_i beta) that depends on c_i alone. So pairs are
sorted by c into bins, and each bin stores the factor of its members. With bin centre c_b, half-width h_b and
d_i = (c_i - c_b)/h_b in [-1, 1],

    x_i = z_i f_i exp(-common - u_i drop),    f_i = exp(-shift_b - d_i tau_b),    u_i = c_i / top

where top is the largest c. common = sum alpha and drop = sum top beta over the steps since the last fold; shift_b = sum
(alpha + c_b beta) and tau_b = sum h_b beta over those from the bin's last rebase to the last fold. Only the sampled
pair's z changes. Sums over a bin come from moments:

    sum_{i in b} d_i^p x_i = exp(-shift_b) sum_k (-tau_b)^k / k!  m_{b,k+p},    m_{b,k} = sum_{i in b} z_i d_i^k

at a fold, and those over all pairs for a trial beta from power sums (`sums_of_powers`), which are kept up to date. The
operations that maintain this:

    touch     one pair's z changes                      -> its bin's moments, its accumulator          O(1)
    move      all pairs but one move                    -> common and drop                             O(1)
    fold      common and drop into the bins' factors    when one passes its limit                      O(bins)
    rebase    fold a bin's factor into its members' z   when tau_b passes `threshold`                  O(members)
    refresh   rebase all bins, recompute running sums   every `refresh` steps                          O(pairs)

The coordinate of the unseen pairs is never sampled, and its c may be thousands of times any other. It is left out of
top and drop (u = 0): `move` touches it instead.

Accuracy. Series in tau are truncated after k = DEGREE. tau_b <= `threshold` (1/4) when a step begins, and `sums`
returns OUT_OF_REACH beyond `reach` (3/8), so the remainder is below (3/8)^DEGREE / DEGREE! = 2e-14 of m_{b,0}, and
below 2e-16 in all steps but those that jump. Series in drop are truncated after k = N_TERMS - 1; drop <= 1/64 when a
step begins, so the remainder is below 64^-7 / 7! = 5e-17. Moments, power sums and running sums accumulate a few
roundings a step: at most some refresh * 2^-53 of their largest value between two refreshes.

Averages. Let P_i be the sum of x_i / z_i over the steps since the bin's last rebase. It is

    sum_k d_i^k q_{b,k} + f_i (sum_k u_i^k elapsed_k + quiet exp(-common - u_i drop))

where q_{b,k} sums exp(-shift_b) (-tau_b)^k / k! over the steps before the last fold, elapsed_k sums exp(-common)
(-drop)^k / k! from there to the last move, and quiet counts the steps since. While z_i is unchanged, the sum of x_i is
z_i times the growth of P_i. So a pair stores P_i at the last change of its z (`mark`), and when z_i changes again,
acc_i increases by z_i (P_i - mark). Every term is nonnegative, and so is the sum; P_i grows by at least e^-1.35 a step
(shift <= 1, tau <= 1/4, common <= 1/16, drop <= 1/64) and is at most `refresh`, so the relative error of a term, and
hence of an average of any size, is below 4 refresh 2^-53: 3e-11 at the smallest default of `refresh`. A rebase adds the
sum since the last one to `settled`, which is compensated.
"""

from libc.math cimport exp, log
from libc.stdint cimport int32_t, int64_t

from _duals cimport Multiplier, Value, advantage, update_lam, update_V, value_after
from _kkt cimport OK, OUT_OF_REACH, TOLERANCE, Moments, Pair, Update, is_nearly_all, solve
from _model cimport Counters, Head, Model, head, read_utilities
from _random cimport dpdl_prefetch, dpdl_prefetch_read
from _sums cimport Sum, add, reset, value

cdef enum:
    DEGREE = 12
    N_MOMENTS = 13      # DEGREE + 1
    ROW = 16            # a bin's moments start on a cache line
    N_TERMS = 7         # of a series in drop, and power sums
    AHEAD = 16          # members of a bin are scattered in memory: prefetch this many ahead
    STEPS_AHEAD = 8     # steps between two stages of prefetching in a run

cdef extern from *:
    """
    static const double dpdl_inverse[14] = {0.0, 1.0, 1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5, 1.0 / 6, 1.0 / 7, 1.0 / 8,
                                            1.0 / 9, 1.0 / 10, 1.0 / 11, 1.0 / 12, 1.0 / 13};
    #define DPDL_REMAINDER 1e-17
    #define DPDL_THRESHOLD 0.25
    #define DPDL_REACH 0.375
    """
    # Defaults of the limits of tau: a bin beyond the first is rebased, and the series are accurate up to the second.
    const double THRESHOLD "DPDL_THRESHOLD"
    const double REACH "DPDL_REACH"
    const double *INVERSE "dpdl_inverse"     # 1 / k
    # What the series of the power sums may leave out of sum c x.
    const double REMAINDER "DPDL_REMAINDER"

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

ctypedef struct Window:         # what all pairs have in common since the last fold
    double common               # sum of alpha
    double scale                # exp(-common)
    double drop                 # top times the sum of beta
    double[N_TERMS] elapsed     # sum of exp(-common) (-drop)^k / k! over the steps before `since`

ctypedef struct Powers:         # sums of u^p x over all pairs but the unseen ones
    double[N_TERMS] sum         # from p = 2 on
    double ceiling              # upper bound of the one with p = N_TERMS since they were collected
    double valid                # 0 or 1; they are whenever drop > 0

ctypedef struct Lazy:
    int64_t n                   # pairs
    Member *member
    Sum *settled                # sum of each pair's x before its bin's last rebase
    const int32_t *order        # pairs by bin
    const int64_t *first        # bin b holds order[first[b]] .. order[first[b + 1] - 1]
    int64_t n_bins
    Member *unseen              # the coordinate of the unseen pairs, in the last bin, or NULL
    int64_t n_wide              # the bins before this one have h > 0, all others hold one value of c
    const double *centre
    const double *half
    double top                  # the largest c but that of the unseen pairs
    double unit                 # 1 / top
    double *shift
    double *tau
    double *factor              # exp(-shift)
    double *moment              # m[ROW b + k]
    double *past                # q[ROW b + k]
    double *trial               # exp(-c_b beta), workspace of sums_of_bins
    Window window
    int64_t since               # the step of the last move or rebase_all: quiet = now - since
    Powers powers
    double[N_TERMS] others      # power sums without the sampled pair, workspace of sums_of_powers
    double x_unseen             # likewise
    Sum total                   # sum x
    Sum weighted                # sum c x
    double threshold            # of tau: a bin beyond it is rebased
    double reach                # of tau: the series are accurate up to here
    int64_t refresh
    int64_t next_refresh
    Counters *counters
    double *u                   # u^kappa of the present row
    Member *sampled             # the pair that `sums` leaves out, with its x_old
    double x_old
    bint exact                  # whether `sums` sums over the pairs instead of the moments


ctypedef struct Parts:          # of a run
    Lazy *lazy
    const Model *model
    Value *V
    Multiplier *lam


cdef inline double fraction(const Lazy *f, const Member *i) noexcept nogil:
    """f_i = x_i / z_i at the last fold."""
    cdef double tau = f.tau[i.bin]
    if tau == 0.0 or i.d == 0.0:
        return f.factor[i.bin]
    return f.factor[i.bin] * exp(-i.d * tau)


cdef inline double position(const Lazy *f, const Member *i) noexcept nogil:
    """u_i."""
    return i.c * f.unit if i != f.unseen else 0.0


cdef inline double decay(const Lazy *f, double u) noexcept nogil:
    """exp(-common - u drop) by its series: x_i / z_i is f_i times this."""
    cdef double y = u * f.window.drop, square = y * y
    if f.window.drop == 0.0:
        return f.window.scale
    return f.window.scale * ((1.0 + square * (1.0 / 2 + square * (1.0 / 24 + square * (1.0 / 720))))
                             - y * (1.0 + square * (1.0 / 6 + square * (1.0 / 120))))


cdef inline double lift_of(const Lazy *f, const Member *i, double u) noexcept nogil:
    """log z_i - log x_i."""
    return (f.shift[i.bin] + i.d * f.tau[i.bin]) + (f.window.common + u * f.window.drop)


cdef inline double log_of(const Lazy *f, const Member *i) noexcept nogil:
    """log x_i."""
    return i.log_z - lift_of(f, i, position(f, i))


cdef inline double past_of(const Lazy *f, const Member *i) noexcept nogil:
    """sum_k d_i^k q_{b,k}: the sum of x_i / z_i over the steps before the last fold."""
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


cdef inline double elapsed_of(const Lazy *f, double u) noexcept nogil:
    """sum_k u^k elapsed_k."""
    cdef const double *e = f.window.elapsed
    cdef double square = u * u
    if f.window.drop == 0.0:                # it only grows, so that it was zero in all these steps
        return e[0]
    return (e[0] + square * (e[2] + square * (e[4] + square * e[6]))) + u * (e[1] + square * (e[3] + square * e[5]))


cdef inline double visits(const Lazy *f, const Member *i, double u, double frac, int64_t now) noexcept nogil:
    """P_i: the sum of x_i / z_i over the steps since the bin's last rebase and before `now`; frac = f_i, u = u_i.

    Everything that needs P_i calls this: two expressions could differ by a rounding, which a large z would amplify.
    """
    cdef double total = elapsed_of(f, u)
    if now > f.since:
        total += decay(f, u) * <double> (now - f.since)
    total *= frac
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


cdef inline void touch(Lazy *f, Member *i, double u, double log_z, double z, double frac, int64_t now) noexcept nogil:
    """Give a pair a new z; frac = f_i. Invariant: settled + unsettled is the sum of x over the steps before `now`."""
    cdef double total = visits(f, i, u, frac, now)
    i.acc = unsettled(i, total)
    i.mark = total
    add_to_moments(f, i, z - i.z)
    i.log_z = log_z
    i.z = z


cdef inline void sums_of_bins(Lazy *f, double beta, Moments *m) noexcept nogil:
    """sum c^p x exp(-c beta), p = 0, 1, 2, over all pairs; leaves exp(-c_b beta) in `trial`. drop must be zero."""
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
    m.s0 = f.window.scale * s0
    m.s1 = f.window.scale * s1
    m.s2 = f.window.scale * s2


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


cdef inline double x_of_unseen(const Lazy *f) noexcept nogil:
    return f.unseen.z * f.factor[f.unseen.bin] * f.window.scale if f.unseen != NULL else 0.0


cdef inline void collect_powers(Lazy *f) noexcept nogil:
    """Compute the power sums, and with them the running sums, from the moments. drop must be zero."""
    cdef double[N_TERMS] s
    cdef double[N_TERMS] g
    cdef double[N_MOMENTS + 1] ratio
    cdef double t, v, w, weight
    cdef const double *q
    cdef int64_t b
    cdef int k, p
    cdef Powers *powers = &f.powers
    for p in range(N_TERMS):
        s[p] = 0.0
    powers.ceiling = 0.0
    for b in range(f.n_wide):
        q = f.moment + ROW * b
        t = -f.tau[b]
        v = f.centre[b] * f.unit
        w = f.half[b] * f.unit
        for k in range(N_MOMENTS + 1):
            ratio[k] = t * INVERSE[k]
        # g_p = sum d^p x, by Horner. It enters the sums with (h/c)^p <= 3^-p, which makes up for the shorter series.
        # A row is zero beyond its moments, so that several p begin together: loops of constant length make vectors.
        for p in range(N_TERMS):
            g[p] = 0.0
        for k in range(N_MOMENTS, 0, -1):
            for p in range(ROW - DEGREE):
                g[p] = q[k - 1 + p] + g[p] * ratio[k]
        for k in range(N_MOMENTS - (ROW - DEGREE), 0, -1):
            for p in range(ROW - DEGREE, N_TERMS):
                g[p] = q[k - 1 + p] + g[p] * ratio[k]
        for p in range(N_TERMS):
            g[p] *= f.factor[b]
        weight = g[0]
        for p in range(N_TERMS):                    # invariant: g_k = sum u^p d^k x for k < N_TERMS - p
            s[p] += g[0]
            weight *= v + w
            for k in range(N_TERMS - 1):
                g[k] = v * g[k] + w * g[k + 1]
        powers.ceiling += weight
    for b in range(f.n_wide, f.n_bins - (f.unseen != NULL)):
        weight = f.factor[b] * f.moment[ROW * b]
        for p in range(N_TERMS):
            s[p] += weight
            weight *= f.centre[b] * f.unit
        powers.ceiling += weight
    powers.ceiling *= f.window.scale
    for p in range(2, N_TERMS):
        powers.sum[p] = f.window.scale * s[p]
    powers.valid = 1.0
    weight = x_of_unseen(f)
    reset(&f.total, f.window.scale * s[0])
    reset(&f.weighted, f.window.scale * (f.top * s[1]))
    if weight > 0.0:
        add(&f.total, weight)
        add(&f.weighted, f.unseen.c * weight)


cdef inline void leave_out(Lazy *f, const Member *j, double x) noexcept nogil:
    """Store the power sums without the sampled pair, which has x."""
    cdef double u = j.c * f.unit, weighted
    cdef int p
    f.x_unseen = x_of_unseen(f)
    f.others[0] = value(&f.total) - x
    weighted = value(&f.weighted) - j.c * x
    if f.x_unseen > 0.0:
        f.others[0] -= f.x_unseen
        weighted -= f.unseen.c * f.x_unseen
    f.others[1] = weighted * f.unit
    x *= u
    for p in range(2, N_TERMS):
        x *= u
        f.others[p] = f.powers.sum[p] - x


cdef inline int sums_of_powers(void *context, double beta, Moments *m) noexcept nogil:
    """The sums of the root finder: sum u^p x exp(-u y) = sum_k (-y)^k / k! sum u^(p+k) x, y = top beta.

    Let s_p be these sums and U the ceiling. If s_p is accurate to U drop^(N-p) / (N-p)!, N = N_TERMS, then the series
    without the terms from u^N on are accurate to U (drop + y)^(N-p) / (N-p)! at y, by the binomial theorem. So this
    bound holds after any number of moves, and it has to be negligible for p = 1.
    """
    cdef Lazy *f = <Lazy *> context
    cdef const double *s = f.others
    cdef double y = f.top * beta, far = f.window.drop + y, square = far * far, x
    cdef double e1, e2, e3, e4, e5, e6
    if not f.powers.ceiling * (square * square * (square * (1.0 / 720))) <= REMAINDER * (f.weighted.high * f.unit):
        return OUT_OF_REACH
    e1 = -y
    e2 = y * y * (1.0 / 2)
    e3 = e1 * e2 * (1.0 / 3)
    e4 = e2 * e2 * (1.0 / 6)
    e5 = e2 * e3 * (1.0 / 10)
    e6 = e3 * e3 * (1.0 / 20)
    m.s0 = ((s[2] * e2 + s[3] * e3) + (s[4] * e4 + (s[5] * e5 + s[6] * e6))) + s[1] * e1 + s[0]
    m.s1 = f.top * (((s[3] * e2 + s[4] * e3) + (s[5] * e4 + s[6] * e5)) + s[2] * e1 + s[1])
    m.s2 = f.top * (f.top * (((s[4] * e2 + s[5] * e3) + s[6] * e4) + s[3] * e1 + s[2]))
    # The differences in `others` may round below zero when one pair has nearly all of the mass.
    m.s0 = m.s0 if m.s0 > 0.0 else 0.0
    m.s1 = m.s1 if m.s1 > 0.0 else 0.0
    m.s2 = m.s2 if m.s2 > 0.0 else 0.0
    if f.x_unseen > 0.0:
        x = f.x_unseen * exp(-f.unseen.c * beta)
        m.s0 += x
        m.s1 += f.unseen.c * x
        m.s2 += f.unseen.c * (f.unseen.c * x)
    return OK


cdef inline double guess_beta(const Lazy *f, const Member *j, double B2, double x, bint capped) noexcept nogil:
    """The beta of case 3 for a pair that has x, to the accuracy of four terms of the series; 0 if there is none.

    Solves s_1 - s_2 y + s_3 y^2 / 2 - s_4 y^3 / 6 = bound for y = top beta by iteration. Each round gains a factor y.
    """
    cdef double u = j.c * f.unit, excess = f.others[1] - B2 * f.unit + u * x, y
    cdef double s2 = f.others[2], s3 = f.others[3], s4 = f.others[4]
    cdef int _round
    x *= u * u
    if not capped:          # else x does not move
        s2 += x
        s3 += u * x
        s4 += u * (u * x)
    if f.x_unseen > 0.0:
        u = f.unseen.c * f.unit
        x = u * f.x_unseen
        excess += x
        s2 += u * x
        s3 += u * (u * x)
        s4 += u * (u * (u * x))
    s2 = 1.0 / s2
    y = excess * s2
    for _round in range(3):
        y = (excess + y * y * (s3 * (1.0 / 2) - y * (s4 * (1.0 / 6)))) * s2
    return y * f.unit


cdef inline void move_powers(Lazy *f, double shrink, double beta, const Member *j, double x) noexcept nogil:
    """The power sums after the pairs in `others` have moved, and the sampled one is at x."""
    cdef double[N_TERMS] e
    cdef double total, y = f.top * beta, u = j.c * f.unit
    cdef int k, p
    e[0] = shrink
    for k in range(1, N_TERMS):
        e[k] = e[k - 1] * (-y * INVERSE[k])
    x *= u
    for p in range(2, N_TERMS):
        x *= u
        total = x
        for k in range(N_TERMS - p):
            total += e[k] * f.others[p + k]
        f.powers.sum[p] = total
    f.powers.ceiling += x * u


cdef inline void scale_powers(Lazy *f, double shrink, const Member *j, double x_old, double x_new) noexcept nogil:
    """The power sums after all pairs but the sampled one were multiplied by `shrink`."""
    cdef double u = j.c * f.unit, old = u * x_old, new = u * x_new
    cdef int p
    for p in range(2, N_TERMS):
        old *= u
        new *= u
        f.powers.sum[p] = shrink * (f.powers.sum[p] - old) + new
    if new > old:
        f.powers.ceiling += u * (new - old)


cdef inline void catch_up(Lazy *f, int64_t now) noexcept nogil:
    """Bring `elapsed` up to the steps before `now`. Invariant: quiet = now - since = 0 afterwards."""
    cdef double term = f.window.scale * <double> (now - f.since)
    cdef int k
    f.since = now
    f.window.elapsed[0] += term
    if f.window.drop > 0.0:
        for k in range(1, N_TERMS):
            term *= -f.window.drop * INVERSE[k]
            f.window.elapsed[k] += term


cdef inline void open_window(Lazy *f, int64_t now) noexcept nogil:
    cdef int k
    f.window.common = 0.0
    f.window.scale = 1.0
    f.window.drop = 0.0
    for k in range(N_TERMS):
        f.window.elapsed[k] = 0.0
    f.since = now
    f.powers.valid = 0.0


cdef inline void rebase(Lazy *f, int64_t b, int64_t now) noexcept nogil:
    """Fold the factor of a bin into its members' z, and recompute its moments; acc, mark and q become zero.

    Invariant: x of every member, and the sum of it over the steps before `now`, are the same before and after, if a new
    window is open afterwards.
    """
    cdef double frac
    cdef bint just_folded = now == f.since and f.window.elapsed[0] == 0.0
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
        frac = 0.0 if just_folded else fraction(f, i)
        add(&f.settled[f.order[k]], unsettled(i, visits(f, i, position(f, i), frac, now)))
        i.acc = 0.0
        i.mark = 0.0
        i.log_z -= lift_of(f, i, position(f, i))
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
    open_window(f, now)


cdef inline void fold_elapsed(Lazy *f, int64_t b) noexcept nogil:
    """Add the window's sum of x / z to q of a wide bin: sum_k u^k elapsed_k times f_i, as a polynomial in d."""
    cdef double[N_TERMS] e
    cdef double[N_MOMENTS][N_TERMS] terms       # of (-tau)^k / k! (h/top)^p e_p
    cdef double power = f.factor[b], ratio, total, v = f.centre[b] * f.unit, w = f.half[b] * f.unit
    cdef double *q = f.past + ROW * b
    cdef int k, p
    if f.window.drop == 0.0:                    # elapsed is a constant
        total = power * f.window.elapsed[0]
        q[0] += total
        for k in range(1, N_MOMENTS):
            total *= -f.tau[b] * INVERSE[k]
            q[k] += total
        return
    for k in range(N_TERMS):
        e[k] = f.window.elapsed[k]
    for p in range(N_TERMS - 1):                # u = v + w d
        for k in range(N_TERMS - 2, p - 1, -1):
            e[k] += v * e[k + 1]
    for p in range(N_TERMS):
        terms[0][p] = power * e[p]
        power *= w
    for k in range(1, N_MOMENTS):
        ratio = -f.tau[b] * INVERSE[k]
        for p in range(N_TERMS):
            terms[k][p] = terms[k - 1][p] * ratio
    for k in range(N_TERMS):
        total = q[k]
        for p in range(k + 1):
            total += terms[k - p][p]
        q[k] = total
    for k in range(N_TERMS, N_MOMENTS):
        total = q[k]
        for p in range(N_TERMS):
            total += terms[k - p][p]
        q[k] = total


cdef inline void fold(Lazy *f, int64_t now) noexcept nogil:
    """Fold the window into the frames and q of the bins, and rebase the bins that pass the threshold."""
    cdef double v, beta
    cdef bint moved
    cdef int64_t b
    catch_up(f, now)
    beta = f.window.drop * f.unit
    moved = f.window.drop > 0.0 or f.window.common > 0.0
    for b in range(f.n_wide):
        fold_elapsed(f, b)
    for b in range(f.n_wide, f.n_bins):
        v = f.centre[b] * f.unit if f.unseen == NULL or b != f.unseen.bin else 0.0
        f.past[ROW * b] += f.factor[b] * elapsed_of(f, v)
    for b in range(f.n_bins if moved else 0):
        f.shift[b] += f.window.common
        if f.unseen == NULL or b != f.unseen.bin:
            f.shift[b] += f.centre[b] * beta
        f.tau[b] += f.half[b] * beta
        f.factor[b] = exp(-f.shift[b])
    open_window(f, now)
    for b in range(f.n_bins if moved else 0):
        # A large shift does not harm the series, but P has terms from when the factor was larger: growth by small
        # terms would be lost to rounding.
        if f.tau[b] > f.threshold or f.shift[b] > 4.0 * f.threshold:
            rebase(f, b, now)


cdef inline bint must_fold(const Lazy *f) noexcept nogil:
    return f.window.common > 0.25 * f.threshold or f.window.drop > 0.0625 * f.threshold


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
    """Multiply x of all pairs by exp(-alpha - c beta)."""
    cdef double log_z
    catch_up(f, now)
    if alpha > 0.0:
        f.window.common += alpha
        f.window.scale = exp(-f.window.common)
    if beta > 0.0:
        f.window.drop += f.top * beta
        if f.unseen != NULL:
            log_z = f.unseen.log_z - f.unseen.c * beta
            if f.unseen.z > 0.0:
                touch(f, f.unseen, 0.0, log_z, exp(log_z), f.factor[f.unseen.bin], now)
                f.moment[ROW * f.unseen.bin] = f.unseen.z       # without the rounding of the difference
            f.unseen.log_z = log_z


cdef inline void move_alone(Lazy *f, Member *j, double log_z, double z, double x_old, double x_new, double frac,
                            int64_t now) noexcept nogil:
    """Case 1: only one pair moves; update the running sums."""
    touch(f, j, j.c * f.unit, log_z, z, frac, now)
    add(&f.total, x_new - x_old)
    add(&f.weighted, j.c * (x_new - x_old))
    if f.powers.valid != 0.0:
        scale_powers(f, 1.0, j, x_old, x_new)
    f.counters.cases[0] += 1


cdef inline bint move_in_scale(Lazy *f, const Model *m, Member *j, double log_z, double z, double surplus,
                               double x_old, double x_new, double frac, int64_t now) noexcept nogil:
    """Case 2, from the running sums: all pairs move by one factor. Returns whether that solves the x-update.

    log_z, z and x_new are those of pair j if no other pair moved, at its cap if surplus >= 0.
    """
    cdef double total = value(&f.total), others = total - x_old, weighted, alpha, shrink
    cdef bint capped = surplus >= 0.0
    if capped:
        if 16.0 * others < total:           # the difference cancels
            return False
        shrink = (m.B1 - x_new) / others
    else:
        shrink = m.B1 / (others + x_new)
        x_new *= shrink
    weighted = shrink * (value(&f.weighted) - j.c * x_old) + j.c * x_new
    if not 0.0 < shrink < 1.0 or weighted > m.B2 * (1.0 + TOLERANCE):
        return False
    alpha = -log(shrink)
    if capped:
        if alpha > surplus:                 # j leaves its cap
            return False
        log_z += alpha
        z = exp(log_z)
    move(f, alpha, 0.0, now)
    touch(f, j, j.c * f.unit, log_z, z, frac, now)
    reset(&f.total, shrink * others + x_new)
    reset(&f.weighted, weighted)
    if f.powers.valid != 0.0:
        scale_powers(f, shrink, j, x_old, x_new)
    if must_fold(f):
        fold(f, now)
    f.counters.cases[1] += 1
    f.counters.capped += capped
    return True


cdef inline int update_x(Lazy *f, const Model *m, Member *j, double frac, double ratio, double step,
                         int64_t now) noexcept nogil:
    """x <- argmin over X of -<g_x, x> + (alpha_x/eta) KL(x || x_old), g_x being zero but at j.

    frac = f_j, ratio = x_old / z at j.
    """
    cdef Pair pair
    cdef Update u
    cdef double x_old = j.z * ratio, position = j.c * f.unit, lift = lift_of(f, j, position), z, x_new, shrink
    cdef double log_z = j.log_z + step, surplus = log_z - lift - j.log_cap
    cdef bint capped = surplus >= 0.0, folded = False

    # Cases 1 and 2, from the running sums.
    if capped:
        log_z = j.log_cap + lift
    z = exp(log_z)
    x_new = z * ratio
    f.exact = capped and is_nearly_all(x_new, j.c, m.B1, m.B2)
    if not f.exact:
        if (value(&f.total) + (x_new - x_old) <= m.B1 * (1.0 + TOLERANCE)
                and value(&f.weighted) + j.c * (x_new - x_old) <= m.B2 * (1.0 + TOLERANCE)):
            move_alone(f, j, log_z, z, x_old, x_new, frac, now)
            f.counters.capped += capped
            return OK
        if move_in_scale(f, m, j, log_z, z, surplus, x_old, x_new, frac, now):
            return OK

    pair.c = j.c
    pair.log_cap = j.log_cap
    pair.log_free = j.log_z - lift + step
    f.sampled = j
    f.x_old = x_old
    u.code = OUT_OF_REACH
    if f.powers.valid != 0.0 and not f.exact:
        leave_out(f, j, x_old)
        solve(&pair, m.B1, m.B2, m.c_min, guess_beta(f, j, m.B2, x_new, capped), sums_of_powers, f, &u)
    if u.code == OUT_OF_REACH and not f.exact:
        fold(f, now)
        folded = True
        collect_powers(f)
        leave_out(f, j, x_old)
        solve(&pair, m.B1, m.B2, m.c_min, guess_beta(f, j, m.B2, x_new, capped), sums_of_powers, f, &u)
        if u.code == OUT_OF_REACH:
            f.powers.valid = 0.0
            solve(&pair, m.B1, m.B2, m.c_min, 0.0, sums, f, &u)
    if u.code == OUT_OF_REACH:
        rebase_all(f, now)
        f.exact = True
        f.counters.jumps += 1
        solve(&pair, m.B1, m.B2, m.c_min, 0.0, sums, f, &u)
    if u.code != OK:
        return u.code
    f.counters.capped += u.capped
    f.counters.iterations += u.iterations
    if u.kind == 1:         # within rounding of a bound the solver may still find that no other pair moves
        log_z = u.log_x + lift_of(f, j, position)
        move_alone(f, j, log_z, exp(log_z), x_old, u.x, fraction(f, j), now)
        return OK
    move(f, u.alpha, u.beta, now)
    shrink = exp(-u.alpha) if u.alpha > 0.0 else 1.0
    reset(&f.total, shrink * u.others.s0 + u.x)
    reset(&f.weighted, shrink * u.others.s1 + j.c * u.x)
    if f.powers.valid != 0.0:
        move_powers(f, shrink, u.beta, j, u.x)
    if f.exact:
        rebase_all(f, now)
    elif f.powers.valid == 0.0 or must_fold(f):
        fold(f, now)
        folded = True
    log_z = u.log_x + lift_of(f, j, position)
    touch(f, j, position, log_z, exp(log_z), fraction(f, j) if folded or f.exact else frac, now)
    f.counters.cases[u.kind - 1] += 1
    return OK


cdef inline int step(Lazy *f, const Model *m, const Head *h, int64_t initial, Value *V,
                     Multiplier *lam) noexcept nogil:
    """One iteration of Algorithm 1; all gradients are taken at the old iterate."""
    cdef Member *j = &f.member[h.pair]
    cdef int64_t s = j.state, s_next = h.s_next
    cdef int64_t now = f.counters.steps + 1         # averages over the steps before `now` include the old iterate
    cdef double frac = fraction(f, j)
    cdef double ratio = frac * decay(f, j.c * f.unit)
    cdef double weight = j.c * (j.z * ratio)        # w = x(s,a) / mu_hat(s,a)
    cdef double g_x
    cdef int code
    read_utilities(m, h, f.u)
    # Equation (9) prints another sign of V(s) and V(s').
    g_x = j.c * advantage(m.reward_slope * h.r - V[s].v + m.gamma * value_after(V, s_next), f.u, lam, m.n_utilities)
    code = update_x(f, m, j, frac, ratio, m.rate_x * g_x, now)
    if code != OK:
        return code
    update_V(V, now, initial, s, s_next, weight, m.gamma, m.rate_V, m.radius_V)
    update_lam(lam, m.n_utilities, f.u, weight, m.rate_lam, m.radius_lam)
    f.counters.steps = now
    if now == f.next_refresh:
        refresh(f, now)
    return OK


cdef inline void prefetch(const Parts *p, const int64_t *records, const int32_t *initial, int64_t k,
                          int64_t n) noexcept nogil:
    """Prefetch what steps after the k-th of n read: the record, then its pair and next state, then the pair's state.

    Initial states, if any, are prefetched with the next states.
    """
    cdef const Head *h
    if k + 3 * STEPS_AHEAD < n:
        h = head(p.model, records[k + 3 * STEPS_AHEAD])
        dpdl_prefetch_read(h)
        dpdl_prefetch_read(<const char *> h + p.model.stride - 1)   # a record may lie in two cache lines
    if k + 2 * STEPS_AHEAD < n:
        h = head(p.model, records[k + 2 * STEPS_AHEAD])
        dpdl_prefetch(&p.lazy.member[h.pair])
        if h.s_next >= 0:
            dpdl_prefetch(&p.V[h.s_next])
        if initial != NULL:
            dpdl_prefetch(&p.V[initial[k + 2 * STEPS_AHEAD]])
    if k + STEPS_AHEAD < n:
        dpdl_prefetch(&p.V[p.lazy.member[head(p.model, records[k + STEPS_AHEAD]).pair].state])
