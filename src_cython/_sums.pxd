"""Sums that change by one term at a time, kept without drift."""

from libc.math cimport fabs

ctypedef struct Sum:
    double high     # the rounded sum
    double low      # what rounding took from it so far


cdef inline void add(Sum *s, double term) noexcept nogil:
    """Neumaier's update: high + low is the exact sum to within (number of terms) eps^2 sum|term| + eps |sum|."""
    cdef double total = s.high + term
    if fabs(s.high) >= fabs(term):
        s.low += (s.high - total) + term
    else:
        s.low += (term - total) + s.high
    s.high = total


cdef inline double value(const Sum *s) noexcept nogil:
    return s.high + s.low


cdef inline void reset(Sum *s, double total) noexcept nogil:
    s.high = total
    s.low = 0.0
