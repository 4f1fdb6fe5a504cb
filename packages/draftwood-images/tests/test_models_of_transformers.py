"""Tiny random Emu3, Janus and Chameleon draw what Transformers' own greedy search gives."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from draftwood_images.drawing import DrawingRule, DrawnPicture, Easel  # noqa: E402
from draftwood_images.drawing_model import DrawingModel  # noqa: E402
from draftwood_images.methods import WindowKnobs, picture_method  # noqa: E402
from draftwood_images.others.chameleon import chameleon, false_colours, painted  # noqa: E402
from draftwood_images.others.emu3 import emu3  # noqa: E402
from draftwood_images.others.janus import janus  # noqa: E402
from draftwood_images.sources import open_drawing  # noqa: E402

CODES, SIDE, VOCABULARY = 16, 3, 64
TEXT = {
    **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
BEGIN, LINE_END = 52, 50
PROMPT = [1, 5, 6, 7, BEGIN]


def shaken(model: Any) -> Any:
    """The model with weights that make its tokens differ."""
    chance = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "vq" not in name:
                weight.normal_(0, 0.3, generator=chance)
    return model.eval()


@pytest.fixture(scope="module")
def emu() -> Any:
    words = {f"<|visual token {code:06d}|>": 30 + (5 * code) % CODES for code in range(CODES)}
    coding = {
        **{"codebook_size": CODES, "embed_dim": 4, "latent_channels": 4, "double_latent": False},
        **{"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1},
        **{"attn_resolutions": [], "hidden_size": 32, "num_attention_heads": 1},
    }
    config = transformers.Emu3Config(
        vq_config=coding,
        text_config=TEXT,
        vocabulary_map={"<image>": 60, "<|extra_200|>": LINE_END, **words},
    )
    return shaken(transformers.Emu3ForConditionalGeneration(config))


@pytest.fixture(scope="module")
def jan() -> Any:
    coding = {
        **{"num_embeddings": CODES, "embed_dim": 4, "latent_channels": 4, "base_channels": 32},
        **{"channel_multiplier": [1, 1], "num_res_blocks": 1, "image_token_embed_dim": 32},
        **{"projection_dim": 32, "num_patches": SIDE, "num_hidden_layers": 2},
    }
    seeing = {
        **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 12},
        **{"patch_size": 4, "projection_dim": 32, "num_image_tokens": SIDE * SIDE, "depth": 2},
    }
    config = transformers.JanusConfig(
        text_config=TEXT, vision_config=seeing, vq_config=coding, image_token_id=60
    )
    return shaken(transformers.JanusForConditionalGeneration(config))


@pytest.fixture(scope="module")
def cham() -> Any:
    letters = "ABCDEFGHIJ"
    names = ["".join(letters[int(digit)] for digit in str(code)) for code in range(CODES)]
    words = {f"IMGIMG{name}Z": 30 + (5 * code) % CODES for code, name in enumerate(names)}
    coding = {
        **{"num_embeddings": CODES, "embed_dim": 4, "latent_channels": 4, "base_channels": 32},
        **{"channel_multiplier": [1, 1], "num_res_blocks": 1, "attn_resolutions": []},
    }
    config = transformers.ChameleonConfig(
        **TEXT, vq_config=coding, vocabulary_map={"<image>": 60, **words}
    )
    return shaken(transformers.ChameleonForConditionalGeneration(config))


def drawn(drawing: DrawingModel, guidance: float, method: str) -> DrawnPicture:
    """One picture, the likeliest."""
    easel = Easel(drawing, "apple", DrawingRule(0.0, 0, guidance))
    (found,) = easel.draw(picture_method(method, easel, WindowKnobs(5, whole=True)), [0])
    return found


def require(drawing: DrawingModel, guidance: float, wanted: Sequence[int]) -> None:
    """Plain and drafted pictures are these codes, which are not all alike."""
    plain, raced = (drawn(drawing, guidance, each) for each in ("plain", "raced-jacobi"))
    assert plain.codes.reshape(-1).tolist() == list(wanted)
    np.testing.assert_array_equal(raced.codes, plain.codes)
    assert raced.stats.drafted > plain.stats.drafted
    assert raced.stats.target_runs <= plain.stats.target_runs
    assert len(set(wanted)) > 1
    assert plain.pixels.dtype == np.uint8
    assert plain.pixels.shape[2] == 3
    sjd = drawn(drawing, guidance, "sjd")
    np.testing.assert_array_equal(sjd.codes, plain.codes)


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_emu3_draws_what_transformers_does(emu: Any, guidance: float) -> None:
    mapping = emu.model.vocabulary_mapping

    def allowed(batch: int, text: Any) -> list[int]:
        place = len(text) - len(PROMPT)
        return [LINE_END] if place % (SIDE + 1) == SIDE else mapping.image_tokens

    more: dict[str, Any] = {}
    if guidance != 1.0:
        more = {"guidance_scale": guidance, "negative_prompt_ids": torch.tensor([[1, BEGIN]])}
        more["negative_prompt_attention_mask"] = torch.ones(1, 2)
    text = emu.generate(
        torch.tensor([PROMPT]),
        max_new_tokens=SIDE * (SIDE + 1),
        do_sample=False,
        prefix_allowed_tokens_fn=allowed,
        **more,
    )[0, len(PROMPT) :]
    wanted = mapping.convert_bpe2img(text.reshape(SIDE, SIDE + 1)).flatten().tolist()
    require(emu3("emu", emu, lambda name: PROMPT, (1,), BEGIN, SIDE), guidance, wanted)


@pytest.mark.parametrize("guidance", [2.0, 5.0])  # Transformers cannot do without
def test_janus_draws_what_transformers_does(jan: Any, guidance: float) -> None:
    config = transformers.GenerationConfig(
        do_sample=False, pad_token_id=0, bos_token_id=1, guidance_scale=guidance, max_length=64
    )
    config.generation_kwargs = {"boi_token_id": BEGIN}
    wanted = jan.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        generation_mode="image",
        generation_config=config,
    )[0].tolist()
    drawing = janus("janus", jan, lambda name: PROMPT, BEGIN, 0, 1)
    require(drawing, guidance, wanted)
    # vectors are those that its decoder reads
    with torch.no_grad():
        painted = jan.model.vqmodel.quantize.get_codebook_entry(torch.arange(SIDE * SIDE)[None])
    assert drawing.vectors is not None
    np.testing.assert_allclose(
        drawing.vectors[: SIDE * SIDE], painted[0].flatten(1).T.numpy(), atol=1e-6
    )


def test_chameleon_draws_what_its_unmasked_head_says(cham: Any) -> None:
    mapping, text = cham.model.vocabulary_mapping, list(PROMPT)
    with torch.no_grad():
        for _ in range(SIDE * SIDE):
            states = cham.model(torch.tensor([text])).last_hidden_state[0, -1]
            logits = cham.lm_head(states)
            text.append(max(mapping.image_tokens, key=lambda token: float(logits[token])))
    wanted = [mapping.bpe2img[token] for token in text[len(PROMPT) :]]
    drawing = chameleon("cham", cham, lambda name: PROMPT, (1,), BEGIN, SIDE)
    require(drawing, 1.0, wanted)
    assert drawn(drawing, 4.0, "plain").codes.shape == (SIDE, SIDE)


def test_false_colours_tell_codes_apart() -> None:
    vectors = np.random.default_rng(0).normal(size=(9, 4))
    colours = false_colours(vectors)
    assert len(np.unique(colours.round(), axis=0)) == 9
    assert colours.min() == 0.0
    assert colours.max() == pytest.approx(255.0)
    assert painted(colours, np.zeros((2, 3), int)).shape == (16, 24, 3)
    assert (false_colours(vectors[:, :2])[:, 2] == 0).all()


MARKS = {
    "emu3": ("<|image start|>", "<|image token|>"),
    "janus": ("<begin_of_image>",),
    "chameleon": ("<racm3:break>",),
}


def written(folder: Path, model: Any, marks: Sequence[str]) -> str:
    """A folder of a model with a tokenizer that knows a few words, and these marks last."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<s>", "</s>", "<unk>", "red", "apple", "3", "*", "90"]
    known = {word: place for place, word in enumerate(words)}
    known |= {mark: BEGIN - len(marks) + 1 + place for place, mark in enumerate(marks)}
    plain = Tokenizer(models.WordLevel(known, "<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.add_special_tokens([*words[:4], *marks])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, bos_token="<s>", pad_token="<pad>", unk_token="<unk>"
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", MARKS)
def test_folders_are_opened_by_name(kind: str, request: Any, tmp_path: Path) -> None:
    model = request.getfixturevalue({"emu3": "emu", "janus": "jan", "chameleon": "cham"}[kind])
    folder = written(tmp_path / kind, model, MARKS[kind])
    with pytest.raises(ValueError, match="not in int8"):
        open_drawing(folder, "int8")
    drawing = open_drawing(folder)
    prompt = drawing.prompt("red apple")
    words = [4, 5] if kind != "emu3" else [1, 4, 5]  # as its processor begins a text
    assert prompt[: len(words)] == words
    if kind == "emu3":
        assert prompt[3:] == [BEGIN - 1, 8, 7, 8, BEGIN]  # the size is 90 * 90
        assert drawing.instead(prompt) == (1, BEGIN - 1, 8, 7, 8)
    assert prompt[-1] == drawing.layout.begin == BEGIN
    assert BEGIN not in drawing.instead(prompt)
    small = replace(drawing, layout=replace(drawing.layout, rows=SIDE, columns=SIDE))
    easel = Easel(small, "red apple", DrawingRule(1.0, 0, drawing.guidance))
    plain, raced = (
        next(easel.draw(picture_method(each, easel, WindowKnobs(5, whole=True)), [2]))
        for each in ("plain", "raced-jacobi")
    )
    np.testing.assert_array_equal(plain.codes, raced.codes)


def test_a_tokenizer_without_the_opener_is_refused(cham: Any, tmp_path: Path) -> None:
    folder = written(tmp_path / "none", cham, ("<other>",))
    with pytest.raises(ValueError, match="racm3:break"):
        open_drawing(folder)
