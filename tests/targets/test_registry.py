"""Targets by name, and what is missing to compile for them."""

from __future__ import annotations

import pytest

from targets import TargetError, TargetStatus, get_target, list_targets, target_names

NAMES = ("host", "x86-64", "x86-64-v3", "x86-avx-vnni", "x86-avx512-vnni")


def test_names() -> None:
    assert target_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_a_target_of_that_name(name: str) -> None:
    assert get_target(name).name == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("x86-64-v4", "did you mean 'x86-64-v3'? "),
        ("hosts", "did you mean 'host'? "),
        ("avx512-vnni", "did you mean 'x86-avx512-vnni'? "),
        ("t4", ""),
        ("", ""),
    ],
)
def test_an_unknown_target_lists_those_there_are(name: str, hint: str) -> None:
    with pytest.raises(TargetError) as caught:
        get_target(name)
    assert str(caught.value) == (
        f"unknown target {name!r}\n"
        "  where: --target\n"
        "  why: no target description has that name\n"
        f"  what to do: {hint}use one of: {', '.join(NAMES)}"
    )


def test_every_target_is_listed_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list_targets()
    assert [row.name for row in rows] == list(NAMES)
    assert all(isinstance(row, TargetStatus) and row.available for row in rows)
    assert all(row.missing == "" and row.description for row in rows)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    for row, before in zip(list_targets(), rows, strict=True):
        assert not row.available
        assert row.description == before.description
        assert row.missing == (
            "the library's weights are assembled and linked by the system's C compiler; "
            "install one (Debian: apt-get install gcc binutils), or set CC"
        )


def test_a_host_that_is_not_known_is_listed_as_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    host, *others = list_targets()
    assert host == TargetStatus(
        "host",
        "this machine (aarch64)",
        False,
        "host detection knows x86-64 only; name a target explicitly; `ibert targets` lists them",
    )
    assert all(row.available for row in others)
