"""What requests hold, and how errors are written; all else in a request is refused or ignored.

Lists are read here and not by pydantic, which would make an error for every element and every type
that it may have: the first element that is wrong ends the reading.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from ..model.scores import FUNCTIONS

Item = TypeVar("Item")
MOST_ITEMS = 8192
"""Elements of a list; each is looked at in the event loop."""

Text = Annotated[str, Field(description="A text.")]
Pair = Annotated[list[str], Field(min_length=2, max_length=2, description="A pair of texts.")]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, description="Token ids.")]
Truncate = Annotated[
    bool, Field(description="Cut off what is too long for the model, instead of refusing it.")
]
Function = Annotated[
    str | None,
    Field(description=f"One of {', '.join(FUNCTIONS)}, in the place of the model's own."),
]
PromptName = Annotated[
    str | None, Field(description="Name of the model's prompt to put before every text or query.")
]
Model = Annotated[str | None, Field(description="Name of a model; may be left out if one serves.")]


def _taking(**example: Any) -> ConfigDict:
    """What clients send besides is ignored; the example is shown at ``/docs``."""
    return ConfigDict(extra="ignore", strict=True, json_schema_extra={"examples": [example]})


class Document(BaseModel):
    """A document of a request to rerank, as Cohere's first version has them."""

    text: Text


def _items(value: Any, read: Callable[[Any], Item | None], expected: str) -> list[Item]:
    """What `read` makes of every element; it gives None for one that it does not take."""
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("items", f"give {expected}, or a list of at least 1 of these")
    if len(value) > MOST_ITEMS:
        raise PydanticCustomError("items", f"it has {len(value)} elements, at most {MOST_ITEMS}")
    items = []
    for index, element in enumerate(value):
        item = read(element)
        if item is None:
            raise PydanticCustomError("items", f"element {index} is not {expected}")
        items.append(item)
    return items


def _text(element: Any) -> str | None:
    return element if isinstance(element, str) else None


def _ids(element: Any) -> list[int] | None:
    whole = isinstance(element, list) and all(type(number) is int for number in element)
    return element if whole and element else None


def _pair(element: Any) -> str | tuple[str, str] | None:
    if isinstance(element, str):
        return element
    pair = isinstance(element, list) and len(element) == 2
    return tuple(element) if pair and all(isinstance(part, str) for part in element) else None


def _document(element: Any) -> str | None:
    return _text(element.get("text") if isinstance(element, dict) else element)


def _embeddings_input(value: Any) -> list[str] | list[list[int]]:
    first = value[0] if isinstance(value, list) and value else value
    if type(first) is int:
        value, first = [value], value
    if isinstance(first, list):
        return _items(value, _ids, "a list of token ids")
    return _items([value] if isinstance(value, str) else value, _text, "a text")


def _classify_inputs(value: Any) -> list[str | tuple[str, str]]:
    listed = [value] if isinstance(value, str) else value
    return _items(listed, _pair, "a text or a pair of texts")


def _documents(value: Any) -> list[str]:
    return _items(value, _document, "a text or an object with a text")


class Problem(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: None
    code: int


class Failure(BaseModel):
    """An error as OpenAI's clients read it."""

    error: Problem


_ERRORS = {
    400: "The request cannot be answered; the message says why.",
    401: "The API key is missing or wrong.",
    404: "No model has that name.",
    408: "The request did not arrive in time.",
    409: "The library cannot take the place of the one that runs, which goes on.",
    413: "The request is too large.",
    429: "The server has too much to do; try again later.",
    500: "The server failed; its log says why.",
    503: "The request was not answered in time, or nothing computes the model now.",
}
ANY_PATH = (400, 401, 408, 413, 429)
"""Errors before it is known what a request asks for."""
MODELS = (*ANY_PATH, 404, 500, 503)
"""Errors of a request that a model answers."""


def errors(*statuses: int) -> dict[int | str, Any]:
    """Errors of a route, for the OpenAPI document."""
    return {status: {"model": Failure, "description": _ERRORS[status]} for status in statuses}


class EmbeddingsRequest(BaseModel):
    """As OpenAI's embeddings; token ids are those of this model, special tokens included."""

    model_config = _taking(input=["The cat sat on the mat.", "A dog barked."])
    model: Model = None
    input: Annotated[
        list[str] | list[list[int]],
        PlainValidator(
            _embeddings_input, json_schema_input_type=Text | list[Text] | Ids | list[Ids]
        ),
    ]
    encoding_format: Annotated[
        Literal["float", "base64"],
        Field(description="Numbers, or little-endian float32 in Base64."),
    ] = "float"
    dimensions: Annotated[
        int | None,
        Field(ge=1, description="Give so many channels of each vector, at unit length."),
    ] = None
    truncate: Truncate = False
    prompt_name: PromptName = None


class RerankRequest(BaseModel):
    """As Cohere's rerank."""

    model_config = _taking(
        query="Where is the cat?", documents=["The cat sat on the mat.", "A dog barked."], top_n=1
    )
    model: Model = None
    query: Text
    documents: Annotated[
        list[str], PlainValidator(_documents, json_schema_input_type=list[Text | Document])
    ]
    top_n: Annotated[int | None, Field(ge=1, description="Give so many documents, the best.")] = (
        None
    )
    return_documents: Annotated[bool, Field(description="Give the texts of documents, too.")] = (
        False
    )
    function: Function = None
    prompt_name: PromptName = None
    truncate: Truncate = False


class ReloadRequest(BaseModel):
    """Which model to load again from its file; all of them if none is named."""

    model_config = _taking()
    model: Annotated[str | None, Field(description="Name of a model.")] = None


class ClassifyRequest(BaseModel):
    """Texts, or pairs of texts, to classify."""

    model_config = _taking(inputs=["The cat sat on the mat."], top_k=2)
    model: Model = None
    inputs: Annotated[
        list[str | tuple[str, str]],
        PlainValidator(_classify_inputs, json_schema_input_type=Text | list[Text | Pair]),
    ]
    top_k: Annotated[
        int | None, Field(ge=1, description="Give so many classes of each text, the likeliest.")
    ] = None
    function: Function = None
    threshold: Annotated[
        float | bool | None,
        Field(description="Least score of a class; true for what the model's source states."),
    ] = None
    truncate: Truncate = False
