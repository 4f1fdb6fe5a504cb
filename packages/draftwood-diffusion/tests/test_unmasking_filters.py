"""Filters for the rule ``learned``: examples, slopes, what is learnt, and the command."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import draftwood
from command import refused, run
from draftwood.engine import Options
from draftwood.sampling import Sampling
from draftwood_diffusion.blocks import BLOCKS
from draftwood_diffusion.filters.examples import Examples, collect
from draftwood_diffusion.filters.fit import fit, judged, loss_of, slopes_of
from draftwood_diffusion.generating import for_model
from draftwood_diffusion.lists.list_model import list_model
from draftwood_diffusion.loop import written
from draftwood_diffusion.opening import masked_model
from draftwood_diffusion.proof import mixtures
from draftwood_diffusion.rules.learned import Filter
from draftwood_diffusion.unmasking import parse

target = import_module("command_models").target  # a fixture of tests that run commands


def some_filter(places: int, hidden: int, seed: int = 0) -> Filter:
    draw = np.random.default_rng(seed)
    shapes = ((places, hidden), (hidden,), (hidden, places), (places,))
    return Filter(*(draw.normal(size=shape) for shape in shapes))


def some_examples(count: int, places: int = 4, seed: int = 0) -> Examples:
    """A prediction stays where the confidence of the next place is above a half."""
    draw = np.random.default_rng(seed)
    confidence = draw.random((count, places))
    stays = np.roll(confidence, -1, axis=1) > 0.5
    return Examples(confidence, stays, draw.random((count, places)) < 0.8)


def test_examples_are_passes_of_the_oracle() -> None:
    masked, options = list_model(mixtures(), 3), Options(max_new_tokens=5)
    found = collect(masked, [[5]], options)
    assert found.confidence.shape == (len(found), 3)
    # the prompt begins the first block, whose two other places are open at first
    assert found.counts[0].tolist() == [False, True, True]
    assert found.confidence[0, 0] == 1.0
    assert (found.confidence[~found.counts] == 1.0).all()
    assert ((found.confidence > 0.0) & (found.confidence <= 1.0)).all()
    # as many passes as the oracle takes, unless it had to fix what the text does not hold
    assert len(found) <= written(masked, [5], options, parse("oracle")).runs
    assert found.stays[found.counts].any()
    twice = collect(masked, [[5], [5]], options)
    assert len(twice) == 2 * len(found)
    with pytest.raises(ValueError, match="give at least one prompt"):
        collect(masked, [], options)


def test_slopes_are_those_of_the_loss() -> None:
    network, examples = some_filter(4, 5), some_examples(7)
    slopes = slopes_of(network, examples)
    for field, slope in zip(fields(Filter), slopes, strict=True):
        for place in np.ndindex(*slope.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = getattr(network, field.name).copy()
                moved[place] += step
                ends.append(loss_of(replace(network, **{field.name: moved}), examples))
            assert slope[place] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


def test_a_filter_learns_what_stays() -> None:
    examples = some_examples(300)
    found = fit(examples, 16, 600, seed=1, above=0.8)
    nothing = judged(some_filter(4, 16), examples, 0.8)
    assert found.loss < 0.25 < nothing.loss
    assert found.right > 0.95
    assert found.found > 0.6
    # negative control: of labels that confidence says nothing about nothing can be learnt
    draw = np.random.default_rng(3)
    blind = replace(examples, stays=draw.random(examples.stays.shape) < 0.5)
    assert fit(blind, 16, 600, seed=1).loss > 0.6
    losses = [fit(examples, 16, 3, seed=seed).loss for seed in (1, 1, -1)]
    assert losses[0] == losses[1] != losses[2]
    with pytest.raises(ValueError, match="at least 10 passes to learn from, got 9"):
        fit(some_examples(9), 4, 1, seed=0)


def test_a_filter_is_written_and_read(tmp_path: Path) -> None:
    network = some_filter(4, 5)
    network.save(tmp_path / "filter.npz")
    again = Filter.read(str(tmp_path / "filter.npz"))
    for field in fields(Filter):
        kept = getattr(network, field.name).astype(np.float32)
        assert np.array_equal(getattr(again, field.name), kept)
    options = Options(Sampling(), 5)
    method = parse(f"learned,file={tmp_path / 'filter.npz'},above=0.5")
    assert len(written(list_model(mixtures(), 4), [5], options, method).tokens) == 5


@pytest.mark.parametrize("blocks", [name for name in BLOCKS if name != "whole"])
def test_a_filter_reads_blocks_of_every_kind(blocks: str) -> None:
    lm = draftwood.load("stories-diffusion", method="plain")
    tokens = lm.encode("- eggs\n- milk\n-", True)
    knobs = ",delta=0" if blocks == "adablock" else ""  # a line break may be expected far ahead
    method = for_model(parse(f"learned+{blocks}{knobs}"), lm)
    for seed in range(4):
        options = Options(Sampling(temperature=1.0), 200, seed=seed)
        assert len(written(masked_model(lm, {}), tokens, options, method).tokens) == 200


def test_a_filter_says_how_long_blocks_may_be(tmp_path: Path) -> None:
    some_filter(4, 5).save(tmp_path / "filter.npz")
    method = parse(f"learned,file={tmp_path / 'filter.npz'}+whole")
    with pytest.raises(ValueError, match="at most 4 places, got 6; give --block-length 4 and no"):
        written(list_model(mixtures(), 4), [5], Options(Sampling(), 5), method)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files that are no filter, and what is told of them."""
    whole = folder / "whole.npz"
    some_filter(4, 5).save(whole)
    held = dict(np.load(whole))
    torn = (b"", whole.read_bytes()[:300], b"PK damaged")
    for number, content in enumerate(torn):
        path = folder / f"torn-{number}.npz"
        path.write_bytes(content)
        yield r"\(.+\)", path
    np.save(folder / "array.npy", held["first"])
    yield r"\(.+\)", folder / "array.npy"
    strange = {
        "flat": {"first": held["first"][0]},
        "one": {"second_bias": np.float64(1)},
        "words": {name: each.astype(str) for name, each in held.items()},
        "nan": {"first_bias": np.full(5, np.nan)},
        "inf": {"second": np.full((5, 4), np.inf)},
    }
    for name, arrays in strange.items():
        np.savez(folder / name, **{**held, **arrays})
        reason = "do not fit together" if name in ("flat", "one") else "not of finite numbers"
        yield reason, folder / f"{name}.npz"


def test_what_is_no_filter_is_refused_in_a_line(tmp_path: Path) -> None:
    for reason, path in _files(tmp_path):
        with pytest.raises(ValueError, match=rf"a filter is a \.npz file of .*{reason}") as caught:
            Filter.read(str(path))
        assert "\n" not in str(caught.value)


def test_train_filter_writes_what_generate_reads(target: str, tmp_path: Path) -> None:
    folder = tmp_path / "filling"
    shutil.copytree(target, folder)
    told = json.loads((folder / "config.json").read_text())
    told["draftwood_diffusion"] = {"mask_token": 95, "block_length": 8}
    (folder / "config.json").write_text(json.dumps(told))
    (tmp_path / "prompts.txt").write_text("hello\n\nworld\nfoxes and bears\n")
    place = str(tmp_path / "filter.npz")
    more = ("--raw", "--max-new-tokens", "16", "--epochs", "20", "--hidden", "8")
    asked = ("train", "filter", str(folder), place, "--prompts", str(tmp_path / "prompts.txt"))
    made = run(*asked, *more, "--json")
    assert made.exit_code == 0, made.output
    assert set(json.loads(made.stdout)) == {"examples", "loss", "right", "found"}
    shown = run(*asked, *more)
    assert "nats a place" in shown.stdout
    asking = ("generate", "hello", "--model", str(folder), "--raw", "--max-new-tokens", "16")
    found = run(*asking, "--method", f"learned,file={place}", "--inexact", "--json")
    assert json.loads(found.stdout)["passes"] <= 16
    told = refused(*asking, "--method", "learned", "--inexact")
    assert "this model's folder has no filter.npz; make one with 'draftwood train filter'" in told
    shutil.copy(place, folder)
    beside = run(*asking, "--method", "learned", "--inexact", "--json")
    assert json.loads(beside.stdout)["token_ids"] == json.loads(found.stdout)["token_ids"]
    told = refused(*asked, *more, "--seed", "-1")
    assert "--seed" in told
    told = refused("train", "filter", target, *asked[3:], *more)
    assert "has no mask token to fill" in told
