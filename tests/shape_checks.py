"""The checker of types and shapes: beartype, with whole numbers allowed where a float is asked
for. Which sizes the names of axes have is noted for each stack, as several may take turns.
"""

import contextlib
from typing import Any

from beartype import BeartypeConf, beartype
from jaxtyping import _storage

check = beartype(conf=BeartypeConf(is_pep484_tower=True))

with contextlib.suppress(ImportError):  # without it nothing takes turns
    from greenlet import getcurrent

    class Notes:
        """In the place of what each thread has for itself."""

        def __getattr__(self, name: str) -> Any:
            try:
                return vars(getcurrent())[name]
            except KeyError:
                raise AttributeError(name) from None

        def __setattr__(self, name: str, value: Any) -> None:
            vars(getcurrent())[name] = value

    _storage._shape_storage = Notes()  # type: ignore[assignment]
