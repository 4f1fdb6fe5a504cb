"""Measure points on prompts; records are appended as they are made."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftwood.sampling_params import SamplingParams
from draftwood.text.language_model import LanguageModel
from draftwood_bench.plan.prompts import Prompt
from draftwood_bench.run.quality import quality
from draftwood_choices.collaboration.passages import FOLLOWER, LEADER
from draftwood_choices.collaboration.rule import CollaborationRule
from draftwood_choices.collaboration.texts import collaborate
from draftwood_choices.frontier.points import ALONE, AnswerRecord, controls_of

RECORDS, SETTINGS = "frontier.jsonl", "frontier.json"


@dataclass(frozen=True)
class Frontier:
    """A sweep of a rule's knob on prompts, beside controls and each model alone.

    Attributes:
        leader: the larger model.
        follower: the smaller one.
        rules: by names of their points.
        prompts: that every point answers.
        params: options of the texts; answer i has the seed of the first plus i.
        folder: of the records.
    """

    leader: LanguageModel
    follower: LanguageModel
    rules: Mapping[str, CollaborationRule]
    prompts: Sequence[Prompt]
    params: SamplingParams
    folder: Path

    def run(self, settings: Mapping[str, Any]) -> list[AnswerRecord]:
        """Measure what is not in the folder yet; gives all records.

        Points take turns on each prompt. Controls come last, as their share is the rule's.

        Args:
            settings: that the folder must have been begun with, or has from now on.

        Raises:
            ValueError: for a folder of other settings.
        """
        self._require(settings)
        records = read_records(self.folder)
        alone = {f"{name} alone": rule for name, rule in ALONE.items()}
        records += self._measure({**alone, **self.rules}, records)
        controls = dict[str, CollaborationRule]()
        for point in self.rules:
            controls |= controls_of(point, [each for each in records if each.point == point])
        return records + list(self._measure(controls, records))

    def _require(self, settings: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / SETTINGS
        told = json.dumps(dict(settings), indent=1, sort_keys=True) + "\n"
        if file.exists() and file.read_text(encoding="utf-8") != told:
            raise ValueError(f"{self.folder} holds a run of other settings; give another --output")
        file.write_text(told, encoding="utf-8")

    def _measure(
        self, rules: Mapping[str, CollaborationRule], known: Sequence[AnswerRecord]
    ) -> Iterator[AnswerRecord]:
        done = {each.key for each in known}
        with (self.folder / RECORDS).open("a", encoding="utf-8") as file:
            for number, prompt in enumerate(self.prompts):
                for point, rule in rules.items():
                    if (point, prompt.id) in done:
                        continue
                    record = self._answer(point, rule, prompt, number)
                    file.write(json.dumps(record.as_json()) + "\n")
                    file.flush()
                    yield record

    def _answer(
        self, point: str, rule: CollaborationRule, prompt: Prompt, number: int
    ) -> AnswerRecord:
        asked: Any = prompt.messages(())
        if self.follower.tokenizer.chat_template is None:
            asked = prompt.turns[0]
        seed = (self.params.seed or 0) + number
        result = collaborate(
            *(asked, self.leader, self.follower, rule, self.params), seed=seed, exact=False
        ).run()
        ahead, behind = result.costs[LEADER], result.costs[FOLLOWER]
        tokens = self.leader.encode(asked)
        own = self.leader.tokenizer(result.text, add_special_tokens=False)["input_ids"]
        found = quality(prompt, result.text, self.leader.model, tokens, own)
        score = found or {"name": "empty", "value": 0.0}
        return AnswerRecord(
            *(point, prompt.id, score["name"], score["value"], result.tokens),
            *(ahead.kept, ahead.dropped, ahead.caught_up + behind.caught_up),
            *(ahead.passes, behind.passes, round(ahead.seconds + behind.seconds, 6), result.text),
        )


def read_records(folder: Path) -> list[AnswerRecord]:
    """Read the records of a folder; a last line that was not written whole does not count.

    Raises:
        ValueError: for another line that is no record.
    """
    file = folder / RECORDS
    if not file.exists():
        return []
    *lines, last = file.read_text(encoding="utf-8").split("\n")
    if last:  # the next record begins behind a whole line
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    try:
        return [AnswerRecord(**json.loads(line)) for line in lines]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} has a line that is no record ({error})") from None
