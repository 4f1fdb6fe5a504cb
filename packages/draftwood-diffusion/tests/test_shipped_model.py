"""The model that comes with the package."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import draftwood
from command import run
from draftwood import RowsInput
from draftwood.engine import Options
from draftwood.loading.inventory import named_models, removable
from draftwood.loading.names import require_model, shipped_models
from draftwood.models.native import NativeModel
from draftwood.storage.atomic import is_intact
from draftwood.text.prompts import encode_text
from draftwood_diffusion.filters.examples import collect
from draftwood_diffusion.filters.fit import judged
from draftwood_diffusion.masked_model import DiffusionSettings
from draftwood_diffusion.opening import masked_model
from draftwood_diffusion.rules.learned import FILTER, Filter
from draftwood_diffusion.settings import settings_of

NAME = "stories-diffusion"


def folder() -> Path:
    return shipped_models()[NAME]


def test_it_is_small_and_says_how_it_fills_masks() -> None:
    size = sum(path.stat().st_size for path in folder().iterdir())
    assert size <= 8_000_000
    found = settings_of(folder())
    assert found == DiffusionSettings(4550, 16, shifted=True)
    card = (folder() / "card.md").read_text()
    assert all(word in card for word in ("stories15M", "MIT", "TinyStories", "CDLA-Sharing-1.0"))


def test_it_is_found_by_name() -> None:
    require_model(NAME)
    (told,) = [each for each in named_models() if each.name == NAME]
    assert told.folders == (folder(),)
    with pytest.raises(ValueError, match="comes with a package; uninstall that"):
        removable(NAME)
    with pytest.raises(ValueError, match="did you mean stories-diffusion"):
        require_model("stories-diffusio")


def test_it_loads_without_pytorch() -> None:
    code = (
        "import draftwood, sys; lm = draftwood.load('stories-diffusion', method='plain');"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_it_fills_a_mask_by_what_stands_on_both_sides(dtype: str) -> None:
    lm = draftwood.load(NAME, dtype=dtype, method="plain")
    assert isinstance(lm.model, NativeModel)
    settings = settings_of(folder())
    assert settings is not None
    text = encode_text(lm.tokenizer, "Once upon a time, there was a little girl named Lily.")
    place = 4  # "time" of the first block, which its neighbours tell
    hidden = [*text[:place], settings.mask_token, *text[place + 1 : 16]]
    sees = np.ones((len(hidden), len(hidden)), bool)
    session = lm.model.start()
    rows = lm.model.forward([RowsInput(session, hidden, np.arange(len(hidden)), sees)])[0].logits
    assert int(np.argmax(np.asarray(rows)[place - 1])) == text[place]


def test_its_tokenizer_spells_what_is_not_in_use() -> None:
    tokenizer = draftwood.load(NAME, method="plain").tokenizer
    for text in ("Lily saw a quixotic xylophone.", "Zürich, 42 §"):
        told = tokenizer.decode(encode_text(tokenizer, text), skip_special_tokens=True)
        assert str(told).strip() == text


def test_its_filter_knows_which_predictions_stay() -> None:
    lm = draftwood.load(NAME, method="plain")
    beginnings = (
        "Once upon a time, there was a little girl",
        "One day, Tim went to the park with",
        "Lily and Ben were playing in the garden.",
        "Once upon a time, in a big forest,",
    )
    prompts = [encode_text(lm.tokenizer, each) for each in beginnings]
    examples = collect(masked_model(lm, {}), prompts, Options(max_new_tokens=48))
    network = Filter.read(str(folder() / FILTER))
    found = judged(network, examples, 0.96)
    assert found.right > 0.9
    assert found.found > 0.2
    # negative control: the same network, which takes the last place for the first
    turned = Filter(network.first[::-1], network.first_bias, network.second, network.second_bias)
    wrong = judged(turned, examples, 0.96)
    assert wrong.loss > found.loss + 0.1


def test_learned_finds_its_filter() -> None:
    assert is_intact(folder(), FILTER)
    assert (folder() / FILTER).stat().st_size < 20_000
    asked = ("generate", "Once upon a time", "--model", NAME, "--max-new-tokens", "24", "--json")
    texts = [
        json.loads(run(*asked, "--method", method, "--inexact").stdout)
        for method in ("learned", f"learned,file={folder() / FILTER}", "one-by-one")
    ]
    assert texts[0]["order"] == texts[1]["order"]
    assert texts[0]["passes"] < texts[2]["passes"] == 24
