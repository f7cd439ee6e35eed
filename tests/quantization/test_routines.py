"""Routines of BLAS and LAPACK: SciPy's results to the bit, while other threads go on."""

from __future__ import annotations

import _ctypes

import numpy as np
import pytest
from scipy.linalg import get_blas_funcs, lapack

from ibert_tvm.quantization import routines
from ibert_tvm.quantization.routines import inverse_of_upper, second_moments


def _upper(size: int) -> np.ndarray:
    random = np.random.default_rng(3)
    return np.asfortranarray(np.triu(random.standard_normal((size, size))) + size * np.eye(size))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (300, 70)])
def test_second_moments_are_those_of_scipy(shape: tuple[int, int], dtype: str) -> None:
    rows = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    result = second_moments(rows)
    np.testing.assert_array_equal(result, get_blas_funcs("syrk", (rows,))(1.0, rows.T))
    np.testing.assert_array_equal(second_moments(np.asfortranarray(rows)), result)
    assert result.dtype == dtype and result.flags.f_contiguous


@pytest.mark.parametrize("size", [1, 5, 90])
def test_the_inverse_is_that_of_scipy(size: int) -> None:
    expected, _ = lapack.dtrtri(_upper(size))
    np.testing.assert_array_equal(inverse_of_upper(_upper(size)), expected)


def test_what_has_no_inverse_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="no inverse"):
        inverse_of_upper(np.zeros((2, 2), order="F"))
    with pytest.raises(TypeError, match="Fortran"):
        inverse_of_upper(np.arange(4.0).reshape(2, 2))


def test_other_threads_go_on_meanwhile() -> None:
    for routine in (*routines._syrk.values(), routines._trtri):
        assert not routine._flags_ & _ctypes.FUNCFLAG_PYTHONAPI  # which keeps Python's lock
