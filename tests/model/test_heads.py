"""Records of heads, and a toy head that is taken through all phases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers

import ibert_tvm as ibert
from ibert_tvm.model import heads
from ibert_tvm.model.heads import HEADS, Head, OnnxOutput, Returned, head_of_class
from tests.commands import Ibert
from tests.runtime.conftest import VOCABULARY

TOY = Head(
    name="next_sentence",
    output="follows",
    kind="logits",
    finish=Returned("logits"),
    onnx=OnnxOutput(("seq_relationship",), rank=2, precedence=6),
    classes=("ForNextSentencePrediction",),
    auto_class="AutoModelForNextSentencePrediction",
    methods=("classify",),
)


@pytest.fixture
def toy() -> Iterator[Head]:
    yield heads.register_head(TOY)
    heads.unregister_head(TOY.name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BERT that says whether a text follows another."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY), hidden_size=32, max_position_embeddings=16, **sizes
    )
    transformers.BertForNextSentencePrediction(config).save_pretrained(tmp_path / "bert")
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    return tmp_path / "bert"


@pytest.mark.slow
def test_a_new_head_is_one_record(toy: Head, folder: Path, tmp_path: Path) -> None:
    """Import, quantisation, compilation, texts: no other file knows the name."""
    model = ibert.load(folder)
    assert (model.info.head, model.info.outputs[0].name, model.info.id2label) == (
        toy.name, "follows", {}
    )  # fmt: skip
    assert model.verified_error is not None and model.verified_error < 1e-4
    pairs = [("hello world", "small"), ("big", "world world"), ("small small", "big hello")]
    quantized = ibert.quantize(model, pairs, seq_len=16)
    library = tmp_path / "bert.so"
    ibert.compile(quantized, "host", [(1, 16)]).export(library)
    with ibert.Encoder(library) as encoder:
        (found,) = encoder.classify(pairs[:1], top_k=None, function="none")
        logits = encoder.library.run_texts(pairs[:1])["follows"][0]
        assert sorted(item["score"] for item in found) == sorted(map(float, logits))
    source = transformers.BertForNextSentencePrediction.from_pretrained(folder)
    tokens = encoder.tokenizer.encode(pairs[:1], 16)
    given = {name: np.int64(x) for name, x in tokens.inputs(model.info.inputs).items()}
    import torch

    with torch.no_grad():
        wanted = source(**{k: torch.from_numpy(x) for k, x in given.items()}).logits[0].numpy()
    assert np.abs(logits - wanted).max() < 0.05


def test_the_command_line_knows_it(
    toy: Head, folder: Path, tmp_path: Path, ibert_command: Ibert
) -> None:
    outcome = ibert_command("inspect", folder, "--head", "next_sentence", "--json")
    assert (outcome.code, outcome.document["info"]["head"]) == (0, "next_sentence")


def test_the_command_line_refuses_others(folder: Path, ibert_command: Ibert) -> None:
    outcome = ibert_command("inspect", folder, "--head", "next_sentence")
    assert outcome.code == 2
    named = ", ".join(HEADS)
    assert f"'next_sentence' is not one of auto, {named}" in " ".join(outcome.stderr.split())


def test_an_onnx_graph_is_recognised_by_the_record(toy: Head) -> None:
    onnx = pytest.importorskip("onnx")
    from ibert_tvm.frontend.onnx.heads import choose_outputs

    outputs = [
        onnx.helper.make_tensor_value_info(name, 1, shape)
        for name, shape in (("seq_relationship", ["b", 2]), ("logits", ["b", "s", 9]))
    ]
    graph = onnx.helper.make_graph([], "g", [], outputs)
    chosen = choose_outputs(graph, None, None, 17, "here")
    assert (chosen.heads, chosen.tensors) == ((toy,), ("seq_relationship",))


def test_every_head_is_of_one_class() -> None:
    """No end of a class name is that of two heads, and every sample is learned by one."""
    ends = [end for head in HEADS.values() for end in (*head.classes, *head.unlabelled)]
    samples = [name for head in HEADS.values() for name in head.samples]
    assert len({*ends}) == len(ends) and sorted(samples) == [
        "Labelled", "Questions", "Scored", "Tagged"
    ]  # fmt: skip
    assert head_of_class("BertForMaskedLM") == "none"
    assert head_of_class("BertForMaskedLM", unlabelled=True) == "token_classification"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "two words"}, "has no name that is one word"),
        ({"kind": "vector"}, "has the unknown kind 'vector'; there are"),
        ({"tokens": False}, "takes neither tokens nor images"),
        ({"classes": ()}, "has classes or a class to load, not both"),
        ({"onnx": OnnxOutput(())}, "has no output of an ONNX graph"),
        ({"onnx": OnnxOutput(("a",), only=True)}, "takes the only output of no rank"),
        ({"checkpoint": (heads.Layer("gelu", "a"),)}, "has a layer that is none of"),
        (
            {"tokens": False, "reals": True, "samples": ("Tagged",)},
            "is trained on texts, which it does not take",
        ),
    ],
)
def test_a_record_that_contradicts_itself(changes: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=f"^the head '.*' {why}"):
        replace(TOY, **changes)  # type: ignore[arg-type]


def test_a_record_without_a_part_is_an_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'onnx'"):
        Head("a", "b", "logits", Returned("logits"))  # type: ignore[call-arg]


def test_a_name_is_given_once(toy: Head) -> None:
    with pytest.raises(ValueError, match=r"^there is a head 'next_sentence' already$"):
        heads.register_head(TOY)
