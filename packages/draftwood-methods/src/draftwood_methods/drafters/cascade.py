"""Draft with a small model that is itself sped up by what it said before."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from draftwood.drafters.draft_model import DraftDistributions, DraftModel
from draftwood.drafters.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.drafters.resources import Resources
from draftwood.models.model import Model, ModelOutput, extend_in_chunks
from draftwood.native.rows import topk
from draftwood.sampling import Context
from draftwood.shapes import Shape
from draftwood.sources.source import TargetUpdate
from draftwood.tree import DraftTree, Draw
from draftwood.validation import positive
from draftwood_methods.n_grams import NGramTables, Tail

FRESH = 0.6  # weight of the newest row where a context was seen before
MAX_CONTEXTS = 50_000
LONG = 16  # tokens that the middle model has not seen; what is before them is run by itself


@dataclass(frozen=True, eq=False)
class Cascade(Drafter):
    """A chain that a small model draws, checking several tokens of its own drafts in each run.

    Staged speculative decoding (Spector & Re 2023, arXiv:2308.04623), cascade speculative drafting
    (Chen et al. 2024, arXiv:2312.11462). Below the middle model lie n-gram tables of its own
    likeliest successors. It draws its own next token at each node and goes on where the tables
    drafted just that, so each token is a genuine draw from its distribution and rejection keeps the
    target's. Siblings drawn beside the chain cost no run, so that the target gets a tree.

    Leniency keeps tokens of the tables that the middle model likes nearly as well as what it drew:
    fewer runs, and a chain that is drawn from no known distribution, good for matching alone. So it
    is drawn with the random numbers that the target draws with (Daliri et al. 2024,
    arXiv:2408.07978).

    Differs from the papers: tables of the middle model's own rows in the place of a bigram model of
    a text collection, and a drafted token is kept by matching.

    Args:
        model: the middle model, of the target's vocabulary.
        length: draft tokens in a row.
        width: children of each node of the chain, which goes on below the first.
        ahead: most tokens that the tables draft for one run; 0 leaves the middle model alone.
        least: probability of the tables' whole draft below which it ends.
        order: most tokens of context of the tables.
        leniency: how many times likelier what the middle model drew may be than a token that is
            kept in its place, each over its random number; at 1 none is.

    Raises:
        ValueError: for settings outside their range.

    Example:
        The middle model writes 3 4 9 after 2. Its run over the prompt tells the tables that 4
        follows 3, so one run more over 3 and the table's 4 draws both 4 and 9. The target writes 3
        4 5.

        >>> drafter = Cascade(writing([1, 2, 3, 4, 9]), length=3)
        >>> one_step(drafter, writing([1, 2, 3, 4, 5]), [1, 2, 3, 1, 2])
        OneStep(drafted=[[3, 4, 9]], accepted=[3, 4], then=5)
    """

    name: ClassVar[str] = "cascade"
    needs = DraftModel.needs
    model: Model
    length: int = 4
    width: int = 1
    ahead: int = 3
    least: float = 0.2
    order: int = 3
    leniency: float = 1.0

    def __post_init__(self) -> None:
        positive("length, width and order", (self.length, self.width, self.order))
        if self.ahead < 0 or not 0.0 <= self.least <= 1.0 or not self.leniency >= 1.0:
            raise ValueError(
                "ahead must be at least 0, least between 0 and 1, and leniency at least 1, got"
                f" {self.ahead}, {self.least} and {self.leniency}"
            )

    @classmethod
    def build(cls, resources: Resources) -> Drafter:
        assert resources.draft_model is not None  # methods are refused without what they need
        return cls(resources.draft_model)

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({"distinct"})

    @property
    def draws(self) -> frozenset[Draw]:
        return frozenset({self.draw})

    @property
    def draw(self) -> Draw:
        """Rule by which the siblings of its trees are drawn."""
        return "distinct" if self.leniency == 1.0 else "coupled"

    def start(self, request: DraftRequest) -> DraftSession:
        return _CascadeSession(self, request)


@dataclass(frozen=True, eq=False)
class LenientCascade(Cascade):
    """The same with leniency; for matching.

    Example:
        The text is 1 2 3 1 2, and the tables draft 3 4. The middle model draws 3 after 2, and 5
        after 3, but holds 4 at least a third as likely as 5: 4 stays, and the next run begins
        behind it. The target says 3 after 2 and 4 after 3, and keeps both.
    """

    name: ClassVar[str] = "lenient-cascade"
    leniency: float = 3.0

    @classmethod
    def labels(cls, shape: Shape | None) -> frozenset[Draw]:
        return frozenset({"coupled"})


class _Chain:
    """Tokens that the middle model has drawn below a root.

    Attributes:
        tokens: the root and the chain below it.
        others: for each node of the chain its further children.
        rows: distribution after each node of the chain; uniform where the model's row is broken.
        is_broken: whether there was such a row.
    """

    def __init__(self, root: int, distributions: DraftDistributions) -> None:
        self.tokens, self.distributions = [root], distributions
        self.others: list[list[int]] = []
        self.rows: list[Float[np.ndarray, "1 vocab"]] = []
        self.is_broken = False

    def add(self, logits: Float[np.ndarray, "1 draft_vocab"]) -> Float[np.ndarray, "1 vocab"]:
        """The distribution after the newest token, from the middle model's logits there."""
        tree = DraftTree.chain(self.tokens)
        row = self.distributions.after(logits, tree, len(tree) - 1)
        if np.isnan(row[0, 0]):  # a sampler's row holds no NaN or nothing else
            self.is_broken, row = True, np.full_like(row, 1.0 / row.shape[-1])
        self.rows.append(row)
        return row

    def tree(self, draw: Draw) -> DraftTree:
        tokens, parents = list(self.tokens), list(range(-1, len(self.tokens) - 1))
        for node, others in enumerate(self.others):
            tokens += others
            parents += [node] * len(others)
        return DraftTree(
            np.array(tokens),
            np.array(parents),
            None if draw == "coupled" else np.concatenate(self.rows),
            draw,
            is_broken=self.is_broken,
        )


class _CascadeSession(DraftSession):
    def __init__(self, config: Cascade, request: DraftRequest) -> None:
        self.config, self.rng = config, request.rng
        self.sampler = request.sampler.for_drafting()
        self.sampling = request.row_sampling
        self.vocab = request.target.model.vocab_size
        self.session = request.start(config.model)
        self.tables = NGramTables(config.order, FRESH, MAX_CONTEXTS)
        self.late: list[int] = []  # in the sequence, not yet in the middle model's cache
        self.early: list[int] = []  # in that cache, from the root of the last chain on
        self.first: _CascadeSession | None = None  # runs the prompt for this one too

    def follow(self, first: DraftSession) -> None:
        assert isinstance(first, _CascadeSession)
        if "fork" in self.session.model.abilities:
            self.first = first

    def update(self, verified: VerifiedTree) -> None:
        tokens = verified.tokens
        same = 0
        while same < min(len(tokens), len(self.early)) and tokens[same] == self.early[same]:
            same += 1
        if same < len(self.early):
            self.session.rewind(len(self.early) - same)
        self.early = []
        self.late += tokens[same:]

    def propose(self, root: int, context: Context) -> DraftTree:
        self._copy_prompt()
        max_draft_len = self._max_draft_len(context)
        if max_draft_len < 1:
            return DraftTree.of([root], [-1], self.config.draw)
        self._take_in()
        chain = _Chain(root, DraftDistributions(self.sampler, context, self.vocab))
        tail: Tail = tuple(context.tokens[-self.config.order - len(self.late) :])
        before, waiting = tail[: len(tail) - len(self.late)], [*self.late, root]
        while len(chain.rows) < max_draft_len:
            drafted = self._draft((*tail, *chain.tokens), max_draft_len - len(chain.rows) - 1)
            kept = self._run(chain, before, waiting, drafted, max_draft_len)
            self.early += [waiting[-1], *drafted[:kept]]
            before, waiting = (*tail, *chain.tokens[:-1]), chain.tokens[-1:]
        self.late = []
        return chain.tree(self.config.draw)

    def _max_draft_len(self, context: Context) -> int:
        """Draft tokens in a row that the text and the middle model's context leave room for."""
        limit = self.session.model.context_length
        left = (
            context.max_draft_len if limit is None else limit - self.session.length - len(self.late)
        )
        return min(self.config.length, context.max_draft_len, left)

    def _take_in(self) -> None:
        """Run a long text that the middle model has not seen, all but its end, of which the tables
        learn.
        """
        if len(self.late) > LONG:
            early = self.late[:-LONG]
            extend_in_chunks(self.session, DraftModel.as_read_by(self.session.model, early))
            self.late = self.late[-LONG:]

    def _draft(self, text: Tail, max_draft_len: int) -> list[int]:
        """Draft a chain of the tables' most probable tokens while it stays probable."""
        found: list[int] = []
        chance = 1.0
        while len(found) < min(self.config.ahead, max_draft_len):
            rows = self.tables.rows((*text, *found)[-self.config.order :])
            if not rows:
                break
            row = rows[0][1]
            token = max(row, key=row.__getitem__)
            chance *= row[token]
            if chance < self.config.least:
                break
            found.append(token)
        return found

    def _copy_prompt(self) -> None:
        """Take over what was run for another request with the same prompt."""
        first, self.first = self.first, None
        if first is not None and first.session.length > len(first.early):
            length = first.session.length - len(first.early)
            first.session.fork(self.session, length)
            self.late = self.late[length:]

    def _run(
        self,
        chain: _Chain,
        before: Tail,
        waiting: list[int],
        drafted: list[int],
        max_draft_len: int,
    ) -> int:
        """Draw from the middle model as far as it agrees with what was drafted; how much it kept.

        Args:
            chain: grows by what is drawn.
            before: the newest tokens before those that wait.
            waiting: tokens of the text and the chain that have not been run, the newest last.
            max_draft_len: most tokens of the chain.
        """
        tree = DraftTree.chain(DraftModel.as_read_by(self.session.model, [*waiting, *drafted]))
        output = self.session.forward(tree)
        kept = 0
        while len(chain.rows) < max_draft_len:
            node = len(waiting) - 1 + kept
            row = chain.add(output.rows[node : node + 1])
            count = min(self.config.width, row.shape[-1])
            level = len(chain.rows) - 1
            drawn = self._drawn(row, count, level)
            proposed = drafted[kept] if kept < len(drafted) else None
            token = self._choice(row[0], drawn[0], proposed, level)
            chain.tokens.append(token)
            chain.others.append([each for each in drawn if each != token][: count - 1])
            if token != proposed:
                break
            kept += 1
        self.session.commit(range(len(waiting) + kept))
        text = (*before, *waiting, *drafted)
        for end, row in enumerate(self._likeliest(tree, output), len(before) + 1):
            self.tables.learn(text[max(end - self.config.order, 0) : end], row)
        return kept

    def _likeliest(self, tree: DraftTree, output: ModelOutput) -> list[dict[int, float]]:
        """The few likeliest tokens of the target's after each node of a run, with their
        probabilities.
        """
        known = ModelOutput(output.rows[:, : self.vocab])
        return TargetUpdate(VerifiedTree(tree, [], known), self.sampling).rows

    def _drawn(self, row: Float[np.ndarray, "1 vocab"], count: int, level: int) -> list[int]:
        """The token that goes on and others; for matching with the target's own random numbers."""
        if self.config.draw == "distinct":
            return self.rng.draw_distinct(row, count)[0].tolist()
        first, likely = self.rng.foresee(row[0], level), topk(row, count)[0].tolist()
        return [first, *(token for token in likely if token != first)][:count]

    def _choice(
        self, row: Float[np.ndarray, " vocab"], drawn: int, proposed: int | None, level: int
    ) -> int:
        """The token that goes on: what was drawn, or with leniency what was nearly drawn."""
        if proposed is None or self.config.leniency == 1.0:
            return drawn
        ours, theirs = (float(row[token]) for token in (proposed, drawn))
        if self.rng.noise:  # the numbers that the race was run with
            own, other = self.rng.exponential_noise([proposed, drawn], level)
            ours, theirs = ours * other, theirs * own
        return proposed if self.config.leniency * ours >= theirs else drawn
