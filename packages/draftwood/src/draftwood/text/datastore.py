"""Datastores: texts of files, sorted once, that drafts are copied from."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from draftwood.loading.vocabulary import vocabulary_digest
from draftwood.sources.stored_index import StoredIndex, StoreFacts, require_place, write_index
from draftwood.sources.token_index import TokenIndex
from draftwood.tokenizer.protocol import AnyTokenizer

PIECE = 1 << 15
"""Characters that are tokenized at once, up to the end of their line."""

BATCH = 64
"""Pieces that are tokenized side by side."""

Told = Callable[[str, int, int], object]
"""Hears of the work under way: what it is, how much is done, and how much there is."""


def build_datastore(
    files: Sequence[str | Path],
    output: str | Path,
    tokenizer: AnyTokenizer,
    model: str,
    told: Told = lambda what, done, total: None,
) -> StoreFacts:
    """Sort the texts of files and write them to one file, whole or not at all.

    Args:
        files: in UTF-8, each a text.
        output: the file; a datastore that is there is replaced.
        tokenizer: of the model that the datastore is for.
        model: its name, for errors alone.
        told: hears of the work under way.

    Raises:
        OSError: for a file that cannot be read, and where the disk refuses.
        ValueError: for a file that is no text, and files without tokens.
    """
    require_place(Path(output))  # before hours of work
    texts = [_read(Path(file)) for file in files]
    total, done = sum(map(len, texts)), 0
    tokens: list[list[int]] = []
    for text in texts:
        tokens.append([])
        for pieces in _batches(text):
            rows = tokenizer(pieces, add_special_tokens=False, verbose=False)["input_ids"]
            tokens[-1] += [token for row in rows for token in row]
            done += sum(map(len, pieces))
            told("reading", done, total)
    size = 1 + max(tokenizer.get_vocab().values())
    index = TokenIndex.of(tokens, size, lambda done, rounds: told("sorting", done, rounds))
    facts = StoreFacts(
        model, vocabulary_digest(tokenizer), len(texts), sum(map(len, tokens)), total
    )
    write_index(Path(output), StoredIndex(facts, index))
    return facts


def _read(path: Path) -> str:
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name its files, for instance {path}/*")
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}; name files that hold text") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; leave it out, or convert it first") from None


def _batches(text: str) -> Iterator[list[str]]:
    pieces: list[str] = []
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE) + 1 or len(text)
        pieces.append(text[start:end])
        start = end
        if len(pieces) == BATCH:
            yield pieces
            pieces = []
    if pieces:
        yield pieces
