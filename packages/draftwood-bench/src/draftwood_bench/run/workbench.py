"""The models of a run and everything that answers prompts with them.

Every worker has a workbench of its own.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from draftwood import engine
from draftwood.costs.curve import Curve
from draftwood.engine import Options, run_all
from draftwood.heads.trained import TrainedHead
from draftwood.models.cached import CachedModel
from draftwood.models.model import Model
from draftwood.sampling import Sampling
from draftwood.stats import Stats, Step
from draftwood.text.language_model import LanguageModel
from draftwood_bench.plan.configurations import PLAIN, Configuration
from draftwood_bench.plan.models import Models
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.plan.protocols import Settings
from draftwood_bench.run.identity import root_bound

if TYPE_CHECKING:
    from draftwood_bench.run.lazy_nodes import Drafters

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Answer:
    """Output of a configuration for one prompt, with its stats and seconds."""

    token_ids: list[int]
    text: str
    stats: Stats
    seconds: float


class Workbench:
    """Models in memory, and each configuration's method on them, built when it is first used.

    Args:
        models: what to load; weights are loaded when they are first needed.
        settings: of the requests.

    Raises:
        ValueError: what loading raises.
    """

    def __init__(self, models: Models, settings: Settings) -> None:
        self.models, self.settings = models, settings
        self._built: dict[str, LanguageModel] = {}
        self._plain_texts: dict[tuple[int, ...], list[int]] = {}
        if models.threads is not None:
            torch.set_num_threads(models.threads)

    @cached_property
    def plain(self) -> LanguageModel:
        """The target, decoding plainly, and beside it what drafts."""
        # records name all that was used, so nothing is taken that was not asked for
        found = self.models.load()
        drafts = replace(found.drafts, takes_shipped=False)
        return LanguageModel.of(replace(found, drafts=drafts), PLAIN)

    @property
    def draft(self) -> Model | TrainedHead:
        """The draft model, or the head that stands in for it; one was seen to before the run."""
        drafts = self.plain.models.drafts
        found = drafts.model or drafts.head
        assert found is not None
        return found

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of the target."""
        return self.plain.tokenizer

    @property
    def folder(self) -> Path | None:
        """Folder of the target's weights; None for a model that did not come from a folder."""
        key = self.plain.calibration.key
        return None if key is None else Path(key.model)

    @property
    def dtype(self) -> str:
        """Type in which the target's weights are multiplied, with the cache's type where it is not
        a float.
        """
        key = self.plain.calibration.key
        return key.dtype if key is not None else "unknown"

    def using(self, cell: Configuration) -> LanguageModel:
        """The target with a configuration's method."""
        if cell.key not in self._built:
            self._built[cell.key] = self._build(cell)
        return self._built[cell.key]

    def use_curve(self, curve: dict[str, list] | None) -> None:
        """Take this curve from now on.

        So trees are of one size however often and wherever the run goes on.
        """
        if curve is not None:
            per_context_token = curve.get("per_place", [0.0])[0]
            self.plain.calibration.use(
                Curve(tuple(curve["nodes"]), tuple(curve["seconds"]), per_context_token)
            )

    def _build(self, cell: Configuration) -> LanguageModel:
        as_named = cell.shape is None and cell.verifier is None and cell.drafter is None
        return self.plain.with_method(cell.method if as_named else cell.varied)

    def encode(self, prompt: Prompt, answers: Sequence[str] = ()) -> list[int]:
        """Token ids of the turn after these answers, with all that was said before."""
        return encoded(self.plain, prompt, answers)

    @property
    def context_length(self) -> int | None:
        """Most tokens that the target reads; None where there is no limit."""
        return self.plain.model.context_length

    @property
    def room(self) -> int | None:
        """Most tokens of a prompt; None where there is no limit."""
        context, asked = self.context_length, self.settings.max_prompt_tokens
        fits = None if context is None else context - self.settings.max_new_tokens
        return min((limit for limit in (fits, asked) if limit is not None), default=None)

    def answer(
        self, cell: Configuration, tokens: Sequence[int], temperature: float, seed: int
    ) -> Answer:
        """One request, timed from end to end."""
        since = time.perf_counter()
        made = self.using(cell).generate(
            tokens,
            max_new_tokens=self.settings.max_new_tokens,
            temperature=temperature,
            seed=seed,
            exact=self.settings.exact,
            ignore_eos=self.settings.ignore_eos,
        )
        return Answer(made.token_ids, made.text, made.stats, time.perf_counter() - since)

    def options(
        self, temperature: float, seed: int, ends: frozenset[int], tokens: int | None = None
    ) -> Options:
        """The same request for the engine itself, or one for fewer tokens."""
        stops = frozenset() if self.settings.ignore_eos else ends
        most = tokens or self.settings.max_new_tokens
        return Options(Sampling(temperature), most, stops, seed, self.settings.exact)

    def together(
        self,
        cells: Sequence[Configuration],
        prompt: Sequence[int],
        temperature: float,
        seed: int,
        tokens: int | None = None,
    ) -> list[list[Step]]:
        """The steps of configurations on a prompt in shared passes.

        Those of one tree and verifier write one text.

        Args:
            tokens: most of each; None takes the settings'.
        """
        from draftwood_bench.run.lazy_nodes import decode_together

        different = {(cell.tree, cell.rule): cell for cell in cells}
        options = self.options(temperature, seed, self.plain.end_tokens, tokens)
        made = decode_together(self._drafters, [*different.values()], prompt, options)
        known = dict(zip(different, made, strict=True))
        return [known[cell.tree, cell.rule] for cell in cells]

    @cached_property
    def _drafters(self) -> "Drafters":
        """Drafters of runs that are not timed."""
        from draftwood_bench.run.lazy_nodes import Drafters

        draft = self.draft if isinstance(self.draft, TrainedHead) else _pooled(self.draft)
        return Drafters(_pooled(self.plain.model), draft)

    def tokens_of(self, steps: Sequence[Step]) -> list[int]:
        return [token for step in steps for token in step.tokens]

    def text(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def warm_up(self, cells: Sequence[Configuration], tokens: Sequence[int]) -> float:
        """Let every configuration write a few tokens that nobody counts.

        Returns:
            Seconds that one token of each took, in all.
        """
        seconds = 0.0
        for cell in cells:
            lm, begun = self.using(cell), time.perf_counter()
            lm.generate(tokens, max_new_tokens=WARM_UP_TOKENS, exact=self.settings.exact, seed=0)
            seconds += (time.perf_counter() - begun) / WARM_UP_TOKENS
        return seconds

    def try_thrifty(self, cells: Sequence[Configuration], prompt: Sequence[int]) -> float:
        """Seconds that a token of all of these texts takes; what is loaded late is loaded first."""
        self.together(cells[:2], prompt, 1.0, 0, WARM_UP_TOKENS)
        begun = time.perf_counter()
        self.together(cells, prompt, 1.0, 0, WARM_UP_TOKENS)
        return (time.perf_counter() - begun) / WARM_UP_TOKENS

    def plain_text(self, tokens: Sequence[int]) -> list[int]:
        """The greedy text of plain decoding, for comparisons outside any timing."""
        key = tuple(tokens)
        if key not in self._plain_texts:
            self._plain_texts[key] = self.answer(Configuration(PLAIN), tokens, 0.0, 0).token_ids
        return self._plain_texts[key]

    def bound(
        self, cell: Configuration, tokens: Sequence[int], temperature: float, seed: int
    ) -> dict[str, float]:
        """Acceptance at the root beside the greatest possible one.

        Both are over a few tokens and outside any timing.
        """
        method = self.using(cell).method
        settings = self.settings
        options = Options(
            Sampling(temperature),
            settings.bound_tokens,
            frozenset(),
            seed,
            settings.exact,
            root_bound,
        )
        text = engine.Sequence(self.plain.model, method.drafter, method.verifier, tokens, options)
        stats = Stats.of(step for _, step in run_all([text]))
        if stats.root_acceptance is None or stats.root_acceptance_bound is None:
            return {}
        bound = {
            "root_acceptance": stats.root_acceptance,
            "root_acceptance_bound": stats.root_acceptance_bound,
        }
        return {**bound, "bounded_runs": stats.bounded}


def _pooled(model: Model) -> CachedModel:
    if not isinstance(model, CachedModel):
        raise ValueError(
            f"{type(model).__name__} keeps no caches that prompts could share; leave --thrifty out"
        )
    return model


def encoded(lm: LanguageModel, prompt: Prompt, answers: Sequence[str] = ()) -> list[int]:
    """Token ids of the turn after these answers, with all that was said before.

    A model without a chat template is given the messages as one text.
    """
    messages = prompt.messages(answers)
    if prompt.is_beginning:
        return lm.encode(messages[-1]["content"], raw=True)[: prompt.first_tokens]
    if lm.tokenizer.chat_template is None:
        return lm.encode("\n\n".join(message["content"] for message in messages))
    return lm.encode(messages)
