"""Documents whose places are looked at: the model's own answers, or a text of the user's."""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

import numpy as np

from draftwood.engine import run_all
from draftwood.text.language_model import LanguageModel
from draftwood_train.data.composed import composed

FURTHEST = 4
"""Tokens ahead that are foretold at most."""
LONGEST = 192
"""Tokens of a document that count; longer texts are cut into several."""
SHORTEST = 16
"""Tokens of a document that count, below which it is left out."""
FEWEST = 20
"""Documents of which something can be said."""
BATCH = 16
PARTS = (3, 1, 1)
"""Shares of the documents to learn from, to stop by, and to tell by."""


@dataclass(frozen=True)
class Document:
    """A text, and from where on it counts.

    Attributes:
        tokens: ids.
        first: place of the first token that is the newest one somewhere: the prompt's last.
    """

    tokens: tuple[int, ...]
    first: int = 1

    @property
    def places(self) -> int:
        """Places that have enough tokens behind them."""
        return max(len(self.tokens) - FURTHEST - self.first, 0)


def written(
    lm: LanguageModel, tokens: int, temperature: float, seed: int
) -> Iterator[list[Document]]:
    """Yield the model's own answers to composed prompts until they have so many tokens, in batches.

    Each answer has a seed of its own: equal noise would make them alike.

    Raises:
        ValueError: for a model that holds too few tokens.
    """
    prompts, count, made = composed(seed), 0, 0
    limit = lm.model.context_length
    if limit is not None and limit < 2 * SHORTEST:
        raise ValueError(f"{lm.name} holds {limit} tokens, too few for answers; give --text FILE")
    while made < tokens and (asked := list(islice(prompts, BATCH))):
        streams = []
        for prompt in asked:
            encoded = lm.encode(prompt)
            room = LONGEST if limit is None else min(LONGEST, limit - len(encoded))
            if room >= SHORTEST:
                wanted = {"max_new_tokens": room, "temperature": temperature}
                streams.append(lm.stream(encoded, seed=seed + count, **wanted))
            count += 1
        with closing(run_all([each.sequence for each in streams])) as running:
            for place, step in running:
                streams[place].take(step)
        found = []
        for each in streams:
            prompt, answer = each.sequence.prompt, each.finish().token_ids
            found.append(Document((*prompt, *answer), len(prompt) - 1))
            made += len(answer)
        yield found


def cut(lm: LanguageModel, text: str, tokens: int) -> list[Document]:
    """Cut a user's text at blank lines into documents, so many tokens of it in all."""
    limit = min(LONGEST, lm.model.context_length or LONGEST)
    joined, length = list[str](), 0
    found: list[Document] = []
    for paragraph in filter(str.strip, re.split(r"(?<=\n)\s*\n", text)):
        count = len(lm.encode(paragraph, raw=True))
        if joined and length + count > limit:
            found += _pieces(lm, joined, limit)
            joined, length = [], 0
        joined, length = [*joined, paragraph], length + count
    found += _pieces(lm, joined, limit)
    total = np.cumsum([each.places for each in found])
    return found[: int(np.searchsorted(total, tokens)) + 1]


def _pieces(lm: LanguageModel, paragraphs: Sequence[str], limit: int) -> list[Document]:
    """Paragraphs as documents of at most ``limit`` tokens; encoded as one, for one first token."""
    tokens = lm.encode("\n".join(paragraphs), raw=True) if paragraphs else []
    return [Document(tuple(tokens[at : at + limit])) for at in range(0, len(tokens), limit)]


def parts(documents: Sequence[Document], seed: int) -> tuple[list[Document], ...]:
    """Documents to learn from, to stop by, and to tell by, drawn by chance.

    Raises:
        ValueError: for too few that are long enough.
    """
    kept = [each for each in documents if each.places >= SHORTEST]
    if len(kept) < FEWEST:
        raise ValueError(
            f"{len(kept)} documents of at least {SHORTEST + FURTHEST} tokens are too little text:"
            f" probes need {FEWEST}; give a longer --text, or more --tokens"
        )
    order = np.random.default_rng(seed).permutation(len(kept))
    ends = np.cumsum(PARTS)[:-1] * len(kept) // sum(PARTS)
    return tuple([kept[place] for place in part] for part in np.split(order, ends))
