"""Turns: small requests pass large ones, which share what is left and are never kept from it."""

from __future__ import annotations

from ibert_tvm.serve.batcher import Turns


def taken(turns: Turns[str], count: int) -> str:
    found = ""
    for _ in range(count):
        large = turns.large_is_next()
        item = turns.first(large)
        assert item is not None
        turns.take(large)
        found += item
    return found


def put_all(turns: Turns[str], item: str, parts: int, size: int) -> None:
    turn = turns.now
    for _ in range(parts):
        turn += size
        turns.put(item, size, turn, large=True)


def test_a_small_request_waits_for_none_of_a_large_one() -> None:
    turns = Turns[str](100)
    put_all(turns, "l", 50, 10)
    assert taken(turns, 3) == "lll"
    for item in "abc":
        turns.put(item, 5, turns.now + 5, large=False)
    assert taken(turns, 5) == "abcll"


def test_large_requests_share_what_is_left_whenever_they_come() -> None:
    turns = Turns[str](100)
    put_all(turns, "l", 50, 10)
    taken(turns, 30)
    put_all(turns, "m", 50, 10)
    put_all(turns, "n", 25, 20)
    found = taken(turns, 20)
    assert {item: found.count(item) for item in "lmn"} == {"l": 8, "m": 8, "n": 4}


def test_small_requests_without_end_do_not_keep_a_large_one_waiting() -> None:
    turns = Turns[str](30)
    put_all(turns, "l", 3, 10)
    for _ in range(20):
        turns.put("s", 10, turns.now + 10, large=False)
    assert taken(turns, 12) == "ssslssslsssl"


def test_all_are_taken_out_at_once() -> None:
    turns = Turns[str](30)
    put_all(turns, "l", 2, 10)
    turns.put("s", 10, 10, large=False)
    assert turns and sorted(turns.clear()) == ["l", "l", "s"]
    assert not turns and turns.first(turns.large_is_next()) is None
