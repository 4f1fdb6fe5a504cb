"""From logits to the distribution to sample from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from draftwood.arrays import Bool, Float, Int, as_array
from draftwood.native.rows import in_cpp, softmax, topk
from draftwood.rng import Rng
from draftwood.sampling_params import OPTIONS, DrawingOptions, SamplingParams
from draftwood.tree import UNBOUNDED, DraftTree

if TYPE_CHECKING:
    from draftwood.native.logit_rows import LogitRow


@dataclass(frozen=True)
class SharedPass:
    """Load of the other texts in the same forward pass.

    Attributes:
        rows: that they run.
        tokens: that they are expected to emit.
    """

    rows: int = 0
    tokens: float = 0.0

    def among(self, rows: Sequence[int], tokens: Sequence[float]) -> list["SharedPass"]:
        """Load beside each of several texts that have this beside all of them.

        Args:
            rows: that each of them runs.
            tokens: that each of them is expected to emit.
        """
        all_rows, all_tokens = self.rows + sum(rows), sum(tokens)
        return [
            SharedPass(all_rows - own, self.tokens + (all_tokens - expected))
            for own, expected in zip(rows, tokens, strict=True)
        ]


NOTHING_SHARED = SharedPass()


@dataclass(frozen=True, eq=False)
class PassTime:
    """Duration of a forward pass over trees.

    Attributes:
        nodes: of all its trees, the roots included.
        context: tokens before the trees, on average over nodes.
        seconds: of the pass alone.
    """

    nodes: int
    context: float
    seconds: float


@dataclass(frozen=True)
class Context:
    """The tokens before a position.

    They are ``tokens`` in all, of which the first ``prompt`` were given by the user. The others are
    for drafters: ``max_draft_len``, how many draft tokens in a row may still become text, as the
    text and the model's context end; ``shared``, what else the next forward pass runs;
    ``last_passes``, how long the text's last one took, or several in a row, where that is known.
    """

    tokens: list[int]
    prompt: int
    max_draft_len: int = UNBOUNDED
    shared: SharedPass = NOTHING_SHARED
    last_passes: tuple[PassTime, ...] = ()

    def extended(self, tokens: Sequence[int]) -> "Context":
        return replace(self, tokens=[*self.tokens, *tokens])


@runtime_checkable
class Sampler(Protocol):
    """Turns logits into probabilities.

    ``reads_context`` says whether it needs the tokens before each position.
    """

    @property
    def greedy(self) -> bool: ...

    @property
    def reads_context(self) -> bool: ...

    def probs(
        self, logits: Float[np.ndarray, "rows vocab"], contexts: Sequence[Context] = ()
    ) -> Float[np.ndarray, "rows vocab"]: ...

    def for_drafting(self) -> "Sampler": ...


@runtime_checkable
class MaskedSampler(Sampler, Protocol):
    """A sampler that gives forbidden tokens no probability.

    Drafters that turn logits into probabilities by it need nothing else. This is for those that
    draw from rows of another origin.
    """

    @property
    def unmasked(self) -> Sampler:
        """The same without the constraint."""
        ...

    def allowed(self, context: Context) -> Bool[np.ndarray, " vocab"] | None:
        """The tokens that may come after these; None where anything goes, as no text gets there."""
        ...


def is_masked(sampler: Sampler) -> bool:
    """True if a sampler gives some tokens no probability at all, as under a grammar."""
    return isinstance(sampler, MaskedSampler)


@dataclass(frozen=True)
class Sampling(DrawingOptions):
    """Rules of sampling, those of Transformers' logits processors.

    Options, order and results are theirs, but of tokens that tie at the edge of ``top_p`` the
    first ones stay; ``DrawingOptions`` has them all.

    Args:
        min_tokens: of the answer, before which ``end_tokens`` have no probability.

    Raises:
        TypeError: for a value that is no number.
        ValueError: for a value outside its range, naming the range.
    """

    min_tokens: int = SamplingParams.min_tokens
    end_tokens: frozenset[int] = frozenset()

    @classmethod
    def of(cls, params: SamplingParams, end_tokens: frozenset[int] = frozenset()) -> "Sampling":
        """Sample a text with these options, which ends with any of these tokens."""
        names = [each.name for each in fields(cls) if each.name in OPTIONS]
        shared: dict[str, Any] = {name: getattr(params, name) for name in names}
        return cls(**shared, end_tokens=end_tokens)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def reads_context(self) -> bool:
        return self.min_tokens > 0 or bool(self.active_rules)

    @property
    def only_temperature(self) -> bool:
        """True if there is nothing to do but to divide by the temperature."""
        return not (self.cuts or self.reads_context or self.logit_bias)

    @property
    def cuts(self) -> bool:
        """True if unlikely tokens are cut off."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def require_biases(self, vocabulary: int) -> None:
        """Raise ValueError where ``logit_bias`` names a token that a vocabulary lacks."""
        tokens = sorted(self.logit_bias or ())
        if tokens and not 0 <= tokens[0] <= tokens[-1] < vocabulary:
            raise ValueError(f"logit_bias names tokens outside 0..{vocabulary - 1}: {tokens}")

    def for_drafting(self) -> "Sampling":
        """The same, but never one-hot.

        At temperature 0 a drafter still needs to know what is second most likely.
        """
        return (
            replace(self, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) if self.greedy else self
        )

    def probs(
        self,
        logits: Float[np.ndarray, "rows vocab"],
        contexts: Sequence[Context] = (),
        out: Float[np.ndarray, "rows vocab"] | None = None,
    ) -> Float[np.ndarray, "rows vocab"]:
        """The distribution to sample from, one row per position.

        Args:
            logits: of the model; the result is float32, or float64 for float64 logits.
            contexts: the tokens before each position; needed where ``reads_context`` is True.
            out: contiguous float32 memory that the result may be put into, where that
                saves work.

        Returns:
            The rows; one of NaN where the scores hold NaN or plus infinity, or are minus infinity
            throughout.
        """
        scores = as_array(logits)
        if scores.dtype != np.float64:
            scores = scores.astype(np.float32, copy=False)
        if self.logit_bias:
            if (left := self._left(scores.shape[-1])) is not None:
                return self._among(left, scores)
            self.require_biases(scores.shape[-1])
            scores = _biased(scores, self.logit_bias)
        if self.reads_context:
            scores = scores.copy()
            for row, context in zip(scores, contexts, strict=True):
                self._penalise(row, context)
        if self.greedy:
            return _one_hot(scores)
        if not self.cuts:
            return softmax(scores, self.temperature, out)
        with np.errstate(over="ignore"):
            scores = scores / scores.dtype.type(self.temperature)
        if self.top_k:
            scores = _likeliest(scores, min(self.top_k, scores.shape[-1]))
        if self.top_p < 1.0:
            scores = _nucleus(scores, self.top_p)
        probs = softmax(scores, 1.0)
        if self.min_p > 0.0:
            probs[probs < self.min_p * probs.max(-1, keepdims=True)] = 0.0
            probs /= probs.sum(-1, keepdims=True)
        return probs

    def _left(self, vocabulary: int) -> Int[np.ndarray, " left"] | None:
        """The tokens that may be drawn where at least half are banned; None elsewhere."""
        if vocabulary not in self._left_of:
            bias = self.logit_bias or {}
            few = 2 * len(bias) >= vocabulary and set(bias.values()) == {-np.inf}
            left = None
            if few and not self.reads_context:
                self.require_biases(vocabulary)
                left = np.delete(np.arange(vocabulary), list(bias))
            self._left_of[vocabulary] = left if left is not None and len(left) else None
        return self._left_of[vocabulary]

    @cached_property
    def _left_of(self) -> dict[int, Int[np.ndarray, " left"] | None]:
        return {}

    def _among(
        self, left: Int[np.ndarray, " left"], scores: Float[np.ndarray, "rows vocab"]
    ) -> Float[np.ndarray, "rows vocab"]:
        """The distribution over some tokens; the others' scores cost time and change nothing."""
        found = self._unbiased.probs(scores[:, left])
        probs = np.zeros(scores.shape, found.dtype)
        probs[:, left] = found
        probs[np.isnan(found[:, 0])] = np.nan
        return probs

    @cached_property
    def _unbiased(self) -> "Sampling":
        return replace(self, logit_bias=None)

    def _penalise(self, scores: Float[np.ndarray, " vocab"], context: Context) -> None:
        """Change a row in its place by the text before it."""
        if len(context.tokens) - context.prompt < self.min_tokens:
            scores[[token for token in self.end_tokens if token < len(scores)]] = -np.inf
        for rule in self.active_rules:  # which choose among what is left
            rule(scores, context, self)


@dataclass(frozen=True, eq=False)
class LazyProbs:
    """The target's distribution at each node of a tree, computed when a verifier asks for it.

    Each node's own path is its context, so penalties and grammars stay exact on trees. Implements
    ``verifiers.base.NodeProbs``.
    """

    logits: Float[np.ndarray, "nodes vocab"]
    sampler: Sampler
    tree: DraftTree
    before: Context
    rows: dict[int, Float[np.ndarray, " vocab"]] = field(default_factory=dict)

    def __getitem__(self, node: int) -> Float[np.ndarray, " vocab"]:
        """Probabilities after a node.

        ValueError where there are none, since the model's numbers are broken.
        """
        if node not in self.rows:
            self._compute(node, self._logits(node))
        return self.rows[node]

    def _logits(self, node: int) -> Float[np.ndarray, "1 vocab"]:
        """Logits after a node; to be read once, as it may be run only now."""
        return as_array(self.logits[node : node + 1])

    def _compute(self, node: int, logits: Float[np.ndarray, "1 vocab"]) -> None:
        contexts = []
        if self.sampler.reads_context:
            path = [0, *self.tree.path_to(node)]
            contexts = [self.before.extended([self.tree.token_list[n] for n in path])]
        row = self.sampler.probs(logits, contexts)[0]
        require_probs(row, logits[0], self._place(node))
        self.rows[node] = row

    def library_row(self, node: int) -> "LogitRow | tuple[np.ndarray, int] | None":
        """The distribution after a node as the library knows it.

        At temperature 0 the node's logits [1 vocab] and its likeliest token; None where options of
        sampling or the kind of the logits ask for whole rows. ValueError where there is no
        distribution.
        """
        if self._temperature is None:
            return None
        if node in self._known:
            return self._known[node]
        logits = self._logits(node)
        if not in_cpp(logits):
            self._compute(node, logits)
            return None
        if self._temperature == 0.0:
            return logits, self._certain(logits, node)
        from draftwood.native.logit_rows import LogitRow, LogitRows

        rows = LogitRows(logits, self._temperature)
        if rows.is_broken:
            raise undrawable(logits[0], self._place(node))
        self._known[node] = LogitRow(rows, 0)
        return self._known[node]

    @cached_property
    def _known(self) -> "dict[int, LogitRow]":
        return {}

    @cached_property
    def _temperature(self) -> float | None:
        """Temperature of a sampler that does nothing else."""
        sampler = self.sampler
        if type(sampler) is Sampling and sampler.only_temperature:
            return sampler.temperature
        return None

    def _certain(self, logits: Float[np.ndarray, "1 vocab"], node: int) -> int:
        token = int(topk(logits, 1)[0, 0])
        if not np.isfinite(logits[0, token]):
            raise undrawable(logits[0], self._place(node))
        return token

    def draw(self, node: int, rng: Rng) -> int:
        """The token that ``rng.draw(self[node])`` gives, up to rounding.

        It does without the probabilities where it can.
        """
        if self._temperature is None:
            return rng.draw(self[node])
        row = self._logits(node)
        token = rng.draw_from_logits(row, 0, self._temperature)
        if token < 0:
            raise undrawable(row[0], self._place(node))
        return token

    def _place(self, node: int) -> int:
        """Number of the token that comes after a node, in the answer, from 1 on."""
        return len(self.before.tokens) - self.before.prompt + len(self.tree.path_to(node)) + 2


def require_probs(
    row: Float[np.ndarray, " vocab"], logits: Float[np.ndarray, " vocab"], place: int
) -> None:
    """Raise ValueError where a sampler gave NaN: it does so for whole rows, so one look is enough.

    Args:
        row: what it gave.
        logits: what it was given.
        place: number of the token in the answer, from 1 on.
    """
    if not row[0] >= 0.0:
        raise undrawable(logits, place)


def has_numbers(logits: Float[np.ndarray, "rows vocab"]) -> Bool[np.ndarray, "rows 1"]:
    """True for rows of logits that can become probabilities: no NaN or plus infinity, not all minus
    infinity.
    """
    return np.isfinite(logits.max(-1, keepdims=True))


def undrawable(logits: Float[np.ndarray, " vocab"], place: int) -> ValueError:
    """The error that says why no token can be chosen after these logits."""
    if bool(np.isnan(logits).any()) or bool((logits == np.inf).any()):
        what = (
            "the model's logits hold NaN or plus infinity: its weights are damaged, or the dtype is"
            " too small for it"
        )
    elif bool((logits == -np.inf).all()):
        what = "the model's logits are all minus infinity: its weights are damaged"
    else:
        what = (
            "logit_bias, min_tokens, a grammar or another logits processor leaves no token to"
            " choose from"
        )
    return ValueError(f"token {place} of the text cannot be chosen: {what}")


def _one_hot(scores: Float[np.ndarray, "rows vocab"]) -> Float[np.ndarray, "rows vocab"]:
    """All probability on the likeliest token; NaN where that has no finite score."""
    tokens = topk(scores, 1)
    with np.errstate(invalid="ignore"):
        zero = abs(0.0 * np.take_along_axis(scores, tokens, -1))  # or NaN
    probs = zero.repeat(scores.shape[-1], axis=-1)
    np.put_along_axis(probs, tokens, 1.0 + zero, -1)
    return probs


def _biased(
    scores: Float[np.ndarray, "rows vocab"], bias: Mapping[int, float]
) -> Float[np.ndarray, "rows vocab"]:
    tokens, scores = list(bias), scores.copy()
    with np.errstate(invalid="ignore", over="ignore"):  # beyond 32 bits is without a bound
        scores[:, tokens] += np.array([bias[token] for token in tokens], scores.dtype)
    return scores


def _likeliest(
    scores: Float[np.ndarray, "rows vocab"], count: int
) -> Float[np.ndarray, "rows vocab"]:
    """Minus infinity outside the ``count`` likeliest of each row; more of them where some tie."""
    lowest = np.partition(scores, -count, axis=-1)[:, -count][:, None]
    return np.where(scores < lowest, scores.dtype.type(-np.inf), scores)


def _nucleus(
    scores: Float[np.ndarray, "rows vocab"], top_p: float
) -> Float[np.ndarray, "rows vocab"]:
    """Minus infinity outside the smallest set of likeliest tokens that reaches ``top_p``.

    A full sort of a large vocabulary costs milliseconds and the set is nearly always small, so ever
    larger heads are sorted until one reaches the sum.
    """
    kept = np.full_like(scores, -np.inf)
    for row, probs, own in zip(scores, softmax(scores, 1.0), kept, strict=True):
        inside = _head(probs, top_p)
        own[inside] = row[inside]
    return kept


def _head(probs: Float[np.ndarray, " vocab"], top_p: float) -> Int[np.ndarray, " inside"]:
    """The likeliest tokens that reach ``top_p`` together; all where there are no numbers."""
    size, vocab = 256, len(probs)
    while True:
        count = min(size, vocab)
        least = np.partition(probs, -count)[-count]
        # with all that tie, in the order of tokens
        top = np.flatnonzero(probs if least == 0 else ~(probs < least))
        order = top[np.argsort(-probs[top], kind="stable")]
        reached = probs[order].cumsum(dtype=np.float64)
        if count == vocab or least == 0 or reached[-1] >= top_p:
            break
        size *= 16
    inside = ~(reached - probs[order] >= top_p)
    inside[0] = True
    return order[inside]
