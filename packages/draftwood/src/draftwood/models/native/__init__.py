"""Models on a CPU, where one C++ call runs all layers."""

from draftwood.models.native.model import NativeModel, has_int8, require_int8

__all__ = ["NativeModel", "has_int8", "require_int8"]
