"""Draft while the target runs: for outcomes of its pass that are likely, and below its root."""

import time
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, get_args

import torch

from draftwood.engine.ahead import DraftedAhead, SideDraft, TurnDraft
from draftwood.engine.likely import LikelyOutcomes
from draftwood.engine.side_thread import SideThread
from draftwood.interfaces.ahead import BranchingSession
from draftwood.interfaces.constraint import MaskedSampler
from draftwood.interfaces.drafter import Drafter, DraftRequest, DraftSession, VerifiedTree
from draftwood.interfaces.model import ModelSession
from draftwood.interfaces.verifier import Verifier
from draftwood.native.threads import MOST, cpus, of_quota, usable
from draftwood.rng import Rng
from draftwood.sampling import Context
from draftwood.stats import DraftingTime
from draftwood.together import clock
from draftwood.tree import DraftTree, Draw
from draftwood.validation import require_whole

PreVerify = Literal["auto", "always", "never"]
SMOOTHING = 0.1
"""What a step adds to the means of seconds and of rejections."""


@dataclass(frozen=True)
class Overlap:
    """How drafts and passes of the target overlap.

    PEARL (Liu et al. 2024, arXiv:2408.11850). Post-verify: while a tree is verified, the trees that
    would follow its likeliest outcomes are drafted. Pre-verify: where none of them came true, the
    target runs the root while the tree below is drafted, and the rest of the tree only where a
    child of the root is accepted.

    Differs from the paper: several outcomes of a pass are prepared, as in Saguaro (2026,
    arXiv:2603.03251); the token after the accepted ones is the target's own; every verdict is the
    one without overlap, so texts are the same.

    Args:
        outcomes: of each pass, for which trees are drafted ahead, likeliest first; their passes of
            the draft model are shared.
        pre_verify: when the root is run by itself; ``auto`` where that saves time by what passes
            and drafts took so far.
        draft_threads: of drafting beside the target, on a CPU.
        target_threads: of a target on the native path meanwhile; None leaves it the others.

    Raises:
        ValueError: for a value outside its range.
    """

    outcomes: int = 4
    pre_verify: PreVerify = "auto"
    draft_threads: int = 1
    target_threads: int | None = None

    def __post_init__(self) -> None:
        numbers = {"outcomes": self.outcomes, "draft_threads": self.draft_threads}
        if self.target_threads is not None:
            numbers["target_threads"] = self.target_threads
        for name, value in numbers.items():
            least = 0 if name == "outcomes" else 1
            require_whole(name, value, f"a whole number >= {least}")
            if not least <= value <= MOST:
                raise ValueError(f"{name} must be from {least} to {MOST}, got {value}")
        if self.pre_verify not in get_args(PreVerify):
            raise ValueError(
                f"pre_verify must be {', '.join(get_args(PreVerify))}, got {self.pre_verify!r}"
            )

    @property
    def others(self) -> int:
        """Threads of the target while something is drafted."""
        return self.target_threads or max(1, usable() - self.draft_threads)


def overlap_of(given: bool | Overlap) -> Overlap | None:
    """What a user says of overlap; None for none.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(given, Overlap):
        return given
    if not isinstance(given, bool):
        raise TypeError(f"overlap must be True, False or an Overlap, got {given!r}")
    return Overlap() if given else None


def require_places(target: torch.device, draft: torch.device, overlap: Overlap) -> None:
    """Raise ValueError unless drafts and passes can go on at the same time."""
    if target.type == draft.type == "cpu":
        if overlap.target_threads is None and min(cpus(), of_quota()) < 2:
            raise ValueError(
                "overlap needs a core for the target and one for what drafts, and this process has"
                " a single one; leave overlap out"
            )
    elif target == draft:
        raise ValueError(
            f"overlap needs a device for the target and another one for what drafts, and both are"
            f" on {target}; load the draft model on the CPU or a second device, or leave overlap"
            " out"
        )


@dataclass(frozen=True, eq=False)
class Overlapped(Drafter):
    """Another drafter, which drafts while the target runs.

    Texts are the same as without. Texts under a grammar are drafted in turn, as are those whose
    randomness is enumerated.

    Args:
        drafter: one whose sessions are ``BranchingSession``s.
        verifier: of the method.

    Raises:
        ValueError: for another drafter.
    """

    name: ClassVar[str] = "overlapped"
    drafter: Drafter
    verifier: Verifier
    overlap: Overlap = field(default_factory=Overlap)
    thread: SideThread = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.drafter.drafts_ahead:
            raise ValueError(
                f"{self.drafter.name} cannot draft ahead; take a drafter that drafts with a model"
                " of its own, for instance a DraftModel"
            )
        object.__setattr__(self, "name", self.drafter.name)
        object.__setattr__(self, "thread", SideThread(self.overlap.draft_threads))

    @property
    def draws(self) -> frozenset[Draw]:
        return self.drafter.draws

    def start(self, request: DraftRequest) -> DraftSession:
        if type(request.rng) is not Rng or isinstance(request.sampler, MaskedSampler):
            return self.drafter.start(request)
        return OverlappedSession(self, request)


class OverlappedSession(DraftSession):
    """One text of an ``Overlapped`` drafter.

    What is drafted draws from a copy of the text's randomness, which takes its place where the tree
    is used: at each verdict the text finds just what it would without overlap.
    """

    def __init__(self, config: Overlapped, request: DraftRequest) -> None:
        self.entered_in = config.thread.enter()
        self.config, self.sampler, self.rng = config, request.sampler, request.rng
        self.own = request.rng.copy()  # of the session that drafts in turn
        self.started: list[ModelSession] = []  # closed once nothing drafts any more
        try:
            self.inner = self._start(replace(request, rng=self.own, started=self.started))
        except BaseException:
            config.thread.leave(self.entered_in)
            raise
        self.side: DraftedAhead | None = None  # for outcomes of the pass under way
        self.turn: TurnDraft | None = None  # below a root that is run by itself
        self.prepared: DraftTree | None = None
        self.verified: VerifiedTree | None = None  # not told to the inner session yet
        self.drafts = False  # the prompt comes before
        self.delayed: tuple[DraftTree, Context] | None = None  # verified by its root alone so far
        self.left_at = self.entered_at = 0.0  # when the last pass began and ended
        self.spent = DraftingTime()
        self.pace = _Pace()
        self.closed = False

    def _start(self, request: DraftRequest) -> BranchingSession:
        drafter = self.config.drafter
        session = drafter.start(request)
        if not isinstance(session, BranchingSession) or session.reads:
            raise ValueError(f"{drafter.name} says that it drafts ahead, and cannot")
        return session

    def follow(self, first: DraftSession) -> None:
        if isinstance(first, OverlappedSession) and isinstance(self.inner, DraftSession):
            assert isinstance(first.inner, DraftSession)
            self.inner.follow(first.inner)

    def update(self, verified: VerifiedTree) -> None:
        if not self.drafts:
            self.inner.update(verified)
            return
        self.entered_at, self.verified = time.perf_counter(), verified
        if self.delayed is None:
            self.pace.ran(self.entered_at - self.left_at)
        self.delayed = None
        self.pace.rejects(len(verified.path) == 1)
        if self.side is not None and not self.side.may_follow(verified.tokens[1:]):
            self.side.drop()

    def begin(self, root: int, context: Context) -> bool:
        """Whether a tree is being drafted in the other thread, so that the root may be run by
        itself first.
        """
        self.prepared = self._prepared(root, context)
        if self.prepared is not None or context.room < 1 or not self._pre_verifies():
            return False
        self.own.state = self.rng.state
        self.turn = TurnDraft(self.inner, root, context)
        self._send(self.turn)
        return True

    def propose(self, root: int, context: Context) -> DraftTree:
        tree, self.prepared = self.prepared, None
        in_turn = self.turn is not None
        if self.turn is not None:
            tree = self._of_turn(self.turn)
        elif tree is None:
            tree = self._prepared(root, context)
        if tree is None:
            since = clock()
            self.own.state = self.rng.state
            tree = self.inner.propose(root, context)
            self._count(clock() - since, 0.0)
        self.rng.state, self.drafts = self.own.state, True
        self.delayed = (tree, context)
        if not in_turn:
            self.draft_ahead()
        return tree

    def draft_ahead(self) -> None:
        """The last tree is to be verified as a whole: draft what may come after it."""
        given, self.delayed = self.delayed, None
        self.left_at, most = time.perf_counter(), self.config.overlap.outcomes
        if given is None or len(given[0]) == 1 or not most:
            return
        tree, context = given
        likely = LikelyOutcomes(tree, self.sampler, context, self.config.verifier, self.rng.copy())
        self.side = DraftedAhead(self.inner, likely, most)
        self._send(self.side)

    def account(self) -> DraftingTime:
        """What drafting took since it was asked last."""
        spent, self.spent = self.spent, DraftingTime()
        return spent

    def close(self) -> None:
        # never waits, as the collector may call it; what is under way ends by itself
        if self.closed:
            return
        self.closed = True
        drafts = [draft for draft in (self.side, self.turn) if draft is not None]
        for draft in drafts:
            draft.drop()
        if drafts:  # there is one at most
            drafts[0].when_over(self._end)
        else:
            self._end()

    def _end(self) -> None:
        for draft in (self.side, self.turn):
            if draft is not None:
                draft.close()
        self.inner.close()
        for session in self.started:
            session.close()
        self.config.thread.leave(self.entered_in)

    def _send(self, draft: SideDraft) -> None:
        self.left_at = time.perf_counter()
        draft.send(self.config.thread, self.config.overlap.others)

    def _of_turn(self, turn: TurnDraft) -> DraftTree | None:
        """What was drafted while the target ran the root; None where that was given up."""
        now = time.perf_counter()
        tree = turn.result()
        self.turn = None  # not before: what breaks off the waiting leaves it to `close`
        if tree is not None:
            self._count(*turn.seconds(now))
        self.pace.ran(now - self.left_at)
        return tree

    def _prepared(self, root: int, context: Context) -> DraftTree | None:
        """The tree that was drafted for what has come of the last pass; otherwise the session that
        drafts in turn learns of it.
        """
        side = self.side
        verified, self.verified = self.verified, None
        if verified is None:  # of the prompt, or of a tree that nobody verified
            if side is not None:
                side.drop()
                side.wait()
                side.close()
            self.side = None
            return None
        found = None
        if side is not None:
            tokens = (*verified.tokens[1:], root)
            found = side.result(tokens, context, self.rng.state)
            self.side = None  # not before, as above
            self._count(*side.seconds(self.entered_at), ahead=1, kept=int(found is not None))
        if found is None:
            self.inner.update(verified)
            return None
        self.inner.close()
        self.inner, self.own = found.session, found.outcome.rng
        return found.tree

    def _pre_verifies(self) -> bool:
        when = self.config.overlap.pre_verify
        return when == "always" or (when == "auto" and self.pace.pre_verify_pays)

    def _count(self, seconds: float, hidden: float, ahead: int = 0, kept: int = 0) -> None:
        if not ahead:
            self.pace.drafted(seconds)
        self.spent += DraftingTime(seconds, hidden, ahead, kept)


class _Pace:
    """What passes and drafts of a text take, and how often nothing of a tree is kept."""

    def __init__(self) -> None:
        self.target: float | None = None  # seconds of a pass
        self.draft: float | None = None  # seconds of a tree
        self.rejected = 0.5

    def rejects(self, all_of_it: bool) -> None:
        self.rejected += SMOOTHING * (all_of_it - self.rejected)

    def ran(self, seconds: float) -> None:
        self.target = _mean(self.target, seconds)

    def drafted(self, seconds: float) -> None:
        self.draft = _mean(self.draft, seconds)

    @property
    def pre_verify_pays(self) -> bool:
        """Whether a root that is run by itself saves more than it costs.

        Rejected, it saves what of drafting falls into its pass. Accepted, it costs what of its pass
        is longer than drafting, as the rest of the tree needs a pass of its own.
        """
        if self.target is None or self.draft is None:
            return False
        saved = self.rejected * min(self.target, self.draft)
        return saved > (1.0 - self.rejected) * max(self.target - self.draft, 0.0)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + SMOOTHING * (new - old)
