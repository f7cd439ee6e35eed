"""What requests hold; everything else in them is refused or, where clients send it, ignored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(description="A text.")]
Pair = Annotated[list[str], Field(min_length=2, max_length=2, description="A pair of texts.")]
Truncate = Annotated[
    bool, Field(description="Cut off what is too long for the model, instead of refusing it.")
]
Function = Annotated[
    str | None,
    Field(description="softmax, sigmoid, none, tanh or relu, in the place of the model's own."),
]
PromptName = Annotated[
    str | None, Field(description="Name of the model's prompt to put before every text or query.")
]
Model = Annotated[str | None, Field(description="Name of a model; may be left out if one serves.")]


class EmbeddingsRequest(BaseModel):
    """As OpenAI's embeddings; token ids are refused: they would be those of another model."""

    model_config = ConfigDict(extra="ignore")
    model: Model = None
    input: Text | Annotated[list[Text], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(ge=1)] = None
    truncate: Truncate = False
    prompt_name: PromptName = None


class Document(BaseModel):
    """A document of a request to rerank, as Cohere's first version has them."""

    text: Text


class RerankRequest(BaseModel):
    """As Cohere's rerank."""

    model_config = ConfigDict(extra="ignore")
    model: Model = None
    query: Text
    documents: Annotated[list[Text | Document], Field(min_length=1)]
    top_n: Annotated[int | None, Field(ge=1)] = None
    return_documents: bool = False
    function: Function = None
    prompt_name: PromptName = None
    truncate: Truncate = False


class ReloadRequest(BaseModel):
    """Which model to load again from its file; all of them if none is named."""

    model_config = ConfigDict(extra="ignore")
    model: Annotated[str | None, Field(description="Name of a model.")] = None


class ClassifyRequest(BaseModel):
    """Texts, or pairs of texts, to classify."""

    model_config = ConfigDict(extra="ignore")
    model: Model = None
    inputs: Text | Annotated[list[Text | Pair], Field(min_length=1)]
    top_k: Annotated[int | None, Field(ge=1)] = None
    function: Function = None
    threshold: Annotated[
        float | bool | None,
        Field(description="Least score of a class; true for what the model's source states."),
    ] = None
    truncate: Truncate = False
