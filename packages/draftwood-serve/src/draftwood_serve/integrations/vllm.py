"""Draft chains for vLLM: proposers for its speculative method ``custom_class``.

    vllm serve MODEL --speculative-config '{"method": "custom_class",
      "model": "draftwood_serve.integrations.vllm.SuffixProposer", "num_speculative_tokens": 5}'

vLLM hands over tokens alone: no logits, no hidden states and no names of requests. So proposers
search the text itself, and know a request again by its tokens. What is drafted depends on a row's
tokens and on nothing else, neither on time nor on chance: every rank of a tensor-parallel model
drafts the same. vLLM verifies the chains, and its greedy texts stay the model's own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int

from draftwood.drafters.prompt_lookup import PromptLookup
from draftwood.sources.auto.suffix import Suffix
from draftwood_serve.integrations.suffix_automaton import Match, SuffixAutomaton, continuations

VERSION = "0.32"
"""Version of vLLM, which may change the interface with each."""

Row = Int[np.ndarray, " tokens"]


class TextSearch(Protocol):
    """Search structures of one text, which grows at its end."""

    def learn(self, tokens: Sequence[int]) -> None:
        """Take in the next tokens."""
        ...

    def chain(self, root: int, length: int) -> list[int]:
        """Draft tokens behind the text and ``root``, its newest token, which is not learnt yet.

        There are ``length`` of them, or as many as the text knows.
        """
        ...


class SuffixSearch:
    """The likeliest continuation of the longest earlier match, token by token.

    Differs from the source of `auto`: where nothing followed a match, as at the end of the text,
    shorter matches go on, so that a text that repeats itself is drafted at full length. Where none
    does, or nearly anything followed, the match goes on as it did last.
    """

    def __init__(self, settings: Suffix) -> None:
        self.shortest = settings.shortest
        self.automaton = SuffixAutomaton(settings.settings.deepest)
        self.tokens: list[int] = []

    def learn(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        for token in tokens:
            self.automaton.append(token)

    def chain(self, root: int, length: int) -> list[int]:
        match, found = self.automaton.step(*self.automaton.repeated(), root), list[int]()
        while len(found) < length and match[1] >= self.shortest:
            token, match = self._likeliest(match) or (self._last(match, root), match)
            match = self.automaton.step(*match, token)
            found.append(token)
        return found

    def _likeliest(self, match: Match) -> tuple[int, Match] | None:
        """Return the continuation of a match, or of its longest end that has one, and that end."""
        state, matched = match
        while matched >= self.shortest:
            chances = continuations(self.automaton, (state, matched), self.shortest)
            if chances:
                return max(chances, key=lambda token: (chances[token], -token)), (state, matched)
            state = self.automaton.links[state]
            matched = self.automaton.lengths[state]
        return None

    def _last(self, match: Match, root: int) -> int:
        """Token behind the newest of a match's places; of the text's end that is ``root``."""
        place = self.automaton.newest[match[0]]
        return self.tokens[place] if place < len(self.tokens) else root


class LookupSearch:
    """A copy of what followed the longest n-gram, of equal ones the most recent.

    A copy that reaches the end of the text goes on with itself.
    """

    def __init__(self, settings: PromptLookup) -> None:
        self.index = settings.new_index()

    def learn(self, tokens: Sequence[int]) -> None:
        self.index.append(tokens)

    def chain(self, root: int, length: int) -> list[int]:
        for copied in self.index.continuations(root, length, 1):
            return [copied[place % len(copied)] for place in range(length)]
        return []


class RowText:
    """A row's tokens so far, and what was learnt of all but the newest.

    Args:
        search: over a text that is empty yet.
    """

    def __init__(self, search: TextSearch) -> None:
        self.search = search
        self.tokens: Row = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return len(self.tokens)

    def begins(self, row: Row) -> bool:
        """True if the row goes on from this text."""
        own = len(self.tokens)
        if own > len(row) or self.tokens[own - 1] != row[own - 1]:  # most are told apart here
            return False
        return np.array_equal(self.tokens, row[:own])

    def chain(self, row: Row, length: int) -> list[int]:
        """Take in what is new of a row that goes on from this text, and draft behind it."""
        learnt = max(len(self.tokens) - 1, 0)
        *new, root = row[learnt:].tolist()
        self.search.learn(new)
        self.tokens = row.copy()
        return self.search.chain(root, length)


class ChainProposer(ABC):
    """A proposer as vLLM calls it, over one search per request.

    Each call handles what is new in each row alone. Requests move from row to row, end, and others
    begin like them: a text is the one of any row that begins with it, as all that was learnt of it
    follows from its tokens. Texts without a row stay for a while, for a request may come back.

    Args:
        vllm_config: vLLM's own.

    Raises:
        ImportError: in a vLLM of another version, or without one.
    """

    def __init__(self, vllm_config: Any) -> None:
        require_version()
        self.length: int = vllm_config.speculative_config.num_speculative_tokens
        self.context_length: int = vllm_config.model_config.max_model_len
        self.max_idle: int = vllm_config.scheduler_config.max_num_seqs
        self.rows: dict[int, RowText] = {}
        self.idle: list[RowText] = []  # without a row, newest first

    @abstractmethod
    def search(self) -> TextSearch:
        """A search over a new text."""

    def load_model(self, *args: object, **kwargs: object) -> None:  # noqa: B027
        """Nothing; vLLM asks every proposer to."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Int[np.ndarray, " rows"],
        token_ids_cpu: Int[np.ndarray, "rows context"],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Draft tokens for each row; none for rows that are not to be drafted for.

        Args:
            sampled_token_ids: of each row the tokens of the last step; none while its prompt is
                still read.
            num_tokens_no_spec: how many tokens each row has.
            token_ids_cpu: these tokens.
            slot_mappings: where keys and values lie; not read.
        """
        rows: dict[int, Row] = {}
        for place, sampled in enumerate(sampled_token_ids):
            count = int(num_tokens_no_spec[place])
            if sampled and 0 < count < self.context_length:
                rows[place] = token_ids_cpu[place, :count]
        texts = self._texts_of(rows)
        chains: list[list[int]] = [[] for _ in sampled_token_ids]
        for place, row in rows.items():
            room = self.context_length - len(row)
            chains[place] = texts[place].chain(row, min(self.length, room))
        return chains

    def _texts_of(self, rows: Mapping[int, Row]) -> dict[int, RowText]:
        """For each row the longest text that it goes on from, or a new one."""
        texts = {
            place: self.rows.pop(place)
            for place, row in rows.items()
            if place in self.rows and self.rows[place].begins(row)
        }
        idle = [*self.rows.values(), *self.idle]
        for place, row in rows.items():
            if place in texts:
                continue
            known = max((text for text in idle if text.begins(row)), key=len, default=None)
            if known is not None:
                idle.remove(known)
            texts[place] = RowText(self.search()) if known is None else known
        self.rows, self.idle = texts, idle[: self.max_idle]
        return texts


class SuffixProposer(ChainProposer):
    """Drafts what followed the longest match of the newest tokens most often; see ``Suffix``."""

    def search(self) -> TextSearch:
        return SuffixSearch(Suffix())


class LookupProposer(ChainProposer):
    """Drafts a copy of what followed the newest tokens before; see ``PromptLookup``."""

    def search(self) -> TextSearch:
        return LookupSearch(PromptLookup())


def require_version() -> None:
    """Raise ImportError where vLLM is not of the version that this file is written for."""
    cure = f"pip install 'vllm=={VERSION}.*'"
    try:
        found = str(import_module("vllm").__version__)
    except ModuleNotFoundError:
        raise ImportError(f"draftwood's proposers run in vLLM {VERSION}: {cure}") from None
    if not found.startswith(f"{VERSION}."):
        raise ImportError(
            f"draftwood's proposers are written for vLLM {VERSION}, and this is {found}: {cure}"
        )
