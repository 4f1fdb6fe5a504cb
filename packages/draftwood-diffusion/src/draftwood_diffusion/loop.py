"""The loop: run states of a block, fix places, go on with the next block."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from draftwood import engine
from draftwood.engine import Options, run_all
from draftwood.engine.task import KeepsCache
from draftwood.models.model import ModelInput, ModelOutput
from draftwood.models.requirements import require_ability
from draftwood.models.session import PooledSession
from draftwood.sampling import Sampling
from draftwood_diffusion.block_state import BlockState, Seen, numbers_of
from draftwood_diffusion.blocks import BlockPlace
from draftwood_diffusion.masked_model import MaskedModel
from draftwood_diffusion.passes import passes_of
from draftwood_diffusion.race import Race
from draftwood_diffusion.stepping import Stepping
from draftwood_diffusion.unmasking import Unmasking


@dataclass(frozen=True)
class Fixing:
    """A place that took a token.

    Attributes:
        run: number of the pass whose predictions it follows, from 1 on.
        place: of the text, from 0 on.
        token: that it took.
    """

    run: int
    place: int
    token: int


@dataclass(eq=False)
class WrittenText:
    """A text and its history.

    Attributes:
        tokens: of the text, an end token included.
        fixings: in their order, those of places behind the text's end too.
        runs: passes behind the prompt's.
        rows: tokens that they ran.
        prompt_seconds: of the prompt's passes.
        seconds: of all of it, where ``written`` wrote it alone; else 0.
    """

    tokens: list[int] = field(default_factory=list)
    fixings: list[Fixing] = field(default_factory=list)
    runs: int = 0
    rows: int = 0
    prompt_seconds: float = 0.0
    seconds: float = 0.0

    def details(self) -> dict[str, object]:
        """Passes, and the order in which the text's tokens were fixed, in plain types."""
        order = [
            {"pass": each.run, "place": each.place, "token": each.token}
            for each in self.fixings
            if each.place < len(self.tokens)
        ]
        return {
            "passes": self.runs,
            "tokens_per_pass": round(len(self.tokens) / max(1, self.runs), 4),
            "rows": self.rows,
            "order": order,
        }


class MaskedText(KeepsCache):
    """Write a text block by block, as one task of a scheduler.

    Args:
        masked: a model that fills masks.
        prompt: its tokens.
        options: length, sampling, end tokens and seed.
        method: rule, blocks, lookahead and revision.
        reference: tokens of the text that will be written, for a rule that is told them.

    Attributes:
        text: so far.

    Raises:
        ValueError: for a model that cannot run rows, a prompt with masks, a text longer than the
            context, and a mask token that the model lacks.
    """

    def __init__(
        self,
        masked: MaskedModel,
        prompt: Sequence[int],
        options: Options,
        method: Unmasking,
        reference: Sequence[int] | None = None,
    ) -> None:
        require_fillable(masked, prompt, options, method)
        self.masked, self.prompt, self.options, self.method = masked, prompt, options, method
        self.text = WrittenText()
        self.total = len(prompt) + options.max_new_tokens
        assert isinstance(options.sampler, Sampling)
        mask = masked.settings.mask_token
        self.race = Race(options.sampler, options.seed, mask, options.max_new_tokens)
        self._reference = None if reference is None else [*prompt, *reference]
        self._passes = passes_of(masked, prompt, self.total, method.reuse)
        try:
            self._most_states = self._states_with_room()
        except ValueError:
            self.close()
            raise
        self._stepping: Stepping | None = None  # of the block under way
        self._states = list[BlockState]()
        self._is_first = True  # pass of the block
        self._reads_prompt = False
        self._over = False

    @property
    def finish_reason(self) -> str | None:
        """Set once the text has ended."""
        if not self._over:
            return None
        tokens = self.text.tokens
        return "stop" if tokens and tokens[-1] in self.options.stop_tokens else "length"

    @property
    def prompt_left(self) -> int:
        return self._passes.prompt_left

    def _states_with_room(self) -> int:
        """States of a pass at most, so that the cache can hold their rows."""
        place, passes = self._place(), self._passes
        first = self.method.blocks.end(place) - place.start
        longest = max(first, min(place.length, self.total - place.start))
        most = self.method.lookahead.most(longest)
        rows = [passes.most_rows(n, longest) for n in range(1, most + 1)]
        session = passes.session
        if not rows or not isinstance(session, PooledSession):
            return most
        held = self.need(session, rows)
        return most if held is None else 1 + rows.index(held)

    def plan(self, budget: engine.StepBudget) -> Sequence[ModelInput]:
        self.begin()
        asked = self._passes.prompt_rows(budget.prompt_rows)
        self._reads_prompt = asked is not None
        if asked is None:
            if self._stepping is None:
                self._begin_block()
            asked = self._passes.rows(self._states)
        return [asked]

    def _begin_block(self) -> None:
        """Masks of the next block, behind what the prompt has of it."""
        passes, prompt = self._passes, len(self.prompt)
        start, given = passes.start, passes.given
        end = self.method.blocks.end(self._place())
        places = np.arange(start, end) - prompt
        order = np.where(places < 0, 0.0, self.race.order[np.maximum(places, 0)])
        reference = None if self._reference is None else self._reference_of(start, end)
        ends = self.options.stop_tokens
        behind = self._places_behind(end)
        self._stepping = Stepping(self.method, ends, len(given), order, reference, behind)
        mask = self.masked.settings.mask_token
        masks = (mask,) * (end - start - len(given))
        self._states = [BlockState((*given, *masks), mask, is_last=end == self.total)]
        self._is_first = True

    def _reference_of(self, start: int, end: int) -> np.ndarray:
        """Known tokens [places] of the block, -1 where the known text has ended."""
        assert self._reference is not None
        known = self._reference[start:end]
        return np.array([*known, *[-1] * (end - start - len(known))])

    def _places_behind(self, end: int) -> int:
        """Places of the next block; 0 where its masks cannot run behind a written one."""
        joins_next = self._passes.joins_next
        return self.method.blocks.end(self._place(end)) - end if joins_next else 0

    def _place(self, start: int | None = None) -> BlockPlace:
        """Place of a block that begins there, or else of the one under way."""
        passes = self._passes
        length = self.masked.settings.block_length
        most = self.method.rule.most_places
        start = passes.start if start is None else start
        return BlockPlace(start, len(self.prompt), self.total, passes.grid, length, most)

    def commit(self, outputs: Sequence[ModelOutput], seconds: float) -> list[object]:
        """Fix what the pass allows; reports nothing before the end."""
        if self._reads_prompt:
            self.text.prompt_seconds += seconds
            self._passes.take_prompt()
            return []
        (output,) = outputs
        self.text.runs, self.text.rows = self.text.runs + 1, self.text.rows + len(output.rows)
        found = self._passes.take(self._states, output.rows)
        seen = [
            self.race.read(each, self._first + (len(state.tokens) if state.next_masks else 0))
            for each, state in zip(found, self._states, strict=True)
        ]
        self._take(seen)
        return []

    @property
    def _first(self) -> int:
        """First place of the block under way, in the text."""
        return self._passes.start - len(self.prompt)

    def _take(self, seen: Sequence[Seen]) -> None:
        """Go on by what a pass says of each state that it ran."""
        if self._is_first:
            self._end_block_early(seen[0])
        self._go_on(seen)

    def _end_block_early(self, seen: Seen) -> None:
        """Let the block end where its first pass says."""
        assert self._stepping is not None
        self._is_first, (state,) = False, self._states
        kept = self.method.blocks.kept(self._stepping.view(state, seen), self._place())
        if kept < len(state.tokens):
            self._states = [state.first(kept, is_last=False)]
            behind = self._places_behind(self._passes.start + kept)
            self._stepping = replace(self._stepping, next_places=behind)

    def _go_on(self, seen: Sequence[Seen]) -> None:
        """Take the states that came true, and plan those of the next pass."""
        stepping, lookahead = self._stepping, self.method.lookahead
        assert stepping is not None
        path = lookahead.agreeing(self._states, seen, stepping)
        for before, after in pairwise(path):
            self._note(before, after)
        ran = numbers_of(self._states)
        *_, newest, following = path
        begun = ran.get(following.tokens)
        if begun is not None and not self._states[begun].next_masks:
            begun = None
        self._passes.keep(begun)
        if not stepping.ends_block(following):
            states = lookahead.states(following, seen[ran[newest.tokens]], stepping)
            self._states = states[: self._most_states]
            return
        self._end_block(following)
        if begun is not None:
            self._begin_block()
            self._take([seen[begun]])

    def _note(self, before: BlockState, after: BlockState) -> None:
        """Note which places took a token."""
        for place, (old, new) in enumerate(zip(before.tokens, after.tokens, strict=False)):
            if old != new:
                self.text.fixings.append(Fixing(self.text.runs, self._first + place, new))

    def _end_block(self, state: BlockState) -> None:
        """Go on behind a written block, or end the text."""
        assert self._stepping is not None
        end, given = self._stepping.first_end(state), self._stepping.given
        places = len(state.tokens) if end is None else end + 1
        self.text.tokens += state.tokens[given:places]
        self._passes.finish(state.tokens)
        self._stepping = None
        self._over = end is not None or self._passes.start >= self.total

    def close(self) -> None:
        self._passes.close()


def require_fillable(
    masked: MaskedModel, prompt: Sequence[int], options: Options, method: Unmasking
) -> None:
    """Refuse a text that a model cannot fill.

    Raises:
        ValueError: with what is wrong and how to mend it.
    """
    model, mask, limit = masked.model, masked.settings.mask_token, masked.model.context_length
    require_ability(model, "rows", "filling masks")
    if mask >= model.vocab_size:
        raise ValueError(
            f"the mask token {mask} is outside the model's {model.vocab_size} tokens; give its own"
            " with --mask-token"
        )
    if not prompt:
        raise ValueError("masks are filled behind a prompt of at least one token, got none")
    if mask in prompt:
        raise ValueError(
            f"token {list(prompt).index(mask)} of the prompt is the mask token {mask}, which stands"
            " for places not yet written; leave it out"
        )
    total = len(prompt) + options.max_new_tokens
    if limit is not None and total > limit:
        raise ValueError(
            f"{len(prompt)} tokens of prompt and {options.max_new_tokens} of text exceed the"
            f" model's context of {limit}; shorten the prompt or give --max-new-tokens"
            f" {max(1, limit - len(prompt))}"
        )
    if limit is not None and masked.settings.block_length > limit:
        raise ValueError(
            f"blocks of {masked.settings.block_length} tokens are longer than the model's context"
            f" of {limit}; give --block-length at most {limit}"
        )
    method.reuse.require(masked.settings.bidirectional)
    if method.rule.knows_text and not options.sampler.greedy:
        raise ValueError(
            f"rule {method.rule.name!r} compares likeliest tokens with a known text; it takes"
            " temperature 0"
        )


def written(
    masked: MaskedModel, prompt: Sequence[int], options: Options, method: Unmasking
) -> WrittenText:
    """Write a text; a rule that is told the text is told what one by one writes, which its passes
    and seconds leave out.
    """
    reference = None
    if method.rule.knows_text:
        reference = written(masked, prompt, options, Unmasking(blocks=method.blocks)).tokens
    since = time.perf_counter()
    task = MaskedText(masked, prompt, options, method, reference)
    for _ in run_all([task]):
        pass
    task.text.seconds = time.perf_counter() - since
    return task.text
