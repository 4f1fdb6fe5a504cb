"""Fill in the middle: a text between two others, where the model has tokens that say so."""

from collections.abc import Sequence
from dataclasses import dataclass

from draftwood.text.prompts import encode_text, require_characters
from draftwood.tokenizer.protocol import AnyTokenizer, special_id

PARTS = ("prefix", "suffix", "middle")
NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma, Granite 4
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    (
        "<\uff5cfim\u2581begin\uff5c>",
        "<\uff5cfim\u2581hole\uff5c>",
        "<\uff5cfim\u2581end\uff5c>",
    ),  # DeepSeek Coder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
)
"""Tokens before the text in front, the text behind and the answer."""
REPOSITORY = ("<|repo_name|>", "<repo_name>", "<reponame>")
FILE = ("<|file_sep|>", "<|file_separator|>", "<file_sep>")
PADDING = ("<|fim_pad|>", "<fim_pad>", "<fim-pad>")
ENDS = ("<|endoftext|>", "<|end_of_text|>")
"""Ends of a text that is no chat, which a model that was trained for chats may not count."""


@dataclass(frozen=True)
class OtherFile:
    """A file that is shown before the one that is written.

    Attributes:
        name: with its folder, or as the editor calls it.
        text: of the file or of a part of it.
    """

    name: str
    text: str


@dataclass(frozen=True)
class InfillTokens:
    """Tokens by which a model knows the parts of a text with a gap.

    Attributes:
        prefix: before the text in front of the gap.
        suffix: before the text behind it.
        middle: before what fills it.
        repository: before a repository's name; None without.
        file: before a file's name; None without.
        ends: tokens that end what fills the gap, besides the model's own.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int | None
    file: int | None
    ends: frozenset[int]

    @classmethod
    def of(cls, tokenizer: AnyTokenizer) -> "InfillTokens | None":
        """Find those of a tokenizer, by its settings or by their usual names; None without."""
        known = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
        told = [special_id(tokenizer, f"fim_{part}") for part in PARTS]
        if None in told:
            named = ([known.get(name) for name in names] for names in NAMES)
            told = next((found for found in named if None not in found), None)
        if told is None:
            return None
        repository, file = (_first(known, names) for names in (REPOSITORY, FILE))
        more = [*REPOSITORY, *FILE, *PADDING, *ENDS]
        ends = {known[name] for name in more if name in known} | set(told)
        return cls(*told, repository, file, frozenset(ends))  # type: ignore[arg-type]

    @classmethod
    def need(cls, tokenizer: AnyTokenizer, model: str) -> "InfillTokens":
        """Find those of a tokenizer.

        Raises:
            ValueError: where the model has none.
        """
        found = cls.of(tokenizer)
        if found is None:
            raise ValueError(
                f"{model} has no tokens for filling in the middle; take a model that was trained"
                " for it, such as qwen2.5-coder-1.5b; a completion without a suffix needs none"
            )
        return found


def _first(known: dict[str, int], names: Sequence[str]) -> int | None:
    return next((known[name] for name in names if name in known), None)


@dataclass(frozen=True)
class Gap:
    """Text around a gap besides what stands in front of it.

    Attributes:
        behind: text behind the gap.
        files: that may tell what is to be written, the most telling last.
        most: tokens beyond which files are left out, the first ones first, and then what is
            farthest from the gap; None leaves out nothing.
    """

    behind: str
    files: Sequence[OtherFile] = ()
    most: int | None = None

    def encode(self, tokenizer: AnyTokenizer, marks: InfillTokens, before: str) -> list[int]:
        """Token ids of the text with the gap, which the model goes on to fill.

        Other files come first, as Qwen2.5-Coder was trained on repositories (Hui et al. 2024,
        arXiv:2409.12186) and llama.cpp's server writes them; then prefix, suffix and middle
        (Bavarian et al. 2022, arXiv:2207.14255).
        """
        bos = special_id(tokenizer, "bos")
        opening = encode_text(tokenizer, "a")[:1]  # of a text of its own
        opening = opening if bos is not None and opening == [bos] else []
        front, back = _encoded(tokenizer, before), _encoded(tokenizer, self.behind)
        extra = self._extra(tokenizer, marks)
        if self.most is not None:
            room = max(0, self.most - 3 - len(opening))
            back = back[: max(room // 4, room - len(front))]
            front = front[max(0, len(front) + len(back) - room) :]
            extra = extra[max(0, len(extra) + len(front) + len(back) - room) :]
        return [*opening, *extra, marks.prefix, *front, marks.suffix, *back, marks.middle]

    def _extra(self, tokenizer: AnyTokenizer, marks: InfillTokens) -> list[int]:
        """Tokens of the other files."""
        tokens: list[int] = []
        if self.files and marks.repository is not None:
            tokens += [marks.repository, *_encoded(tokenizer, "repository\n")]
        for file in self.files:
            if marks.file is None:
                tokens += _encoded(tokenizer, f"\n\n--- snippet ---\n\n{file.text}")
            else:
                tokens += [marks.file, *_encoded(tokenizer, f"{file.name}\n{file.text}")]
        if self.files and marks.file is not None:
            tokens += [marks.file, *_encoded(tokenizer, "file\n")]
        return tokens


def _encoded(tokenizer: AnyTokenizer, text: str) -> list[int]:
    require_characters(text, "the text around the gap")
    return encode_text(tokenizer, text, add_special_tokens=False)
