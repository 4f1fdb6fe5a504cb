"""Text and bytes of single tokens, parts of characters among them."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftwood_serve.texts import PromptText
from draftwood_serve.token_texts import TokenTexts
from letters import letters


def of_bytes() -> PreTrainedTokenizerFast:
    """A token for each byte of a letter with an accent, and one for a space with a word."""
    vocab = {"Ã": 0, "©": 1, "Ġno": 2, "a": 3}
    made = Tokenizer(models.BPE(vocab, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def with_fallback() -> PreTrainedTokenizerFast:
    """Bytes as models of SentencePiece write them."""
    vocab = {"<0xC3>": 0, "<0xA9>": 1, "▁no": 2}
    made = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=made)


def of_pieces() -> PreTrainedTokenizerFast:
    """Pieces of SentencePiece, decoded as Llama 2's: without the space before the first word."""
    names = ["<unk>", "▁", "▁▁", "▁no", "no", "▁▁no", "▁no▁no", "<0x6E>", "n", "<0x0A>", "<0xC3>"]
    vocab = {name: number for number, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
    spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*spaces, decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")


def test_bytes_of_half_characters_are_told() -> None:
    for tokenizer in (of_bytes(), with_fallback()):
        texts = TokenTexts(tokenizer)
        parts = [texts.of(token) for token in (0, 1)]
        assert bytes(parts[0][1] + parts[1][1]).decode() == "é"
        assert [texts.key(token) for token in (0, 1)] == ["bytes:\\xc3", "bytes:\\xa9"]


def test_whole_tokens_are_told_as_they_are() -> None:
    texts = TokenTexts(of_bytes())
    assert texts.of(2) == (" no", list(b" no"))
    assert texts.key(3) == "a"
    assert TokenTexts(letters()).of(1) == ("a", [97])


def test_spaces_before_a_token_belong_to_it() -> None:
    texts = TokenTexts(of_pieces())
    wanted = [" ", "  ", " no", "no", "  no", " no no"]
    found = [texts.of(token) for token in range(1, 7)]
    assert found == [(text, list(text.encode())) for text in wanted]


def test_a_byte_whose_character_is_a_token_is_told_apart() -> None:
    texts = TokenTexts(of_pieces())
    assert [texts.key(token) for token in range(7, 11)] == ["bytes:\\x6e", "n", "\n", "bytes:\\xc3"]
    assert texts.of(7) == ("n", [0x6E])


def test_each_token_has_a_key_of_its_own() -> None:
    for tokenizer in (of_bytes(), with_fallback(), of_pieces(), letters()):
        texts = TokenTexts(tokenizer)
        assert len({texts.key(token) for token in range(len(tokenizer))}) == len(tokenizer)


def test_prompts_are_told_with_their_special_tokens() -> None:
    made = of_bytes()
    made.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    begin, end = made.bos_token_id, made.eos_token_id
    found = PromptText.of(made, [begin, 3, end, 2, begin])
    assert found.text == "a</s> no<s>"  # what begins a text is none of it
    assert found.starts == (0, 0, 1, 5, 8)


def test_places_of_a_prompts_tokens() -> None:
    found = PromptText.of(of_bytes(), [3, 0, 1, 2, 3])
    assert found.text == "aé noa"
    assert found.starts == (0, 1, 1, 2, 5)
