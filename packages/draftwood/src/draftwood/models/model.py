"""Protocol of a model: forward passes over trees, and a cache that keeps a path."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NoReturn,
    Protocol,
    SupportsIndex,
    runtime_checkable,
)

import numpy as np

from draftwood.arrays import Float, Int, as_array
from draftwood.optional import backend
from draftwood.tree import DraftTree

if TYPE_CHECKING:
    from draftwood.native.step import NativeStep, StepCaller

Keep = Literal["all", "last", "none"]
"""Nodes or tokens of a pass whose logits are wanted."""

Ability = Literal[
    "hidden",
    "partial",
    "halves",
    "resume",
    "window",
    "int4",
    "embeddings_and_head",
    "embeddings",
    "fork",
    "cache",
    "beside",
    "rows",
    "adapted_rows",
    "mtp",
]
"""Abilities of a model beyond a forward pass over a tree."""


@dataclass(frozen=True)
class Layers:
    """Decoder layers that a forward pass runs, and the part of the prefix that it reads.

    A layer's attention and MLP are left out apart from each other. Where the attention is left out,
    the pass writes no keys and values of that layer.

    Attributes:
        start: the first layer to run; above 0 nodes that stopped there go on.
        stop: the layer before which to stop; None runs to the end, norm and output head included.
            What stops gives no logits, and the hidden state with which it stopped, in float32 where
            the model adds in float32.
        without_attention: layers whose attention is left out.
        without_mlp: layers whose MLP is left out.
        window: first and newest places of the prefix that are read; None reads all. Places are read
            in blocks of 32, so that a few more may be read.
        int4: whether the weights are the model's own rounded to 4 bits.
    """

    start: int = 0
    stop: int | None = None
    without_attention: frozenset[int] = frozenset()
    without_mlp: frozenset[int] = frozenset()
    window: tuple[int, int] | None = None
    int4: bool = False


ALL_LAYERS = Layers()


@dataclass(frozen=True, eq=False)
class EmbeddingsAndHeadWeights:
    """Weights of embedding, final norm and output head: arrays of float32, or a model's tensors.

    Attributes:
        embedding: [vocab dim].
        norm: [dim], of the final norm; None where it has no weight.
        head, head_bias: [vocab dim] and [vocab]; the embedding itself where both are tied.
    """

    embedding: Any
    norm: Any
    head: Any
    head_bias: Any


@runtime_checkable
class EmbeddingsAndHead(Protocol):
    """A model's embedding and output head, for drafters that read and write its hidden states.

    Tokens, states and logits are arrays, or tensors of models in PyTorch, which take arrays too.
    """

    def embed(self, tokens: Any) -> Any:
        """Embed ``tokens``: [tokens dim].

        As what Transformers takes as ``inputs_embeds``: learned positions, and scalings that the
        model itself does afterwards, are not in it.
        """
        ...

    def logits(self, hidden: Any, tokens: Any = None, normed: bool = False) -> Any:
        """Logits [rows part] after hidden states: final norm, output head, and what the model does
        to logits.

        Args:
            hidden: [rows dim], what comes out of the last layer, or takes its place.
            tokens: the part of the vocabulary that is wanted, in this order; None wants all.
            normed: whether the hidden states went through the final norm already, as those that an
                ``ModelOutput`` numbers after the last layer.
        """
        ...

    def weights(self) -> EmbeddingsAndHeadWeights:
        """The weights themselves, to train or to build on; what that costs each path says."""
        ...


class InProcess:
    """Resources in the memory of one process: neither pickled nor copied, as two that think
    a slot of a cache their own would write over each other.
    """

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Asked by ``pickle`` and by both kinds of copy."""
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied: its weights and caches belong to"
            " this process, where all threads may share it; in another process load the model again"
            " with draftwood.load"
        )


@dataclass(frozen=True, eq=False)
class ModelOutput:
    """Result of a forward pass for one of its inputs.

    Attributes:
        given: logits [rows vocab] as the model has them, one row per node of the pass; a single row
            for the last one, or none, where only that was asked for.
        hidden: hidden states [nodes dim] at these nodes for the layers asked for, as the model has
            them; layer i is the input of decoder layer i.
        steps: what came of whole steps that the library made, in a row; there are no logits then.
        hidden_in_row: hidden states of each of several steps, where they were kept; ``hidden`` has
            those of a single one.
    """

    given: Any
    hidden: dict[int, Any] = field(default_factory=dict)
    steps: "tuple[NativeStep, ...]" = ()
    hidden_in_row: tuple[dict[int, Any], ...] = ()

    def hidden_of(self, step: int) -> dict[int, Any]:
        """Hidden states of one of its steps; of several in a row nothing where none were kept."""
        if len(self.steps) == 1:
            return self.hidden
        return self.hidden_in_row[step] if self.hidden_in_row else {}

    @cached_property
    def rows(self) -> Float[np.ndarray, "rows vocab"]:
        """The logits as an array on the host, where they are brought once."""
        return as_array(self.given)

    @property
    def logits(self) -> Any:
        """The logits as a tensor [rows vocab], for who goes on in PyTorch."""
        return backend("a tensor").as_tensor(self.given)

    def states(self, layer: int) -> Any:
        """The hidden states of a layer as a tensor [nodes dim], likewise."""
        return backend("a tensor").as_tensor(self.hidden[layer])


class CacheFullError(MemoryError):
    """The limit on a cache leaves no room for what is asked; nothing was written."""


@runtime_checkable
class ModelSession(Protocol):
    """One sequence on one model, used for targets and for draft models.

    The KV cache holds ``length`` committed tokens and after them the nodes of the forward passes
    since the last commit.
    """

    @property
    def model(self) -> "Model": ...

    @property
    def length(self) -> int: ...

    def extend(
        self,
        tokens: Sequence[int],
        keep: Keep = "all",
        hidden: Sequence[int] = (),
        embeddings: Any = None,
    ) -> ModelOutput:
        """Append tokens for good; logits of all of them, of the last one or of none.

        Args:
            embeddings: vectors [rows hidden_size] in the place of tokens, see ``PromptInput``.
        """
        ...

    def forward(self, tree: DraftTree, first: int = 0, hidden: Sequence[int] = ()) -> ModelOutput:
        """A forward pass over the nodes from ``first`` on.

        Each node sees the committed tokens, its ancestors and itself. Nodes before ``first`` must
        have had their forward pass since the last commit.
        """
        ...

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes of the tree as the newest tokens, in this order, and drop the others.

        Of a ``RowsInput`` any of its rows, or all of them, in the order of their positions, which
        must go on where the committed tokens end. They stay as they were computed, with all that
        they saw.
        """
        ...

    def rewind(self, count: int) -> None:
        """Take back the newest ``count`` tokens.

        Their forward pass still counts: a tree may start with them.
        """
        ...

    def fork(self, into: "ModelSession | None" = None, length: int | None = None) -> "ModelSession":
        """Another session with the same committed tokens, without a second forward pass.

        Args:
            into: an empty session of the same model that takes the copy; None starts one.
            length: so many of the committed tokens; None copies all.

        Nodes since the last commit are not copied, nor are tokens that were taken back. From then
        on both sessions write texts of their own, and closing one leaves the other as it is.
        """
        ...

    def wants(self, count: int) -> int:
        """Blocks of the cache that so many further tokens or nodes take; 0 where it has none."""
        ...

    def clear(self) -> None:
        """Forget all tokens and give the cache back that they took; the session stays open."""
        ...

    def close(self) -> None:
        """Give the session's share of the cache back."""
        ...


class Runner(Protocol):
    """Runs several inputs in one pass: a model, or an input that runs itself."""

    def forward(self, inputs: Sequence["ModelInput"]) -> Sequence[ModelOutput]: ...


@dataclass(frozen=True, eq=False)
class ModelInput:
    """One sequence's part in a forward pass.

    Attributes:
        is_tree: True for a tree, whose passes are timed to learn what trees cost.
    """

    is_tree: ClassVar[bool] = False
    session: ModelSession

    @property
    def rows(self) -> int:
        """Tokens that are run."""
        raise NotImplementedError(f"{type(self).__name__} must say how many tokens it runs")

    @property
    def past(self) -> int:
        """Tokens before these in the cache."""
        return self.session.length

    @property
    def runner(self) -> Runner:
        """The model that runs it; inputs of one runner share a pass."""
        return self.session.model

    def alone(self) -> ModelOutput:
        """Run it in a pass of its own."""
        raise NotImplementedError(f"{type(self).__name__} must say how it is run alone")


@dataclass(frozen=True, eq=False)
class ForwardInput(ModelInput):
    """Nodes of ``tree`` from ``first`` on.

    Attributes:
        hidden: layers whose hidden states are wanted; each sequence may want others.
        layers: the layers to run. What such a pass writes to the cache is only good for further
            passes over the same tree with the same layers: nodes are kept, or started from, only
            where all layers ran. Nodes that stopped go on where a pass starts there; a pass through
            all layers goes on too where nodes of its tree have just stopped, rather than from the
            beginning.
        keep: logits of all these nodes, of the last one, or of none.
    """

    is_tree: ClassVar[bool] = True
    tree: DraftTree
    first: int = 0
    hidden: tuple[int, ...] = ()
    layers: Layers = ALL_LAYERS
    keep: Keep = "all"

    @property
    def rows(self) -> int:
        return len(self.tree) - self.first

    def alone(self) -> ModelOutput:
        output = self.session.forward(self.tree, self.first, self.hidden)
        return ModelOutput(kept(output.given, self.keep), output.hidden)


@runtime_checkable
class RowAdapter(Protocol):
    """Adapter that acts on some rows of a pass and leaves all others as they are."""

    def require(self, model: "Model", adapted: Sequence[int]) -> None:
        """Raise ValueError unless it adapts rows of this model and has these vectors."""
        ...


@dataclass(frozen=True, eq=False)
class RowsInput(ModelInput):
    """Rows with positions and an attention mask of their own, for instance a block of mask tokens
    (block diffusion: Arriola et al. 2025, arXiv:2503.09573).

    Rows may see later ones. They see all committed tokens, unless the mask says otherwise; where a
    layer has a window, what lies that many positions or more before a row is hidden from it.
    ``session.commit`` keeps some of the rows or all; until then nothing else sees them.

    Attributes:
        tokens: [rows], at least one.
        positions: [rows], in any order, from 0 on and below the context length; rows may share one.
        sees: bool [rows rows], or [rows length + rows] to say it of the ``length`` committed tokens
            too. Every row sees itself.
        keep: logits of all rows, of the last one, or of none.
        hidden: layers whose hidden states are wanted.
        adapter: acts on the last rows, and on no other; for models with the ability
            ``adapted_rows``.
        adapted: for each of the last rows the number of the adapter's vector that it reads in place
            of its token's embedding, its token then meaning nothing.

    Raises:
        ValueError: when it is run, for numbers that do not fit together, and for a model without
            the ability ``rows``: one that is no causal transformer with keys and values, or masks
            later tokens itself.
    """

    tokens: Sequence[int]
    positions: Sequence[int] | Int[np.ndarray, " rows"]
    sees: Any
    keep: Keep = "all"
    hidden: tuple[int, ...] = ()
    adapter: RowAdapter | None = None
    adapted: Sequence[int] = ()

    @property
    def rows(self) -> int:
        return len(self.tokens)

    def alone(self) -> ModelOutput:
        return self.session.model.forward([self])[0]


@dataclass(frozen=True, eq=False)
class PromptInput(ModelInput):
    """Tokens that are appended to the sequence for good, or vectors in their place.

    A mixture of two tokens' embeddings, for instance: with ``rows =
    model.embeddings_and_head.embed([3, 8])`` it is ``session.extend((), embeddings=0.7 * rows[:1] +
    0.3 * rows[1:])``. Such a sequence has places that no token names, so neither its
    prefix nor its text can be looked up by tokens.

    Attributes:
        tokens: empty where vectors are given.
        keep: logits of all tokens, of the last one, or of none.
        hidden: layers whose hidden states are wanted.
        embeddings: [rows hidden_size], an array or a tensor on the scale of
            ``EmbeddingsAndHead.embed``; for models with the ability ``embeddings``. None takes the
            tokens' own.
    """

    tokens: Sequence[int]
    keep: Keep = "last"
    hidden: tuple[int, ...] = ()
    embeddings: Any = None

    @property
    def rows(self) -> int:
        return len(self.tokens if self.embeddings is None else self.embeddings)

    def alone(self) -> ModelOutput:
        if self.embeddings is None:
            return self.session.extend(self.tokens, self.keep, self.hidden)
        return self.session.extend(self.tokens, self.keep, self.hidden, self.embeddings)


@dataclass(frozen=True, eq=False)
class StepInput(ModelInput):
    """A whole step of a text, for a model that makes them itself.

    Attributes:
        caller: makes the step.
        most: draft tokens.
        hidden: layers whose hidden states are handed out.
        expected_rows: that it is expected to run.
    """

    is_tree: ClassVar[bool] = True
    caller: "StepCaller"
    most: int
    hidden: tuple[int, ...]
    expected_rows: int

    @property
    def rows(self) -> int:
        return self.expected_rows

    def alone(self) -> ModelOutput:
        return self.session.model.forward([self])[0]


@runtime_checkable
class PrefixStore(Protocol):
    """Texts whose cache serves later prompts that begin alike.

    Texts with different salts never serve each other.
    """

    def start(self, prompt: Sequence[int], salt: str = "") -> tuple[ModelSession, int]:
        """A session that begins with as much of a prompt as is known; how many tokens these are.

        The prompt's last token is never among them, as its logits are wanted.
        """
        ...

    def shared_blocks(self, prompt: Sequence[int], salt: str = "") -> int:
        """Blocks of a limited cache that a prompt need not take, as sequences have them."""
        ...

    def go_on(self, session: ModelSession, prompt: Sequence[int], salt: str = "") -> int:
        """Let a session in a prompt go on behind what became known since ``start``, if it can;
        gives its length.
        """
        ...

    def remember(self, session: ModelSession, tokens: Sequence[int], salt: str = "") -> None:
        """Keep what a session has computed of its first tokens, which are these."""
        ...


class Device(Protocol):
    """Place of a model's weights, as PyTorch's devices say it."""

    @property
    def type(self) -> str: ...


@dataclass(frozen=True)
class Cpu:
    """The CPU, of models that run without PyTorch."""

    type: str = "cpu"

    def __str__(self) -> str:
        return self.type


@runtime_checkable
class Model(Protocol):
    """Weights that make forward passes over trees."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int | None:
        """Most tokens a sequence may have; None where there is no limit."""
        ...

    @property
    def layers(self) -> int:
        """Decoder layers; 0 where there are none to speak of."""
        ...

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens with which the model ends its text."""
        ...

    @property
    def device(self) -> "Device": ...

    @property
    def hidden_size(self) -> int:
        """Entries of a hidden state; 0 where there are none."""
        ...

    @property
    def embeddings_and_head(self) -> EmbeddingsAndHead:
        """Embedding and output head; without the ability each act is refused by name."""
        ...

    @property
    def abilities(self) -> frozenset[Ability]:
        """Abilities beyond forward passes; ``require_ability`` asks for one by name."""
        ...

    def start(self) -> ModelSession: ...

    def forward(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        """A forward pass over several sequences, each of which takes part once.

        They may have different lengths and different trees, and chunks of prompts may be among
        them, and whole steps where the model ``makes_steps``. Inputs that run different layers are
        computed in a pass each. Where the pass fails, no sequence has become longer; after a
        ValueError or MemoryError each is just as before.
        """
        ...


def kept(rows: Any, keep: Keep) -> Any:
    """Choose the rows of logits [rows vocab] that are wanted."""
    return rows if keep == "all" else rows[len(rows) - (keep == "last") :]


def joined(first: ModelOutput, rest: ModelOutput) -> ModelOutput:
    """Put the logits of two passes over one tree together."""
    return ModelOutput(np.concatenate([first.rows, rest.rows]))


CHUNK = 512
"""Tokens of a prompt in one forward pass: efficient, with small logits and masks."""


def chunks(tokens: Sequence[int], size: int = CHUNK) -> Iterator[Sequence[int]]:
    """Yield the tokens in pieces of at most ``size``."""
    for start in range(0, len(tokens), size):
        yield tokens[start : start + size]


def extend_in_chunks(
    session: ModelSession, tokens: Sequence[int], hidden: Sequence[int] = ()
) -> ModelOutput:
    """Append any number of tokens; logits of the last one, and states of the last chunk."""
    output = None
    for chunk in chunks(tokens):
        output = session.extend(chunk, "last", hidden)
    if output is None:
        raise ValueError("there must be at least one token")
    return output
