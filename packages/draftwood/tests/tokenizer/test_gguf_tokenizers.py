"""Tokenizers of GGUF files, beside those that Transformers makes of the same metadata."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
from small_tokenizers import SPECIAL, byte_level, hard_texts, learned_pieces
from test_tokenizer import differences, opened
from tokenizers import AddedToken, normalizers, pre_tokenizers
from transformers import TokenizersBackend
from transformers.models.auto import tokenization_auto

from draftwood.text.infill import InfillTokens
from draftwood.tokenizer import Tokenizer, open_tokenizer, tokenizer_of_gguf
from draftwood.tokenizer.gguf import KEEPING, LIKE_LLAMA_3, TOKENS_FIRST, implied_merges
from draftwood.tokenizer.gguf_splits import AS_GPT2, SINGLE_DIGITS, SPLITS
from draftwood.tokenizer.gguf_vocabulary import read_vocabulary
from draftwood.tokenizer.pieces import BLANK

NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
CLASSES = {"gemma3": "gemma3_text"}
"""Model types of Transformers, where llama.cpp has another name."""


def write(
    path: Path,
    kind: str,
    architecture: str,
    tokens: Sequence[str],
    types: Sequence[int],
    merges: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    **told: Any,
) -> Path:
    """A file that holds a tokenizer alone."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_uint32(f"{architecture}.block_count", 1)
    writer.add_tokenizer_model(kind)
    writer.add_token_list([*tokens])
    writer.add_token_types([*types])
    if merges is not None:
        writer.add_token_merges([*merges])
    if scores is not None:
        writer.add_token_scores([*scores])
    for key, value in told.items():
        add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
        add = writer.add_string if isinstance(value, str) else add
        add(f"tokenizer.{'' if key.startswith('chat_template') else 'ggml.'}{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def in_transformers(path: Path, architecture: str) -> Any:
    """The tokenizer as the classes of Transformers make it.

    What they leave out of a file is added as llama.cpp has it: digits that are cut, words that are
    tokens whatever merges say, blanks before texts that begin with one and before what follows a
    special token, a token for what has neither a token nor bytes, and control tokens of Phi 3 that
    take the blanks behind them.
    """
    kind = tokenization_auto.TOKENIZER_MAPPING_NAMES.get(CLASSES.get(architecture, architecture))
    made: Any = tokenization_auto.tokenizer_class_from_name(kind) if kind else TokenizersBackend
    found = (made or TokenizersBackend).from_pretrained(path.parent, gguf_file=path.name)
    pre = gguf.GGUFReader(path).get_field("tokenizer.ggml.pre")
    if pre is not None and pre.contents() in SINGLE_DIGITS:
        found.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    if pre is not None and pre.contents() in (*LIKE_LLAMA_3, *TOKENS_FIRST):
        found.backend_tokenizer.model.ignore_merges = True
    if getattr(found.backend_tokenizer.pre_tokenizer, "prepend_scheme", None) == "first":
        found.backend_tokenizer.pre_tokenizer = None
        found.backend_tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)]
        )
    if BLANK in str(found.backend_tokenizer.normalizer):
        found.backend_tokenizer.model.unk_token = "<unk>"
    if architecture == "gemma4":  # as llama.cpp does whatever the file says
        found.add_bos_token = True
    if architecture == "phi3":
        control = [
            AddedToken(each.content, normalized=False, special=True, rstrip=True)
            for each in found.added_tokens_decoder.values()
            if each.special and each.content not in KEEPING
        ]
        found.backend_tokenizer.add_tokens(control)
    return found


def byte_level_file(path: Path, architecture: str, **told: Any) -> Path:
    """A file of byte-level BPE."""
    learned = json.loads(byte_level())["model"]
    tokens = ["<|endoftext|>", *SPECIAL[1:], *list(learned["vocab"])[len(SPECIAL) :], "<tool>"]
    types = [CONTROL] * len(SPECIAL) + [NORMAL] * (len(tokens) - len(SPECIAL) - 1) + [USER_DEFINED]
    merges = [" ".join(merge) for merge in learned["merges"]]
    return write(path, "gpt2", architecture, tokens, types, merges, **told)


def pieces_file(path: Path, architecture: str, kind: str = "llama", **told: Any) -> Path:
    """A file of BPE over characters, whose merges follow from scores."""
    vocabulary, merges = learned_pieces()
    special = ["<unk>", "<s>", "</s>", "<|end|>", "<bos>", "<eos>", "<pad>", "<mask>"]
    blanks = ["  ", "   ", "    "] if "gemma" in architecture else []
    letters = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*special, *letters, "<tool>", *blanks, *vocabulary]
    types = [2, *[CONTROL] * 7, *[BYTE] * 256, USER_DEFINED, *[NORMAL] * len(blanks)]
    types += [NORMAL] * len(vocabulary)
    draw = random.Random(3)
    scores = [0.0] * (len(tokens) - len(vocabulary))
    scores += [-float(draw.randrange(60)) for _ in vocabulary]  # equal ones among them
    told = {"unknown_token_id": 0, **told}
    given = [" ".join(merge) for merge in merges] if kind == "gemma4" else None
    return write(path, kind, architecture, tokens, types, given, scores, **told)


def same(path: Path, architecture: str) -> Tokenizer:
    """Our tokenizer of a file, once it was found to be that of Transformers."""
    ours, usual = tokenizer_of_gguf(path, architecture), in_transformers(path, architecture)
    assert differences(ours, usual, hard_texts()) == []
    chat = [{"role": "user", "content": "hi <s>"}]
    if ours.chat_template is not None:
        found = ours.apply_chat_template(chat, tokenize=False)
        assert found == usual.apply_chat_template(chat, tokenize=False)
    here, there = (json.loads(each.backend_tokenizer.to_str()) for each in (ours, usual))
    parts = ("normalizer", "pre_tokenizer", "decoder", "model")
    assert {name: here[name] for name in parts} == {name: there[name] for name in parts}
    return ours


@pytest.mark.parametrize(
    "keys", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")]
)
def test_tokens_of_a_gap_are_read_by_their_keys(tmp_path: Path, keys: tuple[str, ...]) -> None:
    told = {f"{key}_token_id": number for number, key in enumerate(keys, start=1)}
    path = byte_level_file(tmp_path / "m.gguf", "gpt2", **told)
    found = tokenizer_of_gguf(path, "gpt2")
    marks = InfillTokens.of(found)
    assert marks is not None
    assert (marks.prefix, marks.suffix, marks.middle) == (1, 2, 3)
    found.save(tmp_path / "kept")
    assert InfillTokens.of(open_tokenizer(tmp_path / "kept")) == marks
    assert InfillTokens.of(tokenizer_of_gguf(byte_level_file(path, "gpt2"), "gpt2")) is None


KIN = {
    **dict.fromkeys(("glm4", "chatglm-bpe"), "llama-bpe"),
    **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "grok-2"), "qwen2"),
}
"""Names that Transformers does not know, and one that llama.cpp splits the same way."""
NAMES = [name for names in SPLITS.values() for name in names if name not in KIN]


@pytest.mark.parametrize("pre", [None, *AS_GPT2, *SINGLE_DIGITS, *NAMES])
def test_byte_level_files_split_by_their_name(tmp_path: Path, pre: str | None) -> None:
    told: dict[str, Any] = {} if pre is None else {"pre": pre, "add_bos_token": False}
    path = byte_level_file(
        tmp_path / "m.gguf", "llama", bos_token_id=1, eos_token_id=2, unknown_token_id=0, **told
    )
    same(path, "llama")
    silent = {name: each for name, each in told.items() if name != "add_bos_token"}
    byte_level_file(path, "llama", bos_token_id=1, eos_token_id=2, unknown_token_id=0, **silent)
    first = tokenizer_of_gguf(path, "llama")("a")["input_ids"][0]
    assert (first == 1) == (pre in LIKE_LLAMA_3)


def test_the_names_are_those_of_transformers() -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    known = {name: pattern for pattern, names in SPLITS.items() for name in names}
    assert known.items() > GGUF_PRE_TOKENIZER_SPLITS.items()
    assert known.keys() - GGUF_PRE_TOKENIZER_SPLITS.keys() == KIN.keys()
    assert not {*known, *SINGLE_DIGITS} & {*AS_GPT2}


@pytest.mark.parametrize("pre", KIN)
def test_names_that_transformers_lacks_split_as_their_kin(tmp_path: Path, pre: str) -> None:
    told = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_bos_token": False}
    made: list[Any] = [
        tokenizer_of_gguf(byte_level_file(tmp_path / f"{name}.gguf", "llama", pre=name, **told), "")
        for name in (pre, KIN[pre], "gpt-2")
    ]
    ours, kin, other = made
    assert differences(ours, kin, hard_texts()) == []
    assert differences(ours, other, hard_texts())  # control


def test_words_are_tokens_whatever_merges_say(tmp_path: Path) -> None:
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "bc", "abc"]
    types, merges = [NORMAL] * len(alphabet), ["a b", "b c"]  # none makes abc
    split = []
    for pre in ("llama-bpe", "qwen2"):
        path = write(tmp_path / "m.gguf", "gpt2", "llama", alphabet, types, merges, pre=pre)
        read: Any = tokenizer_of_gguf(path, "llama")
        split.append([alphabet[each] for each in read("abc")["input_ids"]])
    assert split == [["abc"], ["ab", "c"]]


def test_ends_of_turns_in_phi_3_take_the_line_behind_them(tmp_path: Path) -> None:
    told = {"bos_token_id": 1, "eos_token_id": 2}
    texts = {}
    for architecture in ("phi3", "llama"):
        path = pieces_file(tmp_path / "m.gguf", architecture, **told)
        read: Any = tokenizer_of_gguf(path, architecture)
        texts[architecture] = [len(read(f"{end}\n")["input_ids"]) for end in ("<|end|>", "<s>")]
    assert texts["phi3"][0] == 2  # the begin of the text, and the token
    assert texts["phi3"][1] > 2
    assert texts["llama"][0] > 2


@pytest.mark.parametrize("pre", ["starcoder", "codeshell", "exaone", "minerva-7b", "mellum2"])
def test_digits_stand_alone_where_llama_cpp_splits_them(tmp_path: Path, pre: str) -> None:
    path = byte_level_file(tmp_path / "m.gguf", "llama", bos_token_id=1, eos_token_id=2, pre=pre)
    words = tokenizer_of_gguf(path, "llama").backend_tokenizer.pre_tokenizer
    split = [piece for piece, _ in words.pre_tokenize_str("in 2048")]
    assert split == ["in", "Ġ", "2", "0", "4", "8"]


UNKNOWN_SPLITS: dict[str, tuple[dict[str, str], str]] = {
    "of a later version": (
        {"pre": "of-tomorrow"},
        "way to split text, 'of-tomorrow', is not known",
    ),
    "without a name": ({}, r"does not name its way to split text \(tokenizer.ggml.pre\)"),
}


@pytest.mark.parametrize("which", UNKNOWN_SPLITS)
def test_a_way_to_split_that_is_not_known_is_told_at_every_open(tmp_path: Path, which: str) -> None:
    """The text is split as GPT-2 does."""
    (pre, reason), told = UNKNOWN_SPLITS[which], {"bos_token_id": 1, "eos_token_id": 2}
    path = byte_level_file(tmp_path / "m.gguf", "llama", **pre, **told)
    found = tokenizer_of_gguf(path, "llama")
    usual: Any = tokenizer_of_gguf(byte_level_file(path, "llama", pre="gpt-2", **told), "llama")
    assert differences(found, usual, hard_texts()) == []
    for copy in ("once", "twice"):
        found.save(tmp_path / copy)
        with pytest.warns(UserWarning, match=f"{reason}: .* other tokens") as warned:
            found = opened(tmp_path / copy)
        assert [str(each.message).count("\n") for each in warned] == [0]
    usual.save(tmp_path / "usual")
    opened(tmp_path / "usual")  # control: without a warning


@pytest.mark.parametrize(("architecture", "pre"), [("gpt2", "gpt-2"), ("starcoder2", "starcoder")])
def test_architectures_that_split_in_one_way_need_no_name(
    tmp_path: Path, architecture: str, pre: str
) -> None:
    path = byte_level_file(tmp_path / "m.gguf", architecture)
    found = tokenizer_of_gguf(path, architecture)
    found.save(tmp_path / "kept")
    usual: Any = tokenizer_of_gguf(byte_level_file(path, architecture, pre=pre), architecture)
    assert differences(opened(tmp_path / "kept"), usual, hard_texts()) == []


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gpt2", "starcoder2", "olmo2"])
@pytest.mark.parametrize(
    "told",
    [
        {"add_bos_token": True, "chat_template": TEMPLATE},
        {"add_bos_token": False, "add_eos_token": True, "padding_token_id": 3},
        {"add_bos_token": True, "add_eos_token": True, "unknown_token_id": 0},
    ],
)
def test_byte_level_files_tell_their_special_tokens(
    tmp_path: Path, architecture: str, told: dict[str, Any]
) -> None:
    path = byte_level_file(
        tmp_path / "m.gguf", architecture, bos_token_id=1, eos_token_id=2, pre="qwen2", **told
    )
    same(path, architecture)


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        *[("llama", "llama"), ("gemma", "llama"), ("gemma2", "llama"), ("gemma3", "llama")],
        *[("phi3", "llama"), ("gemma4", "gemma4"), ("stablelm", "llama")],
    ],
)
@pytest.mark.parametrize("told", [{}, {"add_bos_token": False, "add_eos_token": True}])
def test_files_of_pieces(
    tmp_path: Path, architecture: str, kind: str, told: dict[str, Any]
) -> None:
    ends = {"bos_token_id": 4, "eos_token_id": 5, "padding_token_id": 6}
    if "gemma" not in architecture:
        ends = {"bos_token_id": 1, "eos_token_id": 2}
    path = pieces_file(
        tmp_path / "m.gguf", architecture, kind, chat_template=TEMPLATE, **ends, **told
    )
    same(path, architecture)


@pytest.mark.parametrize("has_blank", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "phi3"])
def test_parts_between_special_tokens_are_encoded_apart(
    tmp_path: Path, architecture: str, has_blank: bool
) -> None:
    """As llama.cpp encodes them, and Mistral's own tokenizer the messages of a chat."""
    told = {"bos_token_id": 1, "eos_token_id": 2, "add_space_prefix": has_blank}
    path = pieces_file(tmp_path / "m.gguf", architecture, **told)
    made = tokenizer_of_gguf(path, architecture)
    made.save(tmp_path / "kept")
    for each in (made, opened(tmp_path / "kept")):
        parts = [each.encode(part, False) for part in ("the tree", "dog 1", "fox")]
        tool = each.get_vocab()["<tool>"]
        wanted = [1, *parts[0], 2, *parts[1], tool, *parts[2]]
        assert each.encode("<s>the tree</s>dog 1<tool>fox", False) == wanted
        pieces: Any = each.convert_ids_to_tokens(wanted)
        assert ("".join(pieces) == "<s>▁the▁tree</s>▁dog▁1<tool>▁fox") is has_blank
        shown = "the tree dog 1<tool> fox" if has_blank else "the treedog 1<tool>fox"
        assert each.decode(wanted, True) == shown


@pytest.mark.parametrize("architecture", ["llama", "phi3"])
def test_a_file_says_whether_texts_begin_with_a_blank(tmp_path: Path, architecture: str) -> None:
    texts = {}
    for said in (None, True, False):
        told: dict[str, Any] = {} if said is None else {"add_space_prefix": said}
        path = pieces_file(
            tmp_path / "m.gguf", architecture, bos_token_id=1, eos_token_id=2, **told
        )
        found = tokenizer_of_gguf(path, architecture)
        found.save(tmp_path / "kept")
        for each in (found, opened(tmp_path / "kept")):
            tokens = each.encode("tree a", False)
            assert each.decode(tokens) == "tree a"
            pieces: Any = each.convert_ids_to_tokens(tokens)
            texts.setdefault(said, set()).add("".join(pieces))
    assert texts == {None: {"▁tree▁a"}, True: {"▁tree▁a"}, False: {"tree▁a"}}


@pytest.mark.parametrize("text", [" tree", "  tree", " ", "   ", "tree ", "\n tree", "a\u2581 b"])
def test_a_blank_is_added_before_texts_that_begin_with_one(tmp_path: Path, text: str) -> None:
    """As SentencePiece and llama.cpp add it."""
    for said in (True, False):
        told: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "add_space_prefix": said}
        found = tokenizer_of_gguf(pieces_file(tmp_path / "m.gguf", "llama", **told), "llama")
        found.save(tmp_path / "kept")
        for each in (found, opened(tmp_path / "kept")):
            for before in ("", "a</s>", "a<tool>"):
                tokens = each.encode(before + text, False)[len(each.encode(before, False)) :]
                told_pieces: Any = each.convert_ids_to_tokens(tokens)
                written = "".join(told_pieces).replace("<0x0A>", "\n")
                assert written == BLANK * said + text.replace(" ", BLANK)
            assert each.decode(each.encode(text, False)) == text.replace(BLANK, " ")


@pytest.mark.parametrize("names", [{"unknown_token_id": 0}, {}])
def test_what_has_neither_a_token_nor_bytes_is_told_as_unknown(
    tmp_path: Path, names: dict[str, Any]
) -> None:
    tokens = ["<unk>", "<s>", "</s>", BLANK, "a", f"{BLANK}a"]
    types, scores = [2, CONTROL, CONTROL, *[NORMAL] * 3], [-float(each) for each in range(6)]
    path = write(tmp_path / "m.gguf", "llama", "llama", tokens, types, scores=scores, **names)
    assert tokenizer_of_gguf(path, "llama").encode("a語語 a", False) == [5, 0, 5]


SEVERAL = {"tool_use": "T {{ tools }}<|im_end|>", "rag": "R"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"default": "D", **SEVERAL}, {"default": "D", **SEVERAL}),
        (SEVERAL, {"default": SEVERAL["tool_use"], **SEVERAL}),
        ({"tool_use": "T"}, "T"),
        ({"default": "D"}, "D"),
        ({"rag": "R"}, {"rag": "R"}),
        ({}, None),
    ],
)
def test_all_templates_of_a_file_are_read(
    tmp_path: Path, written: dict[str, str], read: object
) -> None:
    keys = {name: "chat_template" + f".{name}" * (name != "default") for name in written}
    told = {keys[name]: template for name, template in written.items()}
    found = tokenizer_of_gguf(byte_level_file(tmp_path / "m.gguf", "gpt2", **told), "gpt2")
    found.save(tmp_path / "kept")
    assert found.chat_template == opened(tmp_path / "kept").chat_template == read


def test_ends_of_turns_are_found_in_every_template(tmp_path: Path) -> None:
    told = {"chat_template": "D", "chat_template.tool_use": SEVERAL["tool_use"]}
    path = byte_level_file(tmp_path / "m.gguf", "gpt2", **told)
    assert read_vocabulary(path).turn_ends() == {"<|im_end|>"}


@pytest.mark.parametrize("type", [CONTROL, USER_DEFINED, UNUSED])
def test_tokens_beyond_the_rows_are_left_out_where_no_text_has_them(
    tmp_path: Path, type: int
) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    types = [CONTROL, *[NORMAL] * 257, type, type]
    tokens = ["</s>", *letters, "ab", "<|im_end|>", "<pad>"]
    told: dict[str, Any] = {"eos_token_id": 0, "padding_token_id": 259}
    path = write(tmp_path / "m.gguf", "gpt2", "gpt2", tokens, types, ["a b"], **told)
    found = tokenizer_of_gguf(path, "gpt2", rows=258)
    assert (len(found), found.eos_token, found.pad_token) == (258, "</s>", None)
    assert max(found.encode("ab<pad>b</s>")) == 257
    assert len(tokenizer_of_gguf(path, "gpt2", rows=300)) == 260
    with pytest.raises(ValueError, match="260 tokens and its embedding 257 rows, of which texts"):
        tokenizer_of_gguf(path, "gpt2", rows=257)


def test_merges_follow_from_scores_as_in_transformers() -> None:
    from transformers.tokenization_utils_base import generate_merges

    draw = random.Random(1)
    tokens = list(
        dict.fromkeys("".join(draw.choices("abc", k=draw.randrange(1, 6))) for _ in range(200))
    )
    ranks = {token: float(draw.randrange(9)) for token in tokens}
    wanted = generate_merges({token: number for number, token in enumerate(tokens)}, ranks)
    assert implied_merges(tokens, ranks) == wanted
    backwards = dict(reversed(ranks.items()))  # negative control: equal ranks keep their order
    assert implied_merges(tokens, backwards) != wanted


def test_tokens_in_no_alphabet_of_bytes_are_found_whole(tmp_path: Path) -> None:
    """DeepSeek's special tokens, and runs of blanks as NeoX has them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    begin = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
    tokens = [begin, "</s>", *letters, "ĠĠ", "   ", "語"]
    types = [CONTROL, CONTROL, *[NORMAL] * 257, USER_DEFINED, NORMAL]
    path = write(
        *(tmp_path / "m.gguf", "gpt2", "llama", tokens, types, ["Ġ Ġ"]),
        **{"bos_token_id": 0, "eos_token_id": 1, "add_bos_token": True},
    )
    found = tokenizer_of_gguf(path, "llama")
    assert found.bos_token_id == 0
    assert found.encode(f"a{begin}") == [0, tokens.index("a"), 0]
    assert found.encode("a   ", False) == [tokens.index("a"), tokens.index("   ")]
    assert found.decode(found.encode("a   語</s>"), True) == "a   語"
    assert len(found) == len(tokens)  # no token that the model does not have
    assert max(found.get_vocab().values()) == len(tokens) - 1


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    path = byte_level_file(
        tmp_path / "m.gguf", "gpt2", bos_token_id=1, eos_token_id=2, chat_template=TEMPLATE
    )
    made = tokenizer_of_gguf(path, "gpt2")
    made.save(tmp_path / "kept")
    again, usual = opened(tmp_path / "kept"), TokenizersBackend.from_pretrained(tmp_path / "kept")
    assert differences(made, usual, hard_texts(5)) == []
    assert differences(again, usual, hard_texts(5)) == []


@pytest.mark.parametrize("id", [(1 << 32) - 1, 10_000])
def test_special_ids_beyond_the_vocabulary_are_none(tmp_path: Path, id: int) -> None:
    told = {"bos_token_id": 1, "eos_token_id": 2, "padding_token_id": id, "fim_pre_token_id": id}
    path = byte_level_file(tmp_path / "m.gguf", "llama", prefix_token_id=3, **told)
    found = tokenizer_of_gguf(path, "llama")
    assert (found.bos_token_id, found.eos_token_id, found.pad_token_id) == (1, 2, None)
    assert found.special_tokens_map["fim_prefix_token"] == SPECIAL[3]  # of the older key


def test_ends_of_turns_are_no_part_of_a_text(tmp_path: Path) -> None:
    """A file may call them tokens of the user."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["</s>", "<|im_end|>", *letters, "ab"]
    types = [CONTROL, USER_DEFINED, *[NORMAL] * 257]
    shown = []
    for template in ("{{ messages }}<|im_end|>", "{{ messages }}"):
        path = write(
            *(tmp_path / "m.gguf", "gpt2", "llama", tokens, types, ["a b"]),
            **{"eos_token_id": 0, "chat_template": template},
        )
        found = tokenizer_of_gguf(path, "llama")
        shown.append(found.decode(found.encode("a<|im_end|>", False), True))
    assert shown == ["a", "a<|im_end|>"]


def test_other_kinds_are_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "bert", "bert", ["a"], [NORMAL])
    with pytest.raises(ValueError, match="of the kind 'bert'; readable are gpt2, llama, gemma4"):
        tokenizer_of_gguf(path, "bert")


def is_refused_in_one_line(path: Path) -> bool:
    try:
        tokenizer_of_gguf(path, "llama")
    except ValueError as error:
        return len(str(error).splitlines()) == 1
    return False


@pytest.mark.parametrize("whole", [True, False])
def test_damaged_files_are_errors_of_a_line(tmp_path: Path, whole: bool) -> None:
    path = byte_level_file(tmp_path / "m.gguf", "llama", bos_token_id=1, eos_token_id=2)
    content, draw, failed = path.read_bytes(), random.Random(5), 0
    for _ in range(150):
        mutated = bytearray(content)
        for _ in range(3):
            place = draw.randrange(16, 400)
            mutated[place] = draw.randrange(256)
        path.write_bytes(mutated if whole else mutated[: draw.randrange(len(mutated))])
        failed += is_refused_in_one_line(path)
    assert failed > 30
    path.write_bytes(content)
    assert len(tokenizer_of_gguf(path, "llama")) > 256


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    """Negative control: a file that splits otherwise gives other tokens."""
    told = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    path = byte_level_file(tmp_path / "m.gguf", "llama", pre="llama-bpe", **told)
    other = byte_level_file(tmp_path / "o.gguf", "llama", pre="smollm", **told)
    assert differences(
        tokenizer_of_gguf(other, "llama"), in_transformers(path, "llama"), hard_texts()
    )
