"""From strings to vectors, scores, classes and answers in one line.

    vectors = Encoder("model.so").encode(["a text", "another"])

`encoder` is what callers use, `batches` runs texts through a library while the next ones become
tokens, `prepared` makes a library of a model that is none yet and keeps it; `entities` and `spans`
read what models of tokens give.
"""

from .encoder import Encoder

__all__ = ["Encoder"]
