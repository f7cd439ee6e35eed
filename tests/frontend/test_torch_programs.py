"""Torch modules that are called otherwise, exported programs, and files of them."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ibert_tvm.cli import main
from ibert_tvm.evaluation.evaluate import evaluate_integers
from ibert_tvm.frontend import ModelSourceError, UnsupportedModelError, load
from ibert_tvm.frontend.torch_import import decomposed, evaluating, export
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.quantization import CalibrationOptions, quantize
from tests.frontend.architectures import make
from tests.frontend.grouped_modules import grouped
from tests.frontend.imports import ops, verified

VOCABULARY, WIDTH, HEADS, LONGEST = 37, 24, 3, 50


class Encoder(nn.Module):
    """Torch's own encoder layer, scaled embeddings, a table of positions that is sliced."""

    def __init__(self, norm_first: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(1, LONGEST, WIDTH) * 0.3)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 40, batch_first=True, activation="gelu", norm_first=norm_first
        )
        norm = nn.LayerNorm(WIDTH) if norm_first else None
        self.layers = nn.TransformerEncoder(layer, 1, norm=norm, enable_nested_tensor=False)

    def forward(self, src: torch.Tensor, src_key_padding_mask: torch.Tensor) -> torch.Tensor:
        x = self.words(src) * math.sqrt(WIDTH) + self.places[:, : src.shape[1]]
        return self.layers(x, src_key_padding_mask=src_key_padding_mask)


class Additive(Encoder):
    """Takes what is added to the scores."""

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = bias.expand(x.shape[0], HEADS, x.shape[1], x.shape[1]).flatten(0, 1)
        return self.layers(self.words(x) + self.places[:, : x.shape[1]], mask=scores)


class Unmasked(Encoder):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layers(self.words(tokens) + self.places[:, : tokens.shape[1]])


def exported(module: nn.Module, dynamic: bool, batch: int = 3) -> torch.export.ExportedProgram:
    ids = torch.ones(batch, 9, dtype=torch.int64)
    arguments = (ids,) if isinstance(module, Unmasked) else (ids, ids == 0)
    dims = {0: torch.export.Dim("b", min=1, max=64), 1: torch.export.Dim("s", min=2, max=LONGEST)}
    shapes = tuple(dims for _ in arguments) if dynamic else None
    return torch.export.export(module.eval(), arguments, dynamic_shapes=shapes)


@pytest.mark.slow
def test_a_pre_norm_encoder_with_torch_s_padding_mask():
    module = Encoder(norm_first=True)
    loaded = verified(module)  # the names of its arguments say what they are
    assert module.training
    assert loaded.info.inputs == ("input_ids", "attention_mask")
    assert loaded.info.max_sequence_length == LONGEST
    assert ops(loaded)[-1] == "layer_norm" and ops(loaded).count("layer_norm") == 3
    (factor,) = [f.what for f in loaded.report.foldings if "moved to the table" in f.what]
    assert factor == f"factor {math.sqrt(WIDTH):g} moved to the table"


@pytest.mark.slow
def test_an_additive_mask_and_arguments_that_say_nothing():
    loaded = verified(Additive(), inputs={"x": "input_ids", "bias": "additive_mask"})
    assert loaded.info.inputs == ("input_ids", "attention_mask")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "encoder.pt2"
    torch.export.save(exported(Encoder(), dynamic=True), path)
    return path


@pytest.mark.slow
def test_the_command_line_takes_a_saved_program(saved, tmp_path, capsys):
    random = np.random.default_rng(0)
    ids = random.integers(0, VOCABULARY, (6, 12))
    np.savez(tmp_path / "batches.npz", input_ids=ids, attention_mask=np.ones_like(ids))
    target = tmp_path / "encoder.ibert"
    arguments = [
        "quantize",
        saved,
        "-o",
        target,
        "--calibration",
        tmp_path / "batches.npz",
        "--trust",
    ]
    assert main([str(argument) for argument in (*arguments, "--json")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["architecture"], document["calibration_texts"]) == ("exported program", 6)
    info = QuantizedModel.load(target).info
    assert (info.inputs, info.vocab_size) == (("input_ids", "attention_mask"), VOCABULARY)


def test_a_saved_program_of_dynamic_shapes(saved):
    path = saved
    loaded = verified(path, trust=True)
    info = loaded.info
    assert (info.source, info.max_sequence_length, info.notes) == (str(path), LONGEST, ())
    assert set(loaded.parameters) - {"words.weight"} <= set(Encoder().state_dict()) | {
        f"layers.layers.0.self_attn.in_proj_{kind}[{a}:{b}]"
        for kind in ("weight", "bias")
        for a, b in ((0, 24), (24, 48), (48, 72))
    }


@pytest.mark.slow
def test_a_program_of_static_shapes_is_compared_at_its_own():
    loaded = verified(exported(Unmasked(), dynamic=False))
    assert loaded.info.notes == (
        "the source has no attention_mask; the compiled model takes one and ignores padding",
        "the source has static shapes: it was compared at 3 x 9 only",
    )


@pytest.mark.slow
def test_integers_are_those_of_the_hugging_face_folder(tmp_path):
    """The same checkpoint as a folder and as a program, with the same calibration batches."""
    model = make("bert", num_hidden_layers=1).eval()
    model.save_pretrained(tmp_path / "folder")
    random = np.random.default_rng(0)
    mask = np.ones((3, 11), np.int64)
    mask[1, 6:] = 0
    batch = {
        "input_ids": random.integers(0, 61, mask.shape),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 2, mask.shape),
    }
    dims = {0: torch.export.Dim("b", min=2, max=64), 1: torch.export.Dim("s", min=2, max=40)}
    program = torch.export.export(
        model,
        (),
        kwargs={name: torch.from_numpy(array) for name, array in batch.items()},
        dynamic_shapes=dict.fromkeys(batch, dims),
    )
    options = CalibrationOptions(alphas=(0.0, 0.5), compensate=False)
    results = []
    for source in (tmp_path / "folder", program):
        loaded = load(source, verify=False)
        quantized = quantize(loaded, [batch], options=options)
        results.append(next(iter(evaluate_integers(quantized, batch).values())))
    np.testing.assert_array_equal(results[0], results[1])
    assert np.unique(results[0]).size > 100


NOT_CLEAR = {
    "no names": (Additive, None),
    "an unknown form": (Additive, {"x": "input_ids", "bias": "mask"}),
    "no token ids": (Additive, {"bias": "additive_mask"}),
    "one row": (lambda: exported(Encoder(), dynamic=False, batch=1), None),
    "another name": (lambda: exported(Unmasked(), dynamic=False), {"ids": "input_ids"}),
    "too many names": (
        lambda: exported(Unmasked(), dynamic=False),
        ["input_ids", "attention_mask"],
    ),
}


@pytest.mark.parametrize("name", NOT_CLEAR)
def test_inputs_that_are_not_clear(name, messages):
    make_source, inputs = NOT_CLEAR[name]
    with messages.raises((ModelSourceError, UnsupportedModelError)):
        load(make_source(), inputs=inputs)


class _Code:
    """What makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_a_program_that_runs_code_is_not_read_unless_it_is_trusted(
    saved, tmp_path, capsys, messages
):
    hostile, made = tmp_path / "hostile.pt2", tmp_path / "made"
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(hostile, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if "sample_inputs" in name:
                stream = io.BytesIO()
                torch.save(((_Code(made),), {}), stream)
                content = stream.getvalue()
            target.writestr(name, content)
    with messages.raises(ModelSourceError):
        load(hostile)
    assert main(["inspect", str(hostile)]) == 3
    assert main(["quantize", str(hostile), "-o", str(tmp_path / "x.ibert")]) == 3
    assert not made.exists()
    assert "--trust" in capsys.readouterr().err
    with contextlib.suppress(ModelSourceError):
        load(hostile, trust=True)
    assert made.exists()  # the danger is real


def test_files_that_are_no_exported_programs(tmp_path, messages):
    missing = tmp_path / "missing.pt2"
    with messages.raises(ModelSourceError):
        load(missing)
    text = tmp_path / "text.pt2"
    text.write_text("hello")
    with messages.raises(ModelSourceError):
        load(text)
    weights: Path = tmp_path / "weights.pt2"
    torch.save({"a": torch.ones(1)}, weights)
    why = re.compile(r"(?<=why: RuntimeError: ).*")
    with messages.raises(ModelSourceError, why=why, version=torch.__version__):
        load(weights, trust=True)


@pytest.mark.slow
def test_operators_are_decomposed_as_torch_decomposes_them() -> None:
    module = grouped("gqa")  # has products that torch folds, or does not
    ids = torch.ones(2, 13, dtype=torch.int64)
    with evaluating(module):
        exported = export(module, {"input_ids": ids, "attention_mask": ids}, "")
    ours, theirs = decomposed(exported), exported.run_decompositions()
    assert str(ours.graph) == str(theirs.graph)
    assert ours.graph_signature == theirs.graph_signature
