"""Model folders as they are published: what their own library gives, or a refusal by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.common.errors import IbertError
from ibert_tvm.common.registry import import_modules
from tests.conformance import layouts
from tests.conformance.evaluated import evaluated_encoder
from tests.conformance.layout import LAYOUTS
from tests.snapshots import Messages

import_modules(layouts.__path__, layouts.__name__)


@pytest.mark.representatives(2)
@pytest.mark.slow_cases(3)
@pytest.mark.parametrize("name", [one.name for one in LAYOUTS.records.values() if one.default])
def test_one_folder_of_each_head(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS.records[name]
    layout.write(tmp_path)
    assert layout.compare is not None
    layout.compare(tmp_path, evaluated_encoder(tmp_path, layout.head, layout.pairs))


@pytest.mark.slow_cases(12)
@pytest.mark.slow
@pytest.mark.parametrize("name", [one.name for one in LAYOUTS.records.values() if not one.default])
def test_a_folder_gives_what_its_library_gives(
    name: str, tmp_path: Path, messages: Messages
) -> None:
    layout, folder = LAYOUTS.records[name], tmp_path / "model"
    folder.mkdir()
    layout.write(folder)
    if layout.compare is None:
        with messages.raises(IbertError):
            evaluated_encoder(folder, layout.head, layout.pairs)
    else:
        layout.compare(folder, evaluated_encoder(folder, layout.head, layout.pairs))
