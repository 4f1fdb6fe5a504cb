"""Prompts as models of texts are asked them, and texts of answers behind them."""

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


def text_of(lm: "LanguageModel", tokens: Sequence[int], behind: Sequence[int]) -> str:
    """Text of an answer; the tokens before it decide whether it begins with a space."""
    from draftwood.text.builder import TextBuilder

    builder = TextBuilder(lm.tokenizer, behind=behind)
    builder.add(tokens)
    builder.finish()
    return builder.text
