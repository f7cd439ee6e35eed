"""A sentence-transformers folder like MiniLM's, with one narrow layer of random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ibert_tvm.texts import data_file
from tests.cache import cached, version_of
from tests.encoder.small_encoders import tiny

_WIDTH = 32


def small_model() -> Path:
    """The folder: MiniLM's tokenizer and files, weights of its own."""
    from ibert_tvm.demo import find_model

    source = find_model()
    with cached("documents", version_of(_build)) as (place, work):
        if work is not None:
            _build(source, work)
    return place


def made() -> Path:
    """A folder with what the README makes of it, and a classifier: where other documents begin."""
    import ibert_tvm as ibert

    with cached("documents-made", version_of(made)) as (place, work):
        if work is not None:
            texts = data_file("calibration.txt").read_text(encoding="utf-8").splitlines()
            quantized = ibert.quantize(ibert.load(small_model()), texts[:24])
            quantized.save(work / "minilm.ibert")
            shapes = [(1, 32), (1, 128)]
            ibert.compile(quantized, shapes=shapes).export(work / "minilm.so")
            tiny("classes").build(work / "classifier.so")
    return place


def _build(source: Path, folder: Path) -> None:
    import torch
    import transformers

    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model.*"))
    config = transformers.BertConfig.from_pretrained(source)
    config.update(
        {
            "hidden_size": _WIDTH,
            "intermediate_size": 2 * _WIDTH,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    pooling = folder / "1_Pooling" / "config.json"
    document = json.loads(pooling.read_text(encoding="utf-8"))
    document["word_embedding_dimension"] = _WIDTH
    pooling.write_text(json.dumps(document), encoding="utf-8")
