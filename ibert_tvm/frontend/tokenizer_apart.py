"""The comparison of a tokenizer with transformers in another process.

Importing transformers takes seconds, and a process that has it without PyTorch is rid of most of
them; but it stays so for good. The other one does nothing else, beside the import of the model.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from .errors import ModelSourceError

# With -c the working directory would come first: a folder from elsewhere could bring modules.
_SCRIPT = """
import sys
sys.path = [folder for folder in sys.path if folder]
from pathlib import Path
sys.modules["torch"] = None
from ibert_tvm.frontend.source_tokenizer import compare_with_transformers
print(compare_with_transformers([Path(folder) for folder in sys.argv[1:]]))
"""
_SECONDS = 120


class Apart:
    """A comparison that goes on in another process.

    Parameters
    ----------
    stored
        What is compared.
    folders
        Where it was read.
    """

    def __init__(self, stored: dict[str, bytes], folders: Sequence[Path]) -> None:
        self._stored = stored
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):  # no memory for another process: this one compares
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SCRIPT, *(str(folder.resolve()) for folder in folders)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )

    def result(self) -> dict[str, bytes] | None:
        """The files, if they are as transformers has them; None if the process could not say.

        Raises
        ------
        ModelSourceError
            What the other process raised.
        """
        if self._process is None:
            return None
        try:
            answer = json.loads(self._process.communicate(timeout=_SECONDS)[0])
        except (subprocess.TimeoutExpired, ValueError):  # it did not start, or was ended
            return None
        finally:
            self.end()
        if "error" in answer:
            raise ModelSourceError(*answer["error"])
        return self._stored if answer.get("same") == digest(self._stored) else None

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def digest(files: Mapping[str, bytes]) -> str:
    """Of all files and their names."""
    parts = (f"{name} {sha256(files[name]).hexdigest()}" for name in sorted(files))
    return sha256("\n".join(parts).encode()).hexdigest()
