"""Libraries with every kind of head: the runtime's tiny model, its outputs called by other names.

What is computed is an embedding table and its masked sum; what matters here is what comes before
and behind it. `bert` is a whole model with the kernels of real ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once
from tests.runtime.conftest import VOCABULARY, TinyModel

HEADS = {
    "embedding": ("sentence_embedding", "hidden_state", "embedding", 3),
    "score": ("sequence_classification", "hidden_state", "logits", 1),
    "classes": ("sequence_classification", "hidden_state", "logits", 4),
    "tokens": ("token_classification", "token_logits", "pooled", 3),
    "spans": ("question_answering", "span_logits", "pooled", 2),
}
"""Head, kinds of the two outputs, channels."""
LABELS = {"classes": ["calm", "wild", "odd", "big"], "tokens": ["O", "B-SIZE", "I-SIZE"]}
WORDS = VOCABULARY[4:]


def tiny(kind: str, **info: Any) -> TinyModel:
    """A model with one of `HEADS`; `info` are more fields of its `ModelInfo`."""
    head, per_token, per_text, channels = HEADS[kind]
    plain = TinyModel(shapes=((1, 16), (4, 16)), channels=channels)
    document = plain.metadata
    outputs = [
        {**output, "kind": name, "scale": 1 / 64}
        for output, name in zip(document["outputs"], (per_token, per_text), strict=True)
    ]
    described = {
        **document["info"],
        "head": head,
        "outputs": [
            {**output, "kind": name}
            for output, name in zip(document["info"]["outputs"], (per_token, per_text), strict=True)
        ],
        "id2label": {str(i): label for i, label in enumerate(LABELS.get(kind, ()))},
        **info,
    }
    changes = {"outputs": outputs, "info": described}
    return TinyModel(shapes=plain.shapes, channels=channels, metadata_changes=changes)


def save_bert(folder: Path) -> Path:
    """A sentence-transformers folder: a BERT with random weights and the vocabulary of `tiny`."""
    from tests.frontend.sentence_folders import NORMALIZE, TRANSFORMER, pooling, save

    folder.mkdir(exist_ok=True)
    save(folder, [TRANSFORMER, pooling("mean"), NORMALIZE])
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    (folder / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "hello: ", "none": ""}, "default_prompt_name": null}'
    )
    return folder


@quantised_once
def bert() -> QuantizedModel:
    """That folder, quantised."""
    import ibert_tvm as ibert

    with tempfile.TemporaryDirectory() as folder:
        texts = ["hello world", "small big world hello small", "big"]
        return ibert.quantize(ibert.load(save_bert(Path(folder) / "bert")), texts, seq_len=16)
