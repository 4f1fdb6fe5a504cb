"""Options of a request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from draftwood.models.model import Model, PrefixStore
from draftwood.models.verified import PredictedText
from draftwood.sampling import Sampler, Sampling
from draftwood.sampling_params import CheckedOptions, SamplingParams
from draftwood.tree import DraftTree
from draftwood.validation import require_kind
from draftwood.verifiers.verifier import NodeProbs

if TYPE_CHECKING:
    from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession
    from draftwood.engine.constraint import Constraint

FinishReason = Literal["stop", "length"]
Bound = Callable[[DraftTree, NodeProbs], float | None]
Watch = Callable[["DraftSession", "DraftRequest"], "DraftSession"]


@runtime_checkable
class StopCheck(Protocol):
    """A stop rule at work on one text."""

    stopped: bool

    @property
    def may_stop(self) -> bool:
        """True if it may end the text; False for one that only looks on."""
        ...

    def add(self, tokens: Sequence[int]) -> int:
        """Read new tokens; says how many of them belong to the text, all where it goes on."""
        ...


@runtime_checkable
class StopRule(Protocol):
    """Rule that ends texts besides stop tokens, for instance at a string."""

    def start(self) -> StopCheck:
        """The rule for one text."""
        ...


@dataclass(frozen=True, eq=False)
class Options(CheckedOptions):
    """Options of a request.

    Args:
        sampler: from logits to the distribution to sample from.
        max_new_tokens: most tokens to emit.
        stop_tokens: the text ends right after any of these.
        seed: makes the request reproducible; None takes one from the system.
        exact: refuse a verifier that is not exact for the trees it gets.
        stop_rules: end the text within a step.
        logprobs: likeliest tokens whose log-probabilities are told beside the emitted token's own;
            None tells none. They are the target's own, before temperature and penalties.
        bound: computes the greatest acceptance possible at the root of a tree, to report beside the
            realised one.
        prefixes: finds what earlier texts have computed of the prompt, and keeps what this one
            computes.
        salt: texts with different ones share nothing there.
        constraint: what the answer has to satisfy, for instance a grammar; forbidden tokens have no
            probability, and the text ends with the constraint's end tokens too.
        predicted: a text that the answer may follow, for drafters that take one; of this text
            alone, as it counts what became of it.
        watch: wraps the drafter's session of the text, to see what becomes of its drafts.
        context: most tokens of prompt and answer together, where the target would read more.
    """

    sampler: Sampler = field(default_factory=Sampling)
    max_new_tokens: int = SamplingParams.max_new_tokens
    stop_tokens: frozenset[int] = frozenset()
    seed: int | None = SamplingParams.seed
    exact: bool = SamplingParams.exact
    bound: Bound | None = None
    stop_rules: Sequence[StopRule] = ()
    logprobs: int | None = SamplingParams.logprobs
    constraint: "Constraint | None" = None
    prefixes: PrefixStore | None = None
    salt: str = SamplingParams.salt
    predicted: PredictedText | None = None
    watch: Watch | None = None
    context: int | None = SamplingParams.context

    def __post_init__(self) -> None:
        super().__post_init__()
        banned = getattr(self.sampler, "end_tokens", frozenset())
        if getattr(self.sampler, "min_tokens", 0) and not self.stop_tokens <= banned:
            raise ValueError(
                "min_tokens bans the end_tokens of Sampling, and stop_tokens hold others; give"
                " Sampling(end_tokens=...) all of them"
            )
        if self.constraint is not None:
            from draftwood.engine.constraint import Constraint

            require_kind("grammar", self.constraint, Constraint, "Lark or a compiled grammar")
        require_kind("prefixes", self.prefixes, PrefixStore, "a Prefixes or None")

    def longest(self, target: Model, prompt: Sequence[int]) -> int:
        """Most tokens that an answer to a prompt may have.

        Raises:
            ValueError: for a prompt that is empty, of another model, or leaves no room.
        """
        from draftwood.engine.prefill import check_prompt, context_limit

        check_prompt(prompt, target, self.context)
        limit = context_limit(target, self.context)
        most = self.within_context(len(prompt)).max_new_tokens
        # the last token takes no place
        return most if limit is None else min(most, limit + 1 - len(prompt))

    def within_context(self, prompt_length: int) -> "Options":
        """Options whose answer ends where prompt and answer have ``context`` tokens."""
        if self.context is None:
            return self
        most = max(self.context - prompt_length, 1)
        return replace(self, max_new_tokens=min(self.max_new_tokens, most))

    def require_prediction(self, drafter: "Drafter", vocabulary: int) -> None:
        """Refuse a prediction that a drafter does not take, or of another vocabulary.

        Raises:
            ValueError: with the cure.
        """
        if self.predicted is None:
            return
        if not drafter.takes_prediction:
            raise ValueError(
                "this method does not draft along a prediction; take the method auto or suffix, or"
                " leave the prediction out"
            )
        if not 0 <= min(self.predicted.tokens) <= max(self.predicted.tokens) < vocabulary:
            raise ValueError(
                f"the prediction has token ids outside 0..{vocabulary - 1}: it was made for another"
                " model"
            )
