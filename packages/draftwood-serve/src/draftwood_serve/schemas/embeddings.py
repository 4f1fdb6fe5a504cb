"""OpenAI's `/v1/embeddings` and Ollama's `/api/embed` and `/api/embeddings`."""

from typing import Annotated, Literal

from pydantic import Field

from draftwood_serve.schemas.common import RequestBody
from draftwood_serve.schemas.completions import TokenIds
from draftwood_serve.schemas.lists import Items
from draftwood_serve.schemas.ollama import OllamaModelBody, OllamaOptions
from draftwood_serve.settings import EMBEDDED

Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[Items[Text], Field(min_length=1, max_length=EMBEDDED)]
Dimensions = Annotated[int, Field(ge=1)]


class EmbeddingBody(RequestBody):
    """Texts, or their token ids."""

    input: (
        Text
        | Texts
        | Annotated[TokenIds, Field(min_length=1)]
        | Annotated[Items[TokenIds], Field(min_length=1, max_length=EMBEDDED)]
    )
    model: Annotated[str, Field(max_length=1024)] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Dimensions | None = None
    pooling: Literal["mean", "last"] = "mean"


class OllamaPromptBody(OllamaModelBody):
    """A text by the older endpoint; without one the model is loaded."""

    prompt: str = ""
    options: OllamaOptions = Field(default_factory=OllamaOptions)


class OllamaEmbedBody(OllamaModelBody):
    """Texts, cut to the model's context unless ``truncate`` is false."""

    input: Text | Texts
    truncate: bool = True
    dimensions: Dimensions | None = None
    options: OllamaOptions = Field(default_factory=OllamaOptions)
