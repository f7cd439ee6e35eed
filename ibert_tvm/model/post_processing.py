"""What a model's own library does with the outputs of the network; plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..common.schema import INTEGER, NUMBER, STRING, check
from ..common.strict_json import JsonDict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PROBLEMS = {"multi_label_classification": "sigmoid", "regression": "none"}
"""What transformers' pipelines make scores of logits with, by ``problem_type``.

Of any other problem, several classes have a softmax, and a single one a sigmoid.
"""


@dataclass(frozen=True)
class PostProcessing:
    """What follows the network in the library that the model was made for.

    Parameters
    ----------
    classes
        One of `FUNCTIONS`: what transformers makes scores of a text's logits with. None to go by
        the number of classes: softmax, and sigmoid for a single one.
    pairs
        One of `FUNCTIONS`: what a cross-encoder of sentence-transformers makes the score of a pair
        with; None for its default, sigmoid.
    similarity
        One of `SIMILARITIES`: how vectors are compared; None for the default, cosine.
    dimensions
        Vectors are cut to so many channels; None to keep all.
    active
        All but so many of a vector's largest magnitudes are set to 0; None to keep all.
    thresholds
        Least score that counts, by the name of the class. Applied only where a caller asks for it:
        transformers does not.

    Raises
    ------
    ValueError
        If a function is unknown, or a size is no positive number.
    """

    classes: str | None = None
    pairs: str | None = None
    similarity: str | None = None
    dimensions: int | None = None
    active: int | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from .scores import FUNCTIONS, SIMILARITIES  # NumPy too: not for --help

        for name, known in (
            ("classes", FUNCTIONS),
            ("pairs", FUNCTIONS),
            ("similarity", SIMILARITIES),
        ):
            if (value := getattr(self, name)) is not None and value not in known:
                raise ValueError(f"{name} is {value!r}, none of {', '.join(known)}")
        for name in ("dimensions", "active"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise ValueError(f"{name} is {size}, but it is at least 1")

    def finished(
        self, vectors: NDArray[np.float32], dimensions: int | None = None
    ) -> NDArray[np.float32]:
        """Vectors [texts, channels] as the library gives them, before it normalises any.

        Parameters
        ----------
        vectors
            As the network gives them.
        dimensions
            In the place of the record's.
        """
        result = vectors[:, : dimensions or self.dimensions]
        if self.active is not None and self.active < result.shape[1]:
            import numpy as np

            order = np.argsort(-np.abs(result), axis=1, kind="stable")
            result = result.copy()
            np.put_along_axis(result, order[:, self.active :], 0, axis=1)
        return result

    def to_json(self) -> JsonDict:
        """Return what is known, as a JSON-serialisable dictionary; empty if nothing is."""
        return {key: value for key, value in asdict(self).items() if value not in (None, {})}

    @classmethod
    def from_json(cls, document: Any) -> PostProcessing:
        """Read what `to_json` wrote.

        Raises
        ------
        DocumentError
            If it is no such document.
        ValueError
            If a value is not allowed.
        """
        check(document, POST_PROCESSING_SCHEMA, "post_processing")
        return cls(**document)


POST_PROCESSING_SCHEMA = {
    "classes?": STRING,
    "pairs?": STRING,
    "similarity?": STRING,
    "dimensions?": INTEGER,
    "active?": INTEGER,
    "thresholds?": {"*": NUMBER},
}
"""What the fields of a document may hold."""
