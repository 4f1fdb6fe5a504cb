"""Options that decide which texts a data set holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from draftwood_train.data.sources import SOURCES

StatesMode = Literal["stored", "recomputed"]
Mix = Literal["collected", "everyday", "code"]
MOST_SELF_WRITTEN = 0.15
"""Share of a mix from packages that the target may write itself."""


@dataclass(frozen=True)
class DataOptions:
    """The same options give the same data set from the same target.

    Attributes:
        seed: of prompts, their order, and answers.
        sets: public data sets, names of ``SOURCES``.
        files: of the user's own prompts.
        file_licence: of these, as it is recorded.
        self_written: share of prompts that the target writes itself.
        answers_per_prompt: 1 is the likeliest or drawn at temperature 1, by chance; of more the
            first is the likeliest and the others are drawn.
        max_answer_tokens: most tokens of an answer.
        max_prompt_tokens: longer ones are left out.
        states: whether states are stored in 8 bits, or recomputed when they are read.
        layers: whose inputs are wanted; the number after the last is the state after the norm.
        prompts_per_shard: of a file.
        mix: prompts that are collected from sets and files, everyday ones from packages, or these
            and as many about code.
        without: sources that such a mix goes without.
        only_held_out: whether all prompts of such a mix are held out, for a data set to judge by.
    """

    layers: tuple[int, ...]
    seed: int = 0
    sets: tuple[str, ...] = tuple(SOURCES)
    files: tuple[str, ...] = ()
    file_licence: str = "the user's own"
    self_written: float = 0.5
    answers_per_prompt: int = 1
    max_answer_tokens: int = 256
    max_prompt_tokens: int = 384
    states: StatesMode = "stored"
    prompts_per_shard: int = 256
    mix: Mix = "collected"
    without: tuple[str, ...] = ()
    only_held_out: bool = False

    def __post_init__(self) -> None:
        if self.states not in get_args(StatesMode):
            raise ValueError(f"states are stored or recomputed, got {self.states!r}")
        for name in (
            "answers_per_prompt",
            "max_answer_tokens",
            "max_prompt_tokens",
            "prompts_per_shard",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.self_written <= 1:
            raise ValueError(f"self_written is a share from 0 to 1, got {self.self_written}")
        if self.only_held_out:
            require_packages(self.mix, self.self_written)
        if self.mix == "collected":
            if self.without:
                raise ValueError(
                    "--without goes with --mix everyday or code; of sets name those you want"
                )
            require_prompts(self.sets, self.files, self.self_written)
        else:
            self._require_own_prompts()

    def _require_own_prompts(self) -> None:
        """Raise ValueError for prompts beside those of packages."""
        if self.sets or self.files:
            raise ValueError(
                f"the {self.mix} mix has prompts of its own; leave out --sets and --prompts"
            )
        if self.self_written > MOST_SELF_WRITTEN:
            raise ValueError(
                f"the target writes at most {MOST_SELF_WRITTEN} of the {self.mix} mix, got"
                f" --self-written {self.self_written}"
            )


def require_prompts(sets: Sequence[str], files: Sequence[str], self_written: float) -> None:
    """Raise ValueError if there is no source of collected prompts."""
    if self_written < 1 and not sets and not files:
        raise ValueError(
            "there are no prompts to collect; give --prompts FILE or --sets composed, or let the"
            " target write all of them with --self-written 1"
        )


def require_packages(mix: str, self_written: float) -> None:
    """Raise ValueError where not all prompts are of packages, of which parts are held out."""
    if mix == "collected":
        raise ValueError("--only-held-out goes with --mix everyday or code")
    if self_written:
        raise ValueError(
            "--only-held-out has prompts from packages alone; leave out --self-written"
        )
