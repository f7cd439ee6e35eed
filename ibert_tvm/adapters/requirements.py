"""What an adapter needs to be imported."""

from __future__ import annotations

from ..frontend.errors import require


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
    require(
        package,
        to="this adapter",
        why="packages that a model can be used in are optional",
        todo="pip install 'ibert-tvm[adapters]', or that package alone",
        where=adapter,
    )
