"""Running compiled libraries: what is in one, loading it, and calling it.

    library = load_library("model.so")
    outputs = library.run(input_ids=ids, attention_mask=mask)     # {name: float array}

`library` is what callers use, `engine` the protocol of what runs the code, `engine_choice` the
engines that there are.
"""

from .library import IntegerOutput, Library
from .loading import load_library, run

__all__ = ["IntegerOutput", "Library", "load_library", "run"]
