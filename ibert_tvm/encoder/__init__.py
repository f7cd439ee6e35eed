"""From texts to vectors, scores, classes and answers.

    vectors = Encoder("model.so").encode(["a text", "another"])

`encoder` is the interface, `batches` runs texts through a library while the next ones are
tokenised, `prepared` compiles and caches a library for a model folder; `entities` reads the outputs
of token classifiers, and `readings` what `ibert run` shows.
"""

from .encoder import Encoder

__all__ = ["Encoder"]
