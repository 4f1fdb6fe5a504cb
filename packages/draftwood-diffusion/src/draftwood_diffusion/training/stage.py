"""A stage of a conversion: own texts, a vocabulary, training, and a folder that loads natively."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int

from draftwood.loading import hub
from draftwood.loading.weights import WeightsFolder
from draftwood.storage.weights import read_settings
from draftwood.text.language_model import load
from draftwood_diffusion.masked_model import DiffusionSettings
from draftwood_diffusion.settings import settings_of
from draftwood_diffusion.training.decoder import DecoderSizes, StreamDecoder
from draftwood_diffusion.training.export import write_converted
from draftwood_diffusion.training.folder import begin_again, begin_folder, read_source, read_weights
from draftwood_diffusion.training.loop import NONE, REVERSE, Conversion, ConversionSettings
from draftwood_diffusion.training.own_texts import (
    OwnTexts,
    beginning,
    note,
    read_shard,
    require_same,
)
from draftwood_diffusion.training.rows import TextRows
from draftwood_diffusion.training.teacher import Teacher
from draftwood_diffusion.training.vocabulary import (
    cut_vocabulary,
    numbers_between,
    read_tokenizer,
    whole_vocabulary,
)
from draftwood_train.checkpoints import NAME
from draftwood_train.places import alone_in, require_output, require_resumed

Say = Callable[[str], None]
FIRST_TEXTS = 250_000
"""Tokens of texts that tell which tokens are in use."""
USED = 2
"""Times that a token stands in these texts to be kept."""
HELD_OUT = 64
TOLD, CONVERTED = "stage.json", "a converted model"


@dataclass(frozen=True)
class Stage:
    """Source of a stage, and the folder that it fills.

    Attributes:
        model: a next-token model, or one that a stage has converted.
        output: folder of the converted model; all else lies in OUTPUT.training.
        tokens: of own texts.
        places: of a row.
        writer: model that writes the texts; None for the one that is converted.
        whole: whether all tokens are kept, in the place of those in use.
        block_length: that the converted model has where nobody says another.
        in_8_bits: as ``write_converted`` takes it.
        blend: part of the way from the weights before to the trained ones that is gone (Wortsman
            et al. 2021, arXiv:2109.01903): less than 1 keeps more of the next-token model.
        resume: whether to go on where a stage was stopped.
    """

    model: str
    output: Path
    tokens: int = 500_000
    places: int = 256
    writer: str | None = None
    whole: bool = False
    block_length: int = 16
    in_8_bits: bool = False
    blend: float = 1.0
    resume: bool = False
    seed: int = 0

    @property
    def folder(self) -> Path:
        """Folder of texts, of the model before training, and of checkpoints."""
        return self.output.with_name(f"{self.output.name}.training")

    def run(self, settings: Callable[[int], ConversionSettings], say: Say) -> Conversion:
        """Convert, and write the converted model, whose held-out losses end the history.

        Args:
            settings: of the training, by the mask token.

        Raises:
            ValueError: for a model that cannot be converted, and a stage that was begun before.
            OSError: where another stage fills the folder.
        """
        self._require_free()
        self._require_fit(settings(0))
        with alone_in(self.folder):
            self._require_free()  # by who had it until now
            return self._converted(settings, say)

    def _converted(self, settings: Callable[[int], ConversionSettings], say: Say) -> Conversion:
        """Convert in a folder that is this stage's own."""
        begun = self._begun(say)
        told = read_settings(begun / "config.json")
        chosen = settings(self._mask_token(begun))
        decoder = StreamDecoder(DecoderSizes.of(told))
        decoder.take({name: torch.from_numpy(each) for name, each in read_weights(begun).items()})
        teacher = None
        if chosen.taught != NONE:
            size, is_reverse = decoder.sizes.vocab_size, chosen.taught == REVERSE
            teacher = self._teacher(begun, size, is_reverse)
        rows = self._rows(begun, say)
        goes_on = self.resume and (self.folder / NAME).is_file()
        conversion = Conversion(decoder, rows, chosen, self.folder, goes_on, say, teacher)
        say(f"this stage trains for {_length(chosen)} on {rows.train.numel():,} own tokens")
        conversion.run()
        self._write(begun, conversion)
        return conversion

    def _teacher(self, begun: Path, size: int, is_reverse: bool) -> Teacher:
        """The writer, over the vocabulary that is trained."""
        try:
            return Teacher(read_source(self._writers), self._numbers(begun), size, is_reverse)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(
                f"{error}; or learn the writer's tokens alone, with --taught {NONE}"
            ) from error

    def _numbers(self, begun: Path) -> Int[np.ndarray, " vocab"]:
        """Numbers of the writer's tokens in the vocabulary that is trained."""
        theirs = read_tokenizer(self._writers)
        return numbers_between(theirs, read_tokenizer(begun))

    def _rows(self, begun: Path, say: Say) -> TextRows:
        """Rows to train on, of texts that are written as far as they are missing."""
        if self.writer is None:
            texts, numbers = self._texts(begun, self.tokens, "texts", say), None
        else:
            texts = self._texts(Path(self.writer), self.tokens, "texts", say)
            numbers = self._numbers(begun)
        return TextRows.of(texts.held, self.places, HELD_OUT, numbers, self.seed)

    @property
    def is_shifted(self) -> bool:
        """True if a place is predicted from the row before it: so it is learnt, unless the model
        has learnt it otherwise.
        """
        known = settings_of(self._source)
        return known is None or known.shifted

    @cached_property
    def _source(self) -> Path:
        return hub.folder_of(self.model)

    @cached_property
    def _writers(self) -> Path:
        """Folder of who writes the texts."""
        return self._source if self.writer is None else hub.folder_of(self.writer)

    @cached_property
    def _digests(self) -> dict[Path, str]:
        """Tell the weights of the model and of the writer from others."""
        folders = {self._source, self._writers}
        return {each: f"of digest {(WeightsFolder(each).digest or '')[:12]}" for each in folders}

    def _require_fit(self, chosen: ConversionSettings) -> None:
        """Refuse settings that the model cannot have, before texts are written."""
        DecoderSizes.of(read_settings(self._source / "config.json"))
        chosen.require_rows(self.places)
        if settings_of(self._source) is not None and chosen.shifted != self.is_shifted:
            one, other = ("unshifted", "shifted") if chosen.shifted else ("shifted", "unshifted")
            raise ValueError(f"{self.model} has {one} outputs; leave out --{other}")
        longest = read_settings(self._source / "config.json").get("max_position_embeddings")
        if longest is not None and longest < self.places:
            raise ValueError(
                f"{self.model} reads {longest} tokens, and rows have {self.places}; give --places"
                f" {longest}, or less"
            )

    def _require_free(self) -> None:
        goes_on = (self.folder / TOLD).is_file() and self.output.resolve() != self._source.resolve()
        require_output(
            self.output, lambda folder: settings_of(folder) is not None, CONVERTED, goes_on
        )
        require_resumed(self.folder, (self.folder / NAME).is_file(), self.resume)

    def _begun(self, say: Say) -> Path:
        """The model before training, with the mask among its tokens."""
        folder, source = self.folder / "begun", self._source
        path = self.folder / TOLD
        if not path.is_file():  # a writer that is refused notes nothing
            beginning(load(self.writer or self.model, method="plain"))
        whole = "all" if self.whole else "those in use"
        rows = {"tokens": self.tokens}
        stage = {"model": self.model, "weights": self._digests[source], "tokens kept": whole}
        require_same(path, stage)
        if (self.folder / NAME).is_file():
            require_same(path, rows)  # with more texts, rows held out would be trained on
        else:
            note(path, stage | rows)
        if folder.is_dir():
            return folder
        if settings_of(source) is not None:
            begin_again(source, folder)
            return folder
        told = read_tokenizer(source)
        size = int(read_settings(source / "config.json")["vocab_size"])
        if self.whole:
            begin_folder(source, whole_vocabulary(told, size), folder)
            return folder
        texts = self._texts(Path(self.model), min(self.tokens, FIRST_TEXTS), "first-texts", say)
        counts = Counter[int]()
        for shard in texts.held:
            counts.update(read_shard(shard)[0].tolist())
        used = [token for token, count in counts.items() if count >= USED]
        vocabulary = cut_vocabulary(told, used, size)
        say(f"{len(used)} tokens are in use, {vocabulary.size} are kept with what spells them")
        begin_folder(source, vocabulary, folder)
        return folder

    def _texts(self, model: Path, tokens: int, name: str, say: Say) -> OwnTexts:
        """Own texts of a model, as far as they are missing."""
        writer = self.writer or self.model
        weights = self._digests[self._writers]
        texts = OwnTexts(self.folder / name, writer, self.places, self.seed, weights)
        texts.require()
        if texts.tokens < tokens:
            lm = load(str(model), method="plain")
            for count in texts.write(lm, tokens):
                say(f"{count:,} of {tokens:,} tokens of {name.replace('-', ' ')}")
        return texts

    def _mask_token(self, begun: Path) -> int:
        """Mask token of the model before training, which is its last where none is told."""
        known = settings_of(begun)
        size = int(read_settings(begun / "config.json")["vocab_size"])
        return size - 1 if known is None else known.mask_token

    def _write(self, begun: Path, conversion: Conversion) -> None:
        chosen = conversion.settings
        settings = DiffusionSettings(chosen.mask_token, self.block_length, chosen.shifted)
        source = f"{self.model}, converted by draftwood train diffusion"
        before, weights = read_weights(begun), _arrays(conversion)
        if self.blend < 1:
            for name, each in weights.items():
                weights[name] = before[name] + np.float32(self.blend) * (each - before[name])
            conversion.decoder.take({n: torch.from_numpy(each) for n, each in weights.items()})
            conversion.tell(f"held-out with --blend {self.blend:g}")
        write_converted(begun, weights, settings, self.output, source, self.in_8_bits)


def _arrays(conversion: Conversion) -> dict[str, np.ndarray]:
    """The averaged weights by Transformers' names."""
    decoder, state = conversion.decoder, conversion.state
    decoder.load_state_dict(state.averaged or state.head)
    return {name: each.detach().float().numpy() for name, each in decoder.named().items()}


def _length(settings: ConversionSettings) -> str:
    if settings.steps is not None:
        return f"{settings.steps} steps"
    return f"{settings.minutes / 60:.2f} h"
