"""A library's file, by what it holds and not by its path.

The dynamic linker takes a path that it has seen before for the object it has, whatever the file
holds by now. So a library is mapped under a name that no other had before it, through an open
descriptor of the very file that was checked.

The file itself is mapped, and no copy: processes share its pages, and copying costs a third to a
half of the time that loading takes. Whoever writes into a mapped file changes running code.
"""

from __future__ import annotations

import _ctypes
import ctypes
import itertools
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..common.errors import LibraryError
from ..common.file_seal import seal_digest
from .metadata import LibraryMetadata

_DESCRIPTORS = "/proc/self/fd"
_LINK_MAP = 2  # RTLD_DI_LINKMAP of <dlfcn.h>
_NUMBERS = itertools.count(1)
_DIGESTS: dict[str, str] = {}  # of what was mapped, by the name that it was mapped by
_KEPT: dict[str, str] = {}  # why the library of a digest stays mapped until the process ends


class _LinkMap(ctypes.Structure):
    """The beginning of ``struct link_map``, <link.h>."""

    _fields_ = (("address", ctypes.c_void_p), ("name", ctypes.c_char_p))


class LibraryFile:
    """The file of a library, held open: another one at its path changes nothing here.

    Parameters
    ----------
    metadata
        As `read_metadata` gave it.

    Attributes
    ----------
    descriptor
        Of the open file; closed with this object.
    path
        What this process and its children may open the same file by.

    Raises
    ------
    LibraryError
        If the file at the library's path is not the one that was read.
    """

    def __init__(self, metadata: LibraryMetadata) -> None:
        try:
            self._stream = metadata.path.open("rb")
            self._closing = weakref.finalize(self, self._stream.close)
            self.descriptor = self._stream.fileno()
            found = seal_digest(self.descriptor)
        except OSError as error:
            found, why = "", str(error.strerror or error)
        else:
            why = "another file took its place"
        if found != metadata.digest:
            raise LibraryError(
                f"the library {metadata.path} was changed after it was read",
                why=why,
                todo="load it again",
            )
        self.path = Path(f"/proc/{os.getpid()}/fd/{self.descriptor}")

    def close(self) -> None:
        """Close the descriptor."""
        self._closing()


class SharedObject(ctypes.CDLL):
    """A library that is mapped into this process.

    It is unmapped when nothing refers to it any more: views of its parameters do (see
    `ibert_tvm.runtime.buffers.mapped_parameter`), and so does the pool of threads that runs in it.

    Parameters
    ----------
    metadata
        As `read_metadata` gave it.
    load
        Takes the name that the library is mapped by, and has TVM's runtime load it, too.

    Attributes
    ----------
    loaded
        What `load` returned.

    Raises
    ------
    LibraryError
        If the file is not the one that was read, or was overwritten while it was mapped.
    OSError
        If it cannot be loaded.
    """

    def __init__(
        self, metadata: LibraryMetadata, load: Callable[[str], object] | None = None
    ) -> None:
        file = LibraryFile(metadata)
        name = f"{_DESCRIPTORS}{_inscribed(next(_NUMBERS))}/{file.descriptor}"
        super().__init__(name)
        # Not at the end of the process, when code of the library may still run.
        self._unmapping = weakref.finalize(self, _unmap, self._handle, file, metadata.digest)
        self._unmapping.atexit = False
        self._digest = metadata.digest
        _MAPPED.add(self)
        _DIGESTS[name] = metadata.digest
        # Another name is that of an object of the same file, which was mapped before.
        if _DIGESTS.get(_mapped_name(self._handle), metadata.digest) != metadata.digest:
            raise LibraryError(
                f"cannot load the library {metadata.path}",
                why="its file is mapped already, and was overwritten since with another library",
                todo="write the new one beside it and move it there (mv, os.replace)",
            )
        self.loaded: Any = load(name) if load is not None else None

    def function(
        self, name: str, *arguments: type, result: type | None = ctypes.c_int
    ) -> Callable[..., Any]:
        """A function of the library; whoever keeps it has to keep this object."""
        # Not `self[name]`: such an object refers to itself and to the library.
        entry = ctypes.c_char.in_dll(self, name)
        return ctypes.CFUNCTYPE(result, *arguments)(ctypes.addressof(entry))

    def keep_mapped(self, why: str) -> None:
        """Leave the library in this process's memory until the process ends."""
        self._unmapping.detach()
        _KEPT[self._digest] = why


_MAPPED: weakref.WeakSet[SharedObject] = weakref.WeakSet()


def _unmap(handle: int, file: LibraryFile, digest: str) -> None:
    # An overwritten file is in memory by now: its code, which unmapping calls, would be another's.
    if seal_digest(file.descriptor) == digest:
        _ctypes.dlclose(handle)
    else:
        _KEPT[digest] = "its file was overwritten, and unmapping would run what is in it now"
    file.close()


def why_mapped(digest: str) -> str | None:
    """Why this process still has the library of a digest in its memory; None if it has not."""
    if any(other._digest == digest for other in tuple(_MAPPED)):
        return _KEPT.get(
            digest,
            "another `Library` of the same content, an array of its parameters or a call that is "
            "just returning refers to it",
        )
    return _KEPT.get(digest)


def _inscribed(number: int) -> str:
    """Number as steps of a path that lead nowhere: ``/.`` stays in a folder, and so does ``/``."""
    return f"{number:b}".replace("0", "/").replace("1", "/.")


def _mapped_name(handle: int) -> str:
    entry = ctypes.POINTER(_LinkMap)()
    if ctypes.CDLL(None).dlinfo(ctypes.c_void_p(handle), _LINK_MAP, ctypes.byref(entry)) != 0:
        raise OSError("the dynamic linker does not tell what it has mapped")
    return os.fsdecode(entry.contents.name or b"")
