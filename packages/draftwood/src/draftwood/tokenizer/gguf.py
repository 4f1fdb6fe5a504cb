"""Make the tokenizer that a GGUF file's metadata describes.

A file has the vocabulary, merges or scores, and special tokens. What else a tokenizer does follows
from its kind: byte-level BPE (``gpt2``), or BPE over characters with bytes for what has no token
(``llama``, ``gemma4``), as SentencePiece trains it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import (
    Tokenizer as Backend,
)

from draftwood.tokenizer.gguf_splits import USUAL_SPLITS, split, unknown_split
from draftwood.tokenizer.gguf_vocabulary import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    StoredVocabulary,
    read_vocabulary,
)
from draftwood.tokenizer.pieces import BLANK, to_text
from draftwood.tokenizer.tokenizer import Tokenizer


class UnknownKindError(ValueError):
    """Raised for a kind of tokenizer that is not read here; the file may be sound."""


def tokenizer_of_gguf(path: Path, architecture: str, rows: int | None = None) -> Tokenizer:
    """Make the tokenizer of a GGUF file.

    Args:
        path: the file, or the first of its parts.
        architecture: llama.cpp's name of the model's.
        rows: of its embedding; None takes as many as there are tokens.

    A file whose way to split text is not known is split as GPT-2's; ``open_tokenizer`` warns of it
    whenever it reads what this tokenizer saved.

    Raises:
        UnknownKindError: for a kind of tokenizer that is not known.
        ValueError: for a damaged one, and for tokens of texts beyond the rows.
    """
    try:
        return _made(read_vocabulary(path).within(rows), architecture)
    except (ValueError, OSError, MemoryError):
        raise
    except KeyError as error:
        raise ValueError(f"its tokenizer is damaged (it has no {error})") from error
    except Exception as error:  # the package's own errors have no type
        raise ValueError(f"its tokenizer is damaged ({error!r:.200})") from error


def _made(vocabulary: StoredVocabulary, architecture: str) -> Tokenizer:
    is_gemma = vocabulary.kind == "llama" and architecture in GEMMA
    build = _gemma if is_gemma else BY_KIND.get(vocabulary.kind)
    if build is None:
        raise UnknownKindError(
            f"its tokenizer is of the kind {vocabulary.kind!r}; readable are {', '.join(BY_KIND)}"
        )
    usual = {"pre": USUAL_SPLITS.get(architecture)}
    vocabulary = replace(vocabulary, told={**usual, **vocabulary.told})
    backend, special = build(vocabulary), vocabulary.special()
    if architecture in GEMMA and backend.token_to_id("<mask>") is not None:
        special["mask_token"] = "<mask>"
    strips = (architecture, vocabulary.kind) == ("phi3", "llama")
    _add_tokens(backend, vocabulary, special.values(), strips)
    backend.post_processor = _around(backend, vocabulary, special)
    settings = unknown_split(vocabulary.told["pre"]) if vocabulary.kind == "gpt2" else {}
    return Tokenizer(backend, special, (), vocabulary.chat_template, settings)


def _byte_level(vocabulary: StoredVocabulary) -> Backend:
    """BPE over bytes, which the vocabulary spells in GPT-2's alphabet."""
    whole = {*vocabulary.of_type(CONTROL), *vocabulary.of_type(USER_DEFINED)}
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    tokens = {
        token if token in whole or alphabet.issuperset(token) else _spelled(token): number
        for number, token in enumerate(vocabulary.tokens)
    }
    merges = _merges(vocabulary.told, vocabulary.tokens)
    whole_first = vocabulary.told.get("pre") in (*LIKE_LLAMA_3, *TOKENS_FIRST)
    more: Any = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    made = Backend(models.BPE(tokens, merges, ignore_merges=whole_first, **more))
    made.pre_tokenizer = split(vocabulary.told.get("pre"))
    made.decoder = decoders.ByteLevel()
    return made


def _spelled(token: str) -> str:
    """A token in GPT-2's alphabet of bytes."""
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(piece for piece, _ in whole.pre_tokenize_str(token))


def _pieces(vocabulary: StoredVocabulary) -> Backend:
    """BPE over characters, as Llama's, unless the file says no with one more blank before the text
    and before what follows a special token, though these begin with a blank: llama.cpp and
    SentencePiece encode such parts apart.
    """
    unknown = vocabulary.special().get("unk_token") or next(iter(vocabulary.of_type(UNKNOWN)), None)
    made = _character_level(vocabulary.told, vocabulary.tokens, unknown)
    has_blank = vocabulary.told.get("add_space_prefix", True)
    front = [normalizers.Prepend(BLANK)] if has_blank else []
    made.normalizer = normalizers.Sequence([*front, normalizers.Replace(" ", BLANK)])
    strip = [decoders.Strip(" ", left=1)] if has_blank else []
    made.decoder = decoders.Sequence([*to_text(), *strip])
    return made


def _gemma(vocabulary: StoredVocabulary) -> Backend:
    """The same without a blank in front; a file writes runs of blanks as they are.

    Tokens merge in the order of their ids, which the scores do not follow.
    """
    tokens = [
        BLANK * len(token) if " " in token and not token.strip() else token
        for token in vocabulary.tokens
    ]
    ranks = {token: -number for number, token in enumerate(tokens)}
    return _without_front(vocabulary.told, tokens, ranks)


def _gemma4(vocabulary: StoredVocabulary) -> Backend:
    """The same for a file that has its merges."""
    return _without_front(vocabulary.told, vocabulary.tokens)


def _without_front(
    told: Mapping[str, Any], tokens: Sequence[str], ranks: Mapping[str, float] | None = None
) -> Backend:
    made = _character_level(told, tokens, "<unk>", ranks)
    made.normalizer = normalizers.Replace(" ", BLANK)
    made.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    made.decoder = decoders.Sequence(to_text())
    return made


def _character_level(
    told: Mapping[str, Any],
    tokens: Sequence[str],
    unknown: str | None = None,
    ranks: Mapping[str, float] | None = None,
) -> Backend:
    numbers = {token: number for number, token in enumerate(tokens)}
    merges = _merges(told, tokens, ranks)
    return Backend(
        models.BPE(numbers, merges, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    )


def _merges(
    told: Mapping[str, Any], tokens: Sequence[str], ranks: Mapping[str, float] | None = None
) -> list[tuple[str, str]]:
    """Merges of the file, or those that its vocabulary implies."""
    if "merges" in told:
        return [tuple(merge.split(" ")) for merge in told["merges"]]
    return implied_merges(tokens, ranks or dict(zip(tokens, told["scores"], strict=False)))


def implied_merges(tokens: Sequence[str], ranks: Mapping[str, float]) -> list[tuple[str, str]]:
    """All ways to make tokens of two others, the tokens of the highest ranks first.

    Ways to make one token come with the longest left part first; equal ranks keep their order.
    """
    numbers = {token: number for number, token in enumerate(tokens)}
    found: list[tuple[float, int, int, str, str]] = []
    for token, rank in ranks.items():
        lefts = (token[:end] for end in range(1, len(token)))
        ways = [
            (left, right)
            for left in lefts
            if left in numbers and (right := token[len(left) :]) in numbers
        ]
        if len(ways) > 1:
            ways.sort(key=lambda way: (numbers[way[0]], numbers[way[1]]))
        found += [(rank, len(left), len(right), left, right) for left, right in ways]
    found.sort(key=itemgetter(0, 1, 2), reverse=True)
    return [way[3:] for way in found]


def _add_tokens(
    backend: Backend, vocabulary: StoredVocabulary, special: Iterable[str], strips: bool = False
) -> None:
    """Make tokens be found before a text is split: control tokens, and those of the user, of
    which ends of turns count as control tokens.

    Args:
        strips: whether control tokens take the blanks behind them, as those of turns in Phi 3 do.
    """
    here = backend.get_vocab()
    own, turns = vocabulary.of_type(USER_DEFINED), vocabulary.turn_ends()
    ends = [token for token in own if token in turns]
    control = dict.fromkeys([*vocabulary.of_type(CONTROL), *special, *ends])
    backend.add_tokens(
        [
            AddedToken(each, normalized=False, special=True, rstrip=strips and each not in KEEPING)
            for each in control
            if each in here
        ]
        + [
            AddedToken(each, normalized=False, special=False)
            for each in own
            if each in here and each not in control
        ]
    )


def _around(backend: Backend, vocabulary: StoredVocabulary, special: Mapping[str, str]) -> Any:
    """Special tokens around a text.

    Files of SentencePiece's kind have a first token where they do not say otherwise, and Gemma 4's
    whatever they say, as in llama.cpp.
    """
    told, kind = vocabulary.told, vocabulary.kind
    wanted = {
        "bos": kind == "gemma4"
        or told.get("add_bos_token", kind == "llama" or told.get("pre") in LIKE_LLAMA_3),
        "eos": told.get("add_eos_token", False),
    }
    tokens = {name: special.get(f"{name}_token") for name, is_added in wanted.items() if is_added}
    bos, eos = ([each] if (each := tokens.get(name)) else [] for name in ("bos", "eos"))
    both = [(token, backend.token_to_id(token)) for token in (*bos, *eos)]
    one = [
        [f"{token}:{row}" for token in (*bos, part, *eos)] for row, part in enumerate(("$A", "$B"))
    ]
    return processors.TemplateProcessing(single=one[0], pair=one[0] + one[1], special_tokens=both)


LIKE_LLAMA_3 = (
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
    *("jina-v5-nano", "tekken"),
)
"""Ways to split text whose files begin texts where they do not say otherwise, and whose words are
tokens whatever merges say; llama.cpp knows them by these names."""
TOKENS_FIRST = ("minicpm5", "youtu", "glm4", "glm5", "granite-embed-multi-97m")
"""Ways of the second kind alone."""
KEEPING = ("<s>", "<unk>", "<|endoftext|>")
"""Control tokens of Phi 3 that keep the blanks behind them."""
GEMMA = ("gemma", "gemma2", "gemma3")
BY_KIND: dict[str, Callable[[StoredVocabulary], Backend]] = {
    "gpt2": _byte_level,
    "llama": _pieces,
    "gemma4": _gemma4,
}
