"""Extras: the record of them against what is installed, and what a missing one says."""

from __future__ import annotations

import re

import tomllib

from ibert_tvm.common.extras import (
    BASE,
    EXTRAS,
    Extra,
    MissingExtraError,
    as_missing_extra,
    extra_of,
)
from tests.processes import ROOT

# For who works on the project; `ibert doctor` is silent about them.
FOR_DEVELOPERS = {"bench", "dev", "docs", "fuzz", "verify"}


def _extra(requirements: list[str]) -> tuple[set[str], set[str]]:
    """Distributions of an extra in pyproject.toml, and the extras that it includes."""
    names = {re.sub(r"[-_.]+", "-", re.split(r"[<>=;\[ ]", r)[0]).lower() for r in requirements}
    included = re.findall(r"ibert-tvm\[([\w,]+)\]", " ".join(requirements))
    return names - {"ibert-tvm"}, {each for group in included for each in group.split(",")}


def test_the_record_says_what_pyproject_does() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    written = project["optional-dependencies"]
    users = {name: _extra(found) for name, found in written.items()}
    assert set(users) == set(EXTRAS) | FOR_DEVELOPERS
    for name, extra in EXTRAS.items():
        assert (set(extra.distributions), set(extra.includes)) == users[name], name
    compiler = set(EXTRAS["compiler"].distributions)
    assert _extra(project["dependencies"])[0] == set(BASE)
    assert not compiler & set(BASE)


def test_every_extra_enables_something_and_says_how_to_have_it() -> None:
    for extra in EXTRAS.values():
        assert extra.enables and extra.install == f"pip install 'ibert-tvm[{extra.name}]'"
    absent = Extra("x", "nothing", ("numpy", "no-such-package"), ("report",))
    assert absent.missing() == ["no-such-package"]


def test_a_module_is_traced_to_the_extra_that_brings_it() -> None:
    found = {
        module: extra_of(module)
        for module in ("tvm", "tvm.relax", "tvm_ffi", "markupsafe", "fastapi", "ml_dtypes", "numpy")
    }
    names = [None if extra is None else extra.name for extra in found.values()]
    assert names == ["compiler", "compiler", "compiler", "report", "run", "compiler", None]


def test_a_failed_import_of_an_extra_is_one_line_and_any_other_is_a_defect() -> None:
    error = as_missing_extra(ModuleNotFoundError("No module", name="tvm.relax"), "ibert compile")
    assert isinstance(error, MissingExtraError)
    assert str(error) == (
        "ibert compile needs tvm, which is not installed: pip install 'ibert-tvm[compiler]'"
    )
    for other in (ModuleNotFoundError("x", name="ibert_tvm.none"), ModuleNotFoundError("y")):
        assert as_missing_extra(other, "x") is other


def test_makefile_and_documents_name_extras_that_there_are() -> None:
    named = {"torch"}
    files = [
        ROOT / "Makefile",
        ROOT / ".ci" / "run",
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
    ]
    for file in files:
        text = file.read_text(encoding="utf-8")
        for group in re.findall(r"(?:EXTRAS :?= ?|EXTRAS=|whl\)\[|ibert-tvm\[)([\w,]+)", text):
            named |= set(group.split(","))
    assert {"run", "serve", "cuda", "dev"} < named <= set(EXTRAS) | FOR_DEVELOPERS
