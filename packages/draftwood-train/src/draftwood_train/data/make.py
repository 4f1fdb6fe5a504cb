"""Make a data set, one shard after the other, resuming where an earlier run stopped."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.models.requirements import require_ability
from draftwood.storage.atomic import hold
from draftwood.storage.data_sets import DataFile
from draftwood.text.language_model import LanguageModel
from draftwood_train.data.barred import Bars
from draftwood_train.data.everyday.material import load
from draftwood_train.data.everyday.mix import EverydayPrompts
from draftwood_train.data.everyday.sources import gather, packages_of
from draftwood_train.data.jobs import OWN, Jobs, MadeText
from draftwood_train.data.manifest import NAME, Manifest, TargetDigest
from draftwood_train.data.options import DataOptions
from draftwood_train.data.prompts import (
    CollectedPrompt,
    collect,
    digest_of,
    files_of,
    licences,
    measured_prompts,
)
from draftwood_train.data.shards import (
    LOCK,
    Shard,
    ShardFacts,
    explain_errors,
    shard_name,
    write_shard,
)
from draftwood_train.data.states import bytes_per_token
from draftwood_train.data.tops import COUNT
from draftwood_train.data.write import BatchWriter, Job, Request
from draftwood_train.disk import require_room

if TYPE_CHECKING:
    from filelock import BaseFileLock

OWN_LICENCE = {"licence": "the target's own text", "origin": "written by the target itself"}
BYTES_WITHOUT_STATES = 8  # of a token with its share of the prompt's text, about
BYTES_OF_TOP = 28  # of a token that is part of an answer half of the time, about
TRIAL_PROMPT, TRIAL_ANSWER = 32, 40  # tokens, about as prompts and answers are to each other
FRUITLESS = 1024  # prompts in a row without a text
Report = Callable[[int, int], None]
"""Called with the tokens stored or in progress, and with those that were run."""


def expected_bytes(options: DataOptions, tokens: int, hidden_size: int) -> int:
    """Estimate the bytes on disk for so many tokens."""
    recomputed = options.states == "recomputed"
    stored = BYTES_OF_TOP if recomputed else bytes_per_token(len(options.layers), hidden_size)
    return tokens * (stored + BYTES_WITHOUT_STATES)


@dataclass(frozen=True)
class Made:
    """Outcome of making a data set.

    Attributes:
        manifest: of the whole data set.
        ran_out: whether collected prompts ended before there were as many tokens as asked for.
    """

    manifest: Manifest
    ran_out: bool


class Maker:
    """Writer of a data set to a folder, which is its own from the beginning until ``run`` ends.

    Args:
        folder: new, or with a data set of the same options, which is continued.
        lm: the target; it decodes plainly, whatever its method.
        options: of the data set.

    Raises:
        OSError: where prompts are not there, the disk refuses, or another process writes there.
        ValueError: where the folder holds other data, or options do not fit the target.
    """

    def __init__(self, folder: Path, lm: LanguageModel, options: DataOptions) -> None:
        _require_fit(lm, options)
        self.folder, self.lm, self.options = folder, lm, options
        measured = measured_prompts()
        self._bars = Bars(measured)
        found = (
            _everyday(options, measured)
            if options.mix != "collected"
            else _collected(options, self._bars)
        )
        self._jobs = Jobs(lm, options, found.prompts)
        own = {OWN: OWN_LICENCE} if options.self_written else {}
        digest = TargetDigest.of(lm.model, lm.name)
        manifest = Manifest(
            digest,
            options,
            {**found.sources, **own},
            split=found.split,
            measured=digest_of(measured),
        )
        self._lock = _held(folder)
        try:
            self.manifest = self._started(manifest)
        except BaseException:
            self._lock.release()
            raise
        self._ran_out = False

    def run(self, tokens: int, at_once: int, report: Report = lambda stored, ran: None) -> Made:
        """Write shards until prompts and answers together have ``tokens`` tokens; once."""
        try:
            return self._run(tokens, at_once, report)
        finally:
            self._lock.release()

    def _run(self, tokens: int, at_once: int, report: Report) -> Made:
        longest = self.options.max_prompt_tokens + self.options.max_answer_tokens
        writer = self._writer(at_once, longest)
        while self.manifest.tokens < tokens and not self._ran_out:  # own prompts may be barred
            self._round(tokens, writer, report)
        report(self.manifest.tokens, writer.tokens)
        return Made(self.manifest, self._ran_out and self.manifest.tokens < tokens)

    def _round(self, tokens: int, writer: BatchWriter, report: Report) -> None:
        """Write shards until there are so many tokens, as long as none of them is barred."""
        ended: dict[int, list[MadeText]] = {}

        def under_way() -> int:
            return self.manifest.tokens + sum(
                len(text.tokens) for texts in ended.values() for text in texts
            )

        with closing(writer.run(self._numbered(tokens, under_way))) as running:
            for number, texts in running:
                ended[number] = texts
                while self.manifest.tokens < tokens and all(n in ended for n in self._next()):
                    self._store([ended.pop(n) for n in self._next()])
                report(under_way(), writer.tokens)
                if self.manifest.tokens >= tokens:
                    break
        if self._ran_out and any(ended.values()) and self.manifest.tokens < tokens:
            self._store([ended[n] for n in sorted(ended)])
            ended.clear()
        if self._ran_out and not self.manifest.tokens:
            self._require_texts(0, len(ended))

    def require_room(self, tokens: int) -> None:
        """Raise OSError where the disk has no room for the tokens that are missing."""
        missing = max(tokens - self.manifest.tokens, 0)
        size = expected_bytes(self.options, missing, self.lm.model.hidden_size)
        require_room(self.folder, size, "the data")

    def speed(self, at_once: int) -> float:
        """Tokens per second of a short trial: prompts of random tokens, and answers, half of them
        greedy, of which is kept what the data keep.
        """
        model = self.lm.model
        tokens = tuple((7919 * place) % model.vocab_size for place in range(TRIAL_PROMPT))

        def trial(number: int) -> Job[None]:
            prompt = (number % model.vocab_size, *tokens)
            yield Request(prompt, TRIAL_ANSWER, frozenset(), (None, number)[number % 2], True)

        writer = self._writer(at_once, 1 + TRIAL_PROMPT + TRIAL_ANSWER)
        began = time.perf_counter()
        for _ in writer.run((number, trial(number)) for number in range(at_once)):
            pass
        return writer.tokens / (time.perf_counter() - began)

    def _writer(self, at_once: int, longest: int) -> BatchWriter:
        """Writer of texts, which keeps of them what the options say."""
        layers = self.options.layers if self.options.states == "stored" else None
        top = 0 if layers is not None else min(COUNT, self.lm.model.vocab_size)
        return BatchWriter(self.lm.model, at_once, longest, layers, top)

    def _next(self) -> range:
        """Numbers of the jobs of the next shard."""
        first = len(self.manifest.shards) * self.options.prompts_per_shard
        return range(first, first + self.options.prompts_per_shard)

    def _numbered(
        self, tokens: int, under_way: Callable[[], int]
    ) -> Iterator[tuple[int, Job[list[MadeText]]]]:
        """Jobs in their order; another shard begins only while tokens are missing."""
        per_shard = self.options.prompts_per_shard
        if any(facts.prompts < per_shard for facts in self.manifest.shards[-1:]):
            self._ran_out = True  # of prompts, in the newest shard
            return
        for number in count(self._next().start):
            if number % per_shard == 0 and under_way() >= tokens:
                return
            job = self._jobs.job(number)
            if job is None:
                self._ran_out = True
                return
            yield number, job

    def _started(self, manifest: Manifest) -> Manifest:
        """The manifest of what the folder holds already, or a new one where it holds no text."""
        found = Manifest.read(self.folder) if (self.folder / NAME).is_file() else manifest
        if not found.tokens:
            manifest.write(self.folder)
            return manifest
        found.target.require(manifest.target)
        _require_same(found, manifest, self.folder)
        whole = []
        for facts in found.shards:
            if facts.texts:
                if not (self.folder / facts.file).is_file():  # the user deleted it
                    break
                shard = Shard(self.folder / facts.file)
                shard.require(facts, found.target.vocab_size)
                self._remember(shard)
            whole.append(facts)
        return replace(found, shards=tuple(whole))

    def _remember(self, shard: Shard) -> None:
        """Bar later prompts that overlap with the target's own prompts of a shard."""
        for source, prompt in zip(shard.sources, shard.prompt_texts(), strict=True):
            if source == OWN:
                self._bars.admits(prompt)

    def _store(self, of_prompts: Sequence[Sequence[MadeText]]) -> None:
        """Write the next shard, without own prompts that came before or are barred."""
        texts = [
            text
            for made in of_prompts
            if made and (made[0].source != OWN or self._bars.admits(made[0].prompt))
            for text in made
        ]
        name = shard_name(len(self.manifest.shards))
        path = self.folder / name
        if texts:
            write_shard(path, texts, self.lm.model.vocab_size)
        facts = ShardFacts(
            file=name,
            bytes=path.stat().st_size if texts else 0,
            prompts=len(of_prompts),
            texts=len(texts),
            held_out_texts=sum(text.held_out for text in texts),
            tokens=sum(len(text.tokens) for text in texts),
            answer_tokens=sum(len(text.tokens) - text.answer for text in texts),
            sha256=DataFile(path).sha256 if texts else "",
        )
        self.manifest = replace(self.manifest, shards=(*self.manifest.shards, facts))
        self.manifest.write(self.folder)
        self._require_texts(FRUITLESS)

    def _require_texts(self, most: int, further: int = 0) -> None:
        """Raise ValueError where none of the newest prompts, ``most`` or more, gave a text.

        Args:
            further: newer ones that are in no shard.
        """
        empty = takewhile(lambda facts: not facts.texts, reversed(self.manifest.shards))
        prompts = sum(facts.prompts for facts in empty) + further
        if prompts >= most:
            raise ValueError(
                f"none of {prompts} prompts gave a text: all were too long, repeated or barred;"
                " raise --max-prompt, or give other prompts"
            )


def _held(folder: Path) -> "BaseFileLock":
    """Lock of a folder, which is made where it is missing; other processes stay away from it.

    Raises:
        OSError: where another one writes data there, or the disk refuses.
        ValueError: for a folder of other files.
    """
    taken = OSError(f"another process writes data into {folder}; wait for it, or name a new folder")
    with explain_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / NAME).is_file() and {each.name for each in folder.iterdir()} - {LOCK}:
            raise ValueError(f"{folder} holds other files; name a new folder for the data")
        return hold(folder / LOCK, taken)


@dataclass(frozen=True)
class _Found:
    """Prompts that others wrote, with what the manifest says of them."""

    prompts: Sequence[CollectedPrompt]
    sources: Mapping[str, Mapping[str, str]]
    split: Mapping[str, Any]


def _collected(options: DataOptions, bars: Bars) -> _Found:
    files = [Path(file) for file in options.files]
    wanted = (options.sets, files) if options.self_written < 1 else ((), [])
    prompts = collect(*wanted, options.seed, bars)
    sources = licences(*wanted, options.file_licence)
    for name, facts in sources.items():
        read = files_of(name) if name in options.sets else [Path(name)]
        if read:  # composed prompts come of no file
            facts["sha256"] = " ".join(DataFile(file).sha256 for file in read)
    return _Found(prompts, sources, {})


def _everyday(options: DataOptions, measured: Sequence[str]) -> _Found:
    texts = gather(options.without, packages_of(options.mix))
    prompts = EverydayPrompts(
        load(texts), options.seed, measured, only_held_out=options.only_held_out
    )
    return _Found(prompts, texts.facts, prompts.split())


def _require_same(found: Manifest, new: Manifest, folder: Path) -> None:
    """Raise ValueError unless a data set was begun with the same options and prompts."""
    for name in vars(new.options):
        ours, theirs = getattr(found.options, name), getattr(new.options, name)
        if ours != theirs:
            raise ValueError(
                f"the data in {folder} were begun with {name} {ours}, not {theirs}; give the same"
                " options to go on, or a new folder"
            )
    if found.measured not in ("", new.measured):
        raise ValueError(
            f"the data in {folder} were begun with other prompts of Spec-Bench barred (SHA-256"
            f" {found.measured[:12]}, now {new.measured[:12]}); let $DRAFTWOOD_DATA name the same"
            " ones, or name a new folder"
        )
    told = {name: _as_known(facts, found.sources.get(name)) for name, facts in new.sources.items()}
    if found.sources != told:
        raise ValueError(
            f"a file of prompts changed since the data in {folder} were begun; name a new folder"
            if new.options.mix == "collected"
            else f"{_changed(found, new)} since the data in {folder} were begun; name a new folder"
        )


def _as_known(facts: Mapping[str, str], known: Mapping[str, str] | None) -> Mapping[str, str]:
    """Facts of a source, without a digest that the manifest does not have, as an older one's."""
    if known is None or "sha256" in known:
        return facts
    return {name: each for name, each in facts.items() if name != "sha256"}


def _changed(found: Manifest, new: Manifest) -> str:
    """The first source that is another one now, and what happened to it."""
    names = sorted({*found.sources, *new.sources})
    name = next(name for name in names if found.sources.get(name) != new.sources.get(name))
    if name not in found.sources:
        return f"{name} has come"
    return f"{name} {'changed' if name in new.sources else 'has gone'}"


def _require_fit(lm: LanguageModel, options: DataOptions) -> None:
    """Raise ValueError if the target cannot write data with these options."""
    model = lm.model
    require_ability(model, "hidden", "training data")
    longest = options.max_prompt_tokens + options.max_answer_tokens
    if model.context_length is not None and longest > model.context_length:
        raise ValueError(
            f"prompts of {options.max_prompt_tokens} tokens and answers of"
            f" {options.max_answer_tokens} need a context of {longest}, but {lm.name} has"
            f" {model.context_length}; lower --max-prompt or --max-answer"
        )
    if not options.layers or not all(0 <= layer <= model.layers for layer in options.layers):
        raise ValueError(
            f"layers are numbers from 0 to {model.layers} for {lm.name}, the last being the state"
            f" after the final norm, got {list(options.layers)}"
        )
    if list(options.layers) != sorted(set(options.layers)):
        raise ValueError(f"layers ascend, each once, got {list(options.layers)}")
