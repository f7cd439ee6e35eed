"""`ibert run` and `ibert inspect` on a real library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.conftest import VOCABULARY, TinyModel

from .conftest import Outcome

_IDS = np.array([[2, 4, 6, 5, 3], [2, 7, 3, 0, 0]])
_MASK = (_IDS != 0).astype(np.int64)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    path = tmp_path / "in.npz"
    np.savez(path, input_ids=_IDS, attention_mask=_MASK)
    return path


def test_texts_and_token_ids_give_the_same(
    ibert: Callable[..., Outcome], library: Path, inputs: Path
) -> None:
    by_text = ibert("run", library, "--text", "hello small world", "--text", "big", "--json")
    by_ids = ibert("run", library, "--inputs", inputs, "--json")
    assert by_text.code == by_ids.code == 0
    assert by_text.document == by_ids.document
    expected = TinyModel().reference(_IDS, _MASK, np.zeros_like(_IDS))
    output = by_text.document["outputs"]["embedding"]
    assert (output["dtype"], output["shape"], output["scale"]) == ("float32", [2, 4], 0.25)
    np.testing.assert_array_equal(output["values"], expected["embedding"] * 0.25)


def test_texts_from_a_file(ibert: Callable[..., Outcome], library: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("hello small world\n\n  \nbig\n", encoding="utf-8")
    from_file = ibert("run", library, "--texts", file, "--json")
    assert (
        from_file.document
        == ibert("run", library, "--text", "hello small world", "--text", "big", "--json").document
    )


def test_outputs_go_to_a_file(
    ibert: Callable[..., Outcome], library: Path, inputs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.npz"
    outcome = ibert("run", library, "--inputs", inputs, "-o", output, "--integers", "--json")
    assert outcome.document["written"] == str(output)
    assert "values" not in outcome.document["outputs"]["embedding"]
    expected = TinyModel().reference(_IDS, _MASK, np.zeros_like(_IDS))
    with np.load(output) as arrays:
        assert sorted(arrays) == ["embedding", "embedding.scale", "hidden", "hidden.scale"]
        assert arrays["embedding"].dtype == np.int32
        np.testing.assert_array_equal(arrays["embedding"], expected["embedding"])
        assert float(arrays["embedding.scale"]) == 0.25


def test_output_for_people(ibert: Callable[..., Outcome], library: Path) -> None:
    outcome = ibert("run", library, "--text", "big", "--integers", "--threads", "1")
    ids = np.array([[2, 7, 3]])
    expected = TinyModel().reference(ids, np.ones_like(ids), np.zeros_like(ids))["embedding"]
    assert (outcome.code, outcome.stderr) == (0, "")
    assert "embedding: int32 [1, 4], scale 0.25\n" in outcome.stdout
    assert np.array2string(expected) in outcome.stdout


def test_truncation_is_a_warning_on_stderr(ibert: Callable[..., Outcome], library: Path) -> None:
    outcome = ibert("run", library, "--text", "big " * 40, "--json")
    assert outcome.code == 0
    assert outcome.document["outputs"]["hidden"]["shape"] == [1, 16, 4]
    assert outcome.stderr == (
        "WARNING: 1 of 1 texts were cut off at 16 tokens (text 0), the longest length compiled; "
        "compile with a larger --seq-len to keep them whole\n"
    )


def test_inspect_for_people(ibert: Callable[..., Outcome], library: Path) -> None:
    outcome = ibert("inspect", library)
    assert outcome.code == 0
    lines = {line.split("  ")[0].strip(): line for line in outcome.stdout.splitlines()}
    assert lines["compiled library"].rstrip().endswith(str(library))
    assert "1x8, 1x16, 4x8 (batch x tokens)" in lines["shapes"]
    assert "vocabulary 8" in lines["model"]
    assert "tvm 0.27.0.post1" in lines["made with"]
    assert "table: int8" not in outcome.stdout
    assert "table: int8 [8, 4]" in ibert("inspect", library, "-v").stdout


def test_inspect_as_json(ibert: Callable[..., Outcome], library: Path) -> None:
    document = ibert("inspect", library, "--json").document
    assert document["kind"] == "compiled library"
    assert document["bytes"] == library.stat().st_size
    assert document["functions"][0] == {"name": "main_b1_s8", "batch": 1, "seq_len": 8}
    assert document["info"]["vocab_size"] == len(VOCABULARY)
    assert document["tokenizer"] == ["vocab.txt"]


_NOTHING = (
    "error: nothing to run on\n"
    "  what to do: give --text TEXT (repeatable), --texts FILE, or --inputs FILE.npz\n"
)


def test_run_without_inputs(ibert: Callable[..., Outcome], library: Path) -> None:
    outcome = ibert("run", library)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (2, "", _NOTHING)


def test_run_with_an_empty_text(ibert: Callable[..., Outcome], library: Path) -> None:
    outcome = ibert("run", library, "--text", "")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (
        2,
        "",
        "error: text 0 is empty\n"
        "  why: it holds no character other than white space\n"
        "  what to do: leave empty texts out\n",
    )


def test_run_with_a_wrong_path(ibert: Callable[..., Outcome], tmp_path: Path) -> None:
    path = tmp_path / "no.so"
    outcome = ibert("run", path, "--text", "big", "--json")
    assert outcome.code == 3
    assert outcome.error == {
        "kind": "LibraryError",
        "exit_code": 3,
        "message": f"there is no library at {path}\n"
        "  why: the path does not exist\n"
        "  what to do: check the path; `ibert compile NAME.ibert -o model.so` makes one",
        "what": f"there is no library at {path}",
        "where": "",
        "why": "the path does not exist",
        "todo": "check the path; `ibert compile NAME.ibert -o model.so` makes one",
    }


def test_run_with_a_corrupt_library(ibert: Callable[..., Outcome], tmp_path: Path) -> None:
    path = tmp_path / "bad.so"
    path.write_bytes(b"\x7fELF and then nothing")
    outcome = ibert("run", path, "--text", "big")
    assert (outcome.code, outcome.stderr) == (
        3,
        f"error: cannot read the library {path}\n"
        "  why: it is truncated: 21 bytes, less than an ELF header\n"
        "  what to do: copy the file again, or make it again with "
        "`ibert compile NAME.ibert -o model.so`\n",
    )


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        (b"not a zip file", "it is not an .npz file"),
        ({"ids": _IDS}, "it holds ids"),
    ],
)
def test_run_with_unusable_inputs(
    ibert: Callable[..., Outcome], library: Path, tmp_path: Path, content: object, why: str
) -> None:
    path = tmp_path / "in.npz"
    if isinstance(content, dict):
        np.savez(path, **content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    outcome = ibert("run", library, "--inputs", path)
    assert (outcome.code, outcome.stderr) == (
        2,
        "error: cannot read the file of --inputs\n"
        f"  where: {path}\n"
        f"  why: {why}\n"
        "  what to do: give an .npz file with input_ids, and optionally attention_mask and "
        "token_type_ids, each [batch, length]; or with pixel_values [batch, channels, height, "
        "width] or input_features [batch, channels, frames]\n",
    )


def test_run_with_an_unwritable_output(
    ibert: Callable[..., Outcome], library: Path, tmp_path: Path
) -> None:
    outcome = ibert("run", library, "--text", "big", "-o", tmp_path / "no" / "out.npz")
    assert (outcome.code, outcome.stderr) == (
        2,
        f"error: cannot write {tmp_path / 'no' / 'out.npz'}\n"
        f"  why: the folder {tmp_path / 'no'} does not exist\n"
        f"  what to do: create it (mkdir -p {tmp_path / 'no'}) or choose another output\n",
    )


def test_pairs_must_match_texts(ibert: Callable[..., Outcome], library: Path) -> None:
    outcome = ibert("run", library, "--text", "big", "--pair", "small", "--pair", "big")
    assert (outcome.code, outcome.stderr) == (
        2,
        "error: --pair was given 2 times and --text 1 times\n"
        "  what to do: give one --pair for each --text\n",
    )


def test_inspect_of_nothing(ibert: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = ibert("inspect", tmp_path / "nothing")
    assert (outcome.code, outcome.stderr) == (
        2,
        f"error: there is nothing at {tmp_path / 'nothing'}\n"
        "  what to do: give a model, a NAME.ibert folder or a library of `ibert compile`\n",
    )


def test_inspect_of_any_folder(ibert: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = ibert("inspect", tmp_path)
    assert (outcome.code, outcome.stderr) == (
        3,
        f"error: {tmp_path} is not a quantised model\n"
        "  why: none of model.json, params.safetensors, quantization.json is in it\n"
        "  what to do: give the NAME.ibert folder that `ibert quantize` wrote; a Hugging Face "
        "folder must be quantised first\n",
    )
