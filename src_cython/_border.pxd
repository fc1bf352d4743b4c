"""The border of Python: pointers to the data of arrays whose kind and size were checked, and the model of a layout."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport uint8_t
from numpy.random cimport bitgen_t

from _model cimport Head, Model, Utility


cdef inline void *data_of(object array, object dtype, Py_ssize_t n) except? NULL:
    """The address of n contiguous elements of a dtype."""
    if array.dtype != dtype or array.size != n or not array.flags.c_contiguous:
        raise TypeError(f"expected {n} contiguous elements of {dtype}, got {array.dtype} of shape {array.shape}")
    return <void *> <size_t> array.ctypes.data


cdef inline bitgen_t *bits_of(object bit_generator) except NULL:
    return <bitgen_t *> PyCapsule_GetPointer(bit_generator.capsule, "BitGenerator")


cdef inline int read_model(Model *m, object layout, object utilities) except -1:
    """Fill in a model; `utilities` are rows of Utility, which the caller must keep, like the layout."""
    cdef const uint8_t[:, :] records = layout.records      # rows may be strided: a log can be a slice with a step
    constants = layout.constants
    n = utilities["column"].max(initial=-1) + 1
    if records.strides[1] != 1 or records.shape[1] < sizeof(Head) + n * sizeof(double):
        raise TypeError(f"records of {records.shape[1]} bytes do not hold {n} columns")
    m.records = <const char *> &records[0, 0]
    m.stride = records.strides[0]
    m.n_utilities = len(utilities)
    m.utility = <const Utility *> data_of(utilities, utilities.dtype, len(utilities))
    m.reward_slope = constants.affine.reward_slope
    m.gamma = constants.gamma
    m.margin = constants.margin
    m.end_margin = constants.end_margin
    m.rate_V = constants.rate_V
    m.rate_lam = constants.rate_lam
    m.rate_x = constants.rate_x
    m.radius_V = constants.radius_V
    m.radius_lam = constants.radius_lam
    m.B1 = constants.B1
    m.B2 = constants.B2
    m.c_min = layout.coordinates.c.min()
    return 0
