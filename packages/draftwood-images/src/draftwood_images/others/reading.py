"""Folders of Transformers' models that draw."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from draftwood_images.drawing_model import DrawingModel
from draftwood_images.others import chameleon as of_chameleon
from draftwood_images.others import emu3 as of_emu3
from draftwood_images.others import janus as of_janus


@dataclass(frozen=True, eq=False)
class ReadFolder:
    """A model of Transformers as its folder has it.

    Attributes:
        name: as its user named it.
        hf_model: the model.
        tokenizer: of its words.
    """

    name: str
    hf_model: Any
    tokenizer: Any

    def token(self, *names: str) -> int:
        """Id of the first of these tokens that the tokenizer has.

        Raises:
            ValueError: where it has none.
        """
        known = self.tokenizer.get_vocab()
        given = (getattr(self.tokenizer, name, name) for name in names)
        found = next((known[each] for each in given if each in known), None)
        if found is None:
            raise ValueError(
                f"the tokenizer of {self.name} has none of {', '.join(names)}, for a picture;"
                " fetch the model's own tokenizer"
            )
        return found

    def tokens(self, text: str) -> list[int]:
        """Tokens of a text, with what begins one."""
        return list(self.tokenizer(text)["input_ids"])


def emu3(folder: ReadFolder) -> DrawingModel:
    """Emu3 with the prompt of its processor: bos token, name, opener, size.

    Raises:
        ValueError: for a tokenizer without a token that begins a text or a picture.
    """
    begin = folder.token("image_wrapper_token", "<|image token|>")
    opener, side = folder.token("boi_token", "<|image start|>"), of_emu3.SIDE
    size = [opener, *folder.tokenizer(f"{side}*{side}", add_special_tokens=False)["input_ids"]]
    bos = folder.token("bos_token")

    def begun(name: str) -> list[int]:
        tokens = folder.tokens(name)
        return [*([] if tokens[:1] == [bos] else [bos]), *tokens, *size]

    def prompt(name: str) -> list[int]:
        return [*begun(name), begin]

    instead = tuple(begun(""))
    return of_emu3.emu3(folder.name, folder.hf_model, prompt, instead, begin)


def janus(folder: ReadFolder) -> DrawingModel:
    """Janus with its chat template, where it has one."""
    begin, tokenizer = folder.token("boi_token", "<begin_of_image>"), folder.tokenizer

    def prompt(name: str) -> list[int]:
        text = name
        if getattr(tokenizer, "chat_template", None):
            talk = [{"role": "user", "content": [{"type": "text", "text": name}]}]
            text = tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False)
        return [*folder.tokens(text), begin]

    bos, pad = tokenizer.bos_token_id, tokenizer.pad_token_id
    if bos is None or pad is None:
        raise ValueError(
            f"the tokenizer of {folder.name} names no bos and pad token; fetch its own"
        )
    return of_janus.janus(folder.name, folder.hf_model, prompt, begin, pad, bos)


def chameleon(folder: ReadFolder) -> DrawingModel:
    """Chameleon with a name and what opens a picture."""
    begin = folder.token("boi_token", "<racm3:break>")

    def prompt(name: str) -> list[int]:
        return [*folder.tokens(name), begin]

    instead = tuple(folder.tokens(""))
    return of_chameleon.chameleon(folder.name, folder.hf_model, prompt, instead, begin)


KINDS: Mapping[str, tuple[str, Callable[[ReadFolder], DrawingModel]]] = {
    "emu3": ("Emu3ForConditionalGeneration", emu3),
    "janus": ("JanusForConditionalGeneration", janus),
    "chameleon": ("ChameleonForConditionalGeneration", chameleon),
}
"""By kind of model: Transformers' class, and what makes it draw."""


def open_folder(folder: Path, name: str, kind: str, dtype: str) -> DrawingModel:
    """Load a model of Transformers that draws.

    Args:
        folder: of the model.
        name: as its user named it.
        kind: one of ``KINDS``.
        dtype: of its weights, or ``auto``.

    Raises:
        ValueError: for a folder that Transformers cannot read.
    """
    kind_of_model, make = KINDS[kind]
    try:
        model = getattr(transformers, kind_of_model).from_pretrained(folder, dtype=dtype)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder} cannot be read by Transformers: {error}") from error
    return make(ReadFolder(name, model.eval(), tokenizer))
