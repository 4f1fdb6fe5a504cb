"""Attention behind long texts: right at every border, and a row's bits are its own."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from draftwood.models.model import ForwardInput
from draftwood.models.native import NativeModel
from draftwood.native import library
from draftwood.native.formats import CacheType
from draftwood.tree import DraftTree

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")
VOCAB = 50
BLOCK = 256  # of visibility.h
# a chain of three, beside it branches from its first and second node
TREE = DraftTree.of([5, 17, 30, 22, 9, 11, 41, 8, 3, 33, 12], [-1, 0, 1, 0, 3, 1, 4, 6, 0, 2, 7])
CHAIN = [0, 3, 4, 6, 7, 10]  # its deepest path


def hf_model(head_dim: int, window: int | None, heads: int = 6) -> PreTrainedModel:
    """Two layers, of which the second has the window."""
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=2048,
        initializer_range=0.3,
        use_sliding_window=window is not None,
        sliding_window=window,
        max_window_layers=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config).eval()


def native(head_dim: int, window: int | None, dtype: torch.dtype, heads: int = 6) -> NativeModel:
    return NativeModel(hf_model(head_dim, window, heads).to(dtype))


def some(count: int, seed: int = 0) -> list[int]:
    return torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def path_to(node: int) -> list[int]:
    return [0, *TREE.path_to(node)]


def tokens_of(nodes: Sequence[int]) -> list[int]:
    return [int(TREE.tokens[node]) for node in nodes]


def exact(model: PreTrainedModel, prefix: list[int]) -> Tensor:
    """Logits of the tree's nodes in 64 bits, each node's text run by itself."""
    wide = model.double()
    with torch.no_grad():
        rows = [
            wide(torch.tensor([prefix + tokens_of(path_to(node))])).logits[0, -1]
            for node in range(len(TREE))
        ]
    return torch.stack(rows)


def set_threads(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("draftwood.models.native.model.threads", lambda: count)


@pytest.mark.parametrize("window", [None, 7, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("length", [1, 40, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
@pytest.mark.parametrize(
    ("dtype", "head_dim", "tolerance"),
    [
        (torch.float32, 64, 1e-4),
        (torch.float32, 24, 1e-4),
        # keys and values are rounded to 8 bits
        (torch.bfloat16, 64, 0.15),
        (torch.bfloat16, 24, 0.15),
    ],
)
def test_logits_behind_every_border_are_those_of_64_bits(
    dtype: torch.dtype, head_dim: int, tolerance: float, length: int, window: int | None
) -> None:
    session = native(head_dim, window, dtype).start()
    prefix = some(length)
    session.extend(prefix, keep="last")
    found = session.forward(TREE).logits
    expected = exact(hf_model(head_dim, window).to(dtype), prefix)
    assert (found - expected).abs().max() <= tolerance * expected.std()
    # one token less or more in sight shows, so that the border is where it should be
    if window == 7 and length > 7:
        other = exact(hf_model(head_dim, window + 1).to(dtype), prefix)
        assert (found - other).abs().max() > 2 * tolerance * expected.std()


@pytest.mark.parametrize("window", [None, 7, 300])
@pytest.mark.parametrize("length", [3, BLOCK - 1, BLOCK, BLOCK + 1, 700])
@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    [(torch.float32, 64), (torch.bfloat16, 64), (torch.bfloat16, 128), (torch.bfloat16, 40)],
)
def test_a_row_gives_the_same_bits_alone_in_a_chain_in_a_tree_and_by_any_threads(
    dtype: torch.dtype,
    head_dim: int,
    length: int,
    window: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, prefix = native(head_dim, window, dtype), some(length)
    found = []
    for threads, chunk in ((1, length), (2, 100), (3, 1 + length // 3), (16, length)):
        set_threads(monkeypatch, threads)
        session = model.start()
        chunks = [prefix[start : start + chunk] for start in range(0, length, chunk)]
        last = [session.extend(each).logits for each in chunks][-1][-1:]
        in_tree = session.forward(TREE).logits[CHAIN]
        chain = session.forward(DraftTree.chain(tokens_of(CHAIN))).logits
        alone = torch.cat([session.extend([token]).logits for token in tokens_of(CHAIN)])
        found += [(last, in_tree), (last, chain), (last, alone)]
    assert all(
        torch.equal(last, found[0][0]) and torch.equal(rows, found[0][1]) for last, rows in found
    )


def test_rows_that_wait_for_each_other_differ_only_by_what_they_see() -> None:
    """Negative control: with another token in sight bits do change."""
    session = native(64, None, torch.bfloat16).start()
    session.extend(some(300), keep="last")
    first = session.forward(TREE).logits
    other = DraftTree.of([6, *TREE.tokens.tolist()[1:]], TREE.parent_list)
    assert not torch.equal(session.forward(other).logits[10], first[10])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sequences_of_all_lengths_in_one_pass_give_the_bits_of_their_own(
    dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_threads(monkeypatch, threads)
    model = native(64, 300, dtype)
    lengths = [1, 15, 16, 17, BLOCK - 5, BLOCK, BLOCK + 1, 530, 900]
    sessions = [model.start() for _ in lengths]
    for seed, (session, length) in enumerate(zip(sessions, lengths, strict=True)):
        session.extend(some(length, seed), keep="last")
    trees = [TREE if i % 2 else DraftTree.chain(some(1 + 4 * i, i)) for i in range(len(lengths))]
    alone = [session.forward(tree).logits for session, tree in zip(sessions, trees, strict=True)]
    together = model.forward(
        [ForwardInput(session, tree) for session, tree in zip(sessions, trees, strict=True)]
    )
    assert all(torch.equal(one, out.logits) for one, out in zip(alone, together, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize(
    ("dtype", "cache"), [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "int8")]
)
def test_texts_that_begin_with_the_same_blocks_give_the_bits_of_their_own(
    dtype: torch.dtype,
    cache: CacheType | None,
    window: int | None,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_threads(monkeypatch, threads)
    model = NativeModel(hf_model(64, window).to(dtype), cache=cache)
    origins = [model.start(), model.start()]
    for seed, (origin, length) in enumerate(zip(origins, (3 * BLOCK + 7, BLOCK), strict=True)):
        origin.extend(some(length, seed), keep="last")
    sessions, alone = [], []
    # of both origins in turns; trees of more rows than one item takes are among them
    for number, own in enumerate((1, 0, 30, BLOCK, 3, 600, 80, 0, 17)):
        session, tail = origins[number % 2].fork(), some(own, number)
        if tail:
            session.extend(tail, keep="last")
        tree = (TREE, DraftTree.chain([number]), DraftTree.chain(some(40, number)))[number % 3]
        sessions.append(ForwardInput(session, tree))
        alone.append(session.forward(tree).logits)
    together = model.forward(sessions)
    assert all(torch.equal(one, out.logits) for one, out in zip(alone, together, strict=True))
    assert not torch.equal(alone[1], alone[7])  # negative control


@pytest.mark.parametrize("heads", [2, 8, 14])
def test_any_number_of_heads_may_share_keys(heads: int) -> None:
    session = native(64, None, torch.bfloat16, heads).start()
    prefix = some(300)
    session.extend(prefix, keep="last")
    expected = exact(hf_model(64, None, heads).bfloat16(), prefix)
    assert (session.forward(TREE).logits - expected).abs().max() <= 0.15 * expected.std()


@pytest.mark.parametrize("window", [None, 90])
def test_kept_paths_and_trees_in_two_parts_are_read_in_the_order_of_the_text(
    window: int | None,
) -> None:
    model = native(64, window, torch.bfloat16)
    session, plain = model.start(), model.start()
    text = some(BLOCK - 3)
    session.extend(text, keep="last")
    plain.extend(text, keep="last")
    whole = session.forward(TREE).logits
    early = session.forward(TREE.keep(range(6))).logits
    late = session.forward(TREE, first=6).logits
    assert torch.equal(whole, torch.cat([early, late]))
    session.commit(CHAIN)
    plain.extend(tokens_of(CHAIN), keep="last")
    assert torch.equal(session.forward(TREE).logits, plain.forward(TREE).logits)
    session.rewind(4)
    plain.rewind(4)
    assert torch.equal(session.extend([7]).logits, plain.extend([7]).logits)
