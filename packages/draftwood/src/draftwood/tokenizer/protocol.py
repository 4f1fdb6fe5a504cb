"""The part of a tokenizer that draftwood uses."""

from collections.abc import Mapping
from typing import Any, Protocol


class AnyTokenizer(Protocol):
    """A tokenizer of draftwood or of Transformers.

    Attributes:
        chat_template: in Jinja, or several by name; None where the model knows no chats.
    """

    chat_template: Any

    def __call__(
        self, text: Any, /, *, add_special_tokens: bool = True, verbose: bool = True
    ) -> Any:
        """Encode a text, or each of several, to a mapping whose ``input_ids`` are the tokens."""
        ...

    def __len__(self) -> int: ...

    def decode(
        self,
        token_ids: Any,
        /,
        skip_special_tokens: bool = False,
        *,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> Any: ...

    def get_vocab(self) -> Mapping[str, int]: ...

    def convert_ids_to_tokens(self, ids: Any, /) -> Any: ...

    def apply_chat_template(
        self,
        conversation: Any,
        /,
        tools: Any = None,
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **names: Any,
    ) -> Any: ...

    def save_pretrained(self, folder: Any, /) -> Any: ...

    @property
    def all_special_ids(self) -> Any: ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...


def special_id(tokenizer: AnyTokenizer, name: str) -> int | None:
    """Id of a special token by its name in tokenizers' settings, ``eos`` for one; None without."""
    return getattr(tokenizer, f"{name}_token_id", None)
