"""The load of the server's benchmark: what is right, and what the report says."""

from __future__ import annotations

import itertools

import numpy as np

from benchmarks import serving_attack, start_up
from benchmarks.serving import Load, _markdown, _right, requests_of
from tests.benchmarks.documents import document
from tests.snapshots import Messages


def test_requests_are_the_same_in_every_run() -> None:
    texts = [str(number) for number in range(100)]
    requests = requests_of(texts, 300)
    assert requests == requests_of(texts, 300)
    assert {len(request) for request in requests} == {1, 2, 4, 8}
    assert set(itertools.chain(*requests)) <= set(range(100))


def test_answers_are_compared_bit_for_bit_or_by_direction() -> None:
    own = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    assert _right(own.copy(), own, exact=True)
    assert not _right(np.nextafter(own, 2), own, exact=True)
    assert not _right(own[::-1], own, exact=True)
    assert _right(3 * own + 0.01, own, exact=False)
    assert not _right(own[::-1], own, exact=False)
    assert not _right(own[:1], own, exact=False)


def test_the_report_says_who_is_ahead_and_what_went_wrong(messages: Messages) -> None:
    def row(peer: str, speed: float, used: float, **more: object) -> dict[str, object]:
        return {
            "peer": peer, "requests": 10, "texts": 30, "wrong": 0, "statuses": {"200": 10},
            "texts_per_second": speed, "p50_ms": 5.0, "p99_ms": 9.0,
            "processor_ms_per_text": used, "resident_mib": 100, **more,
        }  # fmt: skip

    result = document(
        row("ibert", 300.0, 2.0),
        row("torch", 100.0, 8.0, wrong=1, statuses={"200": 10, "500": 2}),
        settings={"model": "m", "clients": 64, "seconds": 120.0, "turn": 10.0},
        other_load_cores=0.5,
        killed={"kills": 3, "statuses": {"200": 50}, "wrong": 0, "slowest_ms": 900},
        flooded={
            **{"statuses": {"200": 5, "429": 70}, "clients": 256, "wrong": 0},
            "resident_mib": [200, 210],
        },
        skipped={"onnx-int8": "not built"},
    )
    messages.check(_markdown(result))


def test_turns_add_up() -> None:
    load = Load([1.0], 2, 0, {200: 1})
    load.add(Load([2.0, 3.0], 4, 1, {200: 2, 503: 1}))
    assert load == Load([1.0, 2.0, 3.0], 6, 1, {200: 3, 503: 1})


def test_what_an_attack_does_beyond_the_bounds_is_named(messages: Messages) -> None:
    quiet = {
        **{"attack": "", "requests": 2000, "failed": 0, "wrong": 0, "p50_ms": 9.0, "p99_ms": 20.0},
        **{"health_ms": 5, "resident_mib": 200},
    }
    attacked = {**quiet, "attack": "slow headers", "p99_ms": 60.0, "resident_mib": 300}
    assert serving_attack.exceeded(quiet, attacked) == []
    changes = {"failed": 1, "wrong": 1, "p99_ms": 60.1, "health_ms": 1001, "resident_mib": 301}
    rows = [quiet, attacked, *(attacked | {name: value} for name, value in changes.items())]
    found = [{**row, "exceeded": serving_attack.exceeded(quiet, row)} for row in rows]
    assert [len(row["exceeded"]) for row in found] == [0, 0, 1, 1, 1, 1, 1]
    settings = {"model": "m", "rate": 200.0, "seconds": 10.0}
    messages.check(serving_attack._markdown(document(*found, settings=settings)))


def test_the_start_is_compared_by_processor_time(messages: Messages) -> None:
    rows = [
        {"command": command, "peer": peer, "clock_ms": [9.0, 9.5], "processor_ms": [least, 8.5]}
        for command in ("python", "ibert run")
        for peer, least in (("ibert", 8.4), ("ibert@x", 8.0))
    ]
    messages.check(start_up._markdown(document(*rows, settings={"rounds": 3})))
