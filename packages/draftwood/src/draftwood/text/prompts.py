"""Prompts: texts, messages, token ids.

It is a text, messages, or token ids in the forms in which Transformers gives them.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from draftwood.arrays import Float
from draftwood.models.model import Model
from draftwood.models.verified import PredictedText
from draftwood.tokenizer.chat_template import FAILURES, chosen, names_in
from draftwood.tokenizer.protocol import AnyTokenizer
from draftwood.validation import require_whole

if TYPE_CHECKING:
    from draftwood.grammar.tools import Tool, ToolChoice
    from draftwood.text.embeddings import EmbeddingTask
    from draftwood.text.thoughts import Thought

Message = Mapping[str, Any]
NO_NAMES: Mapping[str, Any] = MappingProxyType({})
Prompt = str | Sequence[Message]


class TokenTensor(Protocol):
    """An array of another package than NumPy, for instance PyTorch."""

    @property
    def shape(self) -> Any: ...

    def tolist(self) -> Any: ...


Tokens = Sequence[int] | Mapping[str, Any] | np.ndarray | TokenTensor
"""Tokens of one text: numbers, an array [tokens] or [1 tokens], or a tokenizer's output."""

KINDS = "a prompt is a text, a list of messages with role and content, or the token ids of one text"


def token_ids(prompt: object) -> list[int] | None:
    """The tokens of a prompt that is made of token ids; None for a text or messages.

    Token ids come as a sequence, a tensor or an array [tokens] or [1 tokens], or as what
    ``tokenizer(...)`` and ``apply_chat_template(tokenize=True)`` give, whose padding is left out.

    Raises:
        TypeError: for anything else.
        ValueError: for more than one text.
    """
    if isinstance(prompt, Mapping):
        return _of_encoding(prompt)
    if isinstance(prompt, (bytes, bytearray, memoryview)):
        raise TypeError("the prompt is bytes, not text; decode it first: prompt.decode('utf-8')")
    if (rows := getattr(prompt, "tolist", None)) and hasattr(prompt, "shape"):
        return _of_rows(rows())  # a tensor or an array
    if (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and not isinstance(next(iter(prompt), 0), Mapping)
    ):
        return _of_rows(list(prompt))
    return None


def several_prompts(prompt: object) -> list[Any] | None:
    """The prompts of a batch, a list of texts or of lists; None for a single prompt.

    Raises:
        TypeError: for a list that mixes texts, lists of messages and lists of token ids.
        ValueError: for an empty list.
    """
    if not isinstance(prompt, (list, tuple)):
        return None
    if not prompt:
        raise ValueError("the list of prompts is empty; give at least one prompt")
    kinds = {_kind(each) for each in prompt}
    if kinds <= {"a message", "a token id"}:
        return None
    if len(kinds) > 1:
        raise TypeError(
            f"the list mixes {' and '.join(sorted(kinds))}; a batch holds prompts of one kind:"
            " texts, lists of messages, or lists of token ids"
        )
    return list(prompt)


def _kind(entry: object) -> str:
    if isinstance(entry, str):
        return "texts"
    if isinstance(entry, Mapping):
        return "lists of token ids" if "input_ids" in entry else "a message"
    if isinstance(entry, (list, tuple)):
        first = next(iter(entry), None)
        return "lists of messages" if isinstance(first, Mapping) else "lists of token ids"
    return "lists of token ids" if getattr(entry, "shape", ()) else "a token id"


def _of_encoding(encoding: Mapping[Any, Any]) -> list[int]:
    if "input_ids" not in encoding:
        cure = (
            "put a single message in a list: [message]"
            if "role" in encoding
            else "it must have input_ids"
        )
        raise TypeError(f"{KINDS}, got a mapping with {', '.join(map(repr, encoding))}; {cure}")
    tokens, mask = token_ids(encoding["input_ids"]), encoding.get("attention_mask")
    if tokens is None:
        raise TypeError(f"input_ids must be token ids, got {encoding['input_ids']!r:.60}")
    kept = tokens if mask is None else token_ids(mask)
    if kept is None or len(kept) != len(tokens):
        raise ValueError(
            f"attention_mask must say of each of {len(tokens)} tokens whether it counts, got"
            f" {mask!r:.60}"
        )
    return (
        tokens
        if mask is None
        else [token for token, seen in zip(tokens, kept, strict=True) if seen]
    )


def _of_rows(rows: Any) -> list[int]:
    """The tokens of a list [tokens] or [1 tokens]."""
    rows = rows if isinstance(rows, list) else [rows]
    if rows and isinstance(rows[0], (list, tuple)):
        if len(rows) > 1:
            raise ValueError(
                f"the prompt holds {len(rows)} texts; give generate a list of prompts, or one of"
                " them"
            )
        rows = list(rows[0])
    if all(type(token) is int for token in rows):  # as tokenizers give them, thousands of them
        return list(rows)
    for token in rows:
        require_whole("each token of the prompt", token, f"a whole number ({KINDS})")
    return [int(token) for token in rows]


def plain_messages(prompt: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates read them, their contents as one text each.

    Raises:
        TypeError: for what is no message.
        ValueError: for parts of a content that are no text.
    """
    messages = []
    for number, message in enumerate(prompt):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TypeError(
                f"message {number} must be a dict with role and content, got {message!r:.80}"
            )
        content = message.get("content")
        if isinstance(content, (list, tuple)):
            content = "\n".join(_text_of(part, number) for part in content)
        elif content is None and not message.get("tool_calls"):
            raise TypeError(
                f"message {number} has no content; give it a text, empty where nothing is said,"
                f" got {message!r:.80}"
            )
        elif content is not None and not isinstance(content, str):  # a call of a tool has none
            raise TypeError(f"the content of message {number} must be text, got {content!r:.80}")
        require_characters(content or "", f"the content of message {number}")
        calls = message.get("tool_calls") or ()
        if not isinstance(calls, Sequence) or not all(isinstance(each, Mapping) for each in calls):
            raise TypeError(
                f"tool_calls of message {number} must be a list of dicts, got {calls!r:.80}"
            )
        role = "system" if message["role"] == "developer" else message["role"]
        messages.append({**message, "role": role, "content": content})
    return messages


def _text_of(part: object, number: int) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if not isinstance(part, Mapping) or kind != "text" or not isinstance(part.get("text"), str):
        raise ValueError(
            f"message {number} has a part of type {kind!r}; only parts of type 'text' can be read"
        )
    return part["text"]


class ChatTemplateError(ValueError):
    """Raised where a chat template does not write a chat."""


def encode_chat(
    tokenizer: AnyTokenizer,
    messages: Sequence[Mapping[str, Any]],
    tools: "Sequence[Tool]" = (),
    choice: "ToolChoice | None" = None,
    names: Mapping[str, Any] = NO_NAMES,
) -> list[int]:
    """Token ids of messages in the tokenizer's chat template, with the answer begun.

    Args:
        tools: that the answer may call. A template that does not tell of them in the form in which
            calls are read finds them in the system message, or in the first question where it
            leaves that out or refuses it.
        choice: whether they are to be called; None leaves it to the model.
        names: what the template may ask for.

    Raises:
        ChatTemplateError: for a template that cannot be read, or refuses the messages.
        ValueError: for half a character in the messages or the tools, and for other names than
            the template asks for.
    """
    from draftwood.grammar import tools as grammar

    require_names(tokenizer, names)
    choice = choice or grammar.ToolChoice("auto" if tools else "none")
    plain = plain_messages(messages)
    told = [tool.as_json() for tool in tools if choice.mode != "none"] or None
    if grammar.template_tells_tools(chosen(tokenizer.chat_template, told is not None)):
        plain = [grammar.with_read_arguments(message) for message in plain]
        text = _in_template(tokenizer, plain, names, told)
    else:
        text = _with_note(tokenizer, plain, tools, choice, names)
    require_characters(text, "the chat")
    return encode_text(tokenizer, text, add_special_tokens=False)


def require_names(tokenizer: AnyTokenizer, names: Mapping[str, Any]) -> None:
    """Raise ValueError for a name that the chat template does not ask for."""
    known = names_in(tokenizer.chat_template) if names else frozenset[str]()
    if unknown := sorted({*names} - known):
        asked = f"it asks for {', '.join(sorted(known))}" if known else "it asks for none"
        raise ValueError(f"the model's chat template does not ask for {unknown[0]!r:.80}; {asked}")


def _with_note(
    tokenizer: AnyTokenizer,
    plain: Sequence[Mapping[str, Any]],
    tools: "Sequence[Tool]",
    choice: "ToolChoice",
    names: Mapping[str, Any],
) -> str:
    """Messages that tell of tools, as the system; as the user in templates that know no system."""
    from draftwood.grammar.tools import tools_note, with_tools

    is_told = bool(tools) and choice.mode != "none"
    try:
        text = _in_template(tokenizer, with_tools(plain, tools, choice), names)
        if not is_told or tools_note(tools, choice) in text:
            return text
    except ChatTemplateError:
        if not is_told or plain[0]["role"] == "system":
            raise
    return _in_template(tokenizer, with_tools(plain, tools, choice, "user"), names)


def _in_template(
    tokenizer: AnyTokenizer,
    messages: Sequence[Mapping[str, Any]],
    names: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    from jinja2 import TemplateError  # imported by what writes chats

    try:
        return str(
            tokenizer.apply_chat_template(
                messages, tools=tools, **names, tokenize=False, add_generation_prompt=True
            )
        )
    except (TemplateError, *FAILURES) as error:
        raise ChatTemplateError(
            "the model's chat template refuses these messages:"
            f" {str(error) or type(error).__name__}; a raw prompt needs none"
        ) from error


def encode_text(tokenizer: AnyTokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
    """Token ids of a text."""
    return list(tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])


def require_prompt(prompt: object) -> None:
    """Raise TypeError or ValueError for what is no prompt, and for an empty one.

    A prompt is a text or a list that may hold messages.
    """
    if not isinstance(prompt, (str, list, tuple)):
        raise TypeError(f"{KINDS}, got {type(prompt).__name__}")
    if not prompt:
        raise ValueError("the prompt is empty; give some text or at least one message")
    if isinstance(prompt, str):
        require_characters(prompt, "the prompt")


def predicted_text(tokenizer: AnyTokenizer, text: str | None) -> PredictedText | None:
    """A prediction as the engine takes it; None for no text or an empty one."""
    if not text:
        return None
    require_characters(text, "the prediction")
    return PredictedText(encode_text(tokenizer, text, add_special_tokens=False))


def require_characters(text: str, what: str) -> None:
    """Raise ValueError where a text holds half a character, which no tokenizer can read."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} holds a lone surrogate, U+{ord(text[error.start]):04X} at character"
            f" {error.start}: half of a character, or a byte that was no UTF-8; mend the text where"
            " it was decoded"
        ) from None


class ChatTemplate:
    """A tokenizer's chat template, and what it says of answers.

    Attributes:
        tokenizer: with the template.
    """

    tokenizer: AnyTokenizer

    def require_names(self, names: Mapping[str, Any]) -> None:
        """Raise ValueError for a name that the template does not ask for."""
        require_names(self.tokenizer, names)

    @property
    def template_names(self) -> frozenset[str]:
        """Names that the template may ask for, such as ``enable_thinking``."""
        return names_in(self.tokenizer.chat_template)

    @property
    def shown_tokens(self) -> Mapping[int, str]:
        """Special tokens in the tags of thoughts, which are part of an answer's text."""
        from draftwood.text.thoughts import shown_tokens

        return shown_tokens(self.tokenizer)

    def said(self, text: str, prompt: Sequence[int]) -> str:
        """Cut an answer to what later questions show: templates cut thoughts in tags off that are
        no special tokens.
        """
        thought = self.thought(prompt) if self.shown_tokens else None
        return text if thought is None else thought.said(text)

    def thought(self, prompt: Sequence[int]) -> "Thought | None":
        """Tags of a thought that an answer to a chat may begin with; None where it has none."""
        from draftwood.text.thoughts import Thought

        return Thought.of(self.tokenizer, prompt)


class TextEmbedder:
    """A model and a tokenizer that embed texts.

    Attributes:
        model: whose hidden states are taken.
        tokenizer: of the model.
    """

    model: Model
    tokenizer: AnyTokenizer

    def embed(
        self,
        texts: str | Sequence[str] | Sequence[Sequence[int]],
        pooling: str = "mean",
        normalize: bool = True,
    ) -> Float[np.ndarray, "texts width"]:
        """Embed texts: hidden states behind the final norm, in float32 [texts width].

        Args:
            texts: one, or several, or the token ids of several; no chat template is put around.
            pooling: ``mean`` of a text's states, or the ``last`` one.
            normalize: whether vectors have length 1.

        Raises:
            TypeError: for what is no text.
            ValueError: for texts that are empty or too long, and for another pooling.
        """
        task = self.embedding_task(texts, pooling)
        with closing(task):
            while not task.done:
                task.step()
        return task.unit_vectors() if normalize else task.vectors

    def embedding_task(
        self,
        texts: str | Sequence[str] | Sequence[Sequence[int]],
        pooling: str = "mean",
        truncate: bool = False,
    ) -> "EmbeddingTask":
        """Begin to embed texts, for who makes one pass at a time; see ``embed``.

        Args:
            truncate: cut texts that are longer than the model's context.
        """
        from draftwood.text.embeddings import EmbeddingTask

        return EmbeddingTask.of(self.model, self.tokenizer, texts, pooling, truncate)
