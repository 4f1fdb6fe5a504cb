"""Texts of which a step router learns; those that are whole are kept until it has learnt."""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from draftwood.sampling_params import SamplingParams
from draftwood.text.language_model import LanguageModel
from draftwood.together import results_together
from draftwood_bench.plan.prompt import Prompt
from draftwood_bench.run.record_folder import RecordFolder, folders_of
from draftwood_choices.asking import asked_of
from draftwood_choices.collaboration.rules.step_router import StepWeights
from draftwood_choices.collaboration.teaching import RouterTeacher, trained
from draftwood_choices.collaboration.texts import collaborate

PROTOCOL = "router"
"""Names the files of the texts."""


@dataclass(frozen=True)
class TaughtText:
    """One text.

    Attributes:
        prompt: its name.
        seen: features of each step, and the leader's advantage there, in nats.
    """

    prompt: str
    seen: list[tuple[list[float], float]]


@dataclass(frozen=True)
class RouterCourse:
    """Lets two models write texts, and learns a router of them.

    Attributes:
        leader: the larger model.
        follower: the smaller one.
        prompts: of the texts.
        params: options of each text.
        tau: nats of advantage from which a step is the leader's.
        together: texts that are written at once.
    """

    leader: LanguageModel
    follower: LanguageModel
    prompts: Sequence[Prompt]
    params: SamplingParams
    tau: float = 0.0
    together: int = 1

    def learn(
        self, file: Path, track: Callable[[Sequence[Any]], Iterable[Any]] = iter
    ) -> StepWeights:
        """Write the router's file.

        A course that was stopped, or had too few prompts, goes on from the texts beside the file.

        Args:
            file: of the router; the texts are kept in a folder of its name and ``.texts``.
            track: shows how far the prompts are.

        Raises:
            ValueError: for texts of another course, and where they teach nothing.
        """
        folder = file.with_name(file.name + ".texts")
        cure = f"delete {folder} to begin again"
        records = RecordFolder(folder, PROTOCOL, TaughtText, cure)
        asked = {each.id: each for each in self.prompts}
        records.begin(self._settings(), asked, folders_of(self.leader, self.follower))
        known = {each.prompt: each for each in records.read()}
        waiting = iter(track([each for each in self.prompts if each.id not in known]))

        def write_some() -> None:
            for prompt in waiting:
                known[prompt.id] = self._text(prompt)
                records.append(known[prompt.id])

        results_together([write_some] * min(self.together, len(self.prompts)))
        found = trained([known[each.id].seen for each in self.prompts], self.tau)
        found.save(file)
        shutil.rmtree(folder)
        return found

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {each.id: number for number, each in enumerate(self.prompts)}

    def _text(self, prompt: Prompt) -> TaughtText:
        teacher = RouterTeacher(self.tau)
        seed = self.params.seed
        if seed is not None:  # texts draw other numbers each
            seed += self._numbers.get(prompt.id, 0)
        raw = prompt.next_word is not None
        options = replace(self.params, exact=False, raw=raw, seed=seed)
        asked = asked_of(prompt, self.follower)
        collaborate(asked, self.leader, self.follower, teacher, options).run()
        return TaughtText(prompt.id, teacher.seen)

    def _settings(self) -> Mapping[str, Any]:
        names = {"leader": self.leader.name, "follower": self.follower.name}
        methods = [self.leader.method.name, self.follower.method.name]
        given = {name: getattr(self.params, name) for name in self.params.given()}
        return {**names, "methods": methods, **given, "tau": self.tau}
