"""An artefact that is not what its model gives is found, whatever in it was changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ibert_tvm.common.errors import LibraryError, TargetError
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.verification import artefacts, verify
from ibert_tvm.verification.artefacts import CompiledLibrary, check_derived
from tests.artefact.conftest import make_quantized
from tests.cache import compiled_once

from .mutants import CHANGES, Mutants, rewritten


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_quantized().save(tmp_path_factory.mktemp("derived") / "tiny.ibert")


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    return compiled_once(QuantizedModel.load(folder), "x86-64", [(1, 8)], runtime="none")


@pytest.fixture(scope="module")
def again(library: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the model gives, made once for all mutants."""
    compiled = CompiledLibrary(library, False, None, None)
    return compiled.made_again(QuantizedModel.load(folder), tmp_path_factory.mktemp("again"))


def _findings(path: Path, folder: Path) -> tuple[str, ...]:
    certificate = verify(path, folder, inputs=1)
    (check,) = (check for check in certificate.checks if check.name == "made from the model")
    return check.findings


def _scale(document: Any) -> None:
    document["outputs"][0]["scale"] *= 100


def _padding(document: Any) -> None:
    document["info"]["pad_token_id"] = 3


def _label(document: Any) -> None:
    document["info"]["prompts"] = {"query": "x"}


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (_scale, "outputs[0].scale is 3.125, and the model gives 0.03125"),
        (_padding, "info.pad_token_id is 3, and the model gives 0"),
        (_label, "info.prompts is there, and the model gives none"),
    ],
    ids=["scale", "padding", "prompt"],
)
def test_metadata(
    library: Path, folder: Path, tmp_path: Path, change: Callable[[Any], None], finding: str
) -> None:
    changed = rewritten(library, tmp_path / "changed.so", change)
    assert finding in _findings(changed, folder)


@pytest.mark.slow
def test_a_row_of_the_table_and_exchanged_words(
    library: Path, folder: Path, tmp_path: Path
) -> None:
    mutants = Mutants(library)
    weights = mutants.write(CHANGES["weights"], 1, tmp_path / "weights.so")
    assert "the weights emb.weight are not the model's" in _findings(weights, folder)
    words = mutants.write(CHANGES["tokenizer"], 1, tmp_path / "words.so")
    assert any(f.startswith("tokenizer.vocab.txt is ") for f in _findings(words, folder))


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize(
    "count",
    [2, pytest.param(60, marks=pytest.mark.slow), pytest.param(3400, marks=pytest.mark.record)],
)
def test_no_mutant_passes(
    library: Path,
    again: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    count: int,
) -> None:
    """Each is refused when it is read, or differs from what the model gives."""
    model, mutants = QuantizedModel.load(folder), Mutants(library)
    monkeypatch.setattr(CompiledLibrary, "made_again", lambda *_: again)
    for seed in range(count):
        path = mutants.write(CHANGES[kind], seed, tmp_path / "mutant.so")
        try:
            compiled = CompiledLibrary(path, False, None, None)
        except LibraryError:
            continue
        check = check_derived(compiled, model, tmp_path)
        assert check.findings and not check.passed, (kind, seed)


def test_other_compilers_and_missing_ones_are_no_finding(
    library: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where code cannot be compared, the certificate is not complete."""
    model = QuantizedModel.load(folder)
    compiled = CompiledLibrary(library, False, None, None)
    other = Mutants(library).write(CHANGES["code"], 0, tmp_path / "other.so")
    monkeypatch.setattr(CompiledLibrary, "made_again", lambda *_: other)
    names = iter([{"GCC: (other) 1.0"}, {"GCC: (this) 2.0"}])
    monkeypatch.setattr(artefacts, "_compilers", lambda _: next(names))
    check = check_derived(compiled, model, tmp_path)
    assert not check.findings and "made by GCC: (this) 2.0" in check.not_run

    def missing(*_: object) -> Path:
        raise TargetError("there is no gcc")

    monkeypatch.setattr(CompiledLibrary, "made_again", missing)
    assert check_derived(compiled, model, tmp_path).not_run == "there is no gcc"
