"""EAGLE heads in the layouts of other programs: read, written, and run by the package itself."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from draftwood.drafters import Eagle
from draftwood.heads import folder
from draftwood.heads.trained import TrainedHead
from draftwood.models.model import Model
from draftwood.testing import tiny_llama
from draftwood_bench.peers import environments
from draftwood_torch.heads.eagle import EagleHead
from draftwood_torch.heads.layers import HeadCache, causal
from draftwood_torch.lean.model import LeanModel
from draftwood_torch.models.transformers import TransformersModel
from draftwood_train.cli.export import export as export_command
from draftwood_train.cli.export import import_head, pack
from draftwood_train.going_on import going_on
from draftwood_train.recipes.eagle import EagleRecipe
from draftwood_train.speculators import export, read
from families import FAMILIES, random_model
from tiny_heads import tiny_eagle
from training_cases import target as training_target

VARIANTS: list[dict[str, Any]] = [
    {},
    {"layers": 2, "window": 8, "reads": (0, 2)},
    {"feeds_normed": False, "norms_features": False, "norm_before_residual": True},
]


def eagle(target: Model, draft_tokens: Sequence[int] = (), **settings: Any) -> TrainedHead:
    """A head that reads what EAGLE-3's do."""
    return tiny_eagle(target, draft_tokens, **{"reads": (1, 3, 5), **settings})


@pytest.fixture(scope="module")
def target() -> LeanModel:
    return LeanModel(tiny_llama(0, layers=6))


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_head_comes_back(target: LeanModel, settings: dict, tmp_path: Path) -> None:
    trained = eagle(target, **settings)
    export(tmp_path / "out", trained, target, "nowhere")
    found = read(tmp_path / "out", target, "tiny")
    assert found.config == trained.config
    assert found.draft_tokens.tolist() == trained.draft_tokens.tolist()
    assert found.target == trained.target
    layer = json.loads((tmp_path / "out" / "config.json").read_text())["transformer_layer_config"]
    assert layer["num_aux_hidden_states"] == len(trained.config.reads)  # else vLLM takes three
    for name, weight in trained.network.state_dict().items():
        assert torch.equal(found.network.state_dict()[name], weight.bfloat16().float()), name


@pytest.mark.parametrize("own", [{"norms_features": False}, {"window": None}], ids=str)
def test_what_no_option_gives_cannot_be_trained_on(own: dict, tmp_path: Path) -> None:
    made = EagleRecipe(window=16)
    started: Any = made.build(training_target())
    config = replace(started.config, **own)
    weights = EagleHead(config).state_dict()
    start: Any = SimpleNamespace(config=config, weights=weights)
    with pytest.raises(ValueError, match="as no recipe here does; train without --from"):
        going_on(made, start, tmp_path, training_target())


def test_another_window_is_told_as_such(tmp_path: Path) -> None:
    made = EagleRecipe(window=16)
    started: Any = made.build(training_target())
    start: Any = SimpleNamespace(config=replace(started.config, window=0), weights={})
    with pytest.raises(ValueError, match="holds a drafter with window 0, not 16"):
        going_on(made, start, tmp_path, training_target())


def test_a_head_is_packed_in_blocks(target: LeanModel, tmp_path: Path) -> None:
    trained = eagle(target)
    before = folder.save(tmp_path / "head", trained, "# A card", dtype="float32")
    command = [str(before), str(tmp_path / "small"), "--blocks", "Q8_0"]
    done = CliRunner().invoke(pack, command)
    assert done.exit_code == 0, done.output
    assert "MB" in done.output
    found = folder.load(tmp_path / "small")
    assert found.config == trained.config
    weight = trained.weights["fc.weight"]
    assert 0 < abs(found.weights["fc.weight"] - weight).max() < 0.01 * abs(weight).max()
    assert (tmp_path / "small" / "card.md").read_text() == "# A card\n"


def test_a_whole_vocabulary_needs_no_lists(target: LeanModel, tmp_path: Path) -> None:
    export(tmp_path, eagle(target, range(64)), target, "nowhere")
    assert not {"d2t", "t2d"} & set(load_file(tmp_path / "model.safetensors"))
    assert read(tmp_path, target, "tiny").draft_tokens.tolist() == list(range(64))


@pytest.mark.parametrize("family", ["granite", "cohere"])
def test_rows_are_written_as_the_logits_are_scaled(family: str, tmp_path: Path) -> None:
    """Readers multiply with the rows of a head alone."""
    name, options = FAMILIES[family]
    scaled = LeanModel(random_model(name, {**options, "num_hidden_layers": 6}))
    trained = eagle(scaled)
    export(tmp_path, trained, scaled, "nowhere")
    rows = scaled.embeddings_and_head.weights().head[trained.draft_tokens]
    written = load_file(tmp_path / "model.safetensors")["lm_head.weight"]
    assert torch.equal(written, (0.25 * rows).bfloat16())
    assert read(tmp_path, scaled, "tiny").config == trained.config
    changed(tmp_path, {"lm_head.weight": rows.bfloat16()})
    assert read(tmp_path, scaled, "tiny").config.own_head == len(rows)


def test_a_bias_of_the_target_is_no_part_of_these_layouts(tmp_path: Path) -> None:
    """A head that shares rows of a biased target keeps them, as it was trained without the bias."""
    hf_model = random_model("PhiConfig", {**FAMILIES["phi"][1], "num_hidden_layers": 6})
    bias = torch.nn.Parameter(torch.randn(hf_model.config.vocab_size))
    hf_model.lm_head.bias = bias
    biased = TransformersModel(hf_model)
    trained = eagle(biased)
    with pytest.raises(ValueError, match="no output heads with a bias"):
        export(tmp_path / "out", trained, biased, "nowhere")
    hf_model.lm_head.bias = None
    export(tmp_path / "out", trained, biased, "nowhere")
    hf_model.lm_head.bias = bias
    found = read(tmp_path / "out", biased, "biased")
    assert found.config.own_head == len(trained.draft_tokens)
    rows = load_file(tmp_path / "out" / "model.safetensors")["lm_head.weight"].float()
    states = torch.randn(2, biased.hidden_size)
    torch.testing.assert_close(Eagle(found, biased).placed.logits(states), states @ rows.T)


def changed(place: Path, weights: dict[str, Any] | None = None, **says: Any) -> None:
    old = load_file(place / "model.safetensors")
    kept = {name: each for name, each in {**old, **(weights or {})}.items() if each is not None}
    save_file(kept, place / "model.safetensors")
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, **says}))


def test_a_head_of_safeailab_is_read(target: LeanModel, tmp_path: Path) -> None:
    plain = {"feeds_normed": False, "norms_features": False, "reads": (2, 3, 3)}
    trained = eagle(target, **plain)
    export(tmp_path, trained, target, "nowhere")
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("embed_tokens.weight")
    renamed = {name.replace("layers.0.", "midlayer."): each for name, each in weights.items()}
    layer = json.loads((tmp_path / "config.json").read_text())["transformer_layer_config"]
    (tmp_path / "model.safetensors").unlink()
    torch.save(renamed, tmp_path / "pytorch_model.bin")
    flat = {**layer, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    found = read(tmp_path, target, "tiny")
    assert found.config == trained.config
    counted = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}}
    (tmp_path / "config.json").write_text(json.dumps({**flat, **counted}))
    assert read(tmp_path, target, "tiny").config.reads == (1, 2, 4)  # type: ignore[union-attr]


def test_an_output_head_of_its_own_is_kept(target: LeanModel, tmp_path: Path) -> None:
    trained = eagle(target)
    export(tmp_path / "out", trained, target, "nowhere")
    own = torch.randn(32, 32)
    changed(tmp_path / "out", {"lm_head.weight": own})
    found = read(tmp_path / "out", target, "tiny")
    assert found.config == replace(trained.config, own_head=32)
    again = folder.load(folder.save(tmp_path / "kept", found, ""))
    logits = Eagle(again, target).placed.logits
    states = torch.randn(2, 32)
    wanted = states @ own.bfloat16().float().T
    torch.testing.assert_close(logits(states), wanted)
    export(tmp_path / "back", again, target, "nowhere")
    kept = load_file(tmp_path / "back" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(kept, own.bfloat16())


@pytest.mark.parametrize(
    ("weights", "says", "reason"),
    [
        ({}, {"norm_before_fc": True}, "a norm over all states together"),
        ({"layers.0.self_attn.q_norm.weight": torch.ones(8)}, {}, "q_norm.weight is"),
        ({"norm.weight": None}, {}, "norm.weight is missing"),
        ({"lm_head.weight": None}, {}, "has no lm_head.weight"),
        ({"norm.weight": torch.full((32,), torch.nan)}, {}, "no numbers, in norm.weight"),
        ({"embed_tokens.weight": torch.randn(64, 32)}, {}, "embedding that is not the target's"),
        ({"d2t": torch.full((32,), 40)}, {}, "not ascending ids below 64"),
        ({"d2t": torch.zeros(0)}, {}, "no list of offsets in d2t"),
        (
            {"lm_head.weight": torch.randn(31, 32)},
            {},
            "drafts 32 tokens, but lm_head.weight has 31",
        ),
        ({}, {"speculators_model_type": "dflash"}, "describes no EAGLE-3 head"),
        (
            {},
            {"eagle_aux_hidden_state_layer_ids": [1, 3, 40]},
            r"layers \[1, 3, 40\] of a target of 6",
        ),
        (
            {},
            {"eagle_aux_hidden_state_layer_ids": [1, 3, 6]},
            r"layers \[1, 3, 6\] of a target of 6",
        ),
        ({}, {"eagle_aux_hidden_state_layer_ids": "one"}, "reads of EagleConfig cannot be 'one'"),
        (
            {},
            {"transformer_layer_config": [1]},
            "transformer_layer_config holds no settings by name",
        ),
        ({}, {"eagle_config": [1]}, "eagle_config holds no settings by name"),
    ],
)
def test_other_heads_are_refused(
    target: LeanModel, weights: dict, says: dict, reason: str, tmp_path: Path
) -> None:
    export(tmp_path, eagle(target), target, "nowhere")
    changed(tmp_path, weights, **says)
    with pytest.raises(ValueError, match=reason) as caught:
        read(tmp_path, target, "tiny")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("num_attention_heads", "six", "config.json cannot be used"),
        ("num_attention_heads", 0, "config.json cannot be used"),
        ("rope_theta", "far", "rope_theta of HeadSizes cannot be 'far'"),
        ("num_hidden_layers", 10**9, "cannot be used: 1000000000 layers"),
        ("rope_parameters", {"type": "linear", "factor": 4.0}, "scaled rotary embeddings"),
        ("rope_parameters", {"rope_type": "linear", "factor": 4.0}, "scaled rotary embeddings"),
        ("rope_parameters", {"partial_rotary_factor": 0.5}, "partial rotary embeddings"),
        ("partial_rotary_factor", 0.5, "partial rotary embeddings"),
        ("rope_parameters", {"mrope_section": [1, 1, 2]}, "embeddings of several positions"),
    ],
)
def test_a_layer_of_damaged_settings_is_refused(
    target: LeanModel, name: str, value: Any, reason: str, tmp_path: Path
) -> None:
    export(tmp_path, eagle(target), target, "nowhere")
    layer = json.loads((tmp_path / "config.json").read_text())["transformer_layer_config"]
    changed(tmp_path, transformer_layer_config={**layer, "head_dim": None, name: value})
    with pytest.raises(ValueError, match=reason) as caught:
        read(tmp_path, target, "tiny")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.json", b"[1]", "holds no settings by name"),
        ("pytorch_model.bin", b"garbage", "pytorch_model.bin cannot be read"),
        ("pytorch_model.bin", b"", "pytorch_model.bin cannot be read"),
    ],
)
def test_damaged_files_are_refused(
    target: LeanModel, file: str, content: bytes, reason: str, tmp_path: Path
) -> None:
    export(tmp_path, eagle(target), target, "nowhere")
    if file == "pytorch_model.bin":
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=reason) as caught:
        read(tmp_path, target, "tiny")
    assert "\n" not in str(caught.value)


def test_what_other_programs_read_is_told(target: LeanModel, tmp_path: Path) -> None:
    out = export(tmp_path / "out", eagle(target), target, "nowhere", ("QwenForCausalLM",))
    says = json.loads((out / "config.json").read_text())
    assert target.context_length == 512
    assert says["transformer_layer_config"]["max_position_embeddings"] == 512
    verifier = {"name_or_path": "nowhere", "architectures": ["QwenForCausalLM"]}
    assert says["speculators_config"]["verifier"] == verifier
    assert (out / "model.safetensors").stat().st_mode & 0o044 == 0o044


def test_heads_that_others_would_feed_other_states_are_refused(
    target: LeanModel, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="read the state behind the last layer"):
        export(tmp_path / "out", eagle(target, reads=(target.layers,)), target, "nowhere")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [pack, import_head])
def test_another_head_is_not_replaced_unasked(
    target: LeanModel, command: Any, tmp_path: Path
) -> None:
    model, output = str(tmp_path / "model"), tmp_path / "mine"
    save_target(model)
    source = folder.save(tmp_path / "drafter", eagle(target, layers=2), "# New")
    if command is import_head:
        source = export(tmp_path / "exported", eagle(target, layers=2), target, "nowhere")
    folder.save(output, eagle(target), "# Old")
    given = [str(source), str(output), *(["--model", model] if command is import_head else [])]
    done = CliRunner().invoke(command, given)
    assert "name a new folder, or replace a drafter with --force" in str(done.exception)
    assert folder.load(output).config.layers == 1
    done = CliRunner().invoke(command, [*given, "--force"])
    assert done.exit_code == 0, done.output
    assert folder.load(output).config.layers == 2


def test_an_exported_head_is_not_replaced_unasked(target: LeanModel, tmp_path: Path) -> None:
    model, output = str(tmp_path / "model"), tmp_path / "theirs"
    save_target(model)
    source = folder.save(tmp_path / "drafter", eagle(target), "# New")
    export(output, eagle(target, layers=2), target, "nowhere")
    (output / "NOTES.txt").write_text("theirs")
    given = [str(source), str(output), "--model", model]
    done = CliRunner().invoke(export_command, given)
    assert "name a new folder, or replace a drafter with --force" in str(done.exception)
    assert (output / "NOTES.txt").is_file()
    done = CliRunner().invoke(export_command, [*given, "--force"])
    assert done.exit_code == 0, done.output
    assert read(output, target, "tiny").config.layers == 1


def test_other_targets_are_refused(target: LeanModel, tmp_path: Path) -> None:
    other = LeanModel(tiny_llama(1, layers=6))
    with pytest.raises(ValueError, match="other weights"):
        export(tmp_path / "out", eagle(target), other, "nowhere")
    assert not (tmp_path / "out").exists()
    export(tmp_path / "out", eagle(target), target, "nowhere")
    with pytest.raises(ValueError, match="embedding that is not the target's"):
        read(tmp_path / "out", other, "other")


def test_commands_write_and_read(target: LeanModel, tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    save_target(model)
    folder.save(tmp_path / "drafter", eagle(target), "")
    for command, given in (
        (export_command, (tmp_path / "drafter", tmp_path / "exported")),
        (import_head, (tmp_path / "exported", tmp_path / "back")),
    ):
        done = CliRunner().invoke(command, [*map(str, given), "--model", model])
        assert done.exit_code == 0, done.output
        assert done.output == f"written to {given[1]}\n"
    there, back = (folder.load(tmp_path / name) for name in ("drafter", "back"))
    assert there.config == back.config


def save_target(place: str) -> None:
    tiny_llama(0, layers=6).save_pretrained(place)
    inner = Tokenizer(WordLevel({f"w{n}": n for n in range(64)}, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0").save_pretrained(place)


ASKED = "DRAFTWOOD_TEST_SPECULATORS"
SCRIPT = """
import sys, torch
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
config = Eagle3SpeculatorConfig.from_pretrained(sys.argv[1])
config.transformer_layer_config._attn_implementation = "eager"
model = Eagle3DraftModel.from_pretrained(sys.argv[1], config=config, dtype=torch.float32).eval()
given, seen = torch.load(sys.argv[2]), []
model.lm_head.register_forward_hook(lambda module, rows, logits: seen.append(logits))
with torch.no_grad():
    model(given["states"][None], given["tokens"][None], torch.zeros_like(given["tokens"])[None],
          ttt_steps=1)
torch.save(seen[0][0], sys.argv[3])
"""


@pytest.mark.proof
@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_the_package_gives_the_same_logits(
    target: LeanModel, settings: dict, tmp_path: Path
) -> None:
    if not ((environments.folder("speculators") / ".ready").is_file() or ASKED in os.environ):
        pytest.skip("installing speculators takes minutes; `make test-speculators` does")
    try:
        python = environments.prepare("speculators")
    except OSError as error:
        pytest.skip(f"speculators cannot be installed: {error}")
    tiny_llama(0, layers=6).save_pretrained(tmp_path / "target")
    export(tmp_path / "out", eagle(target, **settings), target, str(tmp_path / "target"))
    read_back: TrainedHead = read(tmp_path / "out", target, "tiny")
    head = read_back.network
    assert isinstance(head, EagleHead)
    tokens = torch.arange(3, 51, 4)
    features = torch.randn(len(tokens), len(head.config.reads), 32)
    torch.save({"states": features.flatten(-2), "tokens": tokens}, tmp_path / "given.pt")
    run = [str(python), "-c", SCRIPT, *(str(tmp_path / n) for n in ("out", "given.pt", "said.pt"))]
    subprocess.run(run, check=True, timeout=600)
    cache = HeadCache(head.config.layers, head.config.sizes, features)
    attend = cache.attend(causal(len(tokens), 0, head.config.window))
    embedded = target.embeddings_and_head.embed(tokens).bfloat16().float()
    places = torch.arange(len(tokens))
    with torch.no_grad():
        _, normed = head(embedded, head.combine(features), places, attend)
    rows = target.embeddings_and_head.weights().head[read_back.draft_tokens].bfloat16().float()
    said = torch.load(tmp_path / "said.pt")
    torch.testing.assert_close(said, normed @ rows.T, atol=1e-3, rtol=1e-3)
    assert float((said - normed.roll(1, 0) @ rows.T).abs().max()) > 0.1  # other rows are others
