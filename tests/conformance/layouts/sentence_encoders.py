"""Sentence encoders, as sentence-transformers has published them since its version 0.3."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from ibert_tvm import Encoder
from ibert_tvm.frontend.source_tokenizer import PROBES
from tests.conformance.evaluated import TEXTS
from tests.conformance.folders import Folder
from tests.conformance.layout import LAYOUTS, Layout
from tests.frontend.sentence_folders import NORMALIZE, TRANSFORMER, pooling

NEAREST = 0.995
"""Least cosine of an embedding with that of the float model: weights are random, layers few."""
TIE = 0.02
"""Similarities of the float model that are nearer than this may change places."""
_LONGEST = 512
"""Where an encoder cuts texts that its model has room for."""


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Of the rows of two arrays."""
    norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    return np.asarray((one * other).sum(axis=-1) / norms)


def same_order(found: np.ndarray, wanted: np.ndarray) -> None:
    """Ask that scores in rows are in one order, but for ties."""
    for ours, theirs in zip(found, wanted, strict=True):
        ranks = theirs[np.argsort(-ours, kind="stable")]
        assert np.all(ranks[:-1] - ranks[1:] > -TIE), (ours, theirs)


def like_sentence_transformers(folder: Path, ours: Encoder) -> None:
    """Length, ids, embeddings with and without prompts, and the order of similarities."""
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    room = ours.library.metadata.info.max_sequence_length or _LONGEST
    assert ours.max_seq_length == min(theirs.max_seq_length or _LONGEST, room, _LONGEST)
    theirs.max_seq_length = ours.max_seq_length
    assert ours.embedding_size == theirs.get_embedding_dimension()
    for text in PROBES:
        wanted = (
            theirs.preprocess([text])
            if isinstance(text, str)
            else theirs.tokenizer([text], truncation=True, max_length=ours.max_seq_length)
        )
        ids = [int(index) for index in wanted["input_ids"][0]]
        batch = ours.tokenizer.encode([text], ours.max_seq_length, allow_empty=True)
        assert batch.input_ids[0].tolist() == ids, text
        types = wanted.get("token_type_ids", [[0] * len(ids)])[0]
        assert batch.token_type_ids[0].tolist() == [int(kind) for kind in types], text
    alone: dict[str, Any] = {"batch_size": 1, "show_progress_bar": False}
    ways: dict[str, tuple[str, dict[str, str]]] = {
        "encode": ("encode", {}),
        "query": ("encode_query", {}),
        "document": ("encode_document", {}),
        "another prompt": ("encode", {"prompt": "the cat "}),
    }
    for name, prompt in theirs.prompts.items():
        ways |= {f"prompt {name}": ("encode", {"prompt_name": name})} if prompt else {}
    for way, (method, options) in ways.items():
        found = getattr(ours, method)(list(TEXTS), **options)
        wanted = getattr(theirs, method)(list(TEXTS), **options, **alone)
        assert cosines(found, wanted).min() >= NEAREST, (way, cosines(found, wanted))
        same_order(*(np.asarray(theirs.similarity(each, each)) for each in (found, wanted)))


def _folder(*modules: Any, place: str = "", **options: Any) -> Folder:
    """A transformer in some folder, and modules behind it."""
    return Folder(modules=[(TRANSFORMER[0], place, {}), *modules], **options)


def _limited(length: int = 24, **settings: Any) -> Mapping[str, Any]:
    return {"sentence_bert_config.json": {"max_seq_length": length, **settings}}


MEAN, CLS = pooling("mean"), pooling("cls")

for name, folder in {
    "all-MiniLM-L6-v2": _folder(
        MEAN, NORMALIZE, saved=True, files=_limited(24, do_lower_case=False)
    ),
}.items():
    LAYOUTS.register(Layout(name, folder, like_sentence_transformers, default=True))
