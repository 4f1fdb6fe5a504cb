"""Ways to split a text before byte-level merges, by llama.cpp's names of them."""

import warnings
from typing import Any

from tokenizers import Regex, pre_tokenizers

from draftwood.tokenizer.tokenizer import UNKNOWN_SPLIT

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = TEKKEN.replace("]+|", "]+" + ENDING + "|", 1).replace("]*|", "]*" + ENDING + "|", 1)
GPT4O = GPT4O.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
SPLITS = {
    LLAMA3: (
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"),
        *("lfm2", "jina-v5-nano", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
    ),
    TEKKEN: ("tekken",),
    QWEN2: (
        *("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"),
        *("stablelm2", "hunyuan", "solar-open", "grok-2"),
    ),
    QWEN35: ("qwen35",),
    GPT4O: ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
}
"""Patterns that split a text before merges, with llama.cpp's names of those who use them."""

SINGLE_DIGITS = (
    *("smollm", "refact", "command-r"),
    *("starcoder", "codeshell", "exaone", "minerva-7b", "mellum2"),
)
"""Names of ways that split as GPT-2 does, and each digit from the next."""

AS_GPT2 = (
    *("default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"),
    *("exaone4", "gigachat", "a.x-4.0", "mellum", "modern-bert", "roberta-bpe"),
    *("jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"),
)
"""Names of ways that split as GPT-2 does, as files without a name are split."""

USUAL_SPLITS = {"gpt2": "gpt-2", "starcoder2": "starcoder"}
"""Ways of architectures all of whose models split the same way."""


def split(name: str | None) -> Any:
    """Pre-tokenizer of this name; GPT-2's for names that are not known, and for none."""
    if name in SINGLE_DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    pattern = next((pattern for pattern, names in SPLITS.items() if name in names), None)
    if pattern is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    parts = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([parts, letters])


def unknown_split(name: str | None) -> dict[str, str]:
    """The setting of a tokenizer whose way to split text has this name; none where it is known."""
    is_known = name in (*SINGLE_DIGITS, *AS_GPT2) or any(name in each for each in SPLITS.values())
    return {} if is_known else {UNKNOWN_SPLIT: name or ""}


def warn_of_split(name: str) -> None:
    """Warn of a way to split text that is not known, or has no name."""
    why = f"the file's way to split text, {name!r:.80}, is not known"
    if not name:
        why = "the file does not name its way to split text (tokenizer.ggml.pre)"
    warnings.warn(
        f"{why}: it is split as GPT-2's, and the model may read other tokens than it was trained"
        " on; take a newer file, or name the original model by its Hugging Face id",
        stacklevel=3,
    )
