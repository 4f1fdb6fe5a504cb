"""Tiny targets that write training data in a moment, and prompts for them."""

import json
import random
from pathlib import Path

from draftwood import methods
from draftwood.models.model import Model
from draftwood.models.native import NativeModel
from draftwood.testing import tiny_llama
from draftwood.text.language_model import LanguageModel
from draftwood_train.data.options import DataOptions
from letters import letters

TEMPLATE = (
    "{% for m in messages %}U{{ m['content'] }},{% endfor %}"
    "{% if add_generation_prompt %}A{% endif %}"
)


def target(seed: int = 0, model: Model | None = None, layers: int = 6) -> LanguageModel:
    """A random Llama of 64 letters; ``.`` ends its answers, ``,`` the user's turn."""
    tokenizer = letters()
    tokenizer.chat_template = TEMPLATE
    tokenizer.eos_token = "."
    model = model or NativeModel(tiny_llama(seed, layers=layers))
    return LanguageModel(model, tokenizer, methods.build("plain", model), "tiny")


def texts(count: int, seed: int = 0) -> list[str]:
    """Prompts of a few random words."""
    rng = random.Random(seed)
    return [
        " ".join("".join(rng.choices("abcdefgh", k=3)) for _ in range(rng.randint(3, 9)))
        for _ in range(count)
    ]


def prompt_file(folder: Path, count: int = 40) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts(count)))
    return str(path)


def data_options(file: str, **chosen: object) -> DataOptions:
    """Small ones, with prompts of a file alone."""
    usual = {
        "layers": (2, 3, 6),
        "sets": (),
        "files": (file,),
        "max_answer_tokens": 24,
        "max_prompt_tokens": 48,
        "prompts_per_shard": 4,
    }
    return DataOptions(**{**usual, **chosen})  # type: ignore[arg-type]
