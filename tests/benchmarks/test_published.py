"""Figures in the documents are those that were measured, and those are of now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ibert_tvm as ibert
from benchmarks.arm.kernels import CASES
from benchmarks.arm.models import SPECS, count_model, quantise
from benchmarks.arm.published import FIGURES, ROOT, Figure, rewritten, stored, whole_models
from benchmarks.arm.running import count_kernel
from benchmarks.models import Cell, calibration_texts, model_folder
from ibert_tvm.targets.processors import PROCESSORS
from tests.arm.tools import board, needs


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.pattern[:30])
def test_documents_have_the_measured_figures(figure: Figure) -> None:
    """`python -m benchmarks.arm.published` writes them."""
    text = (ROOT / figure.document).read_text(encoding="utf-8")
    assert rewritten(text, figure, stored()) == text


def test_a_stale_figure_is_replaced_and_a_lost_sentence_refused() -> None:
    figure = Figure("page", r"takes (\d+) of (\d+)", lambda results: results["values"])
    text = "It takes 1 of 22, all in all."
    assert rewritten(text, figure, {"values": ["333", "4"]}) == "It takes 333 of 4, all in all."
    for wrong in ("It takes none.", f"{text} {text}"):
        with pytest.raises(ValueError, match="page: "):
            rewritten(wrong, figure, {"values": ["333", "4"]})


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of quantised models."""
    return tmp_path_factory.mktemp("models")


WHOLE_MODELS = {one[0]: one for one in whole_models(stored())}


@pytest.mark.record
@pytest.mark.parametrize("what", WHOLE_MODELS)
def test_the_published_counts_are_those_of_now(what: str, cache: Path) -> None:
    _what, target, number, again = WHOLE_MODELS[what]
    board(target)
    needs("llvm-objdump")
    assert again(cache) == pytest.approx(number, rel=0.002)


KERNELS = stored()["arm"]["kernels"]
BARE = [
    one.name for one in PROCESSORS if one.emulator and one.elf_machine and one.system != "linux"
]


def published_kernels() -> Iterator[dict[str, Any]]:
    """On each processor without a system the matrix product, and the kernel counted soonest."""
    for name in BARE:
        rows = [row for row in KERNELS if row["target"] == name]
        yield from (row for row in rows if row["kernel"] == CASES[0].name)
        yield from sorted(rows, key=lambda row: row["seconds"])[:1]


@pytest.mark.slow
@pytest.mark.slow_cases(100)
@pytest.mark.parametrize(
    "row", published_kernels(), ids=lambda row: f"{row['target']} {row['kernel']}"
)
def test_kernels_take_the_published_counts(row: dict[str, Any]) -> None:
    """A change of a kernel makes tables stale: `python -m benchmarks.arm` counts again."""
    target = board(row["target"])
    needs("llvm-objdump")
    (case,) = (case for case in CASES if case.name == row["kernel"])
    counts = count_kernel(case.build(target), target)
    assert counts.instructions == pytest.approx(row["instructions"], rel=0.002)
    assert counts.floating_point == row["floating_point"] == 0


BORROWED = [name for name in BARE if not any(row["target"] == name for row in KERNELS)]


@pytest.mark.slow
@pytest.mark.parametrize("name", BORROWED)
def test_processors_with_the_code_of_others_execute_no_floating_point(name: str) -> None:
    target = board(name)
    needs("llvm-objdump")
    counts = count_kernel(CASES[0].build(target), target)
    assert counts.instructions > 0
    assert counts.floating_point == counts.unknown == 0


@pytest.mark.record
@pytest.mark.parametrize("name", BORROWED)
def test_models_with_the_code_of_others_execute_no_floating_point(name: str, cache: Path) -> None:
    needs("llvm-objdump")
    target, spec = board(name), SPECS["bert-tiny"]
    counted = count_model(spec.name, quantise(spec, cache), Cell(1, 32), target)
    assert counted["floating_point"] == counted["unknown"] == 0


def test_tables_and_documents_were_measured_with_the_same_code() -> None:
    results = stored()
    rows = {
        row["target"]: row["instructions"]
        for row in results["arm"]["models"]
        if (row["model"], row["shape"]) == ("minilm", "1x32")
    }
    published = results["published"]
    counts = {name: counts["32"] for name, counts in published["minilm"].items()}
    counts |= dict(zip(("rv64gc", "rv64gcv"), published["riscv64"]["minilm"], strict=False))
    for target, number in counts.items():
        assert rows[target] == pytest.approx(number, rel=0.002), target


@pytest.mark.record
def test_fast_models_take_fewer_instructions_on_a_cortex_m55(cache: Path) -> None:
    """Epilogues keep their vectors, whatever the calibration."""
    spec, target = SPECS["minilm"], board("cortex-m55")
    needs("llvm-objdump")
    source, texts = ibert.load(model_folder(spec, cache)), calibration_texts()
    counts = []
    for fidelity in ("fast", "default"):
        path = cache / f"{fidelity}.ibert"
        ibert.quantize(source, calibration=texts, fidelity=fidelity).save(path)
        counts.append(count_model(fidelity, path, Cell(1, 32), target)["instructions"])
    fast, default = counts
    assert fast <= default <= 51_000_000
