"""The two dual variables: V (Euclidean step, box) and lam (entropic step, simplex of radius R_L), with their averages.

Averages include the starting point and not the point after the last update, so just before an entry changes, its value
is added to its sum once for every step since its last change.
"""

from libc.math cimport exp, log
from libc.stdint cimport int64_t

from _sums cimport Sum, add

ctypedef struct Value:          # V of one state
    double v
    Sum sum                     # of V over the steps before `since`
    int64_t since               # the step of the last change of v

ctypedef struct Multiplier:     # lam of one utility
    double log                  # lam is derived from it: lam may decay to e^-1000 and grow again
    double lam
    Sum sum


cdef inline double advantage(double total, const double *u, const Multiplier *lam, int64_t n) noexcept nogil:
    """r - V(s) + gamma V(s') + <u, lam>, the first three terms in `total`: mu_hat(s,a) g_x(s,a)."""
    cdef int64_t i
    for i in range(n):
        total += u[i] * lam[i].lam
    return total


cdef inline double value_after(const Value *V, int64_t s_next) noexcept nogil:
    """V(s'), which is zero if the episode ended (s_next = -1)."""
    return V[s_next].v if s_next >= 0 else 0.0


cdef inline void catch_up_value(Value *row, int64_t now) noexcept nogil:
    """Bring the sum of one state up to the steps before `now`."""
    if now > row.since:
        add(&row.sum, row.v * <double> (now - row.since))
        row.since = now


cdef inline double clip(double v, double radius) noexcept nogil:
    return radius if v > radius else (-radius if v < -radius else v)


cdef inline void update_V(Value *V, int64_t now, int64_t initial, int64_t s, int64_t s_next, double weight,
                          double gamma, double rate, double radius) noexcept nogil:
    """V <- clip(V - rate (1[s0] + w (gamma 1[s'] - 1[s])), -R_V, R_V); the states may coincide, and s' may be none."""
    catch_up_value(&V[initial], now)
    catch_up_value(&V[s], now)
    if s_next >= 0:
        catch_up_value(&V[s_next], now)
    V[initial].v -= rate
    if s_next >= 0:
        V[s_next].v -= rate * (weight * gamma)
    V[s].v += rate * weight
    V[initial].v = clip(V[initial].v, radius)
    if s_next >= 0:
        V[s_next].v = clip(V[s_next].v, radius)
    V[s].v = clip(V[s].v, radius)


cdef inline void update_lam(Multiplier *lam, int64_t n, const double *u, double weight, double rate,
                            double radius) noexcept nogil:
    """lam <- lam exp(-rate w u), scaled down to sum R_L if above."""
    cdef int64_t i
    cdef double total = 0.0, top = -1e308, scale
    for i in range(n):
        add(&lam[i].sum, lam[i].lam)
        lam[i].log -= rate * (weight * u[i])
        lam[i].lam = exp(lam[i].log)
        total += lam[i].lam
    if total <= radius:
        return
    # The exponents may be beyond the range of exp, so the sum is taken relative to the largest.
    for i in range(n):
        if lam[i].log > top:
            top = lam[i].log
    total = 0.0
    for i in range(n):
        total += exp(lam[i].log - top)
    scale = log(total / radius)
    for i in range(n):
        lam[i].log = (lam[i].log - top) - scale      # in this order: top may be large and must cancel first
        lam[i].lam = exp(lam[i].log)
