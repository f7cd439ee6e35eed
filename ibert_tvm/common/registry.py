"""Records by name: one file each, found by importing their package as a whole."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar


class _Named(Protocol):
    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=_Named)


class Registry(Generic[R]):
    """Records of one class.

    Parameters
    ----------
    what
        What a record is of, for errors.

    Attributes
    ----------
    records : mapping of str to record
        A view of those that are registered.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._records: dict[str, R] = {}
        self.records: Mapping[str, R] = MappingProxyType(self._records)

    def register(self, record: R) -> R:
        """Add a record; returns it.

        Raises
        ------
        ValueError
            If there is one of that name.
        """
        if record.name in self._records:
            raise ValueError(f"there is a {self._what} {record.name!r} already")
        self._records[record.name] = record
        return record

    def unregister(self, name: str) -> None:
        """Take a record out again, as tests do."""
        del self._records[name]


def import_modules(path: Iterable[str], package: str) -> None:
    """Import every module of a package, in the order of their names."""
    for module in pkgutil.iter_modules(path, f"{package}."):
        importlib.import_module(module.name)
