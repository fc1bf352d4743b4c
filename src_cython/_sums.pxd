"""Compensated sums that change by one term at a time."""

ctypedef struct Sum:
    double high     # the rounded sum
    double low      # accumulated rounding error


cdef inline void add(Sum *s, double term) noexcept nogil:
    """Knuth's two-sum: high + low is the exact sum to within (number of terms) eps^2 sum|term| + eps |sum|."""
    cdef double total = s.high + term
    cdef double taken = total - s.high
    s.low += (s.high - (total - taken)) + (term - taken)
    s.high = total


cdef inline double value(const Sum *s) noexcept nogil:
    return s.high + s.low


cdef inline void reset(Sum *s, double total) noexcept nogil:
    s.high = total
    s.low = 0.0
