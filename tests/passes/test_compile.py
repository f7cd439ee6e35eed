"""`ibert_tvm.compile`: from a quantised model to an executable, its report, its refusals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import ibert_tvm
from ibert_tvm.common.errors import OutputError, UsageError
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.model.model_info import ModelInfo, OutputInfo
from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.errors import IntegerOnlyError
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.targets import TargetError, get_target
from tests.passes.small import small_program
from tests.snapshots import Messages

LAYER = "encoder.layer.0.output.dense"


def integers(planted: bool = False) -> IntegerProgram:
    """Embedding, linear layer, mean; with a float operator between if asked for."""

    def body(p, inputs) -> Sequence[relax.Var]:
        table = p.integers("word.weight", -127, 127, (50, 8), "int8")
        factor = p.integers("word.multiplier", 1, 99, (1,), "int32")
        row = p.emit(
            integer.embedding(inputs["input_ids"], table, factor, name="embeddings.word", shift=3)
        )
        hidden = p.linear(LAYER, p.requantise("operand", row, 0.05), 8)
        if planted:
            real = p.emit(relax.op.astype(hidden, "float32"))
            hidden = p.emit(relax.op.astype(real, "int32"))
        mean = integer.mean_pool(hidden, inputs["attention_mask"], name="mean", fraction_bits=4)
        return [p.emit(mean)]

    return small_program(body)


def model(longest: int | None = 16) -> QuantizedModel:
    """The model of these integers."""
    program = integers()
    info = ModelInfo(
        architecture="bert",
        head="sentence_embedding",
        inputs=("input_ids", "attention_mask"),
        outputs=(OutputInfo("sentence_embedding", "mean", "embedding"),),
        hidden_size=8,
        num_layers=0,
        vocab_size=50,
        max_sequence_length=longest,
        source_sha256="ab" * 32,
    )
    outputs = [{"name": "sentence_embedding", "scale": 0.25}]
    return QuantizedModel(
        read_program(program.module),
        program.parameters,
        info,
        {"preset": "accurate", "outputs": outputs},
    )


def test_a_planted_float_fails_the_compilation_with_the_layers_name(messages: Messages) -> None:
    quantized = model()
    vars(quantized)["module"] = integers(planted=True).module  # no artefact can hold it
    with messages.raises(IntegerOnlyError):
        ibert_tvm.compile(quantized, target="x86-64", shapes=[(1, 4)])


def test_compilation_dumps_every_phase_reports_and_computes_the_same(tmp_path: Path) -> None:
    quantized, phases = model(), []
    folder = tmp_path / "new" / "ir"
    compiled = ibert_tvm.compile(
        quantized,
        target="host",
        runtime="tvm",
        shapes=[(2, 5), (1, 3), (2, 5)],
        dump_ir=folder,
        progress=phases.append,
    )
    assert phases == ["lower", "schedule", "build"]

    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [
        "00_integer.py",
        "01_repeat_rows.py",
        "02_split_operands.py",
        "03_offset_activations.py",
        "04_merge_projections.py",
        "05_pack_tokens.py",
        "06_analyse_ranges.py",
        "07_specialise_shapes.py",
        "08_fuse_epilogues.py",
        "09_emit_kernels.py",
        "10_share_kernels.py",
        "11_check_integer_only.py",
        "12_schedule.py",
    ]
    texts = [file.read_text(encoding="utf-8") for file in files]
    assert "integer.embedding" in texts[0] and LAYER in texts[0]
    assert "main_b2_s5" in texts[7] and "seq_len" not in texts[7]
    assert "T.sblock" in texts[9] and "T.parallel" not in texts[9]
    assert "T.parallel" in texts[12]

    report = compiled.report
    assert report["shapes"] == [[1, 3], [2, 5]]
    assert report["target"] == "host"
    assert list(report["seconds"]) == phases
    assert all(seconds >= 0 for seconds in report["seconds"].values())
    assert report["kernels"] == 6
    assert report["weight_bytes"] == sum(a.nbytes for a in compiled.parameters.values())
    assert report["integer_only"]["kernels"] == report["kernels"]

    metadata = compiled.metadata
    functions = metadata["functions"]
    assert [(f["name"], f["batch"], f["seq_len"]) for f in functions] == [
        ("main_b1_s3", 1, 3),
        ("main_b2_s5", 2, 5),
    ]
    # Kernels in order of execution; a linear layer of 8 to 8 channels over 2 x 5 tokens.
    assert [(k["kind"], k["layer"], k["macs"]) for k in functions[1]["kernels"]] == [
        ("embedding", "embeddings.word", 0),
        ("linear", LAYER, 2 * 5 * 8 * 8),
        ("mean_pool", "mean", 0),
    ]
    assert all(k["name"] in texts[10] for f in functions for k in f["kernels"])
    assert metadata["inputs"] == [
        {"name": "input_ids", "dtype": "int32"},
        {"name": "attention_mask", "dtype": "int32"},
    ]
    assert metadata["outputs"] == [
        {
            "name": "sentence_embedding",
            "kind": "embedding",
            "dtype": "int32",
            "scale": 0.25,
            "shape": ["batch", 8],
        }
    ]
    assert metadata["required_cpu_features"] == list(get_target("host").required_features)
    assert metadata["source_sha256"] == "ab" * 32

    machine = relax.VirtualMachine(compiled.executable, tvm.cpu())
    parameters = [tvm.runtime.tensor(array) for array in compiled.parameters.values()]
    random = np.random.default_rng(0)
    for batch, seq_len in report["shapes"]:
        ids = random.integers(0, 50, (batch, seq_len)).astype("int32")
        mask = (np.arange(seq_len) < seq_len - 1).astype("int32") * np.ones((batch, 1), "int32")
        arrays = {"input_ids": ids, "attention_mask": mask}
        (expected,) = evaluate(quantized.module, arrays, quantized.parameters)
        inputs = [tvm.runtime.tensor(array) for array in arrays.values()]
        got = machine[f"main_b{batch}_s{seq_len}"](*inputs, *parameters)
        np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("shapes", [[], [(1, 4), (0, 4)], [(1, 17)]], ids=["none", "empty", "long"])
def test_shapes_that_cannot_be_served_are_refused(shapes: list, messages: Messages) -> None:
    with messages.raises(UsageError):
        ibert_tvm.compile(model(), target="x86-64", shapes=shapes)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ibert_tvm.IbertError, match="unknown target 'x86-65'") as caught:
        ibert_tvm.compile(model(), target="x86-65", shapes=[(1, 4)])
    assert type(caught.value) is TargetError


def test_a_dump_folder_that_cannot_be_made_is_refused(tmp_path: Path, messages: Messages) -> None:
    taken = tmp_path / "file"
    taken.write_text("not a folder", encoding="utf-8")
    with messages.raises(OutputError):
        ibert_tvm.compile(model(), target="x86-64", shapes=[(1, 4)], dump_ir=taken)


def test_a_dump_that_cannot_be_written_is_refused(tmp_path: Path, messages: Messages) -> None:
    first = tmp_path / "00_integer.py"
    first.write_text("# dumped by ibert_tvm\n", encoding="utf-8")
    (tmp_path / "01_repeat_rows.py").mkdir()
    with messages.raises(OutputError):
        ibert_tvm.compile(model(), target="x86-64", shapes=[(1, 4)], dump_ir=tmp_path)
    first.write_text("mine", encoding="utf-8")
    with messages.raises(OutputError):
        ibert_tvm.compile(model(), target="x86-64", shapes=[(1, 4)], dump_ir=tmp_path)
    assert first.read_text(encoding="utf-8") == "mine"
