"""Measure points on prompts; records are appended as they are made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from draftwood.models.model import PrefixStore
from draftwood.models.native.prefixes import Prefixes
from draftwood.models.shared import shared_passes
from draftwood.sampling_params import SamplingParams
from draftwood.text.language_model import LanguageModel
from draftwood.together import results_together
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.run.quality import quality, read_behind
from draftwood_bench.run.record_folder import RecordFolder, folders_of
from draftwood_choices.asking import asked_of
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER
from draftwood_choices.collaboration.rule import CollaborationRule
from draftwood_choices.collaboration.texts import collaborate
from draftwood_choices.frontier.points import ALONE, AnswerRecord, controls_of

PROTOCOL = "frontier"
"""Names the files of its records."""

Rules = Mapping[str, CollaborationRule]
"""By names of their points."""


def sharing(lm: LanguageModel) -> LanguageModel:
    """The same model; texts that ``results_together`` writes share its passes where it allows."""
    models = replace(lm.models, model=shared_passes(lm.model))
    return LanguageModel.of(models, lm.method.name, measure=False)


@dataclass(frozen=True)
class Frontier:
    """A sweep of a rule's knob on prompts, beside controls and each model alone.

    Attributes:
        leader: the larger model; see ``sharing`` for answers that are written at once.
        follower: the smaller one.
        rules: by names of their points.
        prompts: that every point answers.
        params: options of the texts; answer i has the seed of the first plus i.
        folder: of the records.
        together: answers that are written at once; they share the passes of models that allow it.
        controls: those that stand beside a rule, by the answers of its point.
    """

    leader: LanguageModel
    follower: LanguageModel
    rules: Rules
    prompts: Sequence[Prompt]
    params: SamplingParams
    folder: Path
    together: int = 1
    controls: Callable[[str, Sequence[AnswerRecord]], Rules] = controls_of

    def run(self, settings: Mapping[str, Any]) -> list[AnswerRecord]:
        """Measure what is not in the folder yet; gives all records.

        Points take turns on each prompt. Controls come last, as their share is the rule's.

        Args:
            settings: that the folder must have been begun with, or has from now on.

        Raises:
            ValueError: for a folder of other settings.
        """
        asked = {each.id: each for each in self.prompts}
        self._records.begin(settings, asked, folders_of(self.leader, self.follower))
        records = self._records.read()
        alone = {f"{name} alone": rule for name, rule in ALONE.items()}
        records += self._measure({**alone, **self.rules}, records)
        controls = dict[str, CollaborationRule]()
        for point in self.rules:
            controls |= self.controls(point, [each for each in records if each.point == point])
        return records + self._measure(controls, records)

    @cached_property
    def _shared(self) -> dict[str, PrefixStore | None]:
        """Keep a prompt for all its answers."""
        pools = {getattr(each.model, "pool", None) for each in (self.leader, self.follower)}
        ahead, own = (Prefixes.of(each.model) for each in (self.leader, self.follower))
        return {LEADER: ahead, FOLLOWER: ahead if len(pools) == 1 else own}

    @property
    def _records(self) -> RecordFolder[AnswerRecord]:
        return RecordFolder(self.folder, PROTOCOL, AnswerRecord)

    def _measure(self, rules: Rules, known: Sequence[AnswerRecord]) -> list[AnswerRecord]:
        done, found = {each.key for each in known}, list[AnswerRecord]()
        wanted = [
            (point, rule, prompt, number)
            for number, prompt in enumerate(self.prompts)
            for point, rule in rules.items()
            if (point, prompt.id) not in done
        ]
        waiting = iter(wanted)

        def answer_some() -> None:
            for each in waiting:
                found.append(self._answer(*each))
                self._records.append(found[-1])

        results_together([answer_some] * min(self.together, len(wanted)))
        return found

    def _answer(
        self, point: str, rule: CollaborationRule, prompt: Prompt, number: int
    ) -> AnswerRecord:
        asked, raw = asked_of(prompt, self.follower), prompt.next_word is not None
        seed = (self.params.seed or 0) + number
        result = collaborate(
            *(asked, self.leader, self.follower, rule, self.params, self._shared),
            **{"seed": seed, "exact": False, "raw": raw},
        ).run()
        ahead, behind = result.costs[LEADER], result.costs[FOLLOWER]
        tokens, own = read_behind(self.leader, asked, result.text, raw)
        found = quality(prompt, result.text, self.leader.model, tokens, own)
        score = found or {"name": "empty", "value": 0.0}
        return AnswerRecord(
            *(point, prompt.id, score["name"], score["value"], result.tokens),
            *(ahead.kept, ahead.dropped, ahead.caught_up + behind.caught_up),
            *(ahead.passes, behind.passes, round(ahead.seconds + behind.seconds, 6), result.text),
            [(each.writer, each.text) for each in result.passages],
        )
