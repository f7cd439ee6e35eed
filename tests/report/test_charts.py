"""Where marks of charts are."""

from __future__ import annotations

import pytest

from ibert_tvm.report.charts import cosines, furthest, roofline, spread

from .documents import bench


def test_a_kernel_twice_as_dense_and_ten_times_as_fast_is_where_it_belongs() -> None:
    slow, norm = bench()["results"][0]["layers"]["kernels"]
    fast = {**slow, "macs_per_byte": 2 * slow["macs_per_byte"], "gmacs": 10 * slow["gmacs"]}
    chart = roofline([slow, norm, fast], ceiling=1000.0)
    assert chart is not None
    (marks,) = chart.series
    assert [mark.index for mark in marks] == [0, 2]  # the norm multiplies nothing
    by_text = {tick.text: tick.at for tick in chart.x_ticks}
    assert marks[1].x - marks[0].x == pytest.approx(by_text["128"] - by_text["64"])
    by_speed = {tick.text: tick.at for tick in chart.y_ticks}
    assert marks[0].y - marks[1].y == pytest.approx(by_speed["10"] - by_speed["100"])
    (ceiling,) = [line for line in chart.lines if line.text == "ceiling"]
    assert ceiling.y1 == ceiling.y2 == pytest.approx(by_speed["1000"])


def test_along_a_diagonal_bytes_per_second_are_the_same() -> None:
    part = {"gmacs": 64.0, "macs_per_byte": 64.0, "share": 1.0}  # 1 GB/s
    chart = roofline([part, {**part, "gmacs": 1.0, "macs_per_byte": 1.0}], None)
    assert chart is not None
    (line,) = [line for line in chart.lines if line.text == "1 GB/s"]
    for mark in chart.series[0]:
        share = (mark.x - line.x1) / (line.x2 - line.x1)
        assert mark.y == pytest.approx(line.y1 + share * (line.y2 - line.y1))


def test_texts_are_counted_by_their_cosine() -> None:
    errors = [0.0, 0.00005, 0.0007, 0.003, 0.0031]
    assert spread(errors) == [
        ("0.9999 or more", 2),
        ("0.9995 or more", 0),
        ("0.999 or more", 1),
        ("0.998 or more", 0),
        ("0.995 or more", 2),
    ]
    assert spread([1.5])[-1] == ("below 0.9", 1)
    assert spread([]) == []


def test_the_furthest_values_are_named() -> None:
    chart = cosines([[{"cosine": value} for value in (0.99, 0.9999, 0.95, 0.999)]])
    assert chart is not None
    assert [mark.index for mark in furthest(chart, 2)] == [0, 2]


def test_nothing_known_is_no_chart() -> None:
    assert roofline([{"gmacs": None, "macs_per_byte": None, "share": 1.0}], 80.0) is None
    assert cosines([[], []]) is None


def test_cosines_are_drawn_by_their_distance_from_one() -> None:
    chart = cosines([[{"cosine": 0.99}, {"cosine": 0.999}, {"cosine": 1.0}], []])
    assert chart is not None
    assert [tick.text for tick in chart.y_ticks] == ["0.99999", "0.9999", "0.999", "0.99"]
    at = {tick.text: tick.at for tick in chart.y_ticks}
    assert [mark.y for mark in chart.series[0]] == pytest.approx(
        [at["0.99"], at["0.999"], at["0.99999"]]
    )
    assert [mark.x for mark in chart.series[0]] == [chart.left, 260.0, chart.right]
