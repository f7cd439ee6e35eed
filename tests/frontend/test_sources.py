"""Records of model sources: what each recognises, and a toy source taken through all phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ibert_tvm as ibert
from ibert_tvm.encoder import prepared
from ibert_tvm.frontend import CanonicalModel, ModelSourceError
from ibert_tvm.frontend.finish import described, finish
from ibert_tvm.frontend.request import Request
from ibert_tvm.frontend.sources import (
    SOURCES,
    ModelSource,
    ends_in,
    is_source,
    register_source,
    source_of,
    unregister_source,
)
from tests.commands import Ibert
from tests.frontend.relax_models import VOCABULARY, canonical_of
from tests.snapshots import Messages


def folder(path: Path, *names: str, text: str = "{}") -> Path:
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_text(text)
    return path


def hub_entry(path: Path, *commits: str) -> Path:
    for commit in commits:
        folder(path / "snapshots" / commit, "config.json")
    return path


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: folder(p / "m", "config.json"), "folder"),
        (lambda p: folder(p / "m", "modules.json", text="[]"), "folder"),
        (lambda p: folder(p / "m", "config.json", text='{"model_type": "ibert"}'), "checkpoint"),
        (lambda p: folder(p / "m", "config.json", text="{"), "folder"),
        (lambda p: hub_entry(p / "models--x--y", "abc"), "hub_entry"),
        (lambda p: hub_entry(p / "models--x--y", "abc", "def"), "hub_entry"),
        (lambda p: folder(p / "m.ibert", "config.json", "quantization.json"), None),
        (lambda p: folder(p / "m", "vocab.txt"), None),
        (lambda p: p / "model.ONNX", "onnx"),
        (lambda p: p / "model.pt2", "exported_file"),
        (lambda p: p / "model.so", None),
    ],
)
def test_what_is_a_source(
    tmp_path: Path, make: Callable[[Path], Path], expected: str | None
) -> None:
    path = make(tmp_path)
    found = source_of(path)
    assert (found and found.name) == expected
    assert is_source(path) is (expected is not None)


@pytest.mark.slow
def test_modules_in_memory_have_records() -> None:
    torch = pytest.importorskip("torch", reason="modules are torch's")
    from transformers import BertConfig, BertModel, IBertConfig, IBertModel

    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    bert = BertModel(BertConfig(vocab_size=9, hidden_size=8, **sizes))
    checkpoint = IBertModel(IBertConfig(vocab_size=9, hidden_size=8, **sizes))
    linear = torch.nn.Linear(2, 2)
    program = torch.export.export(linear, (torch.zeros(1, 2),))
    kinds = [source_of(x) for x in (linear, torch.compile(linear), bert, checkpoint, program, 3)]
    assert [kind and kind.name for kind in kinds] == [
        "module", "compiled_module", "transformers_model", "checkpoint_in_memory",
        "exported_program", None,
    ]  # fmt: skip


def test_what_is_no_single_source_is_not_imported(tmp_path: Path, messages: Messages) -> None:
    with messages.raises(ModelSourceError):
        ibert.load(folder(tmp_path / "m.ibert", "quantization.json"))
    with messages.raises(ModelSourceError):
        ibert.load(hub_entry(tmp_path / "models--x--y", "abc", "def"))


def test_everything_that_an_onnx_file_reads_makes_another_library(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="writes an ONNX file")
    from tests.frontend.onnx.graphs import Graph

    g = Graph()
    model = g.model(g.layer_norm(g.words(), "norm"), names=("last_hidden_state",))
    file = tmp_path / "model.onnx"
    onnx.save(model, file, save_as_external_data=True, location="weights.bin", size_threshold=0)
    seen = {prepared._content(file)}
    (tmp_path / "notes.txt").write_text("no part of the model")
    seen.add(prepared._content(file))
    for name in ("weights.bin", "vocab.txt", "config.json"):
        (tmp_path / name).write_text(name)
        seen.add(prepared._content(file))
    assert len(seen) == 4


@pytest.mark.parametrize(
    "changes", [{"name": "two words"}, {"what": "toy"}, {"load": None}], ids=str
)
def test_a_record_without_a_part_is_refused(changes: dict[str, Any], messages: Messages) -> None:
    with messages.raises(ValueError):
        replace(TOY, **changes)


def _toy_model(path: Path, request: Request) -> CanonicalModel:
    """Read a file that holds the width of a linear layer over the tokens."""
    canonical = canonical_of(lambda s: s.linear(s.words(), "output", int(path.read_text())))
    outputs = [("last_hidden_state", "hidden_state")]
    model = finish(
        canonical, None, architecture="toy", head=request.head or "none", outputs=outputs
    )
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(VOCABULARY - 5))]
    tokenizer = {
        "vocab.txt": "\n".join(words).encode(),
        "tokenizer_config.json": b'{"model_max_length": 9}',
    }
    return described(model, source=str(path), description="a toy", tokenizer=tokenizer)


TOY = ModelSource(
    "toy",
    "a toy",
    recognises=ends_in(".toy"),
    load=_toy_model,
    heads=False,
    files=lambda path: [path],
)


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Path]:
    register_source(TOY)
    (tmp_path / "model.toy").write_text("5")
    yield tmp_path / "model.toy"
    unregister_source(TOY.name)


def test_a_new_source_is_one_record(
    toy: Path, ibert_command: Ibert, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """Import, quantisation, compilation, texts, command line: no other file knows the kind."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(toy.parent / "cache"))
    model = ibert.load(toy)
    quantized = ibert.quantize(model, ["1 2 3", "4 5 6 7 8", "9 10"], seq_len=9)
    library = toy.with_suffix(".so")
    ibert.compile(quantized, "host", [(1, 9)]).export(library)
    with ibert.Encoder(library) as encoder:
        assert encoder.library.run_texts(["1 2 3"])["last_hidden_state"].shape == (1, 5, 5)
    assert prepared._length(quantized, None) == 9
    before = prepared._content(toy)
    assert ibert_command("inspect", toy).stdout.count("toy, 0 layers") == 1
    toy.write_text("6")
    assert prepared._content(toy) != before
    with messages.raises(ModelSourceError):
        ibert.load(toy, head="pooled")
    with messages.raises(ModelSourceError):
        ibert.load(toy, inputs=["input_ids"])


def test_a_name_is_given_once(toy: Path) -> None:
    with pytest.raises(ValueError, match="there is a model source 'toy' already"):
        register_source(TOY)
    assert SOURCES["toy"] is TOY
