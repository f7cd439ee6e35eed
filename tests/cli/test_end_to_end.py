"""All commands after each other on a small BERT with random weights, as a user would run them."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm
from ibert_tvm.model.artefact import QuantizedModel
from tests.commands import Ibert, Refused

torch = pytest.importorskip("torch", reason="importing a model needs torch")
transformers = pytest.importorskip("transformers", reason="importing a model needs transformers")

_WORDS = ["the", "cat", "dog", "sat", "ran", "on", "a", "mat", "road", "and", "saw", "small"]
_WORDS += ["big", "red", "house", "tree"]
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TEXTS = [
    "the cat sat on a mat",
    "a dog ran on the road and saw the small red house",
    "the big tree",
    "a small cat and a big dog sat on the road",
    "the dog saw a tree and a house and a mat and a cat",
    "red red red",
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: BERT with two labels, random weights, WordPiece vocabulary."""
    folder = tmp_path_factory.mktemp("hf") / "tiny"
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(_SPECIAL) + len(_WORDS),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=24,
        id2label={0: "calm", 1: "wild"},
        label2id={"calm": 0, "wild": 1},
    )
    model = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # the default 0.02 leaves nearly nothing to compare
            parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join([*_SPECIAL, *_WORDS]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "texts.txt"
    file.write_text("\n".join(_TEXTS), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def artefact(source: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ibert_tvm.cli import main

    folder = tmp_path_factory.mktemp("artefact") / "tiny.ibert"
    command = ["quantize", source, "-o", folder, "--calibration", texts, "--seq-len", "16"]
    assert main([str(word) for word in command]) == 0
    return folder


@pytest.fixture(scope="module")
def compiled(artefact: Path) -> Path:
    from ibert_tvm.cli import main

    output = artefact.parent / "tiny.so"
    words = ["compile", artefact, "-o", output, "--seq-len", "16", "--batch", "2"]
    assert main([str(word) for word in words]) == 0
    return output


def test_quantize_says_what_it_did(ibert: Ibert, source: Path, texts: Path, tmp_path: Path) -> None:
    output = tmp_path / "paper.ibert"
    outcome = ibert(
        "quantize", source, "-o", output, "--calibration", texts, "--preset", "paper",
        "--head", "none", "--limit", "3", "--seq-len", "8", "--json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    document = outcome.document
    assert document.pop("seconds") > 0
    assert document.pop("weight_bytes") == sum(document.pop("bytes_by_operator").values()) > 0
    assert document == {
        "output": str(output),
        "preset": "paper",
        "fidelity": None,
        "observer": "mse",
        "head": "none",
        "architecture": "bert",
        "calibration_texts": 3,
        "calibration_sequences": 3,
        "seq_len": 8,
        "notes": [],
        "word_table_bits": 8,
        "narrow_weights": 0,
    }
    inspected = ibert("inspect", output, "--json").document
    assert inspected["preset"] == "paper"
    assert inspected["info"]["head"] == "none"
    dtypes = {parameter["dtype"] for parameter in inspected["parameters"]}
    assert {"int8", "int32"} <= dtypes <= {"int8", "int16", "int32", "int64", "uint8"}


@pytest.mark.slow
def test_texts_and_sequences_are_counted_apart(ibert: Ibert, source: Path, tmp_path: Path) -> None:
    texts = tmp_path / "many.txt"
    texts.write_text("\n".join(f"{text} {count}" for count in range(40) for text in _TEXTS[:4]))
    words = ("quantize", source, "-o", tmp_path / "m.ibert", "--calibration", texts)
    said = ibert(*words, "--seq-len", "8", "--fidelity", "quick").stdout
    found = re.search(r"120 calibration texts \((\d+) sequences, with pieces\)", said)
    assert found is not None and 120 < int(found[1]) <= 240, said


@pytest.mark.slow
def test_a_table_of_pairs_calibrates_a_model_of_pairs(
    ibert: Ibert, source: Path, tmp_path: Path
) -> None:
    pairs = [(a, b) for a in _TEXTS[:4] for b in _TEXTS[3:]]
    table = tmp_path / "pairs.csv"
    table.write_text("answer,id,question\n" + "".join(f'"{b}",7,"{a}"\n' for a, b in pairs))
    words = ("quantize", source, "--calibration", table, "--seq-len", "16")
    columns = ("--calibration-columns", "pair=answer,text=question")
    outcome = ibert(*words, *columns, "-o", tmp_path / "pairs.ibert", "--json")
    assert outcome.code == 0, outcome.stderr
    assert outcome.document["calibration_texts"] == len(pairs)
    same = ibert_tvm.quantize(ibert_tvm.load(source), calibration=pairs, seq_len=16)
    found = QuantizedModel.load(tmp_path / "pairs.ibert")
    assert found.quantization["calibration"]["longest"] == 16  # the longest text alone has 14
    assert found.parameters.keys() == same.parameters.keys()
    for name, values in same.parameters.items():
        np.testing.assert_array_equal(found.parameters[name], values)
    # Pairs are what a drop is measured on as well: every fifth of them.
    outcome = ibert(*words, *columns, "--max-drop", "1.5", "-o", tmp_path / "n.ibert", "--json")
    assert (outcome.code, outcome.document["calibration_texts"]) == (0, len(pairs) - 2)
    outcome = ibert(*words, "--calibration-columns", "text=4", "-o", tmp_path / "no.ibert")
    assert outcome.code == 2
    assert "pairs.csv" in outcome.stderr and "it has 3 columns" in outcome.stderr


@pytest.mark.slow
def test_a_search_writes_the_first_recipe_within_the_drop(
    ibert: Ibert, source: Path, texts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "found.ibert"
    words = ("quantize", source, "-o", output, "--calibration", texts, "--heldout", texts)
    outcome = ibert(*words, "--seq-len", "16", "--max-drop", "1.5", "--json")
    assert outcome.code == 0, outcome.stderr
    search = outcome.document["search"]
    (trial,) = search.pop("trials")
    assert search.pop("target") == "host"
    assert search == {"metric": "cosine", "task": None, "max_drop": 1.5, "recipe": "fast"}
    assert trial.pop("work") > 10 * 32 * 32
    measured = ibert(
        "eval", output, "--against", source, "--text", texts, "--seq-len", "16", "--json"
    ).document
    assert trial.pop("drop") == pytest.approx(measured["drop"], abs=1e-9)
    assert trial == {"recipe": "fast", "holds": True}


@pytest.mark.slow
def test_matrices_get_4_bits_as_far_as_bytes_or_a_drop_ask(
    ibert: Ibert, source: Path, texts: Path, tmp_path: Path
) -> None:
    words = ("quantize", source, "-o", tmp_path / "n.ibert", "--calibration", texts, "--json")
    words += ("--seq-len", "16", "--weights")
    narrow = ibert(*words, "4", "--word-table-bits", "4", "--fidelity", "fast").document
    assert "nibble_linear" in narrow["bytes_by_operator"]
    assert "linear" not in narrow["bytes_by_operator"]
    most = narrow["weight_bytes"] + 200
    mixed = ibert(*words, "mixed", "--max-bytes", most, "--fidelity", "fast").document
    assert narrow["weight_bytes"] <= mixed["weight_bytes"] <= most
    assert mixed["word_table_bits"] == 4 and mixed["narrow_weights"] > 0
    found = ibert(*words, "mixed", "--max-drop", "1.5", "--heldout", texts).document
    assert found["narrow_weights"] == narrow["narrow_weights"], "nothing costs that much"


@pytest.mark.slow
def test_a_search_measures_a_task(ibert: Ibert, source: Path, texts: Path, tmp_path: Path) -> None:
    """Its drop is what `ibert eval --task` says of the model that is found."""
    data = tmp_path / "data.csv"
    rows = [f"{('calm', 'wild')[i % 2]},{text}\n" for i, text in enumerate(_TEXTS)]
    data.write_text("label,text\n" + "".join(rows))
    task = ("--task", "classification", "--data", data)
    output = tmp_path / "found.ibert"
    words = ("quantize", source, "-o", output, "--calibration", texts, "--seq-len", "16")
    outcome = ibert(*words, "--metric", "task", *task, "--max-drop", "100", "--json")
    assert outcome.code == 0, outcome.stderr
    search = outcome.document["search"]
    assert (search["metric"], search["task"]) == ("task", "classification")
    (trial,) = search["trials"]
    evaluated = ibert("eval", output, "--against", source, *task, "--json").document
    differences = [metric["difference"] for metric in evaluated["metrics"]]
    assert len(differences) > 1
    assert trial["drop"] == pytest.approx(-min(differences), abs=1e-6)


@pytest.mark.slow
def test_a_search_that_finds_nothing_writes_nothing(
    ibert: Ibert, source: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ibert_tvm.quantization import search

    monkeypatch.setattr(search, "_RECIPES", {"fast": ("fast", {})})
    output = tmp_path / "found.ibert"
    words = ("quantize", source, "-o", output, "--calibration", texts, "--heldout", texts)
    outcome = ibert(*words, "--seq-len", "16", "--max-drop", "1e-12", "--json")
    assert outcome.code == 5
    assert outcome.error["what"] == "no recipe keeps within a drop of 1e-12"
    assert not output.exists()


@pytest.mark.slow
def test_a_search_needs_texts_to_hold_back(
    ibert: Ibert, source: Path, texts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "found.ibert"
    words = ("quantize", source, "-o", output, "--calibration", texts, "--max-drop", "0.1")
    outcome = ibert(*words, "--seq-len", "16")
    assert outcome.code == 2
    assert outcome.stderr.startswith("error: 6 texts are too few to hold some back")


@pytest.mark.slow
def test_fewer_words_through_every_command(
    ibert: Ibert, source: Path, texts: Path, tmp_path: Path
) -> None:
    corpus, output, library = (tmp_path / name for name in ("c.txt", "few.ibert", "few.so"))
    corpus.write_text("\n".join(_TEXTS[:2]), encoding="utf-8")
    words = ("quantize", source, "-o", output, "--calibration", texts, "--seq-len", "16")
    pieces = len(_SPECIAL) + len(set(" ".join(_TEXTS[:2]).split()))
    line = ibert(*words, "--vocabulary", str(pieces), "--heldout", texts).stdout
    assert f"vocabulary: {pieces} of {len(_SPECIAL) + len(_WORDS)} pieces; " in line
    small = ("--vocabulary", corpus, "--heldout", texts, "--word-table-bits", "4")
    outcome = ibert(*words, *small, "--json")
    assert outcome.code == 0, outcome.stderr
    said = outcome.document["vocabulary"]
    assert (said["pieces"], said["pieces_before"]) == (pieces, len(_SPECIAL) + len(_WORDS))
    assert (said["heldout_texts"], said["changed_texts"], said["unknown_texts"]) == (6, 3, 3)
    assert ibert("compile", output, "-o", library, "--seq-len", "16").code == 0
    checked = ibert("verify", library, "--model", output)
    assert checked.code == 0, checked.stdout
    for model in (output, library):
        found = ibert("eval", model, "--against", source, "--text", corpus, "--seq-len", "16")
        assert found.code == 0, found.stderr
    assert ibert("eval", output, "--against", source, "--text", corpus, "--why").code == 0


@pytest.mark.slow
def test_inspect_library(ibert: Ibert, compiled: Path) -> None:
    document = ibert("inspect", compiled, "--json").document
    shapes = [(f["batch"], f["seq_len"]) for f in document["functions"]]
    assert shapes == [(2, 16)]
    assert document["info"]["head"] == "sequence_classification"
    assert document["tokenizer"] == ["tokenizer.json", "tokenizer_config.json"]


def test_every_batch_is_compiled_at_every_length(artefact: Path) -> None:
    from ibert_tvm.cli.options import Shapes
    from ibert_tvm.model.artefact import read_info

    found = Shapes("1,2", "8,16").of(read_info(artefact), artefact)
    assert sorted(found) == sorted(itertools.product((1, 2), (8, 16)))


def test_library_equals_the_reference_bit_for_bit(
    ibert: Ibert, artefact: Path, compiled: Path, texts: Path, tmp_path: Path
) -> None:
    from ibert_tvm import QuantizedModel
    from ibert_tvm.evaluation.evaluate import evaluate_integers
    from ibert_tvm.model.tokenization import Tokenizer

    output = tmp_path / "out.npz"
    outcome = ibert("run", compiled, "--texts", texts, "--integers", "-o", output, "--json")
    assert outcome.code == 0, outcome.stderr
    quantized = QuantizedModel.load(artefact)
    batch = Tokenizer(quantized.tokenizer).encode(_TEXTS, max_length=16)
    expected = evaluate_integers(quantized, batch.inputs(quantized.input_names))["logits"]
    with np.load(output) as arrays:
        np.testing.assert_array_equal(arrays["logits"], expected)
    names = ["calm", "wild"]
    assert outcome.document["labels"] == [names[i] for i in expected.argmax(axis=1)]


@pytest.mark.slow
def test_eval_of_the_artefact_and_of_the_library(
    ibert: Ibert, artefact: Path, compiled: Path, source: Path, texts: Path
) -> None:
    common = ("--against", source, "--text", texts, "--seq-len", "16", "--json")
    reference = ibert("eval", artefact, *common)
    library = ibert("eval", compiled, *common)
    assert reference.code == library.code == 0, reference.stderr + library.stderr
    a, b = reference.document, library.document
    for key in ("same_label", "score_difference_mean", "score_difference_max", "max_abs_error"):
        assert a[key] == pytest.approx(b[key], rel=1e-5), key
    assert a["same_label"] == 1 and "cosine_mean" not in a
    assert 0 < a["score_difference_mean"] <= a["score_difference_max"] < 0.1
    assert (a["texts"], a["seq_len"], a["output"]) == (len(_TEXTS), 16, "logits")
    assert b["layers"] == []
    names = [layer["name"] for layer in a["layers"]]
    assert names.index("bert.embeddings.LayerNorm") < names.index(
        "bert.encoder.layer.0.output.LayerNorm"
    )
    for layer in a["layers"]:
        assert layer["cosine"] > 0.9, layer


@pytest.mark.slow
def test_eval_of_a_task(ibert: Ibert, compiled: Path, source: Path, tmp_path: Path) -> None:
    """Labels are what the float model says of half of the texts, so that it is right there."""
    from ibert_tvm import load
    from ibert_tvm.model.tokenization import Tokenizer, tokenizer_files
    from ibert_tvm.relay_passes.canonical import FloatModel

    model = load(source, verify=False)
    floating = FloatModel(model.module, model.parameters)
    tokens = Tokenizer(tokenizer_files(source)).encode(_TEXTS, max_length=16)
    logits = floating.run(tokens.inputs(floating.input_names)).outputs[0]
    labels = [("calm", "wild")[(i < 3) ^ int(row.argmax())] for i, row in enumerate(logits)]
    data = tmp_path / "data.csv"
    data.write_text(
        "label,text\n" + "".join(f"{a},{b}\n" for a, b in zip(labels, _TEXTS, strict=True))
    )
    words = ("--against", source, "--task", "classification", "--data", data, "--max-drop", "100")
    outcome = ibert("eval", compiled, *words, "--json")
    assert outcome.code == 0, outcome.stderr
    accuracy = outcome.document["metrics"][0]
    assert (accuracy["name"], accuracy["float"]) == ("accuracy", pytest.approx(50))
    assert accuracy["difference"] == pytest.approx(accuracy["integer"] - 50)
    assert accuracy["interval"][0] <= accuracy["difference"] <= accuracy["interval"][1]
    assert outcome.document["seq_len"] == 16


@pytest.mark.slow
def test_eval_says_why(ibert: Ibert, artefact: Path, source: Path, texts: Path) -> None:
    common = ("--against", source, "--text", texts, "--seq-len", "16", "--limit", "2")
    outcome = ibert("eval", artefact, *common, "--why", "--json")
    assert outcome.code == 0, outcome.stderr
    document = outcome.document
    assert (document["texts"], document["output"], document["complete"]) == (2, "logits", True)
    assert 0 < document["error"] < 0.05
    kinds = {(loss["what"], loss["where"]) for loss in document["losses"]}
    assert {("rounding", "gelu → linear → add"), ("weights", "gelu → linear → add")} < kinds
    assert {what for what, _ in kinds} == {
        "rounding", "weights", "embeddings", "requantisation", "operator",
    }  # fmt: skip


@pytest.mark.slow
def test_compile_quantises_a_model_folder_on_the_way(
    ibert: Ibert, source: Path, tmp_path: Path
) -> None:
    direct, folder, after = tmp_path / "direct.so", tmp_path / "m.ibert", tmp_path / "after.so"
    outcome = ibert("compile", source, "-o", direct, "--seq-len", "8", "--json")
    assert outcome.code == 0, outcome.stderr
    quantized = outcome.document["quantized"]
    assert quantized.pop("seconds") > 0
    assert quantized == {
        "preset": "accurate",
        "head": "sequence_classification",
        "calibration_texts": 354,
        "notes": [],
    }
    assert ibert("quantize", source, "-o", folder).code == 0
    outcome = ibert("compile", folder, "-o", after, "--seq-len", "8", "--json")
    assert outcome.code == 0 and "quantized" not in outcome.document
    documents = [
        ibert("run", library, "--text", "the cat sat", "--integers", "--json").document["outputs"]
        for library in (direct, after)
    ]
    assert documents[0] == documents[1]
    said = ibert("compile", source, "-o", direct, "--seq-len", "8").stdout
    assert "with the 354 texts that come with this package: preset accurate" in said


@pytest.mark.slow
def test_compile_refuses_sizes_of_a_model_folder_before_it_quantises(
    refused: Refused, source: Path, tmp_path: Path
) -> None:
    for length in ("0", "25"):
        refused("compile", source, "-o", tmp_path / "m.so", "--seq-len", length)


@pytest.mark.slow
def test_dump_ir(ibert: Ibert, artefact: Path, tmp_path: Path) -> None:
    outcome = ibert(
        "compile", artefact, "-o", tmp_path / "m.so", "--seq-len", "8",
        "--dump-ir", tmp_path / "ir", "--json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    assert outcome.document["shapes"] == [{"batch": 1, "seq_len": 8}]
    assert outcome.document["bytes"] == (tmp_path / "m.so").stat().st_size
    assert set(outcome.document["report"]) >= {"integer_only", "seconds", "weight_bytes"}
    dumps = sorted(path.name for path in (tmp_path / "ir").iterdir())
    assert len(dumps) >= 3
    assert dumps[0].startswith("00_")


@pytest.mark.parametrize("wrong", ["nothing there", "another architecture", "truncated weights"])
def test_what_cannot_be_quantised(
    refused: Refused, source: Path, texts: Path, tmp_path: Path, wrong: str
) -> None:
    folder = tmp_path / "copy"
    if wrong != "nothing there":
        shutil.copytree(source, folder)
    if wrong == "another architecture":
        config = json.loads((folder / "config.json").read_text())
        config.update(model_type="mamba9", architectures=["Mamba9Model"])
        (folder / "config.json").write_text(json.dumps(config))
    elif wrong == "truncated weights":
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
    words = ("quantize", folder, "-o", tmp_path / "m.ibert", "--calibration", texts)
    refused(*words, version=transformers.__version__)
    assert not (tmp_path / "m.ibert").exists()


@pytest.mark.slow
def test_calibration_longer_than_the_positions(
    refused: Refused, source: Path, texts: Path, tmp_path: Path
) -> None:
    refused(
        "quantize", source, "-o", tmp_path / "m.ibert", "--calibration", texts, "--seq-len", "25"
    )


def test_what_is_not_evaluated_of_a_library(
    refused: Refused, compiled: Path, source: Path, texts: Path
) -> None:
    for words in (("--seq-len", "17"), ("--why",)):
        refused("eval", compiled, "--against", source, "--text", texts, *words)


@pytest.mark.slow
def test_eval_against_another_model(
    refused: Refused, artefact: Path, texts: Path, tmp_path: Path
) -> None:
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=24,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "other")
    refused("eval", artefact, "--against", tmp_path / "other", "--text", texts, "--seq-len", "16")
