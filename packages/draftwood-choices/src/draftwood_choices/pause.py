"""AdaDec: greedy decoding that looks ahead where the model is unsure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float

from draftwood import engine
from draftwood.models.model import ForwardInput, ModelOutput
from draftwood.native.rows import topk
from draftwood.rules import Before, TextRule
from draftwood.sampling import Context, LazyProbs, Sampling
from draftwood.sampling_params import SamplingParams
from draftwood.stats import Step
from draftwood.together import clock
from draftwood.tree import DraftTree
from draftwood.verifiers.verifier import Verdict

CANDIDATES = 3
"""Likeliest tokens that are rolled out."""
LENGTH = 5
"""Tokens of a roll-out, behind its candidate."""


def entropy(row: Float[np.ndarray, " vocab"]) -> float:
    """Entropy of a distribution, in nats."""
    held = row[row > 0].astype(np.float64)
    return float(-(held * np.log(held)).sum())


@dataclass
class RollOut:
    """A candidate and the likeliest tokens behind it.

    Attributes:
        tokens: the candidate first.
        log_probs: of the tokens, in nats.
        node: of the tree that holds the newest token which was run.
        ended: True where nothing is rolled out any more.
    """

    tokens: list[int]
    log_probs: list[float]
    node: int
    ended: bool = False

    @property
    def score(self) -> float:
        """Mean log-probability of the tokens."""
        return float(np.mean(self.log_probs))


@dataclass
class Pause:
    """A place where a text stopped to look ahead.

    Attributes:
        run, output: the drafted tree and what the model said of it.
        path: its accepted nodes.
        tree: the drafted tree with what was rolled out below the last of them.
        ran: nodes of it that the cache holds.
        seconds: by phase so far.
        going: roll-outs of the pass that is planned; none where no pass is.
    """

    run: ForwardInput
    output: ModelOutput
    path: list[int]
    tree: DraftTree
    seconds: dict[str, float]
    rollouts: list[RollOut]
    ran: int
    runs: int = 1
    going: list[RollOut] = field(default_factory=list)

    def next_pass(self) -> ForwardInput:
        """The newest token of every roll-out that goes on, as a node below its last one.

        A pass that failed is planned again: the tree grows no further until ``end_pass``.
        """
        if not self.going:
            self._add_newest()
        return ForwardInput(self.run.session, self.tree, first=self.ran)

    def _add_newest(self) -> None:
        self.going = [each for each in self.rollouts if not each.ended]
        tokens, parents = [*self.tree.token_list], [*self.tree.parent_list]
        for each in self.going:
            tokens.append(each.tokens[-1])
            parents.append(each.node)
            each.node = len(tokens) - 1
        self.tree = DraftTree.of(tokens, parents)

    def end_pass(self, seconds: float) -> list[RollOut]:
        """Count the planned pass as run, and give its roll-outs."""
        going, self.going = self.going, []
        self.seconds["target"] += seconds
        self.ran, self.runs = len(self.tree), self.runs + 1
        return going


class BehindRollOuts(engine.InTurn):
    """Drafts what a roll-out has found behind the root, else what the drafter drafts.

    Attributes:
        ahead: likeliest tokens behind the root, as far as they are known.
    """

    def __init__(self, text: engine.Sequence) -> None:
        super().__init__(text)
        self.ahead = list[int]()

    def _proposed(self, context: Context) -> DraftTree:
        ahead = self.ahead[: context.max_draft_len]
        if not ahead:
            return super()._proposed(context)
        super()._proposed(replace(context, max_draft_len=0))  # the drafter takes note of the root
        return DraftTree.chain([self.text.root, *ahead])


class PausingSteps:
    """Makes steps that pause where the model's entropy is high; implements ``Executor``.

    A drafted tree is followed along the likeliest tokens up to the first node where the entropy
    reaches the bound. There the likeliest tokens hang below it as candidates, and grow in shared
    passes; the one that begins the roll-out of the best mean log-probability becomes text. The rest
    of that roll-out is the next draft. Nothing of that depends on what was drafted.

    Differs from the paper: the first token, which the prompt's pass gives, is the likeliest one.

    Args:
        text: whose drafter has started.
        bound: entropy in nats, of what options of sampling leave of the distribution.

    Raises:
        ValueError: for texts that are drawn, or that follow a grammar.
    """

    def __init__(self, text: engine.Sequence, bound: float) -> None:
        sampler = text.options.sampler
        _require_likeliest(sampler.greedy and type(sampler) is Sampling)
        self.in_turn, self.bound = BehindRollOuts(text), bound
        self._sampler = sampler.for_drafting()  # whole distributions
        self._planned: tuple[ForwardInput, dict[str, float]] | None = None
        self._attached = False  # whether rows of the drafter lie behind the tree's
        self._pause: Pause | None = None

    @property
    def text(self) -> engine.Sequence:
        """The text, which this does not keep alive."""
        return self.in_turn.text

    def plan(self, budget: engine.StepBudget) -> Sequence[engine.ModelInput]:
        if self._pause is not None:
            return [self._pause.next_pass()]
        self._planned = self.in_turn.draft(budget)
        run = self._planned[0]
        attached = self.text.draft.attach(run.tree)
        self._attached = attached is not None
        return [attached or run]

    def commit(self, outputs: Sequence[ModelOutput], seconds: float) -> Sequence[Step]:
        if self._pause is not None:
            return self._grow(self._pause, outputs[0], seconds)
        assert self._planned is not None  # commit follows plan
        since, (run, spent) = clock(), self._planned
        self.in_turn.ahead = []
        spent["target"] += seconds
        path, row = self._followed(run.tree, outputs[0])
        left = min(LENGTH, self.text.tokens_left - len(path) - 1)
        if entropy(row) < self.bound or left < 1:
            verdict = Verdict(path, int(row.argmax()))
            spent["verify"] += clock() - since
            return [self.in_turn.commit_path(run.tree, verdict, outputs[0], spent)]
        chosen = topk(row[None], min(CANDIDATES, len(row)))[0].tolist()
        with np.errstate(divide="ignore"):
            logs = np.log(row[chosen].astype(np.float64)).tolist()
        node, stops = (path or [0])[-1], self.text.options.stop_tokens
        rollouts = [
            RollOut([token], [log], node, token in stops)
            for token, log in zip(chosen, logs, strict=True)
            if log > -np.inf
        ]
        ran = 0 if self._attached else len(run.tree)  # attached rows are in the next nodes' places
        self._pause = Pause(run, outputs[0], path, run.tree.without_probs(), spent, rollouts, ran)
        spent["verify"] += clock() - since
        return self._ended(self._pause)

    def _followed(
        self, tree: DraftTree, output: ModelOutput
    ) -> tuple[list[int], Float[np.ndarray, " vocab"]]:
        """Nodes along the likeliest tokens up to a pause or an end, and the distribution there."""
        text, path, node = self.text, list[int](), 0
        rows = LazyProbs(output.rows, self._sampler, tree, text.context)
        while True:
            row = rows[node]
            token = int(row.argmax())
            held = (each for each in tree.children[node] if tree.token_list[each] == token)
            child = None if token in text.options.stop_tokens else next(held, None)
            if child is None or entropy(row) >= self.bound:
                return path, row
            path.append(node := child)

    def _grow(self, pause: Pause, output: ModelOutput, seconds: float) -> Sequence[Step]:
        """Add the likeliest token to every roll-out that was run."""
        since, text, tree, going = clock(), self.text, pause.tree, pause.end_pass(seconds)
        longest = min(LENGTH, text.tokens_left - len(pause.path) - 1)
        for each, logits in zip(going, output.rows[-len(going) :], strict=True):
            nodes = [0, *tree.path_to(each.node)]
            before = text.context.extended([tree.token_list[node] for node in nodes])
            row = self._sampler.probs(logits[None], [before])[0]
            token = int(row.argmax())
            each.tokens.append(token)
            each.log_probs.append(float(np.log(row[token])))
            each.ended = token in text.options.stop_tokens or len(each.tokens) > longest
        pause.seconds["verify"] += clock() - since
        return self._ended(pause)

    def _ended(self, pause: Pause) -> Sequence[Step]:
        """The step, once every roll-out has ended."""
        if not all(each.ended for each in pause.rollouts):
            return []
        self._pause = None
        best = max(pause.rollouts, key=lambda each: each.score)
        verdict = Verdict(pause.path, best.tokens[0])
        made = self.in_turn.commit_path(pause.run.tree, verdict, pause.output, pause.seconds)
        self.in_turn.ahead = best.tokens[1:]
        return [replace(made, runs=pause.runs)]

    def preempt(self) -> None:
        if self._pause is not None:
            self._pause.ran = 0  # the whole tree is run again

    def close(self) -> None:
        self.in_turn.close()


def pausing(text: engine.Sequence, strength: float) -> engine.Executor:
    """Start the executor of the rule: it pauses from strength times the learnt entropy on."""
    from draftwood_choices.pause_entropy import learnt_entropy

    return PausingSteps(text, strength * learnt_entropy(text.target) if strength else 0.0)


def require_greedy(params: SamplingParams) -> None:
    """Raise ValueError for options of a text that is drawn, or that follows a grammar."""
    is_free = params.json_schema is None and params.grammar is None
    _require_likeliest(params.temperature == 0 and is_free)


def _require_likeliest(is_free: bool) -> None:
    if not is_free:
        raise ValueError(
            "rule 'pause' chooses among the likeliest tokens; set temperature 0, and leave"
            " grammars and schemas out"
        )


def leave(row: Float[np.ndarray, " vocab"], before: Before, strength: float) -> None:
    """Change nothing: the executor chooses."""


PAUSE = TextRule(
    "pause",
    "above an entropy that 'draftwood tune --pause' learns, the token with the best roll-out; the"
    " first token stays the likeliest",
    "AdaDec, He et al. 2025, arXiv:2506.08980",
    "trades quality",
    published=1.0,
    change=leave,
    executor=pausing,
    require=require_greedy,
)
"""Pause and look ahead, with a factor on the learnt entropy as its strength; 0 always pauses."""
