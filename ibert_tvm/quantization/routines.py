"""Routines of SciPy's BLAS and LAPACK during which other threads go on.

SciPy's functions of the same names hold Python's lock while they compute: of two threads that
quantise, one would wait.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cython_blas, cython_lapack

_name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
# All arguments of Fortran are addresses.
_SYRK = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 10)
_POTRF = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)
_UPPER, _LOWER, _PLAIN = (ctypes.c_char(letter) for letter in (b"U", b"L", b"N"))


def _address(routines: Mapping[str, object], name: str) -> int:
    capsule = routines[name]
    return int(_pointer_of(capsule, _name_of(capsule)))


_syrk = {
    np.dtype(dtype): _SYRK(_address(cython_blas.__pyx_capi__, name))
    for dtype, name in (("float32", "ssyrk"), ("float64", "dsyrk"))
}
_potrf = {
    np.dtype(dtype): _POTRF(_address(cython_lapack.__pyx_capi__, name))
    for dtype, name in (("float32", "spotrf"), ("float64", "dpotrf"))
}


def second_moments(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    """Upper half of ``rows^T rows``.

    Parameters
    ----------
    rows
        float32 or float64 [n, K].

    Returns
    -------
    numpy.ndarray
        [K, K] of the same type, in Fortran's order, 0 below the diagonal.
    """
    rows = np.ascontiguousarray(rows)
    result = np.zeros((rows.shape[1],) * 2, rows.dtype, order="F")
    number = np.ctypeslib.as_ctypes_type(rows.dtype)
    one, zero = number(1), number(0)
    size, count = ctypes.c_int(rows.shape[1]), ctypes.c_int(rows.shape[0])
    sizes, scaled = (ctypes.byref(size), ctypes.byref(count)), ctypes.byref(one)
    _syrk[rows.dtype](
        *(ctypes.byref(_UPPER), ctypes.byref(_PLAIN), *sizes, scaled),
        *(rows.ctypes.data, sizes[0], ctypes.byref(zero), result.ctypes.data, sizes[0]),
    )
    return result


def cholesky_factor(matrix: NDArray[np.floating]) -> NDArray[np.floating]:
    """Lower factor L of a positive definite matrix L L^T, [K, K] in Fortran's order.

    The lower half of the matrix, float32 or float64, is read, and overwritten; the upper one is
    left as it is.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is not positive definite.
    """
    if not (matrix.flags.f_contiguous and matrix.dtype in _potrf):
        raise TypeError("a matrix of floats in Fortran's order is overwritten")
    size, failed = ctypes.c_int(matrix.shape[0]), ctypes.c_int(0)
    _potrf[matrix.dtype](
        *(ctypes.byref(_LOWER), ctypes.byref(size)),
        *(matrix.ctypes.data, ctypes.byref(size), ctypes.byref(failed)),
    )
    if failed.value:
        raise np.linalg.LinAlgError("a matrix is not positive definite")
    return matrix
