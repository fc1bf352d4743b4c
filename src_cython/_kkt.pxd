"""The x-update reduced to one unknown (appendix A.3 of the paper).

    x* = argmin  -step x_j + KL(x || y)   over   0 <= x,  x_j <= cap,  sum x <= B1,  sum c x <= B2

With multipliers alpha, beta >= 0 of the two sums, every coordinate but j shrinks, x_i = y_i exp(-alpha - c_i beta), and
x_j = min(cap, y_j exp(step - alpha - c_j beta)). For a given beta, the alpha that keeps sum x <= B1 has a closed form
(`respond`), and G(beta) = sum c x at that alpha decreases: it is the slope of the dual function after maximising over
alpha, and the dual is concave. So the four cases of the paper, capped or not, are one search:

    G(0) <= B2: beta = 0       (case 1 if alpha = 0, else case 2)
    otherwise:  G(beta) = B2   (case 3 if alpha = 0, else case 4)

The caller provides the sums over i != j as a function of beta, so the same search works for a dense vector and for
binned moments.

Ties. While j is at its cap, the bounds of the others are B1 - cap and B2 - c_j cap. Their sums are compared with these
to a relative accuracy, even if these are small, because the logarithms of the others depend on the ratio. A cap that
leaves less than TIE of a bound (c_j cap = B2 whenever N = 1) cannot be distinguished from one that leaves nothing. The
sum then implies the cap: `effective_log_cap` drops it, and x_j stays below it to that accuracy.
"""

from libc.math cimport INFINITY, exp, fabs, isfinite, log, log1p, sqrt

cdef enum:
    MAX_ITERATIONS = 200

cdef enum Code:
    OK = 0
    NO_CONVERGENCE = 1      # MAX_ITERATIONS evaluations without reaching the tolerance
    NOT_FINITE = 2          # a NaN or an infinity in a sum
    OUT_OF_REACH = 3        # beta is too large for the series (binned sums only)

cdef extern from *:
    """
    #define DPDL_TOLERANCE 1e-14
    #define DPDL_TIE 1e-13
    #define DPDL_LITTLE 1e-4
    """
    # Constraints hold to this relative accuracy: some dozens of roundings.
    const double TOLERANCE "DPDL_TOLERANCE"
    # Above the rounding of a cap, 2^-53 |log cap|; below the required accuracy of a solution, 1e-12.
    const double TIE "DPDL_TIE"
    # If a cap leaves less of a bound than this, the running sums, accurate to 1e-15, do not determine the others' sums.
    const double LITTLE "DPDL_LITTLE"

ctypedef struct Pair:           # the sampled coordinate
    double c                    # 1 / mu_hat
    double log_cap
    double log_free             # log(y_j exp(step)): its value without constraints

ctypedef struct Moments:        # over i != j, at some beta
    double s0                   # sum y_i exp(-c_i beta)
    double s1                   # sum c_i y_i exp(-c_i beta)
    double s2                   # sum c_i^2 y_i exp(-c_i beta)

ctypedef struct Response:       # the best x for a given beta
    double alpha
    double x                    # of pair j
    double log_x
    bint capped
    double weighted             # G = sum c x, without c_j x_j if j is at its cap
    double bound                # B2, less c_j x_j if j is at its cap
    double slope                # dG/dbeta, <= 0

ctypedef struct Update:         # the solution
    double alpha
    double beta
    double x
    double log_x
    bint capped
    Moments others              # at beta, before the factor exp(-alpha)
    int kind                    # the paper's case, 1 .. 4
    int iterations
    int code

# Fills the moments at beta; returns OK or OUT_OF_REACH.
ctypedef int (*MomentsAt)(void *context, double beta, Moments *out) noexcept nogil


cdef inline double effective_log_cap(double log_cap, double c, double B1, double B2) noexcept nogil:
    """The cap of a pair if it can bind, else one above the largest x that either sum allows."""
    cdef double most = B1 if B1 < B2 / c else B2 / c
    return log_cap if log_cap < log(most) - TIE else log(2.0 * B1)


cdef inline bint is_nearly_all(double x, double c, double B1, double B2) noexcept nogil:
    """Whether a pair at x leaves so little to the others that their sums must be computed directly."""
    return B1 - x < LITTLE * B1 or B2 - c * x < LITTLE * B2


cdef inline void respond(double log_free, double c, double log_cap, const Moments *m, double B1, double B2,
                         Response *q) noexcept nogil:
    """Close over alpha: the least alpha >= 0 with sum x <= B1, for log_free = log y_j + step - c_j beta."""
    cdef double cap, room, shrink, mean, log_s0
    q.bound = B2
    q.alpha = 0.0
    q.capped = log_free >= log_cap          # decided in logarithms: exp(log_free) may overflow
    if q.capped:
        cap = exp(log_cap)
        room = B1 - cap
        if m.s0 > room * (1.0 + TOLERANCE):
            q.alpha = log(m.s0 / room) if room > 0.0 else INFINITY
        if log_free - q.alpha >= log_cap:
            shrink = exp(-q.alpha)
            q.log_x = log_cap
            q.x = cap
            q.weighted = shrink * m.s1
            q.bound = B2 - c * cap
            q.slope = -m.s2 if q.alpha == 0.0 else -shrink * (m.s2 - m.s1 * (m.s1 / m.s0))
            return
        q.capped = False
    else:
        q.log_x = log_free
        q.x = exp(log_free)
        if m.s0 + q.x <= B1 * (1.0 + TOLERANCE):
            q.weighted = m.s1 + c * q.x
            q.slope = -m.s2 - c * (c * q.x)
            return
    # Free: x_j and the others share B1 in proportion exp(log_free) : s0; factor the larger one out of the logarithm.
    log_s0 = log(m.s0) if m.s0 > 0.0 else -1e308
    if log_free > log_s0:
        q.alpha = log_free + log1p(m.s0 * exp(-log_free)) - log(B1)
        q.x = B1 / (1.0 + m.s0 * exp(-log_free))
        q.log_x = log(q.x)
    else:
        q.alpha = log_s0 + log1p(exp(log_free) / m.s0) - log(B1)
        q.log_x = log_free - q.alpha
        q.x = exp(q.log_x)
    if q.alpha < 0.0:                       # only by rounding: the sum is above B1
        q.alpha = 0.0
    shrink = exp(-q.alpha)
    q.weighted = shrink * m.s1 + c * q.x
    mean = q.weighted / B1
    q.slope = -(shrink * (m.s2 - mean * (2.0 * m.s1 - mean * m.s0)) + (c - mean) * ((c - mean) * q.x))


cdef inline void store(Update *u, const Response *q, const Moments *m, double beta, int iterations,
                       int code) noexcept nogil:
    u.others = m[0]
    u.alpha = q.alpha
    u.beta = beta
    u.x = q.x
    u.log_x = q.log_x
    u.capped = q.capped
    u.kind = (3 if beta > 0.0 else 1) + (1 if q.alpha > 0.0 else 0)
    u.iterations = iterations
    u.code = code


cdef inline double between(double low, double high) noexcept nogil:
    """A point inside a bracket of nonnegative numbers: the geometric mean if the ends are far apart, else the midpoint.

    A bracket that begins at 0 is divided by 1024.
    """
    if low == 0.0:
        return high * 0.0009765625
    return sqrt(low) * sqrt(high) if high > 16.0 * low else 0.5 * (low + high)


cdef inline void solve(const Pair *j, double B1, double B2, double c_min, double guess, MomentsAt moments_at,
                       void *context, Update *u) noexcept nogil:
    """Find the multipliers; c_min is a lower bound of all c, and the cap of j an effective one.

    A guess of beta, unless zero, is taken if it solves the problem as it is. One at which j has left its cap is not,
    because log_free - c_j beta may cancel.

    Newton on log(G) = log(bound), both without c_j x_j if j is at its cap. Where alpha = 0 that function is convex and
    decreasing, so Newton from the left converges to the root without overshooting.

    Invariant of the loop: G(origin + low) > B2 >= G(origin + high); the root lies in (low, high]. A Newton step that
    leaves the bracket, or follows one that did not halve the excess, is replaced by bisection: the slope is a
    difference that cancels when all c are nearly equal. beta is stored as origin + offset because near the point where
    j leaves its cap, c_j beta cancels against a step that may be 10^6: with that point (`leave`) as the origin, x_j is
    exact.
    """
    cdef Moments m
    cdef Response q
    cdef double log_free = j.log_free           # at the origin
    cdef double log_cap = j.log_cap
    cdef double leave = (j.log_free - log_cap) / j.c      # where j leaves its cap if alpha = 0
    cdef double origin = 0.0, offset = 0.0, low = 0.0, high, beyond, at, step, excess, steepest
    cdef int iteration, code
    cdef bint bisect = False

    if guess > 0.0 and moments_at(context, guess, &m) == OK:
        respond(j.log_free - j.c * guess, j.c, log_cap, &m, B1, B2, &q)
        if q.capped == (leave >= 0.0) and fabs(q.weighted - q.bound) <= TOLERANCE * q.bound:
            store(u, &q, &m, guess, 1, OK)
            return
    code = moments_at(context, 0.0, &m)
    respond(log_free, j.c, log_cap, &m, B1, B2, &q)
    if code != OK or q.weighted <= q.bound * (1.0 + TOLERANCE):
        store(u, &q, &m, 0.0, 0, code)
        return
    if not isfinite(q.weighted):
        store(u, &q, &m, 0.0, 0, NOT_FINITE)
        return
    # Beyond leave, G(beta) <= (s1(0) + c_j min(cap, y_j exp(step))) exp(-c_min (beta - leave)), whatever alpha is.
    beyond = 1.01 * log1p((m.s1 + j.c * exp(log_cap if leave > 0.0 else j.log_free)) / B2) / c_min
    # leave may be so large that adding beyond does not change it.
    high = leave * (1.0 + TOLERANCE) + beyond if leave > 0.0 else beyond

    excess = q.weighted - q.bound
    steepest = m.s2 + j.c * (j.c * q.x)         # at low: bounds |dG/dbeta| from there on, since sum c^2 x decreases
    for iteration in range(1, MAX_ITERATIONS + 1):
        step = -1.0
        if q.slope < 0.0:
            step = log1p((q.weighted - q.bound) / q.bound) * (q.weighted / -q.slope)
        offset = between(low, high) if bisect else offset + step
        if not low < offset < high:
            offset = between(low, high)
        # If the bracket has closed, or G changes by less than its rounding in it, take the feasible end.
        if not low < offset < high or steepest * (high - low) <= 0.1 * TOLERANCE * q.bound:
            offset = high
        if low < leave - origin < offset:       # do not step over the kink
            offset = leave - origin
        code = moments_at(context, origin + offset, &m)
        if code != OK:
            store(u, &q, &m, origin + offset, iteration, code)
            return
        at = log_free - j.c * offset
        if offset <= leave - origin and at < log_cap:       # only by rounding
            at = log_cap
        respond(at, j.c, log_cap, &m, B1, B2, &q)
        if not isfinite(q.weighted):
            store(u, &q, &m, origin + offset, iteration, NOT_FINITE)
            return
        bisect = not bisect and fabs(q.weighted - q.bound) > 0.5 * excess
        excess = fabs(q.weighted - q.bound)
        if excess <= TOLERANCE * q.bound or offset == high:
            store(u, &q, &m, origin + offset, iteration, OK)
            return
        if q.weighted > q.bound:
            low = offset
            steepest = m.s2 + j.c * (j.c * q.x)
        else:
            high = offset
        if low == leave - origin > 0.0:         # the root lies beyond leave: make that the origin
            log_free = log_cap
            high = beyond                       # nothing beyond leave was tried yet
            low = 0.0
            offset = 0.0
            origin = leave
    store(u, &q, &m, origin + offset, iteration, NO_CONVERGENCE)
