"""Some damaged files for each reader; ``python -m tests.fuzz`` reads as many as one wants."""

from __future__ import annotations

import pytest

from tests.fuzz.readers import READERS
from tests.fuzz.run import fuzz

# What imports transformers or ONNX Runtime, or compiles, reads a few files a second.
_LONG = ("import", "onnx")
_SECONDS = {"compile": 6, "import": 60, "onnx": 60}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=getattr(pytest.mark, "record" if name in _LONG else "slow"))
        for name in READERS
    ],
)
def test_damaged_files(name: str) -> None:
    result = fuzz(name, _SECONDS.get(name, 3))
    assert result["findings"] == []
    assert result["cases"] > 0 and result["cases"] == result["refused"] + result["accepted"]


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of another kind, a change that nobody notices."""
    from dataclasses import replace

    from tests.fuzz import worker

    reader = READERS["texts"]

    def broken(_folder: object) -> object:
        raise KeyError("x")

    monkeypatch.setitem(READERS, "texts", replace(reader, read=broken))
    assert worker.read_case("texts", 0).endswith("KeyError: 'x'\n")
    silent = replace(reader, repair=lambda files, _: files, read=lambda folder: folder)
    monkeypatch.setitem(READERS, "texts", silent)
    found = {worker.read_case("texts", number).partition(":")[0] for number in range(20)}
    assert found == {"accepted", "a change was not noticed"}
