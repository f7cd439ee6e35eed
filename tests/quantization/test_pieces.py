"""Short pieces of calibration texts, and how much further ranges go than texts have shown."""

from __future__ import annotations

from ibert_tvm.quantization.batches import short_pieces

TEXTS = ["one two three four five six", "a single", "word", "", "   "]


def test_pieces_are_one_to_three_neighbouring_words() -> None:
    lengths = set()
    for seed in range(40):
        for piece in short_pieces(TEXTS, seed):
            assert any(piece in text for text in TEXTS)
            lengths.add(len(piece.split()))
    assert lengths == {1, 2, 3}


def test_what_is_a_text_is_no_piece() -> None:
    pieces = [piece for seed in range(40) for piece in short_pieces(TEXTS, seed)]
    assert not {"word", "a single", ""} & set(pieces)
    assert "a" in pieces


def test_a_seed_says_which() -> None:
    assert short_pieces(TEXTS, 7) == short_pieces(TEXTS, 7)


def test_pieces_of_a_pair_are_pairs() -> None:
    pairs = [("who wrote it", "a man who lived in Prague"), ("", "")]
    for seed in range(20):
        ((first, second),) = short_pieces(pairs, seed)
        assert first in pairs[0][0] and second in pairs[0][1]
        assert 1 <= len(second.split()) <= 3
