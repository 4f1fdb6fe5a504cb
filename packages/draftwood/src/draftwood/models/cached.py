"""Models whose sequences live in the slots of one pool of caches."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from draftwood.models.model import (
    Ability,
    EmbeddingsAndHead,
    ForwardInput,
    InProcess,
    Layers,
    ModelInput,
    ModelOutput,
    PromptInput,
    RowsInput,
    StepInput,
)
from draftwood.models.parts import Packed, PackedStep
from draftwood.models.requirements import require_layers
from draftwood.models.session import PooledModel, PooledSession

if TYPE_CHECKING:
    from draftwood.models.cache.pool import SlotPool
    from draftwood.models.mtp import MtpHead

CHANGING = ("dynamic", "longrope")
"""Rotary scalings whose frequencies change once a text is long."""

P = TypeVar("P", bound="SlotPool")


class CachedModel(InProcess, ABC, Generic[P]):
    """A model with a cache: all of ``models.model.Model`` but how a forward pass is computed.

    Several threads may use a model, each with sessions of its own; their forward passes take turns.

    Args:
        config: of the Transformers model.
        pool: the cache of all sequences.
        abilities: see ``Model.abilities``.
        layers: decoder layers.
        hidden_size: entries of a hidden state.
        device: of the weights and the cache.

    Attributes:
        adapter: mark of the adapter that was added to the weights; empty for none.
        read_mtp: reads the layer for multi-token prediction that comes with the weights of a model;
            None where there is none.
        makes_steps: whether its passes take a ``StepInput``, a whole step of a text.
    """

    adapter: str = ""
    read_mtp: "Callable[[Any], MtpHead] | None" = None
    makes_steps: ClassVar[bool] = False

    def __init__(
        self,
        config: Any,
        pool: P,
        abilities: AbstractSet[Ability],
        layers: int,
        hidden_size: int,
        device: Any,
    ) -> None:
        self.config, self.pool, self.abilities = config, pool, frozenset(abilities)
        self.layers, self.hidden_size, self.device = layers, hidden_size, device

    @cached_property
    def mtp(self) -> "MtpHead | None":
        """Layer that ``read_mtp`` reads, when it is first asked for."""
        return None if self.read_mtp is None else self.read_mtp(self)

    @property
    @abstractmethod
    def end_tokens(self) -> frozenset[int]:
        """Tokens with which the model ends its text."""

    @property
    @abstractmethod
    def embeddings_and_head(self) -> EmbeddingsAndHead:
        """Embedding and output head; without the ability each act is refused by name."""

    @abstractmethod
    def compute(self, parts: Sequence[Any], hidden: Sequence[int]) -> list[Any]:
        """Run a forward pass over parts of one group.

        There is room for it in the pool, and it has the pool to itself.
        """

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context_length(self) -> int | None:
        return context_length(self.config)

    def start(self) -> PooledSession:
        return PooledSession(self)

    def forward(self, inputs: Sequence[ModelInput]) -> list[Any]:
        return forward(self, inputs)

    def run(self, parts: Sequence[Packed]) -> list[Any]:
        """Run the parts of several sequences; write their keys and values to the pool.

        Groups with different keys are run in a pass each.
        """
        groups: dict[object, list[int]] = {}
        for number, part in enumerate(parts):
            groups.setdefault(self.group_key(part), []).append(number)
        outputs: dict[int, Any] = {}
        with self.pool.lock:
            self.pool.cover([part.place for part in parts])
            for numbers in groups.values():
                some = [parts[number] for number in numbers]
                wanted = tuple(sorted({layer for part in some for layer in part.hidden}))
                for number, output in zip(numbers, self.compute(some, wanted), strict=True):
                    outputs[number] = _only(parts[number], output)
        return [outputs[number] for number in range(len(parts))]

    def group_key(self, part: Packed) -> object:
        """Key that parts share if they are computed together; a chunk of a prompt is run by
        itself, as others would be padded to its length.
        """
        if isinstance(part, PackedStep):
            raise ValueError(f"{type(self).__name__} makes no steps by itself; run a tree")
        return id(part) if part.is_prompt else (part.layers, part.keep)

    def check(self, layers: Layers) -> None:
        """Raise ValueError unless this model can run these layers."""
        require_layers(self, layers)

    def catch_up(self, slot: int, length: int) -> bool:
        return False


def _only(part: Packed, output: Any) -> Any:
    """The output with the hidden states of its own layers, of those that others wanted too."""
    hidden = part.hidden
    if isinstance(part, PackedStep) or len(hidden) == len(output.hidden):
        return output
    return ModelOutput(output.given, {layer: output.hidden[layer] for layer in hidden})


def context_length(config: object) -> int | None:
    """Most tokens a sequence may have.

    Some rotary scalings change all frequencies once a text is longer than the model's first
    training texts. Keys in the cache would not fit any more, so such models stop there.
    """
    longest = getattr(config, "max_position_embeddings", None)
    for scaling in _scalings(config):
        if scaling["rope_type"] in CHANGING:
            before = scaling.get("original_max_position_embeddings")
            longest = min(
                (length for length in (longest, before) if length is not None), default=None
            )
    return longest


def same_beyond_context(config: object) -> bool:
    """True if positions beyond the context length are computed as those before.

    They are if the rotary angles never change.
    """
    kinds = {scaling["rope_type"] for scaling in _scalings(config)}
    return bool(kinds) and kinds.isdisjoint(CHANGING)


def _scalings(config: object) -> list[dict[str, Any]]:
    """Rotary scalings: one for all layers, or one for each kind of attention."""
    rope = getattr(config, "rope_parameters", None) or {}
    known = (rope, *rope.values())
    return [each for each in known if isinstance(each, dict) and "rope_type" in each]


def forward(model: PooledModel, inputs: Sequence[ModelInput]) -> list[Any]:
    """A forward pass over several sequences, all of which must live in the model's pool.

    Where some nodes of a tree have stopped before a layer, the others are run as far first.
    """
    sessions = _sessions_of(inputs, model.pool)
    late, going_on = _late(sessions, inputs), list(inputs)
    if late:
        some = [each for each, count in late.values() if count < len(each.tree)]
        if some:
            _run(model, _sessions_of(some, model.pool), some)
        for number, (each, _) in late.items():
            own = inputs[number]
            assert isinstance(own, ForwardInput)
            going_on[number] = replace(own, layers=Layers(start=each.layers.stop or 0))
    return _run(model, sessions, going_on)


def _late(
    sessions: Sequence[PooledSession], inputs: Sequence[ModelInput]
) -> dict[int, tuple[ForwardInput, int]]:
    """By place: of trees whose first nodes stopped the part that has yet to come as far, and how
    many stopped.
    """
    late = {}
    for number, (session, each) in enumerate(zip(sessions, inputs, strict=True)):
        found = session.exit_of(each) if isinstance(each, ForwardInput) else None
        if found is not None:
            assert isinstance(each, ForwardInput)
            stop, count = found
            rest = ForwardInput(session, each.tree, count, layers=Layers(stop=stop), keep="none")
            late[number] = rest, count
    return late


def _run(
    model: PooledModel, sessions: Sequence[PooledSession], inputs: Sequence[ModelInput]
) -> list[Any]:
    parts = [_part_of(each) for each in inputs]
    try:
        outputs = model.run(parts)
    except (ValueError, MemoryError):  # raised before anything is written
        raise
    except BaseException:
        for session in sessions:
            session.spoil()
        raise
    for session, part, output in zip(sessions, parts, outputs, strict=True):
        session.take(part, output)
    return outputs


def _sessions_of(inputs: Sequence[ModelInput], pool: object) -> list[PooledSession]:
    sessions = []
    for each in inputs:
        if not isinstance(each.session, PooledSession) or each.session.model.pool is not pool:
            raise ValueError("all sessions of a run must belong to the model that runs them")
        sessions.append(each.session)
    if len(set(map(id, sessions))) < len(sessions):
        raise ValueError("a session takes part in a pass once; join its trees to one")
    return sessions


def _part_of(each: ModelInput) -> Packed:
    session = each.session
    assert isinstance(session, PooledSession)
    if isinstance(each, StepInput):
        return session.step(each)
    if isinstance(each, PromptInput):
        return session.chunk(each.tokens, each.keep, each.hidden, each.embeddings)
    if isinstance(each, RowsInput):
        return session.masked(each)
    assert isinstance(each, ForwardInput)
    return session.part(each.tree, each.first, each.layers, each.keep, each.hidden)
