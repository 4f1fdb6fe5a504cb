"""Silence of Transformers while draftwood shows its own progress."""

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from transformers.utils import logging


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep Transformers' progress bars and warnings away while the body runs.

    Its settings are restored afterwards.
    """
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        # the bars write here; the one of the GGUF reader obeys no setting
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
