"""Bigram priors on disk: taken from a model once, found again by every later load."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from draftwood.models.fingerprint import adapter_of
from draftwood.models.model import Model
from draftwood.sources.bigram_prior import PRIOR_RANKS, BigramPrior
from draftwood.storage.atomic import write_file
from draftwood.storage.progress import progress
from draftwood.storage.weights import kept_for
from draftwood.tokenizer.chat_template import FAILURES
from draftwood.tokenizer.protocol import AnyTokenizer, special_id

QUESTION, ANSWER = (
    "Explain it to me, please.",
    "Certainly! Here is what you asked for, in a few words. ",
)
STORED_SECONDS = 6.0  # for a prior that later loads find again
PASSING_SECONDS = 1.0  # for one that is forgotten with the process


class StoredPrior:
    """A model's bigram prior, made when it is first asked for: read from disk or measured.

    Nothing but time depends on it, so a prior whose file cannot be read is measured again, and one
    whose file cannot be written is not stored.

    Args:
        model: whose prior.
        before: tokens before each token whose successors are asked for.
        folder: of the weights; None for a model that came from memory, whose prior is not stored.
    """

    def __init__(
        self, model: Model, before: Sequence[int] = (0,), folder: Path | None = None
    ) -> None:
        self.model, self.before, self.folder = model, tuple(before), folder
        self._table: BigramPrior | None = None
        self._making = threading.Lock()

    @property
    def table(self) -> BigramPrior:
        """The prior; the first look may take 6 s, or 1 s for a model from memory."""
        with self._making:
            if self._table is None:
                self._table = self._made()
            return self._table

    @property
    def is_known(self) -> bool:
        """True if there is a prior without measuring one."""
        path = self.path
        return self._table is not None or (path is not None and path.exists())

    def _made(self) -> BigramPrior:
        path = self.path
        try:
            if path is not None and path.exists():
                return BigramPrior.load(path)
        except (ValueError, OSError):
            pass  # damaged: written again below
        return self.measure(PASSING_SECONDS if path is None else STORED_SECONDS)

    @property
    def path(self) -> Path | None:
        """Path of the prior once it is stored; None for a model that came from memory.

        Other weights in the same folder give another path.
        """
        kept = self.kept_beside("priors", PRIOR_RANKS)
        return None if kept is None else kept[0]

    def kept_beside(self, kind: str, *further: object) -> tuple[Path, str] | None:
        """Path for what else is measured of this model once, and the digest of its weights.

        None for a model that came from memory.
        """
        if self.folder is None:
            return None
        own = filter(None, (adapter_of(self.model),))
        return kept_for(kind, self.folder, self.before, *further, *own)

    def measure(self, seconds: float = float("inf")) -> BigramPrior:
        """Take the prior from the model, the first tokens first, and store it.

        From now on this one is used.
        """
        with progress(f"asking the model what follows each token, at most {seconds:.0f} s"):
            table = BigramPrior.of(self.model, self.before, seconds=seconds)
        if (path := self.path) is not None:
            with suppress(OSError):  # the next load measures it again
                write_file(path, table.save)
        self._table = table
        return table


def usual_text(tokenizer: AnyTokenizer) -> list[int]:
    """The beginning of a text such as the model usually writes.

    It is an answer in a chat where the model can chat.
    """
    start = list[int]()
    if tokenizer.chat_template is not None:
        from jinja2 import TemplateError  # the template needs it too

        with suppress(TemplateError, *FAILURES):  # texts need no template
            asked = tokenizer.apply_chat_template(
                [{"role": "user", "content": QUESTION}], tokenize=False, add_generation_prompt=True
            )
            start = list(tokenizer(str(asked), add_special_tokens=False)["input_ids"])
    if not start:
        # what a text starts with, or what is between texts
        edges = (special_id(tokenizer, "bos"), special_id(tokenizer, "eos"))
        start = [token for token in edges if isinstance(token, int)][:1]
    return [*start, *tokenizer(ANSWER, add_special_tokens=False)["input_ids"]] or [0]
