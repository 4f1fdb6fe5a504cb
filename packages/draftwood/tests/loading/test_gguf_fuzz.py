"""Damaged GGUF files give one clear line or a text: never a crash, a hang, or memory without
bound.
"""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from test_gguf_files import ARCHITECTURES, build

from checkout import PYTHONPATH, ROOT
from command import with_library
from draftwood.native.library import available
from gguf_writing import TOKENS, write_gguf
from loading import gguf_fuzz
from loading.gguf_mutations import LONG_TEXT, WAYS, apply, mutate
from native.test_block_formats import random_blocks

pytestmark = pytest.mark.skipif(not available(), reason="there is no C++ compiler")
SEEDS = 2000
WORKERS = 2
KINDS = ("Q4_0", "Q8_0", "F16", "BF16", "Q5_1", "Q4_1", "Q5_0")
PIECES = [*TOKENS[:3], *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a"]
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 64}
FACTORS = {
    f"rope_factors_{name}.weight": np.linspace(1, most, 4)
    for name, most in {"short": 3, "long": 20}.items()
}


def blocks_of(format: str) -> Callable[[np.ndarray], np.ndarray]:
    """Make what encodes matrices in a format that the ``gguf`` package only reads."""

    def encode(values: np.ndarray) -> np.ndarray:
        rows = values.reshape(-1, values.shape[-1])
        stored = random_blocks(format, *rows.shape, seed=values.size, spread=1e-3).stored
        return stored.reshape(*values.shape[:-1], -1)

    return encode


def in_many_kinds(name: str) -> gguf.GGMLQuantizationType:
    """A type for each matrix; of those that the ``gguf`` package writes."""
    return gguf.GGMLQuantizationType[KINDS[sum(name.encode()) % len(KINDS)]]


def write_wholes(folder: Path) -> Path:
    """Small files of five families, of all kinds of blocks, settings and tokenizers."""
    folder.mkdir()
    write_gguf(folder / "a.gguf", build("llama"), kind=in_many_kinds)
    kind, more, settings = ARCHITECTURES["gemma3"]
    write_gguf(folder / "b.gguf", build(kind, **more), "gemma3", settings, pieces=PIECES)
    form = gguf.GGMLQuantizationType.Q4_K
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    told = {"expert_count": 2, "expert_used_count": 1}
    mixture = build("mixtral", **WIDE, **experts)
    write_gguf(folder / "c.gguf", mixture, "llama", told, kind=form, encode=blocks_of("Q4_K"))
    form, small = gguf.GGMLQuantizationType.IQ2_XXS, build("qwen2", **WIDE)
    write_gguf(folder / "d.gguf", small, "qwen2", kind=form, encode=blocks_of("IQ2_XXS"))
    long = {"rope.scaling.original_context_length": 32, "attention.sliding_window": 8}
    form = gguf.GGMLQuantizationType.Q8_0
    write_gguf(folder / "e.gguf", build("phi3", sliding_window=8), "phi3", long, FACTORS, form)
    return folder


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wholes(tmp_path_factory.mktemp("fuzz") / "wholes")


def start(wholes: Path, home: Path, *words: object) -> "subprocess.Popen[str]":
    """A worker with a home of its own."""
    home.mkdir(parents=True)
    path = os.pathsep.join([PYTHONPATH, str(ROOT / "tests"), str(Path(__file__).parents[1])])
    settings = {**with_library(home), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, gguf_fuzz.__file__, str(wholes), *map(str, words)],
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcomes(worker: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    """Tell what came of each seed; the one at which the worker died comes last."""
    out, said = worker.communicate()
    lines = out.splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    if worker.returncode:
        seed = lines[-1] if lines and lines[-1].isdigit() else "none"
        told = f"died with {worker.returncode}: {said[:1500]}"
        found.append({"seed": seed, "well": False, "said": told, "told": ""})
    return found


def faults(found: Iterable[dict[str, Any]]) -> list[str]:
    """Lines about seeds that ended in neither a text nor a clear refusal."""
    return [
        f"seed {each['seed']} ({each['told']}): {each['said']}"
        for each in found
        if not each["well"]
    ]


def fuzzed(wholes: Path, folder: Path, seeds: int) -> list[dict[str, Any]]:
    """Tell what came of the first seeds, in several workers."""
    workers = [
        start(wholes, folder / str(number), number, seeds, WORKERS) for number in range(WORKERS)
    ]
    return [each for worker in workers for each in outcomes(worker)]


def answers(found: Iterable[dict[str, Any]]) -> int:
    return sum(each["said"].startswith("answered") for each in found)


def test_some_damaged_files_are_refused_or_answer(wholes: Path, tmp_path: Path) -> None:
    found = fuzzed(wholes, tmp_path, 60)
    assert faults(found) == []
    assert len(found) == 60
    assert 5 < answers(found) < 55


@pytest.mark.proof
def test_damaged_files_are_refused_or_answer(wholes: Path, tmp_path: Path) -> None:
    found = fuzzed(wholes, tmp_path, SEEDS)
    assert faults(found) == []
    assert len(found) == SEEDS
    assert SEEDS / 10 < answers(found) < SEEDS / 2


def seed_that_tells(wholes: Path, *wanted: str) -> int:
    """The first seed whose damage is told in one of these words."""
    files = gguf_fuzz.read(wholes)
    told = ((seed, mutate(files, seed)[1]) for seed in range(SEEDS))
    return next(seed for seed, damage in told if any(each in damage for each in wanted))


LAYERS = tuple(f"block_count becomes {number}" for number in (16_777_217, 1 << 30))
LONG = f"file 1: the text of tokenizer.ggml.tokens grows by {LONG_TEXT}"
OUT_OF_BOUNDS = r"died with (1: Timeout|-\d)|MemoryError|took"  # whichever bound it meets first


@pytest.mark.proof
@pytest.mark.parametrize(
    ("fault", "damage", "said"),
    [
        ("layers", LAYERS, OUT_OF_BOUNDS),
        ("texts", (LONG,), OUT_OF_BOUNDS),
        ("crash", ("",), "died with -11"),
        ("hang", ("",), "died with 1: Timeout"),
    ],
    ids=lambda each: each if isinstance(each, str) and each.isalpha() else "",
)
def test_planted_faults_are_found(
    wholes: Path, tmp_path: Path, fault: str, damage: Sequence[str], said: str
) -> None:
    seed = seed_that_tells(wholes, *damage)
    (usual,) = outcomes(start(wholes, tmp_path / "usual", seed, seed + 1, 1))
    assert usual["well"], usual
    (found,) = outcomes(start(wholes, tmp_path / "faulty", seed, seed + 1, 1, fault))
    assert int(found["seed"]) == seed
    assert re.search(said, str(faults([found]))), found


def test_every_way_to_damage_files_changes_them(wholes: Path) -> None:
    files = gguf_fuzz.read(wholes)
    for way in WAYS:
        changed = [
            apply(whole.content, way(whole, random.Random(seed)))
            for whole in files
            for seed in range(5)
        ]
        assert sum(a != b.content for a, b in zip(changed, np.repeat(files, 5), strict=True)) > 15


def test_a_seed_means_one_damage(wholes: Path) -> None:
    files = gguf_fuzz.read(wholes)
    assert mutate(files, 7) == mutate(files, 7)
    assert len({mutate(files, seed) for seed in range(100)}) == 100
