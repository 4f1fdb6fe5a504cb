"""llama.cpp's `/infill`, as editors send it."""

from typing import Annotated, ClassVar

from pydantic import Field

from draftwood_serve.schemas.common import IGNORED, Lenient, RequestBody, SpeculativeOptions
from draftwood_serve.schemas.lists import Items
from draftwood_serve.schemas.sampling import with_options

FROM_EDITORS = frozenset(
    {
        *("cache_prompt", "n_indent", "samplers", "t_max_prompt_ms", "t_max_predict_ms"),
        *("id_slot", "n_keep", "timings_per_token", "return_progress", "return_tokens"),
    }
)
"""Fields that say how llama.cpp is to do it, not what the text is to be."""


class ExtraFile(Lenient):
    """A file, or a part of one, that may tell what is to be written."""

    text: str
    filename: str = "other"


InfillOptions = with_options("InfillOptions", RequestBody)


class InfillBody(InfillOptions):
    """A text with a gap to be filled."""

    ignored: ClassVar[frozenset[str]] = IGNORED | FROM_EDITORS

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: Annotated[Items[ExtraFile], Field(max_length=1024)] | None = None
    prompt: str = ""
    n_predict: Annotated[int, Field(ge=-2)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    model: Annotated[str, Field(max_length=1024)] | None = None
    stream: bool | None = None
    response_fields: Annotated[Items[str], Field(max_length=256)] | None = None
    speculative: bool | SpeculativeOptions | None = None
