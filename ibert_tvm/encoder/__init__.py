"""From texts to vectors, scores, classes and answers.

    vectors = Encoder("model.so").encode(["a text", "another"])

`encoder` is the interface: it opens and saves. Its methods are in `vectors` and `predictions`, and
what these share in `texts`. `batches` runs texts through a library while the next ones are
tokenised, `prepared` compiles and caches a library for a model folder; `entities` reads the outputs
of token classifiers, and `readings` what `ibert run` shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .encoder import Encoder

__all__ = ["Encoder"]


def __getattr__(name: str) -> type[Encoder]:
    if name == "Encoder":  # brings all importers along, of which `readings` needs none
        from .encoder import Encoder

        return Encoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
