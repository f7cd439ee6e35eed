"""`ibert run` and `ibert inspect` on a real library."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm import Encoder
from ibert_tvm.common.errors import OutputError
from tests.commands import Ibert, Refused
from tests.encoder.small_encoders import tiny
from tests.runtime.conftest import VOCABULARY, TinyModel
from tests.snapshots import Messages

_IDS = np.array([[2, 4, 6, 5, 3], [2, 7, 3, 0, 0]])
_MASK = (_IDS != 0).astype(np.int64)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    path = tmp_path / "in.npz"
    np.savez(path, input_ids=_IDS, attention_mask=_MASK)
    return path


def test_texts_and_token_ids_give_the_same(ibert: Ibert, library: Path, inputs: Path) -> None:
    by_text = ibert("run", library, "--text", "hello small world", "--text", "big", "--json")
    by_ids = ibert("run", library, "--inputs", inputs, "--json")
    assert by_text.code == by_ids.code == 0
    assert by_text.document == by_ids.document
    expected = TinyModel().reference(_IDS, _MASK, np.zeros_like(_IDS))
    output = by_text.document["outputs"]["embedding"]
    assert (output["dtype"], output["shape"], output["scale"]) == ("float32", [2, 4], 0.25)
    np.testing.assert_array_equal(output["values"], expected["embedding"] * 0.25)


def test_texts_from_a_file(ibert: Ibert, library: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("hello small world\n\n  \nbig\n", encoding="utf-8")
    from_file = ibert("run", library, "--texts", file, "--json")
    assert (
        from_file.document
        == ibert("run", library, "--text", "hello small world", "--text", "big", "--json").document
    )


def test_outputs_go_to_a_file(ibert: Ibert, library: Path, inputs: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["v.npz", "v.npy"])
@pytest.mark.parametrize("values", [np.float32([[0.5, 2], [1, 3]]).T, np.array(7)])
def test_a_file_of_arrays_replaces_its_own_alone(
    messages: Messages, tmp_path: Path, name: str, values: np.ndarray
) -> None:
    from ibert_tvm.cli.run import _write

    path = tmp_path / name
    for _ in range(2):
        _write(path, {"embedding": values})
        read = np.load(path)
        found = read if name == "v.npy" else read["embedding"]
        np.testing.assert_array_equal(found, values)
        assert found.dtype == values.dtype
    np.save(tmp_path / "theirs.npy", values)
    (tmp_path / "theirs.npy").replace(path)
    with messages.raises(OutputError):
        _write(path, {"embedding": values})


def test_a_file_for_one_array(refused: Refused, library: Path, tmp_path: Path) -> None:
    refused("run", library, "--text", "big", "-o", tmp_path / "v.npy")


def test_output_for_people(ibert: Ibert, library: Path) -> None:
    outcome = ibert("run", library, "--text", "big", "--integers", "--threads", "1")
    ids = np.array([[2, 7, 3]])
    expected = TinyModel().reference(ids, np.ones_like(ids), np.zeros_like(ids))["embedding"]
    assert (outcome.code, outcome.stderr) == (0, "")
    assert "embedding: int32 [1, 4], scale 0.25\n" in outcome.stdout
    assert np.array2string(expected) in outcome.stdout


def test_scores_and_entities_are_those_of_the_encoder(ibert: Ibert, tmp_path: Path) -> None:
    path = tiny("classes").build(tmp_path / "classes.so")
    outcome = ibert("run", path, "--text", "big world", "--text", "small", "--json")
    with Encoder(path) as encoder:
        expected = encoder.classify(["big world", "small"], top_k=None)
    assert outcome.document["classes"] == expected
    assert outcome.document["labels"] == [classes[0]["label"] for classes in expected]
    shown = ibert("run", path, "--text", "big world").stdout
    best = ", ".join(f"{each['label']} {each['score']:.4f}" for each in expected[0][:3])
    assert f"text 0: {best}\n" in shown
    one = ibert("run", tiny("score").build(tmp_path / "one.so"), "--text", "big", "--json").document
    assert one["classes"][0][0]["label"] == "LABEL_0" and "labels" not in one
    path = tiny("tokens").build(tmp_path / "tokens.so")
    found = ibert("run", path, "--text", "small big world", "--json").document["entities"]
    with Encoder(path) as encoder:
        assert found == encoder.tag(["small big world"])


def test_truncation_is_a_warning_on_stderr(ibert: Ibert, library: Path) -> None:
    outcome = ibert("run", library, "--text", "big " * 40, "--json")
    assert outcome.code == 0
    assert outcome.document["outputs"]["hidden"]["shape"] == [1, 16, 4]
    assert outcome.stderr == (
        "WARNING: 1 of 1 texts were cut off at 16 tokens (text 0), the longest length compiled; "
        "compile with a larger --seq-len to keep them whole\n"
    )


def test_inspect_for_people(ibert: Ibert, library: Path) -> None:
    outcome = ibert("inspect", library)
    assert outcome.code == 0
    lines = {line.split("  ")[0].strip(): line for line in outcome.stdout.splitlines()}
    assert lines["compiled library"].rstrip().endswith(str(library))
    assert "1x8, 1x16, 4x8 (batch x tokens)" in lines["shapes"]
    assert "vocabulary 8" in lines["model"]
    assert "tvm 0.27.0.post1" in lines["made with"]
    assert "table: int8" not in outcome.stdout
    assert "table: int8 [8, 4]" in ibert("inspect", library, "-v").stdout


def test_inspect_as_json(ibert: Ibert, library: Path) -> None:
    document = ibert("inspect", library, "--json").document
    assert document["kind"] == "compiled library"
    assert document["bytes"] == library.stat().st_size
    assert document["functions"][0] == {"name": "main_b1_s8", "batch": 1, "seq_len": 8}
    assert document["info"]["vocab_size"] == len(VOCABULARY)
    assert document["tokenizer"] == ["vocab.txt"]


@pytest.mark.parametrize(
    "words",
    [
        "run LIBRARY",
        "run LIBRARY --text=",
        "run FOLDER/no.so --text big",
        "run FOLDER/bad.so --text big",
        "run LIBRARY --text big -o FOLDER/no/out.npz",
        "run LIBRARY --text big --pair small --pair big",
        "run LIBRARY --inputs FOLDER/none.npz",
        "run LIBRARY --inputs FOLDER/bad.so",
        "run LIBRARY --inputs FOLDER/other.npz",
        "inspect FOLDER/nothing",
        "inspect FOLDER",
    ],
)
def test_what_cannot_be_run_or_inspected(
    refused: Refused, library: Path, tmp_path: Path, words: str
) -> None:
    (tmp_path / "bad.so").write_bytes(b"\x7fELF and then nothing")
    np.savez(tmp_path / "other.npz", ids=_IDS)
    places = {"LIBRARY": str(library), "FOLDER": str(tmp_path)}
    given = [re.sub("LIBRARY|FOLDER", lambda found: places[found[0]], w) for w in words.split()]
    refused(*given)


def test_an_error_as_json(ibert: Ibert, tmp_path: Path) -> None:
    path = tmp_path / "no.so"
    outcome = ibert("run", path, "--text", "big", "--json")
    assert outcome.code == 3
    todo = "check the path; `ibert compile NAME.ibert -o model.so` makes one"
    what, why = f"there is no library at {path}", "the path does not exist"
    assert outcome.error == {
        "kind": "LibraryError",
        "exit_code": 3,
        "message": f"{what}\n  why: {why}\n  what to do: {todo}",
        "what": what,
        "where": "",
        "why": why,
        "todo": todo,
    }
