"""Text that grows token by token, with tokenizers trained here."""

import json
import random
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from draftwood.text.builder import TAIL, TextBuilder

LINES = [
    "the quick brown fox jumps over the lazy dog, and the dog jumps back.",
    "once upon a time there was a little tree; the tree grew and grew.",
    "stop here, stop there, do not stop: the end of the story is the end.",
]
TEXTS = [
    "the quick tree",
    "  two spaces, then\n\n\ttabs ",
    "smile 😀😃 family 👩‍👩‍👧‍👦 flag 🇫🇷!",
    "naïve café — “quoted” 中文字符 русский العربية",
    "e\u0301 combining, 🤷🏽‍♀️ at the end 😀",
]
END = "<|end|>"


@cache
def byte_level() -> PreTrainedTokenizerBase:
    """As GPT-2 and Llama 3 have it: an emoji is up to four tokens of one byte each."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)


@cache
def sentence_pieces() -> PreTrainedTokenizerBase:
    """As Llama 2 and Mistral have it: words begin with a space that the first one loses; bytes for
    the unknown.
    """
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trained.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=150, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    others = [END, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {
        **learned["vocab"],
        **{token: number for number, token in enumerate(others, len(learned["vocab"]))},
    }
    merges = [tuple(merge) for merge in learned["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([END])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, unk_token="<unk>")


TOKENIZERS = {"byte-level": byte_level, "sentence-pieces": sentence_pieces}


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def decoded(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    return str(
        tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )


def blocks(tokens: Sequence[int], seed: int) -> Iterator[Sequence[int]]:
    """The tokens in blocks of random length, as tree decoding emits them; seed 0 gives one at a
    time.
    """
    chance, start = random.Random(seed), 0
    while start < len(tokens):
        size = chance.randrange(1, 7) if seed else 1
        yield tokens[start : start + size]
        start += size


def streamed(builder: TextBuilder, tokens: Sequence[int], seed: int = 0) -> list[str]:
    pieces = []
    for block in blocks(tokens, seed):
        builder.add(block)
        pieces.append(builder.new_text())
        if builder.stopped:
            break
    builder.finish()
    return [*pieces, builder.new_text(final=True)]


def one_letter_tokens(text: str) -> list[int]:
    return [token for letter in text for token in encoded(byte_level(), letter)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_add_up_to_the_text_and_never_show_half_a_character(
    name: str, text: str, seed: int
) -> None:
    tokenizer = TOKENIZERS[name]()
    tokens = encoded(tokenizer, text)
    builder = TextBuilder(tokenizer)
    pieces = streamed(builder, tokens, seed)
    assert "".join(pieces) == builder.text == decoded(tokenizer, tokens)
    assert builder.tokens == tokens
    assert not any("\ufffd" in piece for piece in pieces)
    if name == "byte-level":
        assert builder.text == text


@pytest.mark.parametrize("text", TEXTS)
def test_texts_that_go_on_within_a_character_lose_none(text: str) -> None:
    tokenizer, tokens = byte_level(), encoded(byte_level(), text)
    for cut in range(1, len(tokens)):
        before = TextBuilder(tokenizer)
        before.add(tokens[:cut])
        behind = TextBuilder(tokenizer, behind=tokens[:cut])
        for token in tokens[cut:]:
            behind.add([token])
        assert before.text + behind.text == text


def test_decoding_each_token_by_itself_would_be_noticed() -> None:
    """Negative control: these tokenizers need more than one token at a time."""
    assert "\ufffd" in "".join(
        decoded(byte_level(), [token]) for token in encoded(byte_level(), TEXTS[2])
    )
    pieces = sentence_pieces()
    assert any(
        token.startswith("▁t") for token in pieces.convert_ids_to_tokens(encoded(pieces, TEXTS[0]))
    )
    assert "".join(decoded(pieces, [token]) for token in encoded(pieces, TEXTS[0])) != TEXTS[0]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_text_that_goes_on_with_others_keeps_its_space(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]()
    tokens = encoded(tokenizer, LINES[0] + " " + text)
    lost = 0
    for place in range(1, len(tokens)):
        before = decoded(tokenizer, tokens[:place])
        if before.endswith("\ufffd"):  # in the middle of a character
            continue
        wanted = decoded(tokenizer, tokens)[len(before) :]
        builder = TextBuilder(tokenizer, behind=tokens[:place])
        assert "".join(streamed(builder, tokens[place:])) == wanted
        assert builder.tokens == tokens[place:]
        lost += "".join(streamed(TextBuilder(tokenizer), tokens[place:])) != wanted
    assert bool(lost) == (name == "sentence-pieces")  # control: without them spaces are lost


def test_an_unfinished_character_appears_only_at_the_end() -> None:
    tokens = encoded(byte_level(), "ok 😀")[:-1]
    builder = TextBuilder(byte_level())
    pieces = streamed(builder, tokens)
    assert "".join(pieces[:-1]) == "ok "
    assert pieces[-1] == "\ufffd"
    assert builder.text == decoded(byte_level(), tokens)


def test_bytes_that_never_become_a_character_do_not_hold_up_the_text() -> None:
    broken = encoded(byte_level(), "😀")[:2]
    tokens = [*encoded(byte_level(), "a"), *broken, *encoded(byte_level(), " and then the tree")]
    builder = TextBuilder(byte_level())
    builder.add(tokens)
    assert builder.new_text() == decoded(byte_level(), tokens)


@pytest.mark.parametrize("bytes_before", range(4))
def test_a_token_begins_behind_an_incomplete_character(bytes_before: int) -> None:
    broken = encoded(byte_level(), "😀")[:bytes_before]
    tokens = [*broken, *encoded(byte_level(), " and then"), *encoded(byte_level(), " the tree")]
    builder = TextBuilder(byte_level())
    starts = [builder.start_of(token) for token in tokens]
    assert builder.text == decoded(byte_level(), tokens)
    for place in range(len(broken), len(tokens)):
        assert starts[place] == len(decoded(byte_level(), tokens[:place]))


def test_special_tokens_are_counted_and_not_shown() -> None:
    end = byte_level().eos_token_id
    tokens = [*encoded(byte_level(), "the tree"), end, *encoded(byte_level(), " grew"), end]
    builder = TextBuilder(byte_level())
    assert "".join(streamed(builder, tokens)) == "the tree grew"
    assert builder.tokens == tokens


class Counting:
    """A tokenizer that counts the tokens which it decodes at a time."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer, self.counts, self.reads = tokenizer, list[int](), 0

    def __len__(self) -> int:
        return len(self.tokenizer)

    def decode(self, tokens: Sequence[int], **options: bool) -> str:
        self.counts.append(len(tokens))
        return str(self.tokenizer.decode(list(tokens), **options))

    @property
    def added_tokens_decoder(self) -> dict[int, object]:
        self.reads += 1
        return dict(self.tokenizer.added_tokens_decoder)


def waiting(tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    """Tokens after which text is waited for, however many come."""
    byte = encoded(tokenizer, "😀")[-1]
    return {"special": encoded(tokenizer, END), "of no text": [10_000], "bytes": [byte]}


@pytest.mark.parametrize("kind", ["special", "of no text"])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_that_bring_no_text_are_not_decoded_again_and_again(name: str, kind: str) -> None:
    tokenizer = TOKENIZERS[name]()
    many = waiting(tokenizer)[kind] * 400
    tree, counting = encoded(tokenizer, "the tree"), Counting(tokenizer)
    builder = TextBuilder(counting)  # type: ignore[arg-type]
    tokens = [*tree, *many, *tree, *many]
    pieces = streamed(builder, tokens)
    assert "".join(pieces) == builder.text == decoded(tokenizer, tokens)
    assert max(counting.counts) <= 4 * TAIL + 2
    assert len(counting.counts) < 7 * len(tokens)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_waits_the_text_is_that_of_all_tokens(seed: int) -> None:
    tokenizer, chance = byte_level(), random.Random(seed)
    groups = [*waiting(tokenizer).values(), encoded(tokenizer, TEXTS[2]), encoded(tokenizer, " a ")]
    pool = [token for group in groups[: chance.randrange(3, 6)] for token in group]
    tokens = [chance.choice(pool) for _ in range(200)]
    builder = TextBuilder(tokenizer)
    assert "".join(streamed(builder, tokens, seed)) == decoded(tokenizer, tokens)
    assert builder.tokens == tokens


@pytest.mark.parametrize("count", [1, 5])
def test_blanks_that_show_only_between_words_are_kept(count: int) -> None:
    tokenizer = sentence_pieces()
    (blank,) = (each for each in tokenizer.get_vocab().items() if each[0] == "▁")
    tokens = [*[blank[1]] * count, *encoded(tokenizer, "the tree")]
    assert "".join(streamed(TextBuilder(tokenizer), tokens)) == decoded(tokenizer, tokens)
    assert decoded(tokenizer, tokens[count - 1 :]) != decoded(tokenizer, tokens[count:])


def test_no_tokens_no_text() -> None:
    builder = TextBuilder(byte_level(), ["x"])
    assert builder.add([]) == 0
    assert streamed(builder, []) == [""]


# Stop strings


def first_stop(text: str, stops: Sequence[str]) -> tuple[str, int]:
    """Letter by letter: the text before the stop string that is complete first, and the letters it
    took.
    """
    for length in range(len(text) + 1):
        places = [text[:length].find(stop) for stop in stops if stop in text[:length]]
        if places:
            return text[: min(places)], length
    return text, len(text)


STOPS = [
    ["stop"],
    ["the end", "end of"],
    ["p h", "stop here"],
    ["op", "stop", "st"],
    ["story is the end."],
    ["end."],
    ["nowhere", "."],
    ["s"],
    [" "],
    ["not in there"],
    ["ere, stop", "re, s"],
]


@pytest.mark.parametrize("stops", STOPS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_the_text_ends_before_the_first_stop_string(stops: list[str], seed: int) -> None:
    text = LINES[2]
    wanted, letters = first_stop(text, stops)
    builder = TextBuilder(byte_level(), stops)
    pieces = streamed(builder, one_letter_tokens(text), seed)
    assert "".join(pieces) == builder.text == wanted
    assert len(builder.tokens) == letters  # the token that completes the stop string is the last
    assert builder.stopped is any(stop in text for stop in stops)


@pytest.mark.parametrize("stops", STOPS, ids=str)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_stop_strings_over_the_borders_of_longer_tokens(name: str, stops: list[str]) -> None:
    tokenizer = TOKENIZERS[name]()
    tokens = encoded(tokenizer, LINES[2])
    whole = decoded(tokenizer, tokens)
    needed = next(
        (n for n in range(len(tokens)) if any(s in decoded(tokenizer, tokens[:n]) for s in stops)),
        len(tokens),
    )
    before = decoded(tokenizer, tokens[:needed])
    wanted = before[
        : min([before.find(stop) for stop in stops if stop in before], default=len(whole))
    ]
    for seed in range(3):
        builder = TextBuilder(tokenizer, stops)
        assert "".join(streamed(builder, tokens, seed)) == builder.text == wanted
        assert builder.tokens == tokens[:needed]


def test_how_many_tokens_of_a_block_were_taken() -> None:
    tokens = one_letter_tokens("abcdefgh")
    builder = TextBuilder(byte_level(), ["de"])
    assert builder.add(tokens[:3]) == 3
    assert builder.add(tokens[3:]) == 2
    assert (builder.text, builder.tokens, builder.stopped) == ("abc", tokens[:5], True)
    assert builder.stopped_by == "de"


@pytest.mark.parametrize(
    "stops", [["ump", "jumps"], ["jumps", "ump"], ["umps", "ps", " jump"]], ids=str
)
def test_of_stop_strings_complete_with_the_same_token_the_one_that_begins_first_wins(
    stops: list[str],
) -> None:
    tokens = encoded(byte_level(), "fox jumps")
    assert decoded(byte_level(), tokens[-1:]) == " jumps"  # one token completes them all
    builder = TextBuilder(byte_level(), stops)
    builder.add(tokens)
    whole = "fox jumps"
    assert builder.text == whole[: min(whole.find(stop) for stop in stops)]
    assert builder.stopped_by == min(stops, key=whole.find)


def test_what_may_become_a_stop_string_is_held_back() -> None:
    builder = TextBuilder(byte_level(), ["<end>", "d>x"])
    shown = []
    for token in one_letter_tokens("a<enough <end!<end>"):
        builder.add([token])
        shown.append(builder.new_text())
    assert shown == [
        "a",
        "",
        "",
        "",
        "<eno",
        "u",
        "g",
        "h",
        " ",
        "",
        "",
        "",
        "",
        "<end!",
        "",
        "",
        "",
        "",
        "",
    ]
    assert builder.text == "a<enough <end!"


def test_held_back_text_is_given_out_at_the_end() -> None:
    builder = TextBuilder(byte_level(), ["!!!"])
    assert streamed(builder, one_letter_tokens("hey!!")) == ["h", "e", "y", "", "", "!!"]
    assert not builder.stopped


def test_a_stop_string_of_emoji() -> None:
    builder = TextBuilder(byte_level(), ["😀"])
    tokens = encoded(byte_level(), "a😃b😀c")
    assert "".join(streamed(builder, tokens)) == "a😃b"
    assert builder.tokens == tokens[:-1]


def test_a_stop_string_in_the_very_last_half_character() -> None:
    builder = TextBuilder(byte_level(), ["\ufffd"])
    assert "".join(streamed(builder, encoded(byte_level(), "ok😀")[:-1])) == "ok"
    assert builder.stopped


# Special tokens as stop strings


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_special_token_as_a_stop_string_ends_the_text(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    end, before = (
        tokenizer.convert_tokens_to_ids(END),
        tokenizer.encode("the quick tree", add_special_tokens=False),
    )
    tokens = [*before, end, *tokenizer.encode("and the dog", add_special_tokens=False)]
    builder = TextBuilder(tokenizer, ["dog", END])
    assert builder.add(tokens) == len(before) + 1
    builder.finish()
    assert (builder.stopped, builder.stopped_by) == (True, END)
    assert builder.text == builder.new_text() == "the quick tree"
    other = TextBuilder(tokenizer, ["dog"])
    assert other.add(tokens) > len(before) + 1  # a special token that nobody named is only left out
    assert other.text in ("the quick treeand the ", "the quick tree and the ")


def test_half_a_character_before_a_special_stop_is_shown() -> None:
    tokenizer = byte_level()
    end, smile = tokenizer.convert_tokens_to_ids(END), tokenizer.encode("a😀")
    builder = TextBuilder(tokenizer, [END])
    assert builder.add([*smile[:-1], end]) == len(smile)
    assert builder.text == "a\ufffd"


def test_a_special_stop_that_comes_too_early_cuts_no_character() -> None:
    """It is only left out, as in decoding."""
    tokenizer = byte_level()
    end, smile = tokenizer.convert_tokens_to_ids(END), tokenizer.encode("😀")
    tokens = [*smile[:-1], end, smile[-1]]
    for least, taken, text in (
        (len(smile), len(tokens), "😀"),
        (len(smile) - 1, len(smile), "\ufffd"),
    ):
        builder = TextBuilder(tokenizer, [END], min_tokens=least)
        assert builder.add(tokens) == taken
        assert builder.text == text


def test_special_tokens_are_not_looked_through_without_stop_strings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, read = byte_level(), list[object]()
    monkeypatch.setattr(
        "draftwood.text.builder._special_tokens", lambda given: read.append(given) or {}
    )
    assert TextBuilder.whole(tokenizer, tokenizer.encode("the dog")) == "the dog"
    assert read == []
    TextBuilder(tokenizer, ["dog"])
    assert read == [tokenizer]


def test_special_tokens_are_read_once_for_all_texts_and_when_some_are_added() -> None:
    tokenizer = Counting(byte_level())
    for _ in range(3):
        TextBuilder(tokenizer, ["dog"])  # type: ignore[arg-type]
    assert tokenizer.reads == 1
    tokenizer.tokenizer = sentence_pieces()  # of another length
    assert TextBuilder(tokenizer, [END])._ends  # type: ignore[arg-type]
    assert tokenizer.reads == 2


def test_special_tokens_may_be_shown() -> None:
    tokens = byte_level().encode(f"the{END}\n{END}tree")
    builder = TextBuilder(byte_level(), shows_special=True)
    assert "".join(streamed(builder, tokens)) == f"the{END}\n{END}tree"


@pytest.mark.parametrize("stop", [END + "\n", "so" + END])
def test_a_special_token_within_a_longer_stop_string_is_refused(stop: str) -> None:
    with pytest.raises(ValueError, match=r"holds the special token '<\|end\|>' and more.* alone"):
        TextBuilder(byte_level(), [stop])
