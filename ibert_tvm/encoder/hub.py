"""Names of models on the Hugging Face hub: from its cache, and downloaded where that is allowed.

Names, branches and what a cache says are untrusted: none of them leads out of the cache.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..common.errors import UsageError
from ..common.extras import require
from ..frontend.errors import ModelSourceError
from ..frontend.folder_files import hub_snapshot
from .saved import SETTINGS

_ORGANISATION = "sentence-transformers"
"""Of names without one, as there."""
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_]|[.-](?![.-])){0,95}"
_NAME = re.compile(rf"(?:{_PART}/)?{_PART}")
_REVISION = re.compile(rf"{_PART}(?:/{_PART}){{0,4}}")
_NEEDED = (".json", ".txt", ".model", ".safetensors", ".bin")
"""What files of a model folder that are read end in."""


def is_hub_name(model: object) -> bool:
    """Whether something can be a name on the hub; without an organisation, if it has no dot.

    What is there as a file or folder is not asked for: a path comes before a name.
    """
    return (
        isinstance(model, str)
        and _NAME.fullmatch(model) is not None
        and ("/" in model or "." not in model)
        and not Path(model).exists()
    )


def hub_folder(
    name: str,
    revision: str | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
    local_files_only: bool = True,
) -> Path:
    """Folder of a model of the hub.

    Parameters
    ----------
    name
        ``ORGANISATION/NAME``, or the name of one of sentence-transformers' own models.
    revision
        A branch, a tag or a commit; by default ``main``.
    cache_folder
        By default ``$SENTENCE_TRANSFORMERS_HOME``, else the hub's own cache.
    local_files_only
        Look in the cache alone, and download nothing.

    Returns
    -------
    pathlib.Path
        A snapshot in the cache.

    Raises
    ------
    UsageError
        If it is not in the cache, and may not be downloaded, or the name or revision is none.
    ModelSourceError
        If it cannot be downloaded, or its entry in the cache is damaged.
    """
    if not _NAME.fullmatch(name) or not (revision is None or _REVISION.fullmatch(revision)):
        raise UsageError(
            f"{name!r}, revision {revision!r}, is no name on the hub",
            why="names are ORGANISATION/NAME of letters, digits, -, _ and .",
            todo="give the name as its page on the hub has it",
        )
    require("huggingface_hub", to="a model of the hub")
    from huggingface_hub import constants

    full = name if "/" in name else f"{_ORGANISATION}/{name}"
    given = cache_folder or os.environ.get("SENTENCE_TRANSFORMERS_HOME")
    cache = Path(given or constants.HF_HUB_CACHE).expanduser()
    if not local_files_only:
        return _downloaded(full, revision, cache)
    entry = cache / f"models--{full.replace('/', '--')}"
    if not (entry / "snapshots").is_dir():
        raise UsageError(
            f"there is no {name}",
            why=f"it is no file or folder here, and the hub's cache {cache} has no {full}",
            todo="check the path; or have it downloaded: Encoder(NAME, local_files_only=False)",
        )
    return hub_snapshot(entry, revision)


def _downloaded(name: str, revision: str | None, cache: Path) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    try:
        names = HfApi().list_repo_files(name, revision=revision)
        wanted = names if SETTINGS in names else _needed(names)
        options: dict[str, Any] = {"revision": revision, "cache_dir": cache}
        return Path(snapshot_download(name, allow_patterns=wanted, **options))
    except Exception as error:  # the errors of its HTTP client, too, which share no base class
        raise ModelSourceError(
            f"cannot download {name}",
            where=f"the Hugging Face hub, revision {revision or 'main'}",
            why=(str(error).strip().splitlines() or [type(error).__name__])[0],
            todo="check the name and the connection; for a private model run `hf auth login`",
        ) from error


def _needed(names: list[str]) -> list[str]:
    """Files of a model folder that are read: weights once, and no form for other frameworks."""
    kept = [name for name in names if name.endswith(_NEEDED)]
    weights = [name for name in kept if name.endswith(".safetensors")]
    return [name for name in kept if not (weights and name.endswith(".bin"))]
