"""Tokenizers of several families, their C form on this machine, and lines in many scripts."""

from __future__ import annotations

import functools
import io
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors, trainers

from ibert_tvm.c_tokenizer.text import HostTokenizer, c_tokenizer, check_same
from ibert_tvm.model.tokenization import Tokenizer
from ibert_tvm.model.tokenizer_behaviour import PROBES
from tests.frontend.tokenizer_folders import SENTENCES, SPECIAL, many_words

SCRIPTS = {
    "Latin": (range(0x20, 0x7F), range(0xA0, 0x250), range(0x1E00, 0x1F00)),
    "Greek": (range(0x370, 0x400), range(0x1F00, 0x2000)),
    "Cyrillic": (range(0x400, 0x530),),
    "Hebrew": (range(0x591, 0x5F5), range(0xFB1D, 0xFB50)),
    "Arabic": (range(0x600, 0x700), range(0xFB50, 0xFDFF), range(0xFE70, 0xFEFD)),
    "Devanagari": (range(0x900, 0x980), range(0x1CD0, 0x1CFA)),
    "Thai": (range(0xE01, 0xE5C),),
    "Hangul": (range(0xAC00, 0xD7A4), range(0x1100, 0x1200)),
    "Kana": (range(0x3000, 0x3100), range(0xFF00, 0xFFF0)),
    "Han": (range(0x4E00, 0x9FFF), range(0xF900, 0xFB00), range(0x20000, 0x20100)),
    "symbols": (range(0x2000, 0x2C00), range(0x1F300, 0x1FA00), range(0x1D100, 0x1D200)),
    "marks": (range(0x300, 0x370), range(0x1AB0, 0x1AC0), range(0x20D0, 0x20F1)),
}
"""Ranges of code points."""
_SPECIAL_TEXTS = (*SPECIAL, "<mask>", "</s>", "<s>", "\x00", "\ufffd", "\u200d", "'s", "'ll")


def lines(count: int, seed: int) -> Iterator[str]:
    """Random lines: words of one script, with spaces, marks, special tokens, and anything else."""
    rng = random.Random(seed)
    names = list(SCRIPTS)
    anything = (range(0xD800), range(0xE000, 0x110000))
    for number in range(count):
        usual, extra = SCRIPTS[names[number % len(names)]], SCRIPTS[rng.choice(names)]
        parts = []
        for _ in range(rng.randrange(12)):
            pool = rng.choices((usual, extra, SCRIPTS["marks"], anything), (20, 4, 2, 1))[0]
            length = rng.choice((1, 2, 3, 5, 8))
            parts += [chr(rng.choice(rng.choice(pool))) for _ in range(length)]
            parts.append(
                rng.choice((" ", " ", "  ", "", "\n", "\u3000", rng.choice(_SPECIAL_TEXTS)))
            )
        yield "".join(parts)


def tokenizer_of(document: dict[str, Any], **settings: object) -> Tokenizer:
    """A tokenizer of a tokenizer.json and what else is in tokenizer_config.json."""
    contents = {"tokenizer.json": document, "tokenizer_config.json": settings}
    return Tokenizer({name: json.dumps(one).encode() for name, one in contents.items()})


def added(content: str, number: int, **changes: object) -> dict[str, Any]:
    """An added token."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **flags, "special": True, **changes}


def word_piece(normalizer: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """BERT's tokenizer.json with a small vocabulary; `changes` are of its parts."""
    words = many_words(SENTENCES)
    usual = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    template = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}]
    template += [{"Sequence": {"id": "A", "type_id": 0}}]
    template += [{"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    return {
        "version": "1.0",
        "added_tokens": [added(text, number) for number, text in enumerate(SPECIAL)],
        "normalizer": normalizer or {"type": "BertNormalizer", **usual, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": template,
            "pair": [
                *template,
                {"Sequence": {"id": "B", "type_id": 1}},
                {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
            ],
            "special_tokens": {
                name: {"id": name, "ids": [words.index(name)], "tokens": [name]}
                for name in ("[CLS]", "[SEP]")
            },
        },
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 20,
            "vocab": {word: number for number, word in enumerate(words)},
        },
        **changes,
    }


def byte_pairs(prefix_space: bool = False, **changes: object) -> dict[str, Any]:
    """RoBERTa's tokenizer.json with few merges; `changes` are of its parts, or of its model."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    fast.train_from_iterator([*SENTENCES, *lines(300, seed=3)], trainer)
    fast.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    document: dict[str, Any] = json.loads(fast.to_str())
    document["added_tokens"] = [
        added(text, number, normalized=number != 4, lstrip=number == 4)
        for number, text in enumerate(special)
    ]
    for key, value in changes.items():
        (document if key in document else document["model"])[key] = value
    return document


def unigram(pre_tokenizer: Any = None, double: bool = False, **changes: Any) -> dict[str, Any]:
    """XLM-RoBERTa's tokenizer.json with random scores, of floats or doubles.

    Pieces are characters of `SENTENCES` and random pairs and words of theirs.
    """
    rng = random.Random(2)
    words = [word for text in SENTENCES for word in text.split()]
    characters = {character for text in SENTENCES for character in text} - {"h", "😀"}
    pieces = dict.fromkeys(["▁", *sorted(characters)])
    for word in [*words, *lines(100, seed=4)]:
        for _ in range(3):
            start = rng.randrange(len(word) or 1)
            pieces[("▁" if start == 0 else "") + word[start : start + rng.randrange(1, 6)]] = None
    pieces.pop("", None)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    scores = [-rng.choice((rng.random() * 12, 7.0, 3.5)) for _ in pieces]
    if not double:
        scores = np.array(scores, np.float32).astype(float).tolist()
    vocabulary = [*((name, 0.0) for name in special), *zip(pieces, scores, strict=True)]
    fast = FastTokenizer(models.Unigram(vocabulary, 3))
    fast.pre_tokenizer = pre_tokenizer or pre_tokenizers.Metaspace()
    fast.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    document = json.loads(fast.to_str())
    document["added_tokens"] = [added(text, number) for number, text in enumerate(special)]
    return {**document, **changes}


BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
"""Of models with ``byte_fallback``."""


def with_byte_pieces(document: dict[str, Any]) -> dict[str, Any]:
    """A Unigram tokenizer with pieces for bytes, in the place of unknown ones."""
    model = document["model"]
    pieces = [[name, -float(number % 7)] for number, name in enumerate(BYTE_PIECES)]
    vocabulary = [*model["vocab"], *pieces]
    return {**document, "model": {**model, "vocab": vocabulary, "byte_fallback": True}}


def character_pairs(several: bool = True, **changes: Any) -> dict[str, Any]:
    """Llama's tokenizer.json with few merges, of one or several pairs for a token."""
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>", *BYTE_PIECES]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    fast.train_from_iterator([*SENTENCES, *lines(60, seed=5)], trainer)
    document: dict[str, Any] = json.loads(fast.to_str())
    model = document["model"]
    vocabulary = model["vocab"]
    if several:  # as they are made of a vocabulary of SentencePiece
        made = [
            [token[:place], token[place:]]
            for token in vocabulary
            for place in range(1, len(token))
            if {token[:place], token[place:]} <= vocabulary.keys() - {*BYTE_PIECES}
        ]
        model["merges"] = sorted(made, key=lambda pair: vocabulary["".join(pair)])
    model |= {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    steps = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    usual = {
        "added_tokens": [added(name, number) for number, name in enumerate(special[:3])],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
    }
    return {**document, **usual, **changes}


@functools.cache
def charsmap() -> bytes:
    """SentencePiece's map of characters by NFKC, as it is trained with by default."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="it has the map")
    from sentencepiece import sentencepiece_model_pb2 as protobuf

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_writer=written,
        vocab_size=150,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    model = protobuf.ModelProto.FromString(written.getvalue())
    return bytes(model.normalizer_spec.precompiled_charsmap)


def host_of(tokenizer: Tokenizer, pairs: bool = False) -> HostTokenizer:
    """The C form, with warnings as errors, and with memory for long words."""
    return HostTokenizer(c_tokenizer(tokenizer, pairs), work_bytes=2**18)


def compare(host: HostTokenizer, tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """The ids of texts are those of the package tokenizers; return the number of tokens."""
    tokens = 0
    for text, wanted in zip(texts, tokenizer.ids_of(texts), strict=True):
        check_same(text, host.ids(text.encode(), len(wanted) + 2), wanted)
        tokens += len(wanted)
    return tokens


TEXTS = [text for text in PROBES if isinstance(text, str)]
"""Of one text each."""
