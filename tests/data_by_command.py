"""Data and heads that commands of training make in a moment."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from command import run

SMALL = ("--draft-vocabulary", "30", "--rows", "2", "--places", "64", "--judge-every", "2")
"""Options of a head that is trained at once."""


def written(
    folder: Path, model: str, prompts: Mapping[str, Sequence[str]], one_of: int, *more: str
) -> Path:
    """Answers of a model to prompts of files alone, by ``draftwood train data``.

    Args:
        prompts: by the names of their files.
        one_of: prompts of which one is held out.
        more: options.
    """
    files = list[str]()
    for name, asked in prompts.items():
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in asked))
        files += ["--prompts", str(file)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("draftwood_train.data.make.measured_prompts", list)
        held_out = "draftwood_train.data.prompts.is_held_out"
        patched.setattr(held_out, lambda prompt: sum(map(ord, prompt)) % one_of == 0)
        done = run(
            *("train", "data", str(folder / "data"), "--model", model, "--sets", "", *files),
            *("--self-written", "0", "--shard", "4", "--max-answer", "16", "--max-prompt", "60"),
            *more,
        )
    assert done.exit_code == 0, done.output
    return folder / "data"
