"""Two texts in one row: ids, types and cuts are those of the package tokenizers."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest

from ibert_tvm.c_tokenizer.errors import TokenizerFormError
from ibert_tvm.c_tokenizer.text import HostTokenizer, c_tokenizer, check_on_probes, check_pair
from ibert_tvm.model.tokenization import Tokenizer
from ibert_tvm.model.tokenizer_behaviour import PROBES
from tests.examples import examples
from tests.snapshots import Messages

from .forms import TEXTS, byte_pairs, host_of, lines, tokenizer_of, unigram, word_piece
from .test_equal import FAMILIES


def _compare(host: HostTokenizer, tokenizer: Tokenizer, count: int, seed: int) -> int:
    """Pairs of random lines, some whole, most cut; returns how many were."""
    rng, cut = random.Random(seed), 0
    fast = tokenizer.fast_copy()
    special = fast.num_special_tokens_to_add(True)
    for one, other in pairwise(["", *TEXTS, "", *lines(count, seed)]):
        length = special + rng.randrange(24)
        fast.enable_truncation(
            length, strategy="longest_first", direction=tokenizer.truncation_side
        )
        wanted = fast.encode(one, other)
        types = wanted.type_ids if tokenizer.has_types else [0] * len(wanted.ids)
        found = host.pair(one.encode(), other.encode(), length)
        check_pair((one, other), found, (wanted.ids, types))
        if wanted.ids:  # texts without a token are refused there
            batch = tokenizer.encode([(one, other)], length, allow_empty=True)
            assert found[0] == batch.input_ids[0].tolist()
        cut += bool(wanted.overflowing)
    return cut


@pytest.mark.representatives(1)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", examples([*FAMILIES], "uncased"))
def test_every_family(family: str, side: str) -> None:
    tokenizer = tokenizer_of(FAMILIES[family](), truncation_side=side)
    host = host_of(tokenizer, pairs=True)
    assert check_on_probes(host, tokenizer) == len(PROBES)
    assert _compare(host, tokenizer, 200, seed=8) > 20


@pytest.mark.record
@pytest.mark.parametrize("family", ["uncased", "byte pairs", "first piece"])
def test_many_pairs(family: str) -> None:
    tokenizer = tokenizer_of(FAMILIES[family]())
    assert _compare(host_of(tokenizer, pairs=True), tokenizer, 30_000, seed=9) > 10_000


@pytest.mark.representatives(1)
@pytest.mark.parametrize("side", ["right", "left"])
def test_lengths_up_to_all(side: str) -> None:
    """Every pair of lengths at every limit, with the cut of an odd number of tokens."""
    tokenizer = tokenizer_of(word_piece(), truncation_side=side, model_max_length=14)
    host = host_of(tokenizer, pairs=True)
    words = [f"the {'cat ' * count}"[: 4 * count] for count in range(9)]
    for one in words:
        for other in words:
            for length in range(3, 17):
                batch = tokenizer.encode([(one, other)], min(length, 14), allow_empty=True)
                wanted = (batch.input_ids[0].tolist(), batch.token_type_ids[0].tolist())
                check_pair((one, other), host.pair(one.encode(), other.encode(), length), wanted)
    with pytest.raises(ValueError, match="status 15"):
        host.pair(b"", b"", 2)


def test_a_tokenizer_without_types() -> None:
    tokenizer = tokenizer_of(word_piece(), model_input_names=["input_ids", "attention_mask"])
    host = host_of(tokenizer, pairs=True)
    assert {*host.pair(b"the cat", b"the cat", 20)[1]} == {0}


def test_a_word_beyond_the_memory_in_either_text() -> None:
    host = HostTokenizer(c_tokenizer(tokenizer_of(byte_pairs()), pairs=True))
    for pair in ((b"abc" * 300, b""), (b"", b"abc" * 300)):
        with pytest.raises(ValueError, match="status 16"):
            host.pair(*pair, 1000)


def _templates(**pairs: str) -> dict[str, Any]:
    from tokenizers import processors

    made = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", **pairs, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return word_piece(post_processor=json.loads(made.__getstate__()))


def test_special_tokens_of_pairs_alone() -> None:
    tokenizer = tokenizer_of(_templates(pair="[SEP]:1 $A:1 [CLS]:0 [SEP]:1 $B:0"))
    assert _compare(host_of(tokenizer, pairs=True), tokenizer, 50, seed=10) > 10
    tokenizer = tokenizer_of(unigram(post_processor=None))
    assert _compare(host_of(tokenizer, pairs=True), tokenizer, 50, seed=11) > 10


def test_the_second_text_before_the_first(messages: Messages) -> None:
    tokenizer = tokenizer_of(_templates(pair="[CLS] $B:1 [SEP]:1 $A:0 [SEP]"))
    c_tokenizer(tokenizer)
    with messages.raises(TokenizerFormError):
        c_tokenizer(tokenizer, pairs=True)
