"""Decode with drafts: all rows share the target's passes, each row advances at its own pace."""

import time
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor
from transformers.generation import EosTokenCriteria, GenerateDecoderOnlyOutput

from draftwood import engine
from draftwood.arrays import as_array
from draftwood.drafters.drafter import Reads, VerifiedTree
from draftwood.drafters.resting import Rest
from draftwood.engine.executors.in_turn import InTurn
from draftwood.engine.method import Method
from draftwood.engine.options import Options
from draftwood.engine.scheduler import run_all
from draftwood.engine.task import KeepsCache, OwnPass, StepBudget
from draftwood.models.cached import same_beyond_context
from draftwood.models.model import ForwardInput, ModelInput, ModelOutput, chunks
from draftwood.models.session import PooledSession
from draftwood.sampling import Sampler, Sampling, undrawable
from draftwood.stats import Stats, Step
from draftwood.tree import DraftTree
from draftwood.verifiers.verifier import Verdict, follows_draws
from draftwood_torch.hook.alone import run_alone
from draftwood_torch.hook.call import Call
from draftwood_torch.hook.drafting import draft_together
from draftwood_torch.hook.prefill import adopt, extend_cache, run_prompts
from draftwood_torch.hook.processors import RowSampler, Scores
from draftwood_torch.hook.timeline import Emitted, Timeline
from draftwood_torch.models.transformers import TransformersModel

LONE = DraftTree.of([0], [-1])  # represents any lone root in the numbers of a call
LEAST_KEPT = 0.05  # draft tokens kept per pass, below which they bring nothing
LATEST = 8  # rounds whose logits are kept for resting drafters


def decode_drafted(
    call: Call, target: TransformersModel, method: Method
) -> tuple[Tensor | GenerateDecoderOnlyOutput, Stats]:
    """Run the call; return the output of ``generate`` and the stats."""
    told = list(run_all([Rows(call, target, method)]))
    return told[-1][1]


class Rows(KeepsCache):
    """Rows of a running call, as one task.

    They end together, and processors and criteria see all of them.
    """

    def __init__(self, call: Call, target: TransformersModel, method: Method) -> None:
        self.call, self.target, self.method = call, target, method
        self.timeline = Timeline(call.input_ids, call.criteria, call.config, call.streamer)
        self.scores = Scores(call.input_ids, call.processors)
        self.greedy = not call.config.do_sample
        wanted = call.config.return_dict_in_generate
        self.scored = wanted and call.config.output_scores
        self.logged = wanted and call.config.output_logits
        self.width = call.past + call.new  # columns of the cache once the prompts are run
        self.steps: list[list[Step]] = [[] for _ in call.input_ids]
        self.counts = [0] * len(call.input_ids)  # tokens that each row has got
        self.rest = Rest(LEAST_KEPT)
        # tokens that the drafters do not know of yet
        self.late: list[list[int]] = [[] for _ in call.input_ids]
        self.late_logits: list[Tensor] = []  # of all rows, for each of these tokens
        same_draws = self.greedy or follows_draws(method.verifier)  # whatever was drafted
        shares_passes = len(call.input_ids) > 1 and not target.masks_by_place
        self.may_rest = same_draws and shares_passes
        self.rows: list[engine.Sequence] = []
        self.sessions: list[PooledSession] = []
        self.going: list[int] = []  # rows of the pass under way
        self.proposals: list[tuple[ForwardInput, dict[str, float]]] = []

    @property
    def finish_reason(self) -> Literal["stop"] | None:
        return "stop" if self.timeline.ended else None

    @property
    def reads(self) -> Reads:
        """States that the drafters read of the next pass, the same for all rows."""
        return self.rows[0].draft.reads

    def plan(self, budget: StepBudget) -> Sequence[ModelInput]:
        """The prompts at first, then the next trees, or lone roots where the drafters rest."""
        if not self.rows:
            for number in range(len(self.call.input_ids)):
                self.rows.append(self._row(number))
            self.may_rest &= not self.reads.hidden
            return [OwnPass(self.sessions[0], self._run_prompts, self.call.input_ids.numel())]
        self.going = [
            number
            for number, row in enumerate(self.rows)
            if row.finish_reason is None and self.timeline.runs(number)
        ]
        if self.may_rest and not self.reads.hidden and self.rest.goes_on():
            roots = [row.root for row in self.rows]
            run = partial(run_alone, self.target, self.sessions, roots)
            return [OwnPass(self.sessions[0], run, len(roots))]
        self._catch_up()
        newest = [self.steps[number][-1] for number in self.going]
        rows = [self.rows[number] for number in self.going]
        self.proposals = draft_together(rows, newest, budget)
        return [tree for tree, _ in self.proposals]

    def commit(
        self, outputs: Sequence[ModelOutput], seconds: float
    ) -> list[tuple[Tensor | GenerateDecoderOnlyOutput, Stats]]:
        """Write the tokens of a pass.

        The last pass reports the output of ``generate`` and the stats.
        """
        if not self.steps[0]:
            self._take_prompts(outputs[0].logits, seconds / len(self.rows))
        elif self.proposals:
            before, proposals = sum(self.counts), self.proposals
            self.proposals = []
            self._take_trees(proposals, outputs, seconds / len(self.going))
            kept = sum(self.counts) - before - len(self.going)
            self.rest.count(kept, len(self.going))
        else:
            self._take_roots(outputs[0].logits, seconds / len(self.going))
        self.timeline.advance()
        if not self.timeline.ended:
            return []
        if self.call.streamer is not None:
            self.call.streamer.end()
        return [(self.output(), self.stats())]

    def _row(self, number: int) -> engine.Sequence:
        call, known = self.call, self._known(number, 0, self.call.input_ids.shape[1])
        ends = [each.eos_token_id for each in call.criteria if type(each) is EosTokenCriteria]
        sampler: Sampler = RowSampler(self.scores, number, len(known), self.greedy)
        if self.greedy and not call.processors:
            sampler = Sampling()  # the same, which draws without a distribution
        options = Options(
            sampler,
            call.max_length,
            frozenset(int(token) for tokens in ends for token in tokens.flatten()),
            call.seeds[number],
        )
        self.sessions.append(self.target.start())
        row = engine.Sequence(
            self.target,
            self.method.drafter.in_turn,
            self.method.verifier,
            known,
            options,
            self.sessions[-1],
        )
        if same_beyond_context(self.target.config):
            row.limit = None  # Transformers goes on as well
        return row

    def _padding(self, number: int) -> int:
        """Columns of the cache that hold padding, all of them in front."""
        mask = self.call.inputs.get("attention_mask")
        return 0 if mask is None else self.width - int(mask[number].sum())

    def _known(self, number: int, start: int, end: int) -> list[int]:
        """Tokens of a row in some columns of the prompts as given, without padding."""
        padding = self._padding(number) - (self.width - self.call.input_ids.shape[1])
        return self.call.input_ids[number, max(start, padding) : max(end, padding)].tolist()

    # The prompts

    def _run_prompts(self) -> ModelOutput:
        """Run the prompts together as Transformers does; logits after the last token of each."""
        call, reads = self.call, self.reads
        place = call.input_ids.shape[1] - call.new

        def hear(output: Any) -> None:
            nonlocal place
            if reads:
                place += self._tell(place, output)

        return ModelOutput(run_prompts(call, reads.hidden, reads.logits, hear).logits[:, -1])

    def _take_prompts(self, logits: Tensor, seconds: float) -> None:
        """Take the prompts' cache over and draw each row's first token."""
        cache = self.call.inputs["past_key_values"]
        for number, row in enumerate(self.rows):
            adopt(self.sessions[number], cache, number, self.width - self._padding(number))
            if not self.reads:
                for chunk in chunks(row.prompt):
                    row.draft.update(VerifiedTree(DraftTree.chain(chunk), range(len(chunk)), None))
        tokens, scores = self._draw(list(range(len(self.rows))), logits)
        for number, (row, token) in enumerate(zip(self.rows, tokens, strict=True)):
            step = row.begin(token, {"target": seconds})
            self._write(number, step, logits[number : number + 1], scores[number])

    def _tell(self, place: int, output: Any) -> int:
        """Pass a piece of the prompts, which begins at column ``place``, to the drafters.

        Returns:
            The columns of the piece, of which there may be logits for the last one alone.
        """
        read = self.reads.hidden
        count = (output.hidden_states[read[0]] if read else output.logits).shape[1]
        for number, row in enumerate(self.rows):
            tokens = self._known(number, place, place + count)
            if tokens:
                states = {
                    layer: output.hidden_states[layer][number, -len(tokens) :] for layer in read
                }
                seen = ModelOutput(output.logits[number, -len(tokens) :], states)
                row.draft.update(VerifiedTree(DraftTree.chain(tokens), range(len(tokens)), seen))
        return count

    # The answers

    def _take_roots(self, logits: Tensor, seconds: float) -> None:
        """Draw one token for each row.

        Rows that have ended run along, so that the others stay side by side.
        """
        going, since = self.going, time.perf_counter()
        for number in going:
            row = self.rows[number]
            row.context.tokens.append(row.root)
            row.session.commit([0])
            self.late[number].append(row.root)
        if self.reads.logits:
            self.late_logits.append(logits)
        tokens, _ = self._draw(going, logits if len(going) == len(logits) else logits[going])
        spent = {"target": seconds, "verify": (time.perf_counter() - since) / len(going)}
        # the same for all rows: only its numbers are read
        step = Step([-1], seconds=spent, tree=LONE)
        for number, token in zip(going, tokens, strict=True):
            self.rows[number].begin(token, spent)
            self.counts[number] += 1
            self.steps[number].append(step)
            self.timeline.add(number, [Emitted(token)])
        if len(self.late_logits) >= LATEST:
            self._catch_up()

    def _catch_up(self) -> None:
        """Pass the tokens written while the drafters rested to them."""
        for number, (row, tokens) in enumerate(zip(self.rows, self.late, strict=True)):
            if tokens:
                logits = [logits[number] for logits in self.late_logits[: len(tokens)]]
                seen = ModelOutput(torch.stack(logits)) if logits else None
                row.draft.update(VerifiedTree(DraftTree.chain(tokens), range(len(tokens)), seen))
                tokens.clear()
        self.late_logits.clear()

    def _take_trees(
        self,
        proposals: list[tuple[ForwardInput, dict[str, float]]],
        outputs: Sequence[ModelOutput],
        target: float,
    ) -> None:
        alone = [place for place, (run, _) in enumerate(proposals) if len(run.tree) == 1]
        tokens, scores = self._draw_alone(alone, self.going, proposals, outputs)
        for place, (number, (run, seconds), output) in enumerate(
            zip(self.going, proposals, outputs, strict=True)
        ):
            executor = InTurn(self.rows[number])
            shared = {"draft": seconds["draft"], "target": target, "verify": 0.0}
            if place in tokens:
                step = executor.commit_path(run.tree, Verdict([], tokens[place]), output, shared)
                self._write(number, step, output.logits, scores[place])
            else:
                self._write(number, executor.verify(run, output, shared), output.logits, None)

    def _draw_alone(
        self,
        places: list[int],
        going: list[int],
        proposals: list[tuple[ForwardInput, dict[str, float]]],
        outputs: Sequence[ModelOutput],
    ) -> tuple[dict[int, int], dict[int, Tensor]]:
        """Draw the tokens after roots without draft tokens, all together.

        Every exact verifier just draws there.
        """
        if not places:
            return {}, {}
        for place in places:
            self.rows[going[place]].context.tokens.append(proposals[place][0].tree.token_list[0])
        try:
            logits = torch.cat([outputs[place].logits for place in places])
            tokens, scores = self._draw([going[place] for place in places], logits)
        finally:
            for place in places:
                self.rows[going[place]].context.tokens.pop()
        return dict(zip(places, tokens, strict=True)), dict(zip(places, scores, strict=True))

    def _draw(self, numbers: list[int], logits: Tensor) -> tuple[list[int], Tensor]:
        """The next token of rows, and the scores it was drawn from.

        The rows' contexts hold everything before that token.
        """
        rows = [self.rows[number] for number in numbers]
        answers = (
            [row.context.tokens[len(row.prompt) :] for row in rows]
            if self.scores.processors
            else [[]] * len(rows)
        )
        scores = self.scores(numbers, answers, logits)
        if self.greedy:
            tokens = scores.argmax(-1, keepdim=True)
            best = scores.gather(-1, tokens).flatten().tolist()
            whole = [value == value and value > -inf for value in best]
            self._require_numbers(numbers, logits, whole)
            return tokens.flatten().tolist(), scores
        probs = as_array(scores.softmax(-1))
        self._require_numbers(numbers, logits, [value == value for value in probs[:, 0].tolist()])
        return [row.rng.draw(own) for row, own in zip(rows, probs, strict=True)], scores

    def _require_numbers(self, numbers: list[int], logits: Tensor, whole: Sequence[bool]) -> None:
        """Raise ValueError if a row's scores hold NaN or no finite number.

        There is nothing to choose a token from then.
        """
        for number, row, good in zip(numbers, logits, whole, strict=True):
            if not good:
                raise undrawable(as_array(row), place=self.counts[number] + 1)

    def _write(self, number: int, step: Step, logits: Tensor, scores: Tensor | None) -> None:
        """Write a step's tokens, with the target's rows that they came from."""
        self.steps[number].append(step.without_probs())
        before_step = self.counts[number]
        self.counts[number] += len(step.tokens)
        if not (self.scored or self.logged):
            self.timeline.add(number, [Emitted(token) for token in step.tokens])
            return
        row, path = self.rows[number], [0, *step.path][: len(step.tokens)]
        answer = row.context.tokens[len(row.prompt) :]
        emitted = []
        for taken, (token, node) in enumerate(zip(step.tokens, path, strict=True)):
            raw = (
                logits[node].to(self.call.input_ids.device, torch.float32, copy=True)
                if self.logged
                else None
            )
            if self.scored and (scores is None or taken):
                before = answer[: before_step + taken]
                scores = self.scores([number], [before], logits[node : node + 1])[0]
            emitted.append(Emitted(token, scores if self.scored else None, raw))
        self.timeline.add(number, emitted)

    # The end

    def output(self) -> Tensor | GenerateDecoderOnlyOutput:
        """Output of ``generate``."""
        call, timeline = self.call, self.timeline
        sequences = timeline.sequences.contiguous()
        cache = call.inputs["past_key_values"]
        if call.keeps_cache:
            start = self.width - self._padding(0)
            extend_cache(cache, self.sessions[0], start, start + timeline.lengths[0] - 1)
        if not call.config.return_dict_in_generate:
            return sequences
        return GenerateDecoderOnlyOutput(
            sequences=sequences,  # type: ignore[arg-type]
            scores=timeline.scores if self.scored else None,  # type: ignore[arg-type]
            logits=timeline.logits if self.logged else None,  # type: ignore[arg-type]
            past_key_values=cache,
        )

    def stats(self) -> Stats:
        """Stats of the returned tokens, without those decoded beyond the end."""
        stats = Stats()
        for steps, left in zip(self.steps, self.timeline.lengths, strict=True):
            for step in steps:
                if left > 0:
                    stats.add(step if len(step.tokens) <= left else step.first(left))
                    left -= len(step.tokens)
        return stats

    def close(self) -> None:
        """Release the cache."""
        for row in reversed(self.rows):  # so that the next call's rows lie in order again
            row.close()
        for session in reversed(self.sessions):  # of a row that could not start
            session.close()
