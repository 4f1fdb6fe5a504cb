"""Formats in which a model's weights and cache are measured."""

from draftwood.loading.models import LoadedModel, load_model

CACHE_MARK = "-cache"


def load_format(name: str, format: str, device: str | None = None) -> LoadedModel:
    """The model in a dtype, or in a dtype and a cache as ``LoadedModel.dtype`` tells them."""
    dtype, plus, cache = format.partition("+")
    if plus and not cache.endswith(CACHE_MARK):
        raise ValueError(
            f"{format!r} is no format; take a dtype, or a dtype with an 8-bit cache, for instance"
            f" int8+int8{CACHE_MARK}"
        )
    return load_model(name, dtype, device, cache.removesuffix(CACHE_MARK) or None)
