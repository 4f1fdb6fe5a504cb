"""Train a model of pictures: the codec, then the transformer."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from draftwood_images.codec import Codec, GreyCodec, LearnedCodec, read_codec
from draftwood_images.folder import picture_folder
from draftwood_images.picture_model import SETTINGS, PictureSettings
from draftwood_images.training.autoencoder import Autoencoder, AutoencoderSizes
from draftwood_images.training.classifier import LEAST, Classifier, ClassifierLesson
from draftwood_images.training.codec_lesson import CodecLesson
from draftwood_images.training.export import TrainedPictures, card
from draftwood_images.training.fonts import read_font
from draftwood_images.training.loop import LessonRun, LessonSchedule, Say
from draftwood_images.training.named import PictureSet, read_pictures, scaled
from draftwood_images.training.picture_lesson import Codes, PictureLesson, settings_for
from draftwood_images.training.transformer import PictureTransformer, TransformerSizes
from draftwood_train.checkpoints import NAME, Checkpoint
from draftwood_train.optimisers import Rates
from draftwood_train.places import alone_in, require_output, require_resumed

CODEC_SHARE = 1 / 6
"""Share of the minutes that the autoencoder has."""
CODEC_RATES = Rates(adamw=2e-3, warm_up=50, decay=0.5)
PICTURE_RATES = Rates(muon=4e-3, adamw=2e-3, warm_up=100, decay=0.6)
CLASSIFIER_RATES = Rates(muon=3e-3, adamw=2e-3, warm_up=50, decay=0.5)
CLASSIFIER_STEPS = 900
CLASSIFIER = "classifier.pt"
"""File of the classifier, beside the checkpoints."""


@dataclass(frozen=True)
class PictureTraining:
    """Training of a model of pictures.

    Attributes:
        place: a font with bitmaps in colour, or a folder of PNG files.
        output: folder of the model; checkpoints lie beside it.
        size: pixels across a picture.
        patch: pixels across the square of a code; 1 takes grey levels as codes.
        minutes: of both lessons together; None goes by ``steps``.
        steps: of each lesson.
        batch: pictures of the transformer's.
        licence: file that is copied into the folder.
        command: as it was given, for the card.
    """

    place: Path
    output: Path
    size: int = 48
    patch: int = 4
    codes: int = 512
    layers: int = 5
    hidden: int = 256
    minutes: float | None = 240.0
    steps: int | None = None
    batch: int = 32
    seed: int = 0
    resume: bool = False
    licence: Path | None = None
    command: str = "draftwood train images"

    def __post_init__(self) -> None:
        if self.size % self.patch:
            raise ValueError(
                f"a picture of {self.size} pixels has no whole number of squares of {self.patch};"
                " give a size that squares divide"
            )
        if self.hidden % 64:
            raise ValueError(f"hidden is a multiple of 64, got {self.hidden}")

    @property
    def folder(self) -> Path:
        """Folder of the checkpoints."""
        return self.output.with_name(f"{self.output.name}.training")

    @property
    def grid(self) -> int:
        return self.size // self.patch

    @cached_property
    def pictures(self) -> PictureSet:
        """The pictures that it learns from, and those it holds out."""
        if not self.place.exists():
            raise ValueError(f"there is no font or folder {self.place}; name one")
        is_folder = self.place.is_dir()
        found = read_pictures(self.place) if is_folder else read_font(self.place)
        return scaled(found, self.size)

    @cached_property
    def settings(self) -> PictureSettings:
        return settings_for(self.pictures, self.grid, self.codes)

    def run(self, say: Say) -> dict[str, dict[str, float]]:
        """Train both parts and write the model; give the figures of each.

        Raises:
            ValueError: for pictures that cannot be learnt from, and checkpoints of others.
            OSError: where the disk refuses, or another training goes on in the folder.
        """
        self._require_place()
        with alone_in(self.folder):
            self._require_place()  # by who had it until now
            return self._trained(say)

    def _trained(self, say: Say) -> dict[str, dict[str, float]]:
        """Train in a folder that is this training's own."""
        begun = self.resume and (self.folder / PictureLesson.name / NAME).is_file()
        # a transformer that was begun knows these codes alone, however many minutes are added
        autoencoder, figures = self._stored_codec() if begun else self._codec(say)
        lesson = self._lesson(autoencoder)
        state = self._learn(lesson, 1 - CODEC_SHARE, PICTURE_RATES, say)
        self._store(lesson.module, autoencoder, figures | {"transformer": _best(state)})
        return figures | {"transformer": _best(state)}

    def store_best(self) -> dict[str, dict[str, float]]:
        """Write the model from the checkpoints as they are, while training goes on."""
        self._require_output()
        autoencoder, figures = self._stored_codec()
        lesson = self._lesson(autoencoder)
        state = self._stored(lesson.name, lesson.facts)
        lesson.module.load_state_dict(state.best_head)
        figures |= {"transformer": _best(state)}
        self._store(lesson.module, autoencoder, figures)
        return figures

    def _require_output(self) -> None:
        """Refuse an output folder that holds something else than a model of pictures."""
        require_output(
            self.output,
            lambda folder: (folder / SETTINGS).is_file(),
            "a model of pictures",
            self._has_begun,
        )

    @property
    def _has_begun(self) -> bool:
        lessons = (CodecLesson.name, PictureLesson.name)
        return any((self.folder / each / NAME).is_file() for each in lessons)

    def _require_place(self) -> None:
        """Refuse what is taken, before anything is trained."""
        self._require_output()
        require_resumed(self.folder, self._has_begun, self.resume)

    def require_classifiable(self) -> None:
        """Refuse pictures that are too small for a classifier, before anything is trained."""
        if self.size < LEAST:
            raise ValueError(
                f"a classifier sees pictures of at least {LEAST} pixels across, got {self.size};"
                " give a larger size, or leave the classifier out"
            )

    def classify(self, say: Say) -> Classifier:
        """Train a classifier of the pictures, or go on; it lies beside the checkpoints.

        It sees them as they are and as the codec of the folder ``output`` paints them.

        Raises:
            ValueError: for pictures that are too small.
        """
        self.require_classifiable()
        codec = read_codec(picture_folder(self.output))
        lesson = ClassifierLesson(self.pictures, codec, seed=self.seed)
        bases = hashlib.sha256(repr(self.pictures.bases).encode()).hexdigest()[:12]
        lesson.facts = {**lesson.facts, **self._seen, "codec": _mark(codec), "bases": bases}
        before = self.folder / lesson.name
        if (before / NAME).is_file():
            known = Checkpoint.read(before).settings
            if any(known.get(name, each) != each for name, each in lesson.facts.items()):
                (before / NAME).unlink()  # it learnt other pictures, or another codec's
        steps = self.steps or CLASSIFIER_STEPS
        own = LessonSchedule(None, steps, CLASSIFIER_RATES, judge_seconds=0, seed=self.seed)
        LessonRun(lesson, own, self.folder, True, say).run()
        found = lesson.classifier()
        found.write(self.folder / CLASSIFIER)
        return found

    def _codec(self, say: Say) -> tuple[Autoencoder | None, dict[str, dict[str, float]]]:
        if self.patch == 1:
            return None, {}
        lesson = CodecLesson(self.pictures, self._codec_sizes, seed=self.seed)
        lesson.facts = {**lesson.facts, **self._seen}
        state = self._learn(lesson, CODEC_SHARE, CODEC_RATES, say)
        return lesson.module, {"autoencoder": _best(state)}

    def _stored_codec(self) -> tuple[Autoencoder | None, dict[str, dict[str, float]]]:
        if self.patch == 1:
            return None, {}
        state = self._stored(CodecLesson.name, {**asdict(self._codec_sizes), **self._seen})
        autoencoder = Autoencoder(self._codec_sizes)
        autoencoder.load_state_dict(state.best_head)
        return autoencoder, {"autoencoder": _best(state)}

    def _stored(self, name: str, facts: Mapping[str, Any]) -> Checkpoint:
        """Checkpoint of a lesson of these facts, whose best weights were judged."""
        state = Checkpoint.read(self.folder / name)
        state.require({**state.settings, **facts}, facts)
        if not state.best_head:
            raise ValueError(
                f"no weights in {self.folder / name} were judged yet; go on with --resume"
            )
        return state

    @property
    def _codec_sizes(self) -> AutoencoderSizes:
        return AutoencoderSizes(self.patch, self.grid, self.codes)

    @cached_property
    def _seen(self) -> dict[str, str]:
        """Tells the pictures from others."""
        told = hashlib.sha256(repr(self.pictures.words).encode())
        told.update(self.pictures.pixels.tobytes())
        return {"pictures": f"of digest {told.hexdigest()[:12]}"}

    @property
    def _sizes(self) -> TransformerSizes:
        longest = max(map(len, self.pictures.words)) + 3 + self.grid**2
        vocabulary = -(-self.settings.vocabulary // 32) * 32
        heads = self.hidden // 64
        shared = next(each for each in range(max(1, heads // 2), 0, -1) if heads % each == 0)
        return TransformerSizes(
            vocabulary,
            self.hidden,
            self.hidden * 11 // 4,
            self.layers,
            heads=heads,
            key_heads=shared,
            positions=-(-longest // 64) * 64,
        )

    def _lesson(self, autoencoder: Autoencoder | None) -> PictureLesson:
        codes = Codes(autoencoder, self.codes)
        lesson = PictureLesson(
            *(self.pictures, codes, self.settings, self._sizes),
            *(self.batch, self.patch > 1, self.seed),
        )
        codec = None if autoencoder is None else autoencoder.codec()
        lesson.facts = {**lesson.facts, **self._seen, "codec": _mark(codec)}
        return lesson

    def _learn(
        self, lesson: CodecLesson | PictureLesson, share: float, rates: Rates, say: Say
    ) -> Checkpoint:
        minutes = None if self.minutes is None else share * self.minutes
        average = 0.02 if isinstance(lesson, CodecLesson) else 0.05
        own = LessonSchedule(minutes, self.steps, rates, average=average, seed=self.seed)
        return LessonRun(lesson, own, self.folder, self.resume, say).run()

    def _store(
        self,
        transformer: PictureTransformer,
        autoencoder: Autoencoder | None,
        figures: dict[str, dict[str, float]],
    ) -> None:
        codec: GreyCodec | LearnedCodec = (
            GreyCodec(self.codes) if autoencoder is None else autoencoder.codec()
        )
        told = card(self.output.name, self.command, self.pictures, figures)
        trained = TrainedPictures(
            transformer, self.settings, codec, self.pictures, told, self.licence
        )
        trained.write(self.output)


def _best(state: Checkpoint) -> dict[str, float]:
    """Figures of the best weights, and the time that the lesson took."""
    row = next(row for row in state.history if row["step"] == state.best_step)
    return {**row, "minutes": state.seconds / 60}


def _mark(codec: Codec | None) -> str:
    """Mark of a codec, for which codes are meant."""
    if codec is None or isinstance(codec, GreyCodec):
        return "grey levels"
    return hashlib.sha256(np.ascontiguousarray(codec.vectors).tobytes()).hexdigest()[:12]
