"""A tokenizer of the ``tokenizers`` package, with its special tokens and its chat template."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import tokenizers

from draftwood.tokenizer.chat_template import DEFAULT, chosen, render

SETTINGS, WHOLE = "tokenizer_config.json", "tokenizer.json"
TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
"""A model's template, and the folder of its further ones."""

NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Special tokens that have a name in every tokenizer."""

UNKNOWN_SPLIT = "unknown_split"
"""Setting of a tokenizer that is split as GPT-2's for want of a better way: the name that its file
has for its own, empty where it has none."""

LONG = 4_096
"""Characters of a text from which on tokenizing it keeps no other Python thread waiting."""

CLASS = "TokenizersBackend"
"""Transformers' name of what reads a tokenizer.json as it is."""

DROPPED = {
    *("chat_template", "added_tokens_decoder", "additional_special_tokens", "auto_map"),
    *("add_bos_token", "add_eos_token"),  # tokenizer.json says both
}
"""Settings that are not saved: other files hold what they said."""

ENGLISH = [(" " + end, end) for end in (".", "?", "!", ",")] + [(" ' ", "'")]
ENGLISH += [(" " + end, end) for end in ("n't", "'m", "'s", "'ve", "'re")]


class Encoding(dict[str, Any]):
    """Tokens of a text, or of several: ``input_ids`` and, of ones alone, ``attention_mask``."""

    @property
    def input_ids(self) -> Any:
        """Ids of the tokens."""
        return self["input_ids"]

    @property
    def attention_mask(self) -> Any:
        """A one for each token."""
        return self["attention_mask"]


class _Named:
    """Special token of a name, as text; None where there is none."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, tokenizer: "Tokenizer", owner: type) -> str | None:
        return tokenizer.special_tokens_map.get(self._name)

    def __set__(self, tokenizer: "Tokenizer", token: str | None) -> None:
        tokenizer.special_tokens_map.pop(self._name, None)
        if token is not None:
            tokenizer.special_tokens_map[self._name] = token


class _Id:
    """Id of the special token of a name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name.removesuffix("_id")

    def __get__(self, tokenizer: "Tokenizer", owner: type) -> int | None:
        token = tokenizer.special_tokens_map.get(self._name)
        return None if token is None else tokenizer.convert_tokens_to_ids(token)


class Tokenizer:
    """Encodes and decodes as Transformers' fast tokenizers do, and writes chats.

    Args:
        backend: the tokenizer itself; it encodes whole texts, without padding.
        special: special tokens by their names, ``bos_token`` for one; they are in the vocabulary.
        extra: further ones, without names.
        chat_template: in Jinja, or several by name.
        settings: of a tokenizer_config.json, which ``save`` keeps.

    Attributes:
        backend_tokenizer: as given.
        special_tokens_map: as given.
    """

    bos_token, eos_token, pad_token, unk_token = _Named(), _Named(), _Named(), _Named()
    bos_token_id, eos_token_id, pad_token_id, unk_token_id = _Id(), _Id(), _Id(), _Id()
    fim_prefix_token_id, fim_suffix_token_id, fim_middle_token_id = _Id(), _Id(), _Id()

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: Mapping[str, str] | None = None,
        extra: Iterable[str] = (),
        chat_template: str | Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend_tokenizer = backend
        self.special_tokens_map = dict(special or {})
        self.extra_special_tokens = list(extra)
        self.chat_template, self._settings = chat_template, dict(settings or {})

    def __call__(
        self, text: str | Sequence[str], /, *, add_special_tokens: bool = True, verbose: bool = True
    ) -> Encoding:
        """Encode a text, or each of several.

        Args:
            add_special_tokens: whether to put those around it that belong to a text of its own.
            verbose: as Transformers takes it; nothing is said either way.
        """
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return Encoding(input_ids=ids, attention_mask=[1] * len(ids))
        found = self.backend_tokenizer.encode_batch(
            list(text), add_special_tokens=add_special_tokens
        )
        rows = [each.ids for each in found]
        return Encoding(input_ids=rows, attention_mask=[[1] * len(row) for row in rows])

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    def __bool__(self) -> bool:
        return True

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a text; other Python threads run meanwhile if it is a long one."""
        if len(text) < LONG:
            return self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        batch = self.backend_tokenizer.encode_batch_fast
        (found,) = batch([text], add_special_tokens=add_special_tokens)
        return found.ids

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        """Text of tokens.

        Args:
            token_ids: of one text: numbers, a single one, or an array.
            skip_special_tokens: whether to leave them out.
            clean_up_tokenization_spaces: whether to join words and signs that the tokenizer parted,
                in English; None as it was saved. BPE parts none.
        """
        numbers = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        numbers = [numbers] if isinstance(numbers, int) else list(numbers)
        text = self.backend_tokenizer.decode(numbers, skip_special_tokens=skip_special_tokens)
        clean = clean_up_tokenization_spaces
        clean = self._settings.get("clean_up_tokenization_spaces") if clean is None else clean
        return self._joined(text) if clean else text

    def _joined(self, text: str) -> str:
        if type(self.backend_tokenizer.model).__name__ != "BPE":
            for parted, joined in ENGLISH:
                text = text.replace(parted, joined)
        return text

    def get_vocab(self) -> dict[str, int]:
        """Ids of all tokens, added ones among them."""
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    @overload
    def convert_ids_to_tokens(self, ids: int, /) -> str | None: ...
    @overload
    def convert_ids_to_tokens(self, ids: Iterable[int], /) -> list[str | None]: ...
    def convert_ids_to_tokens(self, ids: int | Iterable[int], /) -> Any:
        """Tokens of these ids as the vocabulary writes them; None where it has none."""
        if isinstance(ids, int):
            return self.backend_tokenizer.id_to_token(ids)
        return [self.backend_tokenizer.id_to_token(int(number)) for number in ids]

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """Id of a token as the vocabulary writes it; that of ``unk_token`` where it has none."""
        found = self.backend_tokenizer.token_to_id(token)
        if found is None and (unknown := self.unk_token) is not None:
            return self.backend_tokenizer.token_to_id(unknown)
        return found

    @property
    def added_tokens_decoder(self) -> dict[int, tokenizers.AddedToken]:
        """Tokens that are found in a text before it is split, by id."""
        return self.backend_tokenizer.get_added_tokens_decoder()

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of the special tokens, those with names first."""
        tokens = dict.fromkeys([*self.special_tokens_map.values(), *self.extra_special_tokens])
        found = map(self.convert_tokens_to_ids, tokens)
        return [number for number in found if number is not None]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_dict: bool = True,
        **names: Any,
    ) -> Any:
        """Write messages in the model's template.

        Args:
            conversation: messages with role and content.
            tools: that the model may call, as JSON schemas.
            chat_template: another one, or the name of one of several.
            add_generation_prompt: whether to begin the answer.
            tokenize: False returns the text.
            return_dict: False returns the tokens alone.
            names: what the template may ask for.

        Raises:
            ValueError: without messages, and without a template.
            jinja2.TemplateError: where the template refuses the chat.
        """
        if not conversation:
            raise ValueError("a chat has at least one message, and here is none")
        names = {**self.special_tokens_map, "documents": None, **names}
        names["add_generation_prompt"] = add_generation_prompt
        text = render(self._template(chat_template, tools), conversation, tools, names)
        if not tokenize:
            return text
        found = self(text, add_special_tokens=False)
        return found if return_dict else found.input_ids

    def _template(self, given: str | None, tools: object) -> str:
        known = self.chat_template
        if given:
            return known.get(given, given) if isinstance(known, Mapping) else given
        found = chosen(known, tools is not None)
        if found is None and isinstance(known, Mapping):
            raise ValueError(
                f"the model has no default chat template but {', '.join(sorted(known))}; name one"
                " of them as chat_template"
            )
        if found is None:
            raise ValueError("the model has no chat template; give one as chat_template")
        return found

    def save(self, folder: str | Path) -> None:
        """Write the files that ``open_tokenizer`` and Transformers read."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        settings = {key: each for key, each in self._settings.items() if key not in DROPPED}
        settings |= self.special_tokens_map | {"tokenizer_class": CLASS}
        if self.extra_special_tokens:
            settings["extra_special_tokens"] = self.extra_special_tokens
        told = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
        (folder / SETTINGS).write_text(told + "\n", encoding="utf-8")
        whole = _with_short_merges(self.backend_tokenizer.to_str())
        (folder / WHOLE).write_text(whole, encoding="utf-8", newline="")
        known = self.chat_template or {}
        known = {DEFAULT: known} if isinstance(known, str) else known
        for name, template in known.items():
            _place(folder, name).write_text(template, encoding="utf-8", newline="")

    save_pretrained = save


def _with_short_merges(told: str) -> str:
    """The JSON of a tokenizer with a string in the place of each pair that merges.

    Reading it takes half of the memory and four fifths of the time. Pairs stay where a string
    would be split elsewhere, or taken for a header.
    """
    whole = json.loads(told)
    merges = [" ".join(pair) for pair in whole["model"].get("merges", ())]
    if merges and all(each.count(" ") == 1 and not each.startswith("#version") for each in merges):
        whole["model"]["merges"] = merges
    return json.dumps(whole, ensure_ascii=False)


def _place(folder: Path, name: str) -> Path:
    """File of a template of this name."""
    if name == DEFAULT:
        return folder / TEMPLATE
    place = folder / TEMPLATES / f"{name}.jinja"
    if place.resolve().parent != (folder / TEMPLATES).resolve():
        raise ValueError(f"the chat template's name {name!r} is no name of a file; rename it")
    place.parent.mkdir(exist_ok=True)
    return place
