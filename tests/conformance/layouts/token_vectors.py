"""Vectors over the vocabulary (SPLADE), and vectors of tokens (ColBERT)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ibert_tvm import Encoder
from ibert_tvm.common.errors import UsageError
from tests.conformance.evaluated import TEXTS, float_encoder
from tests.conformance.head_folders import with_head
from tests.conformance.head_results import close, same_ids
from tests.conformance.layout import LAYOUTS, Layout
from tests.frontend.sentence_folders import CHANNELS, NORMALIZE, TRANSFORMER, dense


def _settings(**settings: Any) -> dict[str, Any]:
    """What sentence-transformers writes about a model."""
    return {"config_sentence_transformers.json": settings}


_SPARSE = "sentence_transformers.sparse_encoder.models."
_MLM = (f"{_SPARSE}MLMTransformer", "", {})
_LATE = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
_PROJECTION = dense(CHANNELS, 16, "linear.Identity", bias=False)
_PLAIN = {"model_type": "ColBERT", "do_query_expansion": False, "skiplist_words": []}
_MARKED = {**_PLAIN, "query_prefix": "[Q] ", "document_prefix": "[D] "}
_MARK = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": True}
_SPLADE = _settings(model_type="SparseEncoder", prompts={})
_FILL_MASK = {"sentence_bert_config.json": {"transformer_task": "fill-mask"}}


def weights_of_words(folder: Path, encoder: Encoder) -> None:
    """A `SparseEncoder`: ids, weights, and similarities."""
    from sentence_transformers import SparseEncoder  # which takes seconds

    source = SparseEncoder(str(folder), device="cpu", local_files_only=True)
    same_ids(source.tokenizer, encoder, TEXTS, encoder.max_seq_length)
    texts = list(TEXTS)
    wanted = source.encode(texts, convert_to_sparse_tensor=False, batch_size=1).numpy()
    exact = float_encoder(folder)
    found = close(lambda each: each.encode(texts), encoder, exact, wanted)
    similar = np.asarray(source.similarity(found, found))
    np.testing.assert_allclose(encoder.similarity(found, found), similar, rtol=1e-5)


def vectors_of_tokens(folder: Path, encoder: Encoder) -> None:
    """A `MultiVectorEncoder`: ids, and a vector of every token of a text."""
    from sentence_transformers.multi_vector_encoder import MultiVectorEncoder

    source = MultiVectorEncoder(str(folder), device="cpu", local_files_only=True)
    same_ids(source.tokenizer, encoder, TEXTS, encoder.max_seq_length)
    texts = list(TEXTS)
    for method in ("encode", "encode_query", "encode_document"):
        wanted = getattr(source, method)(texts, convert_to_numpy=True, batch_size=1)
        outputs = partial(_of_tokens, method, texts)
        close(outputs, encoder, float_encoder(folder), np.concatenate(wanted))
    similar = np.asarray(source.similarity(wanted, wanted))
    np.testing.assert_allclose(encoder.similarity(wanted, wanted), similar, rtol=1e-5)


def _of_tokens(method: str, texts: list[str], encoder: Encoder) -> np.ndarray:
    found = getattr(encoder, method)(texts, output_value="token_embeddings")
    return np.concatenate([vectors.numpy() for vectors in found])


def hidden_states_alone(_folder: Path, encoder: Encoder) -> None:
    """What `SparseEncoder` makes of a plain folder is not what a plain folder asks for."""
    with pytest.raises(UsageError, match="the model cannot encode"):
        encoder.encode(list(TEXTS))


def _pooling(**config: Any) -> Any:
    settings = {"pooling_strategy": "max", "activation_function": "relu", **config}
    return f"{_SPARSE}SpladePooling", "1_SpladePooling", settings


_splade = partial(with_head, "masked_lm")
_late = partial(with_head, "none")
_pylate = partial(_late, modules=[TRANSFORMER, ("pylate.models.Dense.Dense", *_PROJECTION[1:])])

for name, folder in {
    "splade-v3": _splade(modules=[_MLM, _pooling()], files=_SPLADE),
    "splade of sentence-transformers 6": _splade(
        modules=[TRANSFORMER, _pooling()], files={**_SPLADE, **_FILL_MASK}, saved=True
    ),
    "splade-v3-distilbert": _splade("distilbert", modules=[_MLM, _pooling()], files=_SPLADE),
}.items():
    LAYOUTS.register(Layout(name, folder, weights_of_words))

for name, folder in {
    "late interaction without markers": _pylate(files=_settings(**_PLAIN)),
    "late interaction with markers": _pylate(files=_settings(**_MARKED)),
    "GTE-ModernColBERT-v1": _pylate(
        files=_settings(**_MARKED),
        settings={
            "added_tokens_decoder": {
                "341": {**_MARK, "content": "[Q] "},
                "342": {**_MARK, "content": "[D] "},
            }
        },
    ),
    "late interaction of sentence-transformers 6": _late(
        files=_settings(model_type="MultiVectorEncoder", prompts={"query": "the ", "document": ""}),
        modules=[
            TRANSFORMER,
            (*_PROJECTION[:2], {**_PROJECTION[2], "module_input_name": "token_embeddings"}),
            (_LATE, "3_MultiVectorMask", {"skiplist_words": []}),
            (*NORMALIZE[:2], {"module_input_name": "token_embeddings"}),
        ],
        saved=True,
    ),
}.items():
    LAYOUTS.register(Layout(name, folder, vectors_of_tokens))

LAYOUTS.register(Layout("splade without modules", _splade(), hidden_states_alone))

for name, folder in {
    "opensearch-neural-sparse": _splade(modules=[_MLM, _pooling(activation_function="log1p_relu")]),
    "colbertv2.0 of Stanford": _late(changes={"architectures": ["HF_ColBERT"]}),
    "splade with a sum": _splade(modules=[_MLM, _pooling(pooling_strategy="sum")]),
}.items():
    LAYOUTS.register(Layout(name, folder, None))
