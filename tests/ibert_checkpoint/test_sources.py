"""The forms in which checkpoints come, and what the import says about them."""

from __future__ import annotations

import copy
import sys

import numpy as np
import pytest
import torch

import ibert_tvm as ibert
from tests.examples import examples
from tests.ibert_checkpoint.checkpoints import CLASSES
from tests.processes import run_captured


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("head", examples(CLASSES, "none", "token_classification"))
def test_the_float_model_is_that_of_transformers(checkpoint, head, messages):
    """In its float mode, on padded batches of two shapes; `load` compares them."""
    labels = 2 if head == "question_answering" else 3
    saved = checkpoint(head, num_hidden_layers=2, num_labels=labels)
    model = ibert.load(saved.folder, head=head)
    assert 0 < model.verified_error < 1e-4
    assert model.info.architecture == "ibert"
    assert model.info.inputs == ("input_ids", "attention_mask", "token_type_ids")
    assert (model.info.max_sequence_length, model.info.pad_token_id) == (38, 1)
    messages.check("\n".join(model.info.notes))
    labels = 3 if head in ("sequence_classification", "token_classification") else 0
    assert list(model.info.id2label.values()) == [f"LABEL_{i}" for i in range(labels)]


@pytest.mark.slow
def test_a_single_token_type_is_no_input(checkpoint):
    saved = checkpoint(num_hidden_layers=2, type_vocab_size=1)
    model = ibert.load(saved.folder)
    assert model.info.inputs == ("input_ids", "attention_mask")
    assert model.info.type_vocab_size == 0 and model.verified_error < 1e-4
    assert (
        model.report.foldings[0].what == "the only token type is looked up without token_type_ids"
    )


@pytest.mark.slow
def test_the_head_follows_the_class_that_was_saved(checkpoint):
    folder = checkpoint("sequence_classification", num_labels=3).folder
    assert ibert.load(folder, verify=False).info.head == "sequence_classification"


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("kind", ["gelu", "softmax", "layernorm", "nonlinear"])
def test_functions_that_ran_in_float_are_reported(checkpoint, kind, messages):
    messages.check("\n".join(checkpoint(force_dequant=kind).model.info.notes))


def test_the_report_names_modules_and_classes(checkpoint):
    report = checkpoint().model.report
    assert report.source == (
        "transformers ibert checkpoint, trained with quantisation, force_dequant none"
    )
    matched = {item.name: item for item in report.matched}
    gelu = matched["encoder.layer.0.intermediate.gelu"]
    assert (gelu.op, gelu.source_ops) == ("canonical.gelu", ("IntGELU",))
    assert gelu.nodes == ("encoder.layer.0.intermediate.intermediate_act_fn",)
    assert [item.name for item in report.foldings] == [
        "embeddings.embeddings_act2",
        "activation of every LayerNorm",
    ]
    assert report.refusals == []


def assert_same_program(one, other):
    a, b = ibert.quantize(one), ibert.quantize(other)
    assert list(a.parameters) == list(b.parameters)
    for name, array in a.parameters.items():
        np.testing.assert_array_equal(b.parameters[name], array)
    assert a.quantization["values"] == b.quantization["values"]


@pytest.mark.slow
def test_a_pickle_is_read_too(checkpoint, tmp_path):
    saved = checkpoint()
    saved.source.config.save_pretrained(tmp_path)
    torch.save(saved.source.state_dict(), tmp_path / "pytorch_model.bin")
    assert_same_program(saved.model, ibert.load(tmp_path, verify=False))


@pytest.mark.slow
def test_integers_and_scales_of_the_checkpoint_are_not_believed(checkpoint, tmp_path):
    """They are what the last forward pass left, or zeros."""
    source = copy.deepcopy(checkpoint().source)
    for name, buffer in source.named_buffers():
        if name.endswith(("_integer", "scaling_factor")):
            buffer.fill_(123.0)
    source.save_pretrained(tmp_path)
    assert_same_program(checkpoint().model, ibert.load(tmp_path, verify=False))


@pytest.mark.slow
def test_shards_are_one_checkpoint(checkpoint, tmp_path):
    saved = checkpoint()
    saved.source.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_program(saved.model, ibert.load(tmp_path, verify=False))


@pytest.mark.slow
@pytest.mark.parametrize("kind", examples([torch.float16, torch.bfloat16], torch.bfloat16))
def test_a_checkpoint_in_half_precision_is_its_rounded_self(checkpoint, tmp_path, kind):
    source = copy.deepcopy(checkpoint(seed=2, type_vocab_size=1).source)
    # Ranges of exponentials leave float16: the weights alone are halved.
    for parameter in source.parameters():
        parameter.data = parameter.data.to(kind)
    source.save_pretrained(tmp_path / "half")
    for parameter in source.parameters():
        parameter.data = parameter.data.float()
    source.save_pretrained(tmp_path / "float")
    half, full = (ibert.load(tmp_path / name, verify=False) for name in ("half", "float"))
    assert_same_program(half, full)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("head", ["none", "sequence_classification"])
def test_a_model_in_memory_is_the_same(checkpoint, head):
    """Its quantised forward pass is not traced, and its mode stays as it is."""
    saved = checkpoint(head, num_hidden_layers=2, num_labels=3)
    model = ibert.load(saved.source)
    assert model.info.head == head and 0 < model.verified_error < 1e-4
    assert model.info.description == f"ibert module in memory, head {head}"
    assert saved.source.config.quant_mode
    assert_same_program(saved.model, model)


@pytest.mark.slow
def test_no_torch_is_needed(checkpoint):
    """Neither to import a checkpoint nor to quantise it."""
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "import ibert_tvm as ibert\n"
        "print(ibert.quantize(ibert.load(sys.argv[1], verify=False)).preset)\n"
    )
    command = [sys.executable, "-c", program, str(checkpoint().folder)]
    result = run_captured(command)
    assert (result.returncode, result.stdout.strip()) == (0, "released"), result.stderr
