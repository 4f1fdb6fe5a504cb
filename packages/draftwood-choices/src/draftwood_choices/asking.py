"""Prompts as models of texts are asked them, and answers behind them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel
    from draftwood_bench.plan.prompt import Prompt


def asked_of(prompt: "Prompt", lm: "LanguageModel") -> Any:
    """A prompt's first turn as a model takes it: a chat where it has a chat template.

    A passage whose next word is asked for stays a text; it is read with ``raw``.
    """
    is_text = lm.tokenizer.chat_template is None or prompt.next_word is not None
    return prompt.turns[0] if is_text else prompt.messages(())


def read_behind(
    lm: "LanguageModel", asked: Any, text: str, raw: bool
) -> tuple[list[int], list[int]]:
    """Tokens of what a model is asked, and those of an answer behind it.

    An answer that goes on with a text is read as one with it; a token that holds an end of what was
    asked and a beginning of the answer counts among the answer's.
    """
    before = lm.encode(asked, raw)
    if not lm.text_before(before, raw):
        return before, list(lm.tokenizer(text, add_special_tokens=False)["input_ids"])
    whole = lm.encode(asked + text, raw)
    same = max(1, alike(before, whole))  # nothing predicts a first token
    return whole[:same], whole[same:]


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the tokens that two texts begin with alike."""
    same = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        same += 1
    return same


def text_of(lm: "LanguageModel", tokens: Sequence[int], behind: Sequence[int]) -> str:
    """Text of an answer; the tokens before it decide whether it begins with a space."""
    from draftwood.text.builder import TextBuilder

    builder = TextBuilder(lm.tokenizer, behind=behind)
    builder.add(tokens)
    builder.finish()
    return builder.text
