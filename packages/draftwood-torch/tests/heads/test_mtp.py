"""Layers for multi-token prediction of Transformers' models draft what Transformers drafts."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, modeling_layers
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from draftwood import methods
from draftwood.engine import Options, generate
from draftwood.methods.drafts import Drafts
from draftwood.models.model import Cpu
from draftwood.models.native import has_int8
from draftwood.models.requirements import require_mtp_head
from draftwood.sampling import Sampling
from draftwood.stats import Stats, Step
from draftwood.tree import DraftTree
from draftwood_torch.general import general_model
from draftwood_torch.heads.mtp import LayerCache, TorchMtp
from draftwood_torch.loading import packed_models
from draftwood_torch.models.mtp_weights import has_mtp
from draftwood_torch.models.packed_linear import PackedLinear
from draftwood_torch.models.transformers import TransformersModel
from families import random_model, some_tokens
from hybrids import GROUPED
from mtp_folders import MODELS, written

PROMPT = some_tokens(12, seed=1)


@pytest.fixture(scope="module", params=MODELS)
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TransformersModel, MtpModel]:
    """A model that was read from its folder, and the layer that was written there."""
    folder = tmp_path_factory.mktemp("mtp")
    _, layer = written(folder, request.param)
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return general_model(read), layer


@torch.no_grad()
def test_drafts_are_those_of_transformers(found: tuple[TransformersModel, MtpModel]) -> None:
    """At the root, and below it, where the layer reads what it said itself."""
    model, layer = found
    out = model.hf_model(torch.tensor([PROMPT]), output_hidden_states=True)
    states = out.hidden_states[-1]
    cache = MtpCache(config=layer.config)
    places = torch.arange(1, len(PROMPT))[None]
    said = layer.forward_layer(
        0, states[:, :-1], places, cache, input_ids=torch.tensor([PROMPT[1:]])
    )
    wanted = layer._project_to_logits(said[:, -1:])[0]

    text = require_mtp_head(model, "a test").text()
    text.take(PROMPT[:-1], {model.layers: states[0]}, range(len(PROMPT) - 1))
    root = DraftTree.of(PROMPT[-1:], [-1])
    torch.testing.assert_close(text.level(root, 0), wanted, atol=1e-4, rtol=1e-4)

    first, other = wanted[0].topk(2).indices.tolist()
    tree = DraftTree.of([PROMPT[-1], first, other], [-1, 0, 0])
    below = layer.forward_layer(
        0,
        said[:, -1:],
        torch.tensor([[len(PROMPT)]]),
        cache,
        input_ids=torch.tensor([[first]]),
    )
    wanted = layer._project_to_logits(below)[0]
    rows = text.level(tree, 1)
    torch.testing.assert_close(rows[:1], wanted, atol=1e-4, rtol=1e-4)
    assert (rows[1] - wanted[0]).abs().max() > 0.1  # the other token says something else


def steps_of(name: str, model: TransformersModel, temperature: float, most: int = 24) -> list[Step]:
    more = {"curve": lambda rows: 1 + 0.01 * rows, "mtp": model.mtp} if name == "auto" else {}
    method = methods.build(name, model, **more)
    options = Options(Sampling(temperature), most, seed=5)
    return list(generate(model, method.drafter, method.verifier, PROMPT, options))


def text_of(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize(
    ("name", "temperature"),
    [("mtp", 0.0), ("mtp-rsd", 0.0), ("auto", 0.0), ("mtp", 1.0), ("auto", 1.0)],
)
def test_texts_with_the_layer_are_plain_ones(
    name: str, temperature: float, found: tuple[TransformersModel, MtpModel]
) -> None:
    model, _ = found
    steps = steps_of(name, model, temperature)
    assert text_of(steps) == text_of(steps_of("plain", model, temperature))
    drafted = [step.tree for step in steps if step.tree is not None and len(step.tree) > 1]
    assert drafted
    assert name != "auto" or "eagle" in Stats.of(steps).sources


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_is_packed_as_its_model_is(dtype: torch.dtype, tmp_path: Path) -> None:
    """Also of folders in bfloat16, whose configuration says so still."""
    _, layer = written(tmp_path, "qwen3.5")
    if not has_int8(Cpu()):
        pytest.skip("this CPU multiplies no 8-bit integers")
    read = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).eval()
    packed_models.pack(read, "int8")
    model = general_model(read)
    assert isinstance(model, TransformersModel)
    head = model.mtp
    assert isinstance(head, TorchMtp)
    packed = [each for each in head.layers.modules() if isinstance(each, PackedLinear)]
    plain = [each for each in layer.layers.modules() if type(each) is torch.nn.Linear]
    assert len(packed) == len(plain) + 1  # the output head
    texts = [text_of(steps_of(name, model, 0.0)) for name in ("plain", "mtp", "auto")]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(("is_packed", "expected"), [(True, 1), (False, 3)])
def test_drafts_of_a_packed_model_leave_the_cores_to_the_library(
    is_packed: bool, expected: int, tmp_path: Path
) -> None:
    if is_packed and not has_int8(Cpu()):
        pytest.skip("this CPU multiplies no 8-bit integers")
    written(tmp_path, "qwen3.5")
    read = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    if is_packed:
        packed_models.pack(read, "int8")
    model, seen = general_model(read), set[int]()
    head = model.mtp
    assert isinstance(head, TorchMtp)
    projection = head.layers.layers[0].eh_proj
    projection.register_forward_pre_hook(lambda *_: seen.add(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        steps_of("mtp", model, 0.0)
    finally:
        torch.set_num_threads(before)
    assert seen == {expected}


def test_models_without_a_layer_name_what_they_lack() -> None:
    model = TransformersModel(random_model("Qwen3Config", GROUPED))
    assert model.mtp is None
    with pytest.raises(ValueError, match=r"method 'mtp' needs .* comes with a layer .* auto"):
        methods.build("mtp", model)


def test_a_layer_that_is_not_whole_is_refused_when_it_is_asked_for(tmp_path: Path) -> None:
    written(tmp_path, "qwen3.5")
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    missing = "mtp.layers.0.self_attn.q_proj.weight"
    others = {name: each for name, each in whole.items() if name != missing}
    save_file(others, path, {"format": "pt"})
    model = general_model(AutoModelForCausalLM.from_pretrained(tmp_path).eval())
    methods.build("plain", model)
    with pytest.raises(ValueError, match=r"q_proj.*choose another method, or fetch"):
        methods.build("mtp", model)
    with pytest.warns(UserWarning, match=r"come without it: .*q_proj"):
        assert Drafts().mtp_of(model) is None
    assert Drafts(takes_shipped=False).mtp_of(model) is None  # as with --draft-model none
    save_file(whole | {"mtp.fc.weight": torch.ones(3, 5)}, path, {"format": "pt"})
    with pytest.raises(ValueError, match=r"shapes .*choose another method, or fetch"):
        methods.build("mtp", model)


def test_a_folder_that_moved_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    written(folder, "glm-4.5")
    model = general_model(AutoModelForCausalLM.from_pretrained(folder).eval())
    folder.rename(tmp_path / "there")
    with pytest.raises(ValueError, match=rf"prediction in {folder} cannot be read"):
        methods.build("mtp", model)


def test_what_is_no_weights_of_the_model_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "glm-4.5")
    (tmp_path / "extra.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    read = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert has_mtp(read)
    monkeypatch.delattr(modeling_layers, "MtpModel")  # as an older Transformers
    assert "mtp" not in general_model(read).abilities


def test_the_cache_of_a_layer_grows_and_forgets() -> None:
    cache, other = LayerCache(), LayerCache()
    rows = torch.randn(1, 2, 300, 4)
    for first in range(0, 300, 3):
        keys, values = cache.update(
            rows[:, :, first : first + 3], -rows[:, :, first : first + 3], 0
        )
        assert torch.equal(keys, rows[:, :, : first + 3])
        assert torch.equal(values, -keys)
    other.copy(cache, 7)
    cache.keep(5)
    keys, _ = cache.update(rows[:, :, :1], rows[:, :, :1], 0)
    assert torch.equal(keys, torch.cat([rows[:, :, :5], rows[:, :, :1]], dim=2))
    keys, _ = other.update(rows[:, :, 7:9], rows[:, :, 7:9], 0)  # memory of its own
    assert torch.equal(keys, rows[:, :, :9])
