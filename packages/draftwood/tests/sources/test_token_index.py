"""The sorted index of a datastore against brute force, and its file against what may befall it."""

import errno
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from draftwood.drafters import DraftRequest
from draftwood.native import library
from draftwood.rng import Rng
from draftwood.sampling import Sampling
from draftwood.sources import Datastore
from draftwood.sources.auto.suffix import BREAK, DEEPEST
from draftwood.sources.stored_index import (
    StoredIndex,
    StoreFacts,
    is_datastore,
    read_index,
    write_index,
)
from draftwood.sources.token_index import MOST_TOKENS, TokenIndex
from draftwood.testing import TableModel
from reference.look_up import Range, step, whole

FACTS = StoreFacts("model", "digest", 2, 9, 40)


def texts_of(seed: int) -> tuple[int, list[list[int]]]:
    chance = random.Random(seed)
    kinds = (1, 2, 3, 9)[seed % 4]
    lengths = [chance.choice((0, 1, 5, 40, 200)) for _ in range(1 + seed % 4)]
    return kinds, [[chance.randrange(kinds) for _ in range(length)] for length in (*lengths, 3)]


def found_by_hand(texts: list[list[int]], read: list[int]) -> tuple[int, list[int]]:
    """The longest end of a text that stands in others, and all that follows it there."""
    flat = [token for text in texts for token in (BREAK, *text)] + [BREAK]
    for length in range(min(DEEPEST, len(read)), 0, -1):
        places = [
            end
            for end in range(length, len(flat))
            if flat[end - length : end] == read[len(read) - length :]
        ]
        if places:
            return length, sorted(flat[place] for place in places)
    return 0, []


def faults_of(index: TokenIndex, texts: list[list[int]], read: list[int]) -> int:
    """At how many places of a text the index says something else than brute force."""
    match, faults = whole(index), 0
    for place, token in enumerate(read):
        match = step(index, match, token)
        matched, following = found_by_hand(texts, read[: place + 1])
        told = sorted(index.following[match.first : match.end].tolist()) if matched else []
        faults += (match.matched, told) != (matched, following)
    return faults


@pytest.mark.parametrize("seed", range(12))
def test_a_step_finds_the_longest_suffix_and_all_that_follows_it(seed: int) -> None:
    kinds, texts = texts_of(seed)
    index, chance = TokenIndex.of(texts, kinds + 1), random.Random(seed)
    drawn = [chance.randrange(kinds + 2) for _ in range(40)]
    copied = [token for _ in range(2) for token in chance.choice(texts)[:90]]
    assert not faults_of(index, texts, drawn)
    assert not faults_of(index, texts, copied)


def test_the_comparison_finds_an_index_of_other_texts() -> None:
    kinds, texts = texts_of(3)
    other = TokenIndex.of([text[::-1] for text in texts], kinds + 1)
    assert faults_of(other, texts, texts[-1] * 9)


def test_texts_that_repeat_themselves_share_no_more_than_a_match_has() -> None:
    index = TokenIndex.of([[7] * 500, [7] * 300], 8)
    assert index.shared.max() == DEEPEST
    match = whole(index)
    for _ in range(200):
        match = step(index, match, 7)
    assert match.matched == DEEPEST
    assert match.end - match.first == 500 + 300 - 2 * (DEEPEST - 1)
    assert step(index, match, 3) == whole(index)
    assert step(index, match, 99) == whole(index) == Range(0, 802, 0, BREAK)


@pytest.mark.parametrize(
    ("texts", "vocab_size", "what"),
    [
        ([[], []], 4, "hold no tokens"),
        ([[1, 4]], 4, "from 0 to 3, got 1 to 4"),
        ([[-2, 1]], 4, "from 0 to 3, got -2 to 1"),
    ],
)
def test_texts_that_cannot_be_sorted(texts: list[list[int]], vocab_size: int, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        TokenIndex.of(texts, vocab_size)


def test_more_tokens_than_numbers_of_32_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.iinfo(np.int32).max == MOST_TOKENS
    monkeypatch.setattr("draftwood.sources.token_index.MOST_TOKENS", 5)
    TokenIndex.of([[1, 2], [3]], 4)
    with pytest.raises(ValueError, match=r"6 tokens are more than .* name fewer files"):
        TokenIndex.of([[1, 2], [3, 3]], 4)


def test_settings() -> None:
    index = TokenIndex.of([[1, 2]], 4)
    for settings in ({"longest": 0}, {"shortest": 0}, {"longest": DEEPEST + 1}):
        with pytest.raises(ValueError, match="longest"):
            Datastore(index, **settings)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "texts.store"
    write_index(found, StoredIndex(FACTS, TokenIndex.of([[1, 2, 3, 1, 2, 4], [2, 3, 1]], 9)))
    return found


def test_what_was_written_is_read(path: Path) -> None:
    stored = read_index(path)
    assert stored.facts == FACTS
    assert stored.index.vocab_size == 9
    assert stored.index.largest == 4
    assert not faults_of(stored.index, [[1, 2, 3, 1, 2, 4], [2, 3, 1]], [1, 2, 3, 1, 2, 4, 1])
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_the_same_texts_make_the_same_file(path: Path) -> None:
    before = path.read_bytes()
    write_index(path, StoredIndex(FACTS, TokenIndex.of([[1, 2, 3, 1, 2, 4], [2, 3, 1]], 9)))
    assert path.read_bytes() == before
    assert path.stat().st_size < 9 * 11 + 4 * 11 + 1000


def test_a_file_that_was_cut_short(path: Path) -> None:
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 300):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut short; build it again with 'draftwood"):
            read_index(path)


def test_a_file_that_was_changed(path: Path) -> None:
    whole = path.read_bytes()
    changed = [
        whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        for place in (len(whole) - 1, len(whole) - 60)
    ]
    for each in (*changed, whole + b"??", whole.replace(b'"data_offsets"', b'"data_offsett"', 1)):
        path.write_bytes(each)
        with pytest.raises(ValueError, match=r"was changed since it was built; build it again"):
            read_index(path)
    path.write_bytes(whole.replace(b"digest", b"digerr", 1))
    with pytest.raises(ValueError, match="was changed since it was built"):
        read_index(path)


def test_files_that_are_none(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no datastore .* name another"):
        read_index(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is a folder; name a datastore's file"):
        read_index(tmp_path)
    other = tmp_path / "other.safetensors"
    save_file(load_file(path), other)
    text = tmp_path / "text"
    text.write_text("no datastore")
    for each in (other, text):
        assert not is_datastore(each)
        with pytest.raises(ValueError, match="is no datastore of draftwood; build it again"):
            read_index(each)
        with pytest.raises(ValueError, match="something else than a datastore; choose another"):
            write_index(each, read_index(path))
    assert text.read_text() == "no datastore"


def test_a_file_of_another_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.sources.stored_index.VERSION", 2)
    with pytest.raises(ValueError, match="of version 1, this draftwood reads 2; build it again"):
        read_index(path)


def test_a_disk_that_refuses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("draftwood.sources.stored_index.write_arrays", full)
    with pytest.raises(OSError, match="the disk is full; free some space, or name another"):
        write_index(path, read_index(path))
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_facts_are_told_as_json(path: Path) -> None:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        metadata = json.loads(file.read(length))["__metadata__"]
    says = json.loads(metadata["says"])
    assert len(says.pop("sha256")) == 64
    assert says == {
        "format": "draftwood-datastore",
        "version": 1,
        "model": "model",
        "vocabulary": "digest",
        "texts": 2,
        "tokens": 9,
        "characters": 40,
    }


@pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
def test_the_library_maps_the_same_arrays(path: Path) -> None:
    index = read_index(path).index
    request = DraftRequest(Sampling(), Rng(0), TableModel(np.zeros((9, 9), np.float32)).start())
    settings = Datastore(index).native(request).settings
    assert settings.rows == index.rows.ctypes.data
    assert (settings.tokens, settings.vocab_size) == (index.tokens, 9)


@pytest.mark.parametrize("way", ["cut short", "overwritten"])
def test_a_datastore_in_use_survives_what_is_done_to_its_file(path: Path, way: str) -> None:
    """In a process of its own, which a page that is gone would end."""
    write_index(path, StoredIndex(FACTS, TokenIndex.of([[1, 2, 3, 1, 2, 4] * 5000], 9)))
    code = f"""
from pathlib import Path
from draftwood.sources.stored_index import read_index
path = Path({str(path)!r})
index = read_index(path).index
before = path.stat().st_size
with path.open("r+b") as file:
    if {way!r} == "cut short":
        file.truncate(100)
    else:
        file.write(bytes([255]) * before)
assert index.largest == 4
counts = [int((index.following == token).sum()) for token in (1, 2, 3, 4)]
assert counts == [10000, 10000, 5000, 5000], counts
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    with pytest.raises(ValueError, match="datastore"):
        read_index(path)


def test_nothing_is_left_of_the_copy_of_a_datastore(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("DRAFTWOOD_HOME", str(home))
    stored = read_index(path)
    assert list(home.iterdir()) == []
    assert stored.index.largest == 4


def test_a_datastore_is_copied_between_file_systems(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> int:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr("os.copy_file_range", refuse)
    assert read_index(path).index.largest == 4


@pytest.mark.parametrize("seed", range(8))
def test_n_grams_are_counted_as_by_hand(seed: int) -> None:
    kinds, texts = texts_of(seed)
    index = TokenIndex.of(texts, kinds)
    flat = [token for text in texts for token in (BREAK, *text)] + [BREAK]
    chance = random.Random(seed)
    for length in (0, 1, 1, 2, 2, 3, 3):
        before = [chance.randrange(kinds) for _ in range(length)]
        ends = [
            place
            for place in range(max(1, length), len(flat))
            if flat[place - length : place] == before
        ]
        following = [flat[place] for place in ends]
        places, counts = index.counts(before, range(kinds))
        assert places == len(index.behind(before)) == len(ends)
        assert counts.tolist() == [following.count(token) for token in range(kinds)]
