"""Fewer words: kept pieces have the same ids and integers, in every kind of tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

import ibert_tvm as ibert
from ibert_tvm.common.errors import ModelError, UsageError
from ibert_tvm.evaluation.evaluate import evaluate_integers, fidelity
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.model.tokenization import Tokenizer
from ibert_tvm.model.tokenizer_behaviour import PROBES
from ibert_tvm.model.tokenizer_pieces import Pieces
from ibert_tvm.quantization.vocabulary import cut_vocabulary
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.texts import packaged_texts
from ibert_tvm.verification.checks import check_tokenizer
from tests.cache import quantised_once
from tests.integration.whole_models import random_inputs
from tests.random_models import random_bert
from tests.snapshots import Messages

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROWS = 600
TRAINING = packaged_texts("calibration.txt")
CORPUS = packaged_texts("demo_sentences.txt")


def _word_pieces() -> FastTokenizer:
    fast = FastTokenizer(models.WordPiece(unk_token="[UNK]"))
    fast.normalizer = normalizers.BertNormalizer(lowercase=True)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.train_from_iterator(
        TRAINING, trainers.WordPieceTrainer(vocab_size=ROWS - 1, special_tokens=SPECIAL)
    )
    return fast


def _pairs_of_bytes() -> FastTokenizer:
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=ROWS - 1, special_tokens=SPECIAL, initial_alphabet=alphabet
    )
    fast.train_from_iterator(TRAINING, trainer)
    return fast


def _pieces() -> FastTokenizer:
    fast = FastTokenizer(models.Unigram())
    fast.normalizer = normalizers.NFKC()
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=ROWS - 1, special_tokens=SPECIAL, unk_token="[UNK]"
    )
    fast.train_from_iterator(TRAINING, trainer)
    return fast


KINDS = {"words": _word_pieces, "pairs of bytes": _pairs_of_bytes, "pieces": _pieces}


@quantised_once
def _model() -> QuantizedModel:
    sizes = {"vocab_size": ROWS, "hidden_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64}
    canonical = ibert.load(random_bert(3, None, **sizes), head="none", verify=False)
    names = list(canonical.info.inputs)
    return ibert.quantize(canonical, [random_inputs(names, 2, 24, ROWS, 1, padding=False)])


def _files(make: Callable[[], FastTokenizer]) -> dict[str, bytes]:
    fast = make()
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, fast.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    fast.add_tokens(["grandeur sky"])
    settings: dict[str, Any] = {"pad_token": "[PAD]", "compared_with": "a library"}
    return {
        "tokenizer.json": fast.to_str().encode(),
        "tokenizer_config.json": json.dumps(settings).encode(),
    }


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest) -> QuantizedModel:
    return replace(_model(), tokenizer=_files(KINDS[request.param]))


@pytest.mark.slow_cases(4)
@pytest.mark.representatives(1)
@pytest.mark.parametrize("count", [None, 420])
def test_texts_of_kept_pieces_have_the_same_integers(
    whole: QuantizedModel, count: int | None
) -> None:
    cut = cut_vocabulary(whole, CORPUS, count, TRAINING)
    old, new = Tokenizer(whole.tokenizer), Tokenizer(cut.tokenizer)
    known, names = dict(new.vocabulary()), {index: word for word, index in old.vocabulary()}
    assert known.keys() < dict(old.vocabulary()).keys()
    assert count in (None, len(known))
    unknown = dict(old.vocabulary())["[UNK]"]
    texts = [*CORPUS, "a grandeur sky", "[MASK] and the"]
    texts += [text for text in (*PROBES, *TRAINING) if isinstance(text, str) and text.strip()]
    changed = same = 0
    for text in texts:
        (before,), (after,) = old.ids_of([text]), new.ids_of([text])
        if unknown in before or not {names[index] for index in before} <= known.keys():
            changed += text in TRAINING
            continue
        same += 1
        assert [known[names[index]] for index in before] == after
        if same > 60:
            continue
        tokens = [tokenizer.encode([text], 24) for tokenizer in (old, new)]
        first, second = (
            evaluate_integers(model, part.inputs(("input_ids", "attention_mask", "token_type_ids")))
            for model, part in zip((whole, cut), tokens, strict=True)
        )
        for name, values in first.items():
            np.testing.assert_array_equal(values, second[name])
    assert same > len(CORPUS) + 2
    said = cut.quantization["vocabulary"]
    assert 0 < said["changed_texts"] == changed < len(TRAINING) == said["heldout_texts"]
    assert said["weight_bytes"] == cut.num_bytes < said["weight_bytes_before"]
    assert said["tokenizer_bytes"] < said["tokenizer_bytes_before"]


def test_tokenizer_and_table_go_together(whole: QuantizedModel) -> None:
    cut = cut_vocabulary(whole, CORPUS)
    new = Tokenizer(cut.tokenizer)
    known = dict(new.vocabulary())
    assert sorted(known.values()) == list(range(len(known)))
    assert cut.info.vocab_size == len(known) and cut.info.source_vocab_size == ROWS
    assert cut.info.pad_token_id == new.pad_id == known["[PAD]"]
    assert "grandeur sky" in known
    assert new.compared_with == f"a library, for {len(known)} of {ROWS} pieces"
    (check,) = check_tokenizer(cut.info, lambda: cut.tokenizer, cut)
    assert check.passed, check.findings
    again = cut_vocabulary(cut, CORPUS[:2])
    assert again.info.vocab_size < cut.info.vocab_size
    assert again.info.source_vocab_size == ROWS


def test_pieces_whose_parts_are_gone_are_not_merged() -> None:
    tokenizer = Tokenizer(_files(_pairs_of_bytes))
    pieces = Pieces(tokenizer)
    found = pieces.with_parts(pieces.ids["Ġthe"], ())
    assert {pieces.ids[part] for part in ("Ġ", "t", "h", "e", "Ġt")} < found
    ids = {old: new for new, old in enumerate(sorted(found | pieces.needed))}
    merges = json.loads(pieces.cut(ids).files["tokenizer.json"])["model"]["merges"]
    assert merges == [["Ġ", "t"], ["h", "e"], ["Ġt", "he"]]


def test_a_piece_that_is_called_none_is_not_the_unknown_one() -> None:
    fast = FastTokenizer.from_str(_files(_pairs_of_bytes)["tokenizer.json"].decode())
    fast.add_tokens(["None"])
    assert Pieces(Tokenizer({"tokenizer.json": fast.to_str().encode()})).unknown is None


def test_another_tokenizer_is_noticed(messages: Messages) -> None:
    tokenizer = Tokenizer(_files(_word_pieces))
    pieces = Pieces(tokenizer)
    kept = sorted({*pieces.ids.values()} - {pieces.ids["##s"]})
    ids = {old: new for new, old in enumerate(kept)}
    cut = pieces.cut(ids)
    wrong = {**ids, pieces.ids["the"]: ids[pieces.ids["of"]]}
    with messages.raises(ModelError):
        pieces.check_same(cut, wrong, "the", 8)


def test_what_is_refused(messages: Messages) -> None:
    whole = replace(_model(), tokenizer=_files(_word_pieces))
    for count in (4, ROWS):
        with messages.raises(UsageError):
            cut_vocabulary(whole, CORPUS, count)
    with messages.raises(UsageError):
        cut_vocabulary(_model(), CORPUS)
    first, *others = whole.program.steps
    types, table = first.operator.OPERANDS[1].name, first.operands["table"]
    other = replace(first, operands={**first.operands, "ids": "token_type_ids"})
    assert types == "table" and table in whole.parameters
    twice = replace(whole, program=replace(whole.program, steps=(first, other, *others)))
    with messages.raises(LoweringError):
        cut_vocabulary(twice, CORPUS)


@pytest.mark.slow
def test_an_evaluation_gives_the_float_model_the_same_words() -> None:
    sizes = {"vocab_size": ROWS, "hidden_size": 32, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64}
    canonical = ibert.load(random_bert(3, None, **sizes), head="none", verify=False)
    reference = replace(canonical, tokenizer=_files(_word_pieces))
    whole = replace(_model(), tokenizer=reference.tokenizer)
    cut = cut_vocabulary(whole, CORPUS)
    expected = fidelity(whole, reference, CORPUS, 24).to_json()
    assert fidelity(cut, reference, CORPUS, 24).to_json() == expected
