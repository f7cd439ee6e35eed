"""A whole small BERT, compiled without runtime for this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.arm.small_bert import small_bert
from tests.cache import compiled_in_memory_once
from tests.targets.aot.bare_bert import SHAPES

if TYPE_CHECKING:
    from ibert_tvm.compiler import CompiledModel
    from ibert_tvm.model.artefact import QuantizedModel


@pytest.fixture(scope="session")
def quantized() -> QuantizedModel:
    return small_bert(layers=1)


@pytest.fixture(scope="session")
def compiled(quantized: QuantizedModel) -> CompiledModel:
    """It, compiled without runtime for this machine, in several shapes."""
    return compiled_in_memory_once(quantized, "host", SHAPES)


@pytest.fixture(scope="session")
def library_path(compiled: CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, with its header beside it."""
    return compiled.export(tmp_path_factory.mktemp("bare") / "model.so")
