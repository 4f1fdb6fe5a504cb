"""Small tokenizers of the usual kinds, trained here, and texts that are hard to cut."""

import json
import random
from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

LINES = [
    "the quick brown fox jumps over the lazy dog, and the dog jumps back.",
    "once upon a time there was a little tree; the tree grew and grew to 1024 leaves.",
    "def area(width, height):\n    return width * height  # in metres\n\n\nprint(area(3, 4))",
    "naïve café, “quoted” 中文字符 русский العربية 😀😃",
    "    four    blanks\t\ttabs\r\nand lines\n\n\n",
]
TEXTS = [
    *LINES,
    "",
    " ",
    "   ",
    "\n",
    "  two spaces, then\n\n\ttabs ",
    "smile 😀😃 family 👩‍👩‍👧‍👦 flag 🇫🇷! 🤷🏽‍♀️",
    "e\u0301 combining, \u00e9 composed, ﬁ ligature, \u200b nothing",
    "3.14159 1,000,000 0x1F 12345678901234567890 ½ ²",
    "I'll can't WE'VE they're it's 'quoted'",
    "a<s>b</s> c<|end|>d <|end|> e <tool> f<tool>g <0x0A> <unk> <|im_start|>user",
    "for i in range(10):\n\tif i % 2 == 0:\n\t\tyield i ** 2\n",
    "https://example.org/a_b?c=d&e=%20f#g <html>&amp;</html>",
    "\x00\x01 control \x7f \ufeff mark \ufffd",
    "x" * 300,
]
SPECIAL = ["<unk>", "<s>", "</s>", "<|end|>"]


def hard_texts(count: int = 40) -> list[str]:
    """The texts above, random pieces of them one after another, and a long one."""
    draw = random.Random(7)
    letters = "".join(TEXTS)
    cut = [draw.randrange(len(letters)) for _ in range(count)]
    mixed = ["".join(draw.choices(letters, k=60)) for _ in range(count)]
    long = "".join(draw.choices(letters, k=5000))  # see ``LONG``
    return [*TEXTS, *(letters[place : place + 80] for place in cut), *mixed, long]


@cache
def byte_level() -> str:
    """BPE over bytes, as GPT-2 and Llama 3 have it; texts begin with ``<s>``."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(LINES, trainer)
    made.add_tokens([AddedToken("<tool>", normalized=False)])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return made.to_str()


def learned_pieces(size: int = 250) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Tokens and merges over characters, where ``\u2581`` stands for a blank."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trained.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=size, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    return learned["vocab"], [tuple(merge) for merge in learned["merges"]]


@cache
def pieces() -> str:
    """BPE over characters, with bytes for what has no token, as Llama 2 has it."""
    vocabulary, merges = learned_pieces()
    others = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    numbers = {token: number for number, token in enumerate([*others, *vocabulary])}
    made = Tokenizer(
        models.BPE(numbers, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", left=1),
        ]
    )
    made.add_special_tokens(SPECIAL)
    return made.to_str()


@cache
def words() -> str:
    """WordPiece, whose text is joined with blanks."""
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    made.train_from_iterator(LINES, trainer)
    return made.to_str()


KINDS = {"byte-level": byte_level, "pieces": pieces, "words": words}
