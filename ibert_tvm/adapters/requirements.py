"""What an adapter needs to be imported."""

from __future__ import annotations

from ..common.extras import require


def require_package(package: str, adapter: str) -> None:
    """Refuse to import an adapter without the package that it is for.

    Parameters
    ----------
    package
        As it is imported.
    adapter
        Name of the adapter's module.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    require(package, to=adapter, otherwise=", or that package alone")
