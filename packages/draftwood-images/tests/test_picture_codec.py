"""Codecs, settings and folders of models of pictures."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from draftwood.models.model import PromptInput
from draftwood_images.codec import GreyCodec, LearnedCodec, read_codec, write_codec
from draftwood_images.folder import load_picture_model, picture_folder, shipped_models
from draftwood_images.picture_model import PictureSettings
from draftwood_images.training.autoencoder import Autoencoder, AutoencoderSizes, as_input
from draftwood_images.training.export import TrainedPictures
from draftwood_images.training.named import PictureSet
from draftwood_images.training.transformer import PictureTransformer, TransformerSizes

SETTINGS = PictureSettings(
    rows=2,
    columns=2,
    first_code=0,
    codes=8,
    begin=8,
    unconditional=9,
    words=("apple", "red"),
    first_word=10,
)
SIZES = TransformerSizes(32, 64, 96, 2, heads=1, key_heads=1, positions=64)


@pytest.fixture
def autoencoder() -> Autoencoder:
    torch.manual_seed(3)
    made = Autoencoder(AutoencoderSizes(patch=4, grid=3, codes=32, width=16, fine_width=8))
    made.vectors.normal_()
    return made.eval()


@pytest.fixture
def trained() -> TrainedPictures:
    torch.manual_seed(4)
    pixels = np.zeros((2, 2, 2, 3), np.uint8)
    pictures = PictureSet(pixels, [("red",), ("apple",)], ["red", "apple"])
    return TrainedPictures(PictureTransformer(SIZES), SETTINGS, GreyCodec(8), pictures, "card\n")


def test_numpy_paints_and_reads_as_pytorch_does(autoencoder: Autoencoder, tmp_path: Path) -> None:
    write_codec(autoencoder.codec(), tmp_path)
    codec = read_codec(tmp_path)
    rounded = {name: torch.from_numpy(np.array(each)) for name, each in _halves(codec).items()}
    with torch.no_grad():
        for name, weight in autoencoder.named_parameters():
            own = rounded[name].float()
            weight.copy_(own.permute(3, 2, 0, 1) if own.dim() == 4 else own)
        autoencoder.vectors.copy_(rounded["vectors"].float())
    pixels = np.random.default_rng(0).integers(0, 256, (5, 12, 12, 3), dtype=np.uint8)
    with torch.no_grad():
        codes = autoencoder.encoded(torch.from_numpy(pixels))
        painted = (autoencoder.decoded(codes).clamp(-1, 1) + 1).permute(0, 2, 3, 1) * 127.5

    for picture, known, wanted in zip(pixels, codes.numpy(), painted.numpy(), strict=True):
        assert np.array_equal(codec.encode(picture), known)
        assert np.abs(codec.decode(known) - wanted).max() < 0.51
    assert len(np.unique(codes.numpy())) > 1


def _halves(codec: object) -> dict[str, np.ndarray]:
    assert isinstance(codec, LearnedCodec)
    return dict(codec.arrays)


def test_a_codec_refuses_other_codes_and_pixels(autoencoder: Autoencoder) -> None:
    codec = autoencoder.codec()
    with pytest.raises(ValueError, match=r"paints 3 x 3 codes below 32, got 2 x 3 up to 0"):
        codec.decode(np.zeros((2, 3), int))
    with pytest.raises(ValueError, match="below 32, got 3 x 3 up to 32"):
        codec.decode(np.full((3, 3), 32))
    with pytest.raises(ValueError, match="squares of 4 pixels, got 15 x 15 pixels; scale"):
        codec.encode(np.zeros((15, 15, 3), np.uint8))


def test_grey_levels_come_back(tmp_path: Path) -> None:
    write_codec(GreyCodec(16), tmp_path)
    codec, codes = read_codec(tmp_path), np.arange(16).reshape(4, 4)

    assert np.array_equal(codec.encode(codec.decode(codes)), codes)
    assert codec.vectors.shape == (16, 1)


def test_settings_come_back_and_refuse_shared_tokens(tmp_path: Path) -> None:
    SETTINGS.save(tmp_path)
    assert PictureSettings.load(tmp_path) == SETTINGS
    assert SETTINGS.vocabulary == 12
    with pytest.raises(ValueError, match="share token ids"):
        replace(SETTINGS, begin=7)
    with pytest.raises(ValueError, match="rows is at least 1"):
        replace(SETTINGS, rows=0)


def test_a_path_is_a_folder_whatever_built_in_models_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own, name = Path("emoji"), "emoji"
    with pytest.raises(ValueError, match="no model of pictures emoji"):
        picture_folder(own)
    own.mkdir()
    SETTINGS.save(own)
    assert picture_folder(own) == own
    assert picture_folder(name) == shipped_models()[name]


def test_native_logits_are_those_of_the_trained_transformer(
    trained: TrainedPictures, tmp_path: Path
) -> None:
    trained.write(tmp_path / "model")
    loaded = load_picture_model(tmp_path / "model", "float32")
    tokens = [11, 10, 8, 3, 5, 0]
    transformer = PictureTransformer(SIZES).eval()
    bits = {name: weight.float() for name, weight in trained.transformer.tensors().items()}
    for name, weight in transformer.named_parameters():
        stored = f"model.{name.replace('embedding', 'embed_tokens')}"
        weight.data.copy_(bits[stored])
    with torch.no_grad():
        wanted = transformer.logits(transformer(torch.tensor([tokens]))[0], slice(None)).numpy()

    session = loaded.model.start()
    (output,) = loaded.model.forward([PromptInput(session, tokens, "all")])
    session.close()

    assert loaded.settings == SETTINGS
    assert np.allclose(np.asarray(output.logits), wanted, atol=1e-4)
    assert np.abs(wanted - wanted[::-1]).max() > 1e-2, "rows that differ tell the order"


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_other_types_load(trained: TrainedPictures, tmp_path: Path, dtype: str) -> None:
    trained.write(tmp_path / "model")
    loaded = load_picture_model(tmp_path / "model", dtype)  # type: ignore[arg-type]

    assert loaded.model.vocab_size == 32


def test_parts_of_other_models_are_refused(trained: TrainedPictures, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    trained.write(folder)
    write_codec(GreyCodec(16), folder)
    with pytest.raises(ValueError, match="is for other tokens: it has 16 codes"):
        load_picture_model(folder)

    replace(trained, settings=replace(SETTINGS, first_word=31)).write(folder)
    with pytest.raises(ValueError, match=r"has 32 tokens, its picture\.json needs 33"):
        load_picture_model(folder)

    (folder / "codec.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="holds no whole codec"):
        load_picture_model(folder)
    (folder / "picture.json").write_text(json.dumps({"format": "draftwood-pictures", "rows": 2}))
    with pytest.raises(ValueError, match="holds no whole model of pictures"):
        load_picture_model(folder)


def test_a_text_models_folder_is_refused(trained: TrainedPictures, tmp_path: Path) -> None:
    trained.write(tmp_path / "model")
    (tmp_path / "model" / "picture.json").unlink()

    with pytest.raises(ValueError, match="is no model of pictures: its folder has no"):
        load_picture_model(tmp_path / "model")
    with pytest.raises(ValueError, match="there is no model of pictures nowhere"):
        load_picture_model("nowhere")
    with pytest.raises(ValueError, match="dtype is one of int8, bfloat16, float32"):
        load_picture_model(tmp_path / "model", "int3")  # type: ignore[arg-type]


def test_the_built_in_model_is_whole_and_small() -> None:
    folder = shipped_models()["emoji"]
    loaded = load_picture_model("emoji")
    codes = np.zeros((loaded.settings.rows, loaded.settings.columns), int)

    assert sum(each.stat().st_size for each in folder.iterdir()) <= 12e6
    assert {"card.md", "LICENSE-OFL"} <= {each.name for each in folder.iterdir()}
    assert loaded.settings.codes == 512
    assert loaded.codec.decode(codes).shape == (48, 48, 3)
    assert "apple" in loaded.settings.words


def test_autoencoder_input_is_from_minus_one_to_one() -> None:
    pixels = torch.tensor([[[[0, 255, 255]]]], dtype=torch.uint8)

    assert as_input(pixels).flatten().tolist() == [-1.0, 1.0, 1.0]
