"""`/v1/completions`."""

from typing import Annotated

from pydantic import Field

from draftwood_serve.schemas.common import SamplingBody, TopLogprobs
from draftwood_serve.schemas.lists import Items
from draftwood_serve.settings import PROMPTS

TokenIds = Items[Annotated[int, Field(ge=0, lt=2**31)]]


class CompletionBody(SamplingBody):
    """Texts, or their token ids, that the model goes on with as they are."""

    prompt: (
        str
        | Annotated[TokenIds, Field(min_length=1)]
        | Annotated[Items[str], Field(min_length=1, max_length=PROMPTS)]
        | Annotated[Items[TokenIds], Field(min_length=1, max_length=PROMPTS)]
    )
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
