"""Packages of optional extras: their tests are skipped where these are missing, but not in CI."""

from __future__ import annotations

import importlib.util
import os

import pytest


def needs(package: str) -> None:
    """Skip a test without a package, of the extras ``serve``, ``mteb``, ``ray`` and ``dev``.

    `.ci/run` installs these extras and sets ``CI``, so that there nothing is skipped for want of
    them.
    """
    top = package.partition(".")[0]
    missing = importlib.util.find_spec(top) is None or importlib.util.find_spec(package) is None
    if missing and os.environ.get("CI"):
        pytest.fail(f"{package} is not installed, which .ci/run was to do")
    if missing:
        pytest.skip(f"{package} is not installed (extra serve, adapters, mteb, ray or dev)")
