"""Writing model folders: an architecture, a form of tokenizer, modules, and documents beside."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from tests.conformance.evaluated import TEXTS
from tests.frontend import tokenizer_folders
from tests.frontend.architectures import CONFIGS, ROBERTA, SIZES, random_model
from tests.frontend.sentence_folders import Module, save_modules

PROMPT = "Represent this sentence for searching relevant passages: "
"""Of English models for queries."""
_ALL_TEXTS = [*TEXTS, *tokenizer_folders.SENTENCES, PROMPT]
_SHORT = [word for text in _ALL_TEXTS for word in text.split() if len(word) < 10]
_CHARACTERS = sorted({character for text in _ALL_TEXTS for character in text if character > " "})

words = partial(tokenizer_folders.words, vocabulary=tokenizer_folders.many_words(_ALL_TEXTS))
pairs_of_bytes = partial(tokenizer_folders.pairs_of_bytes, size=400)
pieces = partial(
    tokenizer_folders.pieces,
    vocabulary=["▁", *dict.fromkeys(f"▁{word}" for word in _SHORT), *_CHARACTERS],
)
"""Tokenizer files alone, as old folders have them; each with a few hundred tokens."""
mpnet_words = partial(
    tokenizer_folders.words,
    vocabulary=tokenizer_folders.many_words(
        _ALL_TEXTS, ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"]
    ),
)
albert_pieces = partial(
    pieces,
    file="spiece.model",
    special=(("<pad>", 3), ("<unk>", 2), ("[CLS]", 3), ("[SEP]", 3), ("[MASK]", 3)),
)
t5_pieces = partial(pieces, file="spiece.model", special=(("<pad>", 3), ("</s>", 3), ("<unk>", 2)))
modern_pairs = partial(
    pairs_of_bytes,
    special=("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"),
    template="[CLS] $A [SEP]",
)
last_pairs = partial(pairs_of_bytes, special=("<|endoftext|>",), template="$A <|endoftext|>")

_GROUPED = {**SIZES, "head_dim": 8, "num_key_value_heads": 2, "pad_token_id": 0}
_MODERN = {**SIZES, "pad_token_id": 1, "local_attention": 8}
_CONFIGS: dict[str, Callable[..., Any]] = {
    **CONFIGS,
    **{
        name: partial(lambda kind, sizes, **changes: kind(**{**sizes, **changes}), kind, sizes)
        for name, kind, sizes in (
            ("albert", hf.AlbertConfig, {**SIZES, "embedding_size": 16}),
            ("deberta-v2", hf.DebertaV2Config, SIZES),
            ("gte", hf.GteConfig, {**SIZES, "pad_token_id": 0}),
            ("jina_embeddings_v3", hf.JinaEmbeddingsV3Config, ROBERTA),
            ("modernbert", hf.ModernBertConfig, _MODERN),
            ("mpnet", hf.MPNetConfig, ROBERTA),
            ("nomic_bert", hf.NomicBertConfig, {**SIZES, "head_dim": 8}),
            ("qwen3", hf.Qwen3Config, _GROUPED),
        )
    },
    "t5": lambda num_hidden_layers, max_position_embeddings, **kw: hf.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=num_hidden_layers, num_heads=4, **kw
    ),
}
_POSITIONS = {"max_position_embeddings": 72}
"""Configurations that are small, by ``model_type``."""


@dataclass(frozen=True)
class Folder:
    """What a model folder holds; called with a path, it writes it.

    Parameters
    ----------
    architecture
        ``model_type``.
    tokenizer
        Writes tokenizer files.
    modules
        Of ``modules.json``; without any, there is no such file.
    settings
        ``tokenizer_config.json``.
    files
        Further documents by name, below the folder of the model or of a module.
    config
        Changes of the configuration.
    saved
        Whether the tokenizer is as transformers saves it: a tokenizer.json.
    without
        Files to remove in the end.
    head
        The transformers class, of `tests.frontend.architectures.CLASSES`.
    shard
        Size of a weight file, for example ``"20KB"``; by default there is one.
    pickled
        Whether weights are in pytorch_model.bin.
    dtype
        Of the weights.
    changes
        Of config.json once it is written: what transformers would not write.
    """

    architecture: str = "bert"
    tokenizer: Callable[..., Path] = words
    modules: Sequence[Module] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    saved: bool = False
    without: Sequence[str] = ()
    head: str = "none"
    shard: str | None = None
    pickled: bool = False
    dtype: str = "float32"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, folder: Path) -> None:
        """Write it into an empty folder."""
        place = folder / (self.modules[0][1] if self.modules else "")
        self.tokenizer(place, self.settings, self.architecture)
        vocabularies = [file for file in place.iterdir() if "config.json" not in file.name]
        for name, document in self.files.items():
            text = document if isinstance(document, str) else json.dumps(document)
            (folder / name).write_text(text, encoding="utf-8")
        tokenizer = hf.AutoTokenizer.from_pretrained(place)
        if self.saved:
            for file in vocabularies:
                file.unlink()
            tokenizer.save_pretrained(place)
        config = _CONFIGS[self.architecture](
            **{"vocab_size": len(tokenizer), "num_hidden_layers": 1, **_POSITIONS, **self.config}
        )
        model = random_model(config, self.head).eval().to(getattr(torch, self.dtype))
        self._save(model, place)
        if self.changes:
            file = place / "config.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | self.changes))
        if self.modules:
            save_modules(folder, self.modules, self.pickled)
        for name in self.without:
            (folder / name).unlink()

    def _save(self, model: Any, place: Path) -> None:
        """Configuration and weights."""
        if self.pickled:
            model.config.architectures = [type(model).__name__]
            model.config.save_pretrained(place)
            torch.save(model.state_dict(), place / "pytorch_model.bin")
        else:
            shard = {} if self.shard is None else {"max_shard_size": self.shard}
            model.save_pretrained(place, **shard)
