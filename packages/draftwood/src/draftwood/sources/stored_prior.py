"""Bigram priors on disk: taken from a model once, found again by every later load."""

import string
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from draftwood.costs.disturbance import alone
from draftwood.models.fingerprint import adapter_of
from draftwood.models.model import Model
from draftwood.sources.bigram_prior import PRIOR_RANKS, BigramPrior
from draftwood.storage.atomic import locked_where_possible, write_file
from draftwood.storage.progress import progress
from draftwood.storage.weights import kept_for
from draftwood.tokenizer.chat_template import FAILURES
from draftwood.tokenizer.protocol import AnyTokenizer, special_id

Made = TypeVar("Made")

QUESTION, ANSWER = (
    "Explain it to me, please.",
    "Certainly! Here is what you asked for, in a few words. ",
)
STORED_SECONDS = 6.0  # for a prior that later loads find again
PASSING_SECONDS = 1.0  # for one that is forgotten with the process
LEAST_KNOWN = 1024  # tokens of a prior that is not rough, however slow the model
MOST_KNOWN = 65_536  # tokens of a prior: 13 MB, and nearly all that texts are made of


class StoredPrior:
    """A model's bigram prior, made when it is first asked for: read from disk or measured.

    Nothing but time depends on it, so a prior whose file cannot be read is measured again, and one
    whose file cannot be written is not stored.

    Args:
        model: whose prior.
        before: tokens before each token whose successors are asked for.
        folder: of the weights; None for a model that came from memory, whose prior is not stored.
        order: gives the tokens, those to measure first first; by default in order of their ids.
        kind: names ``before`` where this changes from day to day, as a template with a date does.
    """

    def __init__(
        self,
        model: Model,
        before: Sequence[int] = (0,),
        folder: Path | None = None,
        order: Callable[[], Iterable[int]] = tuple,
        kind: str = "",
    ) -> None:
        self.model, self.before, self.folder, self.order = model, tuple(before), folder, order
        self.kind = kind or self.before
        self._table: BigramPrior | None = None
        self._making = threading.Lock()

    @classmethod
    def for_texts(cls, model: Model, tokenizer: AnyTokenizer, folder: Path | None) -> "StoredPrior":
        """Make the prior of a model for texts such as it usually writes."""
        kind = repr((QUESTION, ANSWER, tokenizer.chat_template))
        order = partial(usual_tokens, tokenizer)
        return cls(model, usual_text(tokenizer), folder, order, kind)

    @property
    def table(self) -> BigramPrior:
        """The prior; the first look may take 6 s, or 1 s for a model from memory."""
        return self.ready()

    def ready(self, measures: bool = True) -> BigramPrior:
        """The prior; measured where there is none, and further where there is a rough one.

        Args:
            measures: False takes a rough one as it is.
        """
        with self._making:
            if self._table is None:
                self._table = self._read()
            if self._table is None or (self._table.is_rough and measures):
                seconds = PASSING_SECONDS if self.path is None else STORED_SECONDS
                self._table = self._measured(seconds, lambda found: found.is_rough)
            return self._table

    @property
    def is_known(self) -> bool:
        """True if there is a prior without measuring one."""
        path = self.path
        return self._table is not None or (path is not None and path.exists())

    def alone(self, make: Callable[[], Made]) -> tuple[Made, bool]:
        """Measure something of the model, and tell whether that had the CPU to itself."""
        return alone(self.model, make)

    def grow(self, seconds: float = float("inf")) -> BigramPrior:
        """Ask the model for what the prior lacks, the commoner tokens first, and store it."""
        with self._making:
            self._table = self._measured(seconds)
            return self._table

    def _read(self) -> BigramPrior | None:
        """The prior on disk; None where there is none, or a damaged one, which is overwritten."""
        with suppress(ValueError, OSError):
            return None if self.path is None else BigramPrior.load(self.path)
        return None

    def _measured(
        self, seconds: float, wanting: Callable[[BigramPrior], bool] = lambda found: True
    ) -> BigramPrior:
        """The prior with what the model says in so many seconds after further tokens; stored.

        Args:
            wanting: whether a prior that another process stored meanwhile lacks too much.
        """
        path = self.path
        with locked_where_possible(path):
            known = self._read() or self._table
            if known is not None and not wanting(known):
                return known
            table = self._further(known, seconds)
            if path is not None and table is not known:
                with suppress(OSError):  # the next load measures it again
                    write_file(path, table.save)
            return table

    def _further(self, known: BigramPrior | None, seconds: float) -> BigramPrior:
        done = set[int]() if known is None else set(known.ids.tolist())
        if known is not None and len(done) >= min(MOST_KNOWN, self.model.vocab_size):
            return known
        lacking = islice(self._lacking(done), MOST_KNOWN - len(done))
        with progress(f"asking the model what follows each token, at most {seconds:.0f} s"):
            table, was_alone = self.alone(
                partial(BigramPrior.of, self.model, self.before, lacking, seconds=seconds)
            )
        table = table if known is None else known.joined(table)
        least = min(LEAST_KNOWN, self.model.vocab_size)
        return replace(table, is_rough=not was_alone and len(table.ids) < least)

    def _lacking(self, known: set[int]) -> Iterator[int]:
        """Every token of the model that ``known``, which takes them up, lacks, each once."""
        for ids in (self.order(), range(self.model.vocab_size)):
            for token in ids:
                if token not in known and token < self.model.vocab_size:
                    known.add(token)
                    yield token

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
        return kept_for(kind, self.folder, self.kind, *further, *own)


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


def usual_tokens(tokenizer: AnyTokenizer) -> Iterator[int]:
    """Give the tokens, the commoner first as far as they tell, some of them twice.

    Single characters come first; then whole texts by their ids, since merged vocabularies are in
    order of frequency; parts of characters and special tokens come last.
    """
    for character in string.printable:
        for text in (character, f" {character}"):
            yield from tokenizer(text, add_special_tokens=False)["input_ids"]
    parts = list[int]()
    for token in range(len(tokenizer)):
        text = tokenizer.decode([token], skip_special_tokens=True)
        if text and "\ufffd" not in text:
            yield token
        else:
            parts.append(token)
    yield from parts
