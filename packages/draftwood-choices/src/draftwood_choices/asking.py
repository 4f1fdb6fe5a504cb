"""Prompts as models of texts are asked them."""

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
