"""Routines of BLAS and LAPACK: SciPy's results to the bit, while other threads go on."""

from __future__ import annotations

import _ctypes

import numpy as np
import pytest
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from ibert_tvm.quantization import routines
from ibert_tvm.quantization.routines import cholesky_factor, second_moments


def _definite(size: int) -> np.ndarray:
    rows = np.random.default_rng(3).standard_normal((size + 3, size))
    return np.asfortranarray(rows.T @ rows)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (300, 70)])
def test_second_moments_are_those_of_scipy(shape: tuple[int, int], dtype: str) -> None:
    rows = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    result = second_moments(rows)
    np.testing.assert_array_equal(result, get_blas_funcs("syrk", (rows,))(1.0, rows.T))
    np.testing.assert_array_equal(second_moments(np.asfortranarray(rows)), result)
    assert result.dtype == dtype and result.flags.f_contiguous


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 5, 90])
def test_the_factor_is_that_of_scipy(size: int, dtype: str) -> None:
    matrix = _definite(size).astype(dtype)
    expected, _ = get_lapack_funcs("potrf", (matrix,))(matrix, lower=1, clean=0)
    np.testing.assert_array_equal(cholesky_factor(matrix), expected)


def test_what_has_no_factor_is_refused() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        cholesky_factor(np.zeros((2, 2), order="F"))
    with pytest.raises(TypeError, match="Fortran"):
        cholesky_factor(np.arange(4.0).reshape(2, 2))
    with pytest.raises(TypeError, match="floats"):
        cholesky_factor(np.eye(2, dtype=np.int64, order="F"))


def test_other_threads_go_on_meanwhile() -> None:
    for routine in (*routines._syrk.values(), *routines._potrf.values()):
        assert not routine._flags_ & _ctypes.FUNCFLAG_PYTHONAPI  # which keeps Python's lock
