"""Running a library: exact results for any batch and length, one copy of the weights, threads."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ibert_tvm
from ibert_tvm.common.errors import InputError, UsageError
from ibert_tvm.runtime import IntegerOutput, Library, load_library
from ibert_tvm.runtime.threads import container_processors, physical_cores
from tests.processes import run_captured
from tests.snapshots import Messages

from .conftest import CHANNELS, VOCABULARY, TinyModel


@pytest.fixture(scope="module")
def library(library_path: Path) -> Library:
    return load_library(library_path, num_threads=1)


def _inputs(batch: int, length: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    mask = (np.arange(length) < rng.integers(0, length + 1, (batch, 1))).astype(np.int64)
    return {
        "input_ids": rng.integers(0, len(VOCABULARY), (batch, length)),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, (batch, length)),
    }


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16])
def test_any_batch_and_length_gives_exactly_the_reference(
    library: Library, tiny: TinyModel, batch: int, length: int
) -> None:
    inputs = _inputs(batch, length)
    outputs = library.run(**inputs, dequantize=False)
    expected = tiny.reference(*inputs.values())
    assert list(outputs) == ["hidden", "embedding"]
    for name, scale in (("hidden", 0.5), ("embedding", 0.25)):
        assert outputs[name].scale == scale
        assert outputs[name].values.dtype == np.int32
        np.testing.assert_array_equal(outputs[name].values, expected[name])


def test_dequantized_outputs_are_integers_times_scale(library: Library) -> None:
    inputs = _inputs(3, 5)
    integers = library.run(**inputs, dequantize=False)
    reals = library.run(**inputs)
    for name, output in integers.items():
        assert isinstance(output, IntegerOutput)
        assert reals[name].dtype == np.float32
        expected = (output.values.astype(np.float64) * output.scale).astype(np.float32)
        np.testing.assert_array_equal(reals[name], expected)


def test_mask_defaults_to_ones_and_types_to_zeros(library: Library) -> None:
    ids = _inputs(2, 6)["input_ids"]
    plain = library.run(ids)
    given = library.run(ids, np.ones_like(ids), np.zeros_like(ids))
    for name in plain:
        np.testing.assert_array_equal(plain[name], given[name])


@pytest.mark.parametrize("kind", ["list", "bool mask", "uint8", "not contiguous"])
def test_input_forms_are_equivalent(library: Library, kind: str) -> None:
    inputs = _inputs(3, 7, seed=1)
    expected = library.run(**inputs)
    given: dict[str, Any] = {
        "list": lambda: {name: a.tolist() for name, a in inputs.items()},
        "bool mask": lambda: {**inputs, "attention_mask": inputs["attention_mask"] == 1},
        "uint8": lambda: {name: a.astype(np.uint8) for name, a in inputs.items()},
        "not contiguous": lambda: {name: np.asfortranarray(a) for name, a in inputs.items()},
    }[kind]()
    for name, array in library.run(**given).items():
        np.testing.assert_array_equal(array, expected[name])


def test_padding_ids_are_those_of_the_model(tmp_path: Path) -> None:
    """The table row of the padding id shows in no output, but a wrong id would shift positions."""
    model = TinyModel(shapes=((1, 8),), pad_token_id=5)
    library = load_library(model.build(tmp_path / "padded.so"), num_threads=1)
    seen: list[NDArray[Any]] = []
    with library.contexts.lent() as context:  # the one that the call below gets, too
        functions = context.functions
    function = functions["main_b1_s8"]

    def spy(ids: Any, *rest: Any) -> Any:
        seen.append(np.from_dlpack(ids).copy())
        return function(ids, *rest)

    functions["main_b1_s8"] = spy
    library.run([[4, 4]])
    np.testing.assert_array_equal(seen[0], [[4, 4, 5, 5, 5, 5, 5, 5]])


def test_parameters_are_views_of_the_mapped_file(library: Library, tiny: TinyModel) -> None:
    base = ctypes.addressof(ctypes.c_char.in_dll(library.engine._shared_object, "ibert_weights"))
    records = library.metadata.parameters
    assert [record.name for record in records] == ["table", "bias"]
    for record, tensor in zip(records, library.engine.tensors, strict=True):
        assert np.from_dlpack(tensor).ctypes.data == base + record.offset
        assert (base + record.offset) % 64 == 0
    np.testing.assert_array_equal(library.parameters["table"], tiny.table)
    np.testing.assert_array_equal(library.parameters["bias"], tiny.bias)
    with pytest.raises(ValueError, match="read-only"):
        library.parameters["table"][0, 0] = 1


def test_texts_run_with_the_embedded_tokenizer(library: Library, tiny: TinyModel) -> None:
    outputs = library.run_texts(["Hello small world", "big"], dequantize=False)
    ids = np.array([[2, 4, 6, 5, 3], [2, 7, 3, 0, 0]])
    mask = (ids != 0).astype(np.int64)
    expected = tiny.reference(ids, mask, np.zeros_like(ids))
    np.testing.assert_array_equal(outputs["embedding"].values, expected["embedding"])
    assert outputs["hidden"].values.shape == (2, 5, CHANNELS)


def test_tokens_run_as_texts_do(library: Library) -> None:
    texts = ["hello world", "small", "big " * 12]
    batch = library.encode(texts)
    expected = library.run_texts(texts)
    for name, array in library.run_tokens(batch).items():
        np.testing.assert_array_equal(array, expected[name])
    assert library.tokenizer is not None
    with pytest.raises(InputError, match="input_ids is too long"):
        library.run_tokens(library.tokenizer.encode(["big " * 20], max_length=99))


def test_short_texts_do_not_run_at_the_length_of_a_long_one(
    library: Library, tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []
    run = library.run

    def spy(**arguments: Any) -> dict[str, Any]:
        seen.append(arguments["input_ids"].shape)
        return run(**arguments)

    monkeypatch.setattr(library, "run", spy)
    texts = ["big", "small " * 12, "hello world"]
    outputs = library.run_texts(texts, dequantize=False)
    assert seen == [(2, 8), (1, 14)]
    batch = library.encode(texts)
    expected = tiny.reference(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    np.testing.assert_array_equal(outputs["embedding"].values, expected["embedding"])
    assert outputs["hidden"].values.shape == (3, 14, CHANNELS)
    real = batch.attention_mask == 1
    np.testing.assert_array_equal(outputs["hidden"].values[real], expected["hidden"][real])
    assert not outputs["hidden"].values[0, 8:].any()


def test_long_text_is_cut_off_with_a_warning(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        outputs = library.run_texts(["big " * 30, "big"])
    assert outputs["hidden"].shape == (2, 16, CHANNELS)
    assert caplog.messages == [
        "1 of 2 texts were cut off at 16 tokens (text 0), the longest length compiled; "
        "compile with a larger --seq-len to keep them whole"
    ]


def test_module_run_loads_once_and_again_when_the_file_changes(tmp_path: Path) -> None:
    model = TinyModel(shapes=((1, 8),))
    path = model.build(tmp_path / "model.so")
    first = ibert_tvm.run(path, input_ids=[[4, 5]])
    np.testing.assert_array_equal(
        first["embedding"], ibert_tvm.run(path, input_ids=[[4, 5]])["embedding"]
    )
    changed = [{**o, "scale": o["scale"] * 2} for o in model.metadata["outputs"]]
    TinyModel(shapes=((1, 8),), metadata_changes={"outputs": changed}).build(path)
    second = ibert_tvm.run(path, input_ids=[[4, 5]])
    np.testing.assert_array_equal(second["embedding"], 2 * first["embedding"])


def test_module_run_names_the_inputs_it_knows(messages: Messages) -> None:
    with messages.raises(InputError):
        ibert_tvm.run("model.so", ids=[[1]])


@pytest.mark.slow
def test_number_of_threads(library_path: Path, messages: Messages) -> None:
    script = (
        "import os, sys, ibert_tvm\n"
        "usable = os.sched_getaffinity(0)\n"
        "for count in (2, 1, None):\n"
        "    lib = ibert_tvm.load_library(sys.argv[1], num_threads=count)\n"
        "    lib.run([[1]])\n"
        "    print(lib.num_threads)\n"
        "    assert os.sched_getaffinity(0) == usable, 'the process was pinned'\n"
    )
    done = run_captured(
        [sys.executable, "-c", script, str(library_path)],
        check=True,
        env={key: value for key, value in os.environ.items() if not key.endswith("NUM_THREADS")},
    )
    default = str(min(physical_cores(os.sched_getaffinity(0)), container_processors() or 1 << 20))
    assert done.stdout.split() == ["2", "1", default]
    with messages.raises(UsageError):
        load_library(library_path, num_threads=0)


@pytest.mark.parametrize(
    ("content", "processors"),
    [("max 100000\n", None), ("250000 100000\n", 2), ("50000 100000\n", 1), ("?", None)],
)
def test_quota_of_a_container(tmp_path: Path, content: str, processors: int | None) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(content)
    assert container_processors(quota) == processors
    assert container_processors(tmp_path / "missing") is None


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for number, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (topology := tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    assert [physical_cores(usable, tmp_path) for usable in (range(4), (0, 2), (1,))] == [2, 1, 1]
    assert physical_cores((0, 1), tmp_path / "missing") == 2


_BAD_INPUTS = {
    "rank": {"input_ids": [1, 2]},
    "empty batch": {"input_ids": np.zeros((0, 3), np.int64)},
    "float": {"input_ids": [[1.0, 2.0]]},
    "id too large": {"input_ids": [[1, 2], [3, 8]]},
    "id negative": {"input_ids": [[-1]]},
    "mask": {"input_ids": [[1, 2]], "attention_mask": [[1, 2]]},
    "types": {"input_ids": [[1, 2]], "token_type_ids": [[2, 0]]},
    "mask shape": {"input_ids": [[1, 2]], "attention_mask": [[1]]},
    "too long": {"input_ids": np.ones((1, 17), np.int64)},
}


@pytest.mark.parametrize("case", _BAD_INPUTS)
def test_bad_input_is_refused(library: Library, case: str, messages: Messages) -> None:
    with messages.raises(InputError):
        library.run(**_BAD_INPUTS[case])


def test_ragged_rows_are_refused(library: Library) -> None:
    with pytest.raises(InputError, match=r"^input_ids is not an array\n  why: "):
        library.run([[1, 2], [3]])


def test_empty_text_is_refused(library: Library, messages: Messages) -> None:
    with messages.raises(InputError):
        library.run_texts(["hello", "  "])
