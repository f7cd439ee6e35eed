"""Shapes that an artefact lists are refused before anything is compiled or run for them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ibert_tvm.common.errors import VerificationError
from ibert_tvm.verification import artefacts, verify
from ibert_tvm.verification.checks import check_amount
from tests.artefact.conftest import make_quantized
from tests.snapshots import Messages


@pytest.mark.parametrize(
    "shapes",
    [[(1, 8)] * 65, [(4, 2), (10**12, 8)], [(2040, 8)] * 5, [(1, 100)]],
    ids=["many", "large", "together", "longer than the model"],
)
def test_shapes_that_are_too_much(shapes: list[tuple[int, int]], messages: Messages) -> None:
    model = make_quantized()
    assert model.info.max_sequence_length < 100
    with messages.raises(VerificationError):
        check_amount(shapes, model)


def test_nothing_is_compiled_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_quantized()
    listed = SimpleNamespace(shapes=[(1, 8)] * 100_000, facts={}, info=model.info)
    monkeypatch.setattr(artefacts, "CompiledLibrary", lambda *_: listed)
    (tmp_path / "hostile.so").write_bytes(b"")
    with pytest.raises(VerificationError):
        verify(tmp_path / "hostile.so", model.save(tmp_path / "tiny.ibert"))
