"""Running compiled libraries: what is in one, loading it, and calling it.

    library = load_library("model.so")
    outputs = library.run(input_ids=ids, attention_mask=mask)     # {name: float array}

`library` is the interface, `engine` the protocol of engines, `loading` selects one.
"""

from .library import IntegerOutput, Library
from .loading import load_library, run
