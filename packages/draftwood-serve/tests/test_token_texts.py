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


def test_places_of_a_prompts_tokens() -> None:
    found = PromptText.of(of_bytes(), [3, 0, 1, 2, 3])
    assert found.text == "aé noa"
    assert found.starts == (0, 1, 1, 2, 5)
