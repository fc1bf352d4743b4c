"""Passes over the transitions of a known model, for `dpdl.models.planner`.

A model is given by rows in CSR form, one for each pair that may be chosen, with the rows of a state next to each other
(`first[s]` to `first[s + 1]`). A row holds the probabilities of the next states. Its sum may be less than one: with the
rest of the probability the episode ends, which is worth nothing. With

    ends(k) = 1 - gamma sum_s' P(s' | k) > 0        residual(k) = reward(k) + gamma sum_s' P(s' | k) V(s') - V(s)

a policy's value lies between V + min residual/ends and V + max residual/ends over the policy's rows, and the optimal
value lies below V + max residual/ends over all rows, since (I - gamma P)(V_pi - V - c) = residual - c ends, and the
inverse of I - gamma P is nonnegative.

The fixed policy's system V = b + M V is stored without its diagonal: rows of gamma P divided by 1 - gamma P(s | s).

Python validates and allocates; everything here trusts its inputs and runs without the GIL.
"""

from libc.math cimport INFINITY, fabs
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc


cdef inline double expected(const int64_t[::1] indptr, const int32_t[::1] indices, const double[::1] data,
                            const double[::1] V, Py_ssize_t k) noexcept nogil:
    """sum_s' P(s' | k) V(s')"""
    cdef Py_ssize_t i
    cdef double total = 0.0
    for i in range(indptr[k], indptr[k + 1]):
        total += data[i] * V[indices[i]]
    return total


def improve(const int64_t[::1] indptr, const int32_t[::1] indices, const double[::1] data, const int32_t[::1] first,
            const double[::1] reward, const double[::1] ends, double gamma, const double[::1] V, double[::1] best,
            int32_t[::1] policy):
    """Make a policy greedy for V, and write the greedy values to `best`.

    An action is replaced only by one that is strictly better, so ties do not make the policy change.

    Returns
    -------
    changed : int
        Number of states whose row changed.
    lower, upper : float
        Smallest residual/ends of the policy's rows, and largest one of all rows.
    """
    cdef:
        Py_ssize_t s, k, n = V.shape[0]
        int64_t changed = 0
        int32_t chosen
        double q, kept, top, ratio, lower = INFINITY, upper = -INFINITY
    with nogil:
        for s in range(n):
            chosen = policy[s]
            kept = top = -INFINITY
            for k in range(first[s], first[s + 1]):
                q = reward[k] + gamma * expected(indptr, indices, data, V, k)
                ratio = (q - V[s]) / ends[k]
                if ratio > upper:
                    upper = ratio
                if k == policy[s]:
                    kept = q
                if q > top:
                    top = q
                    chosen = <int32_t>k
            if top > kept and chosen != policy[s]:
                policy[s] = chosen
                changed += 1
            best[s] = top
            ratio = (top - V[s]) / ends[policy[s]]
            if ratio < lower:
                lower = ratio
    return changed, lower, upper


def improve_in_place(const int64_t[::1] indptr, const int32_t[::1] indices, const double[::1] data,
                     const int32_t[::1] first, const double[::1] reward, double gamma, double[::1] V,
                     int32_t[::1] policy, bint backward):
    """Set V to its greedy value in one state after another, and the policy to a greedy one.

    News from one state reaches all states behind it in one pass, where `improve` takes one pass for each move.
    """
    cdef:
        Py_ssize_t j, s, k, n = V.shape[0]
        int32_t chosen
        double q, kept, top
    with nogil:
        for j in range(n):
            s = n - 1 - j if backward else j
            chosen = policy[s]
            kept = top = -INFINITY
            for k in range(first[s], first[s + 1]):
                q = reward[k] + gamma * expected(indptr, indices, data, V, k)
                if k == policy[s]:
                    kept = q
                if q > top:
                    top = q
                    chosen = <int32_t>k
            if top > kept:
                policy[s] = chosen
            V[s] = top


def policy_rows(const int64_t[::1] indptr, const int32_t[::1] indices, const double[::1] data,
                const int32_t[::1] policy, double gamma, int64_t[::1] out_indptr, int32_t[::1] out_indices,
                double[::1] out_data, double[::1] scale):
    """Write the system of a policy: rows gamma P/(1 - gamma P(s | s)) without diagonal, and 1/(1 - gamma P(s | s)).

    `out_indices` and `out_data` must have room for the longest row of each state.
    """
    cdef:
        Py_ssize_t s, i, end, begin, n = policy.shape[0]
        int64_t used = 0
        double own
    with nogil:
        out_indptr[0] = 0
        for s in range(n):
            begin, end = indptr[policy[s]], indptr[policy[s] + 1]
            own = 0.0
            for i in range(begin, end):
                if indices[i] == s:
                    own += data[i]
            scale[s] = 1.0 / (1.0 - gamma * own)
            for i in range(begin, end):
                if indices[i] != s:
                    out_indices[used] = indices[i]
                    out_data[used] = gamma * data[i] * scale[s]
                    used += 1
            out_indptr[s + 1] = used


cdef inline void relax_state(const int64_t *indptr, const int32_t *indices, const double *data, const double *b,
                             double *X, Py_ssize_t s, Py_ssize_t m, double *row) noexcept nogil:
    """X[s] = b[s] + sum_i data[i] X[indices[i]], for m right-hand sides."""
    cdef Py_ssize_t i, j
    cdef const double *other
    for j in range(m):
        row[j] = b[s * m + j]
    for i in range(indptr[s], indptr[s + 1]):
        other = X + indices[i] * m
        for j in range(m):
            row[j] += data[i] * other[j]
    for j in range(m):
        X[s * m + j] = row[j]


cdef inline void relax_all(const int64_t *indptr, const int32_t *indices, const double *data, const double *b,
                           double *X, Py_ssize_t n, Py_ssize_t m, double *row, bint backward) noexcept nogil:
    cdef Py_ssize_t s
    if backward:
        for s in range(n - 1, -1, -1):
            relax_state(indptr, indices, data, b, X, s, m, row)
    else:
        for s in range(n):
            relax_state(indptr, indices, data, b, X, s, m, row)


def sweep(const int64_t[::1] indptr, const int32_t[::1] indices, const double[::1] data, const double[:, ::1] b,
          double[:, ::1] X, int n_sweeps):
    """Gauss-Seidel sweeps of X = b + M X, forward and backward in turn, for all right-hand sides together."""
    cdef:
        Py_ssize_t n = X.shape[0], m = X.shape[1]
        int k
        bint backward
        double *row = <double *>malloc(m * sizeof(double))
        const int64_t *p = &indptr[0]
        const int32_t *c = NULL
        const double *d = NULL
    if row == NULL:
        raise MemoryError
    if indices.shape[0] > 0:
        c, d = &indices[0], &data[0]
    with nogil:
        for k in range(n_sweeps):
            backward = k % 2 == 1
            # A constant m lets the compiler unroll the loops over right-hand sides.
            if m == 1:
                relax_all(p, c, d, &b[0, 0], &X[0, 0], n, 1, row, backward)
            elif m == 2:
                relax_all(p, c, d, &b[0, 0], &X[0, 0], n, 2, row, backward)
            elif m == 3:
                relax_all(p, c, d, &b[0, 0], &X[0, 0], n, 3, row, backward)
            elif m == 4:
                relax_all(p, c, d, &b[0, 0], &X[0, 0], n, 4, row, backward)
            else:
                relax_all(p, c, d, &b[0, 0], &X[0, 0], n, m, row, backward)
    free(row)


def residuals(const int64_t[::1] indptr, const int32_t[::1] indices, const double[::1] data, const double[:, ::1] b,
              const double[:, ::1] X, const double[::1] weight, const double[::1] mass, double[:, ::1] bounds):
    """Write what value[s] = (b + M X - X)[s] weight[s] comes to over the states into the rows of `bounds`.

    These are: minimum, maximum, sum of mass[s] value[s], sum of absolute values.
    """
    cdef:
        Py_ssize_t s, i, j, n = X.shape[0], m = X.shape[1]
        double value
        double *row = <double *>malloc(m * sizeof(double))
    if row == NULL:
        raise MemoryError
    with nogil:
        for j in range(m):
            bounds[0, j] = INFINITY
            bounds[1, j] = -INFINITY
            bounds[2, j] = bounds[3, j] = 0.0
        for s in range(n):
            for j in range(m):
                row[j] = b[s, j]
            for i in range(indptr[s], indptr[s + 1]):
                for j in range(m):
                    row[j] += data[i] * X[indices[i], j]
            for j in range(m):
                value = (row[j] - X[s, j]) * weight[s]
                if value < bounds[0, j]:
                    bounds[0, j] = value
                if value > bounds[1, j]:
                    bounds[1, j] = value
                bounds[2, j] += mass[s] * value
                bounds[3, j] += fabs(value)
    free(row)
