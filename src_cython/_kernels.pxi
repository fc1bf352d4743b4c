"""Single kernels of the step, exposed for tests and microbenchmarks."""


def x_update(log_x, c, double log_cap, int64_t j, double step, double B1, double B2):
    """Solve one x-update: argmin of -step x_j + KL(x || exp(log_x)) over x_j <= cap, sum x <= B1, sum c x <= B2."""
    new = np.array(log_x, dtype=np.float64)
    x_values, c = np.exp(new), np.ascontiguousarray(c, dtype=np.float64)
    cdef _kkt.Update u
    find(new, x_values, c, log_cap, j, step, B1, B2, &u)
    if u.kind > 1:      # subtracting 0.0 would change the sign of -0.0
        new -= u.alpha + c * u.beta
    new[j] = u.log_x
    return XUpdate(new, u.alpha, u.beta, u.kind, bool(u.capped), u.iterations, u.code)


def find_root(log_x, c, double log_cap, int64_t j, double step, double B1, double B2):
    """Only the multipliers of an x-update, to time the root finder."""
    cdef _kkt.Update u
    find(log_x, np.exp(log_x), c, log_cap, j, step, B1, B2, &u)
    return Root(u.alpha, u.beta, u.iterations, u.code)


cdef int find(object log_x, object x_values, object c, double log_cap, int64_t j, double step, double B1, double B2,
              _kkt.Update *u) except -1:
    cdef _eager.Eager e
    cdef _kkt.Pair pair
    cdef double c_min = np.min(c)
    e.n = len(log_x)
    e.log_x = <double *> address(log_x)
    e.x = <double *> address(x_values)
    e.c = <const double *> address(c)
    e.j = j
    pair.c = e.c[j]
    pair.log_cap = _kkt.effective_log_cap(log_cap, e.c[j], B1, B2)
    pair.log_free = e.log_x[j] + step
    with nogil:
        _kkt.solve(&pair, B1, B2, c_min, 0.0, _eager.moments_at, &e, u)
    return 0


def lam_update(log_lam, const double[::1] u, double weight, double rate, double radius):
    """One entropic step of lam; returns (log lam, lam)."""
    rows = np.zeros(len(log_lam), dtype=MULTIPLIER_DTYPE)
    rows["log"] = log_lam
    rows["lam"] = np.exp(log_lam)
    cdef _duals.Multiplier *lam = <_duals.Multiplier *> address(rows)
    cdef int64_t n = len(log_lam)
    if n:
        with nogil:
            _duals.update_lam(lam, n, &u[0], weight, rate, radius)
    return rows["log"].copy(), rows["lam"].copy()


def V_update(V, int64_t initial, int64_t s, int64_t s_next, double weight, double gamma, double rate, double radius):
    """One projected step of V; returns the new V."""
    rows = np.zeros(len(V), dtype=VALUE_DTYPE)
    rows["v"] = V
    cdef _duals.Value *values = <_duals.Value *> address(rows)
    with nogil:
        _duals.update_V(values, 1, initial, s, s_next, weight, gamma, rate, radius)
    return rows["v"].copy()
