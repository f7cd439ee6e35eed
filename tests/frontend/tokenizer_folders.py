"""Tokenizer files as models are published with them: words, pairs of bytes, pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from ibert_tvm.frontend.source_tokenizer import PROBES

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = [*SPECIAL, "the", "cat", "##s", "sat", "C", "c", "a"]
SENTENCES = [text for text in PROBES if isinstance(text, str)]


def _settings(place: Path, model_type: str, settings: Mapping[str, Any]) -> Path:
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps({"model_type": model_type}))
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return place


def words(
    place: Path,
    settings: Mapping[str, Any],
    model_type: str = "bert",
    vocabulary: Sequence[str] = WORDS,
) -> Path:
    """BERT's vocab.txt."""
    _settings(place, model_type, settings)
    (place / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    return place


def many_words(texts: Iterable[str], special: Sequence[str] = SPECIAL) -> list[str]:
    """A vocabulary that has all characters of some texts, and their words of few letters."""
    found: dict[str, None] = {}
    for text in texts:
        for word in (*text.split(), *text.lower().split()):
            found |= dict.fromkeys([word] if word.isalnum() and len(word) < 10 else [])
            found |= dict.fromkeys([*word, *(f"##{character}" for character in word)])
    return [*special, *(word for word in found if word not in special)]


def pairs_of_bytes(
    place: Path,
    settings: Mapping[str, Any],
    model_type: str = "roberta",
    size: int = 300,
    special: Sequence[str] = ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    template: str | None = None,
) -> Path:
    """RoBERTa's vocab.json and merges.txt; or with a template of a text, a tokenizer.json."""
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet
    )
    fast.train_from_iterator(SENTENCES, trainer)
    _settings(place, model_type, settings)
    if template is None:
        fast.model.save(str(place))
        return place
    fast.decoder = decoders.ByteLevel()
    fast.post_processor = processors.TemplateProcessing(
        single=template,
        pair=f"{template} {template.replace('$A', '$B')}",
        special_tokens=[(token, fast.token_to_id(token)) for token in special],
    )
    fast.save(str(place / "tokenizer.json"))
    return place


def pieces(
    place: Path,
    settings: Mapping[str, Any],
    model_type: str = "xlm-roberta",
    vocabulary: Sequence[str] = ("▁", "▁the", "▁cat", "s", *"abcdeCMTt"),
    file: str = "sentencepiece.bpe.model",
    special: Sequence[tuple[str, int]] = (("<unk>", 2), ("<s>", 3), ("</s>", 3)),
) -> Path:
    """XLM-RoBERTa's sentencepiece.bpe.model: a unigram model; special tokens with their types."""
    from sentencepiece import sentencepiece_model_pb2 as protobuf

    model = protobuf.ModelProto()
    model.trainer_spec.model_type = protobuf.TrainerSpec.UNIGRAM
    model.normalizer_spec.add_dummy_prefix = True
    for piece, kind in special:
        model.pieces.add(piece=piece, score=0.0, type=kind)
    for number, piece in enumerate(vocabulary):
        model.pieces.add(piece=piece, score=-1.0 - number, type=1)
    _settings(place, model_type, settings)
    (place / file).write_bytes(model.SerializeToString())
    return place
