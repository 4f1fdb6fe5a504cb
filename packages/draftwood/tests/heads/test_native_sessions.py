"""Sessions of the library's head: rows in any company, races, trees, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood.heads.eagle import EagleConfig
from draftwood.heads.packed import native_eagle, why_not
from draftwood.native import head_session, library
from draftwood.native.formats import HeadSizes, Products
from draftwood.native.head_session import HeadSession
from draftwood.native.matrix import Matrix
from draftwood.rng import Rng
from native_heads import (
    CONFIGS,
    DRAFTED,
    SMOLLM2,
    TINY,
    VOCABULARY,
    a_head,
    a_native,
    drafted,
    features_of,
    some,
    some_draft_tokens,
)
from reference.successors import Found, found_of

pytestmark = pytest.mark.skipif(not library.available(), reason="there is no C++ compiler")

CONFIG = CONFIGS["tiny"]


def floats(stored: Matrix) -> Tensor:
    """The weights of a matrix as a tensor."""
    return torch.from_numpy(stored.floats())


def logits_of(session: HeadSession) -> Tensor:
    return torch.from_numpy(session.logits())


def some_tokens(count: int, seed: int = 6) -> list[int]:
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (count,), generator=chance).tolist()


def a_session(products: Products = "float32", ranks: int = 4, rows: int = 7) -> HeadSession:
    """With some committed rows."""
    session = a_native(CONFIG, products).start(ranks)
    session.take(features_of(CONFIG, rows), some_tokens(rows))
    return session


@pytest.mark.parametrize("products", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("name", ["tiny", "two layers, window"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_gives_the_same_bits_in_any_company(
    products: Products, name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_session, "threads", lambda: threads)
    config = CONFIGS[name]
    native = a_native(config, products, some(VOCABULARY, config.sizes.hidden, seed=4).bfloat16())
    count = 600  # several passes, and several blocks of attention
    features, tokens = features_of(config, count), some_tokens(count)
    whole, parts = native.start(), native.start()
    whole.take(features, tokens)
    for first, last in ((0, 1), (1, 258), (258, 260), (260, 599), (599, 600)):
        parts.take(features[first:last], tokens[first:last])
    assert torch.equal(logits_of(whole), logits_of(parts))
    whole.level([-1] * 5, [1, 2, 3, 4, 5])
    whole.level([0, 0, 1, 4], [6, 7, 8, 9])
    together = logits_of(whole)
    parts.level([-1], [5])
    parts.level([0], [9])
    assert torch.equal(logits_of(parts)[0], together[3])
    parts.take(features[:1], tokens[:1])  # what was dropped leaves no trace
    parts.keep(599)
    parts.take(features[599:], tokens[599:])
    parts.level([-1, -1], [2, 1])
    parts.level([1, 0], [7, 8])
    assert torch.equal(logits_of(parts), together[1:3])
    other = native.start()
    other.take(features[1:], tokens[1:])
    other.level([-1, -1], [2, 1])
    other.level([1, 0], [7, 8])
    assert not torch.equal(logits_of(other), together[1:3])


def test_states_may_come_as_a_forward_pass_gives_them() -> None:
    config = CONFIG
    session = a_native(config).start()
    given, path = features_of(config, 6).bfloat16(), [0, 2, 5]

    def found(features: Any, path: list[int] | None) -> Found:
        session.keep(0)
        session.take(features, [1, 2, 3], path)
        return found_of(session)

    wanted = found(given.float()[path].contiguous(), None)
    assert found(list(given.unbind(1)), path) == wanted
    assert found([part.clone() for part in given.unbind(1)], path) == wanted
    assert found(given, [0, 2, 4]) != wanted


def test_tokens_may_be_embedded_by_codes() -> None:
    embedding = some(VOCABULARY, TINY.hidden, seed=4)
    codes = Matrix.pack(embedding, None, "int8")
    one = a_native(CONFIG, embedding=floats(codes).bfloat16()).start()
    two = a_native(CONFIG, embedding=codes).start()
    one.take(features_of(CONFIG, 5), some_tokens(5))
    two.take(features_of(CONFIG, 5), some_tokens(5))
    assert (logits_of(one) - logits_of(two)).abs().max() < 0.05 * logits_of(one).std()


@pytest.mark.parametrize("products", ["float32", "int8", "int4"])
def test_output_rows_are_stored_as_the_layer_is(products: Products) -> None:
    head, rows = a_head(CONFIG)
    embedding = some(VOCABULARY, TINY.hidden, seed=4)

    def logits_by(tokens: Tensor, lm_rows: Tensor) -> Tensor:
        native = native_eagle(
            CONFIG,
            head.state_dict(),
            draft_tokens=tokens,
            lm_rows=lm_rows,
            embedding=embedding,
            products=products,
        )
        session = native.start()
        session.take(features_of(CONFIG, 3), [1, 2, 3])
        return logits_of(session).clone()

    # what output rows multiply, up to the rounding of a one's scale
    states = logits_by(torch.arange(TINY.hidden), torch.eye(TINY.hidden))
    found = logits_by(some_draft_tokens(), rows)
    kinds: tuple[Products, ...] = ("float32", "int8", "int4")
    stored = {kind: Matrix.pack(rows, None, kind).multiply(states) for kind in kinds}
    off = {kind: (found - each).abs().max() / found.abs().max() for kind, each in stored.items()}
    assert off.pop(products) < 5e-4
    assert min(off.values()) > 5e-3


def test_successors_are_the_likeliest_of_the_draft_vocabulary() -> None:
    session = a_session(ranks=5)
    session.level([-1, -1], [3, 9])
    found = found_of(session)
    log_probs = logits_of(session).log_softmax(-1)
    best = log_probs.topk(5)
    assert found.tokens == some_draft_tokens()[best.indices].tolist()
    torch.testing.assert_close(torch.tensor(found.log_probs), best.values, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_raced_successors_are_those_that_arrive_first(temperature: float) -> None:
    rng = Rng(4)
    for _ in range(3):
        rng.draw(np.ones(5))
    key, place = rng.next_draw
    session = a_native(CONFIG).start(6, temperature, key)
    session.take(features_of(CONFIG, 3), [1, 2, 3], place=place)
    found, logits = [found_of(session)], [logits_of(session)[0].clone()]
    session.level([-1], [7])
    session.level([0], [8])
    session.level([1, -1], [7, 9])
    draft_tokens = some_draft_tokens()
    logits.append(logits_of(session)[1].clone())  # a child of the newest token, as the first level
    session.level([-1], [9])
    found.append(found_of(session))
    for ahead, (row, logit) in enumerate(zip(found, logits, strict=True)):
        probs = (logit / temperature).softmax(-1)
        times = torch.tensor(rng.exponential_noise(draft_tokens.tolist(), ahead))
        best = (probs / times).topk(6)
        assert row.tokens[0] == draft_tokens[best.indices].tolist()
        wanted = probs[best.indices].log()
        torch.testing.assert_close(torch.tensor(row.log_probs[0]), wanted, atol=1e-4, rtol=1e-4)
        likeliest = draft_tokens[probs.topk(6).indices].tolist()
        assert row.tokens[0] != likeliest


def test_the_winner_of_the_race_is_what_will_be_drawn() -> None:
    rng = Rng(11)
    key, place = rng.next_draw
    native = a_native(CONFIG)
    session = native.start(2, 1.0, key)
    hits, likeliest = 0, 0
    for number in range(40):
        session.take(features_of(CONFIG, 1, seed=number), [number], place=place + number)
        row = torch.full((VOCABULARY,), -math.inf)
        row[native.draft_tokens] = logits_of(session)[0]
        drawn = rng.draw_from_logits(row[None].numpy(), 0, 1.0)
        hits += drawn == found_of(session).tokens[0][0]
        likeliest += drawn == int(row.argmax())
    assert hits == 40 > likeliest


def drafted_in_python(
    session: HeadSession, features: Tensor, tokens: list[int], nodes: int, depth: int, width: int
) -> set[tuple[tuple[int, ...], float]]:
    """Paths of the tree and their probabilities."""
    session.take(features, tokens)
    found = found_of(session)
    everything: dict[tuple[int, ...], float] = {
        (token,): log_prob
        for token, log_prob in zip(found.tokens[0], found.log_probs[0], strict=True)
    }
    number_of: dict[tuple[int, ...], int] = {(): -1}
    best = lambda: sorted(everything, key=lambda path: -everything[path])[:nodes]  # noqa: E731
    for level in range(1, depth):
        read = [path for path in best() if len(path) == level][:width]
        if not read:
            break
        session.level([number_of[path[:-1]] for path in read], [path[-1] for path in read])
        found = found_of(session)
        for row, path in enumerate(read):
            number_of[path] = len(number_of) - 1
            for token, log_prob in zip(found.tokens[row], found.log_probs[row], strict=True):
                everything[(*path, token)] = everything[path] + log_prob
    return {(path, round(everything[path], 3)) for path in best()}


@pytest.mark.parametrize(("nodes", "depth", "width"), [(5, 3, 2), (12, 4, 3), (3, 1, 1), (9, 8, 1)])
def test_a_tree_in_one_call_is_the_tree_of_many(nodes: int, depth: int, width: int) -> None:
    session = a_session()
    features, tokens = features_of(CONFIG, 2, seed=9), [8, 9]
    found_tokens, parents, log_probs = drafted(session, features, tokens, (nodes, depth, width))
    assert session.length == 9
    assert (found_tokens[0], parents[0]) == (9, -1)
    assert len(found_tokens) <= 1 + nodes
    paths = [tuple[int, ...]()]
    for token, parent in zip(found_tokens[1:], parents[1:], strict=True):
        paths.append((*paths[parent], token))
    found = {
        (path, round(log_prob, 3)) for path, log_prob in zip(paths[1:], log_probs[1:], strict=True)
    }
    session.keep(7)
    assert found == drafted_in_python(session, features, tokens, nodes, depth, width)


def test_a_head_of_smollm2_takes_little_memory() -> None:
    config = EagleConfig(SMOLLM2, reads=(2, 15, 27))
    head = a_head(config)[0]
    embedding, rows = torch.zeros(8192, 576).bfloat16(), torch.zeros(8192, 576)
    given = {"draft_tokens": torch.arange(8192), "lm_rows": rows, "embedding": embedding}
    native = native_eagle(config, head.state_dict(), **given)
    assert native.weight_bytes < 11e6
    keys_and_values = 2 * 2 * 3 * 64 * 8192  # of a text as long as the target takes
    assert native.weight_bytes + keys_and_values < 18e6


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda s: s.take(features_of(CONFIG, 1), [VOCABULARY]), "beyond the vocabulary of 300"),
        (lambda s: s.take(features_of(CONFIG, 1), [-1]), "beyond the vocabulary"),
        (lambda s: s.take(features_of(CONFIG, 2), [1]), "needs a row of the 2 states"),
        (lambda s: s.take(features_of(CONFIG, 2), [1], [2]), "got row 2 of"),
        (lambda s: s.take(features_of(CONFIG, 1)[:0], []), "needs a row"),
        (lambda s: s.take(features_of(CONFIG, 1)[:, :2], [1]), "states of 3 layers"),
        (lambda s: s.take(features_of(CONFIG, 1)[..., :8], [1]), "rows of 32 entries"),
        (lambda s: s.level([-1], [VOCABULARY]), "beyond the vocabulary"),
        (lambda s: s.level([0], [1]), "row 0 is not there"),
        (lambda s: s.level([-2], [1]), "row -2 is not there"),
        (lambda s: s.level([], []), "1 to 64 tokens"),
        (lambda s: s.level([-1] * 65, [1] * 65), "1 to 64 tokens"),
        (lambda s: s.level([-1], [1, 2]), "with a parent each"),
        (lambda s: (s.keep(2), s.level([-1], [1])), "take"),
    ],
)
def test_bad_calls_are_refused_and_change_nothing(wrong, message: str) -> None:
    session = a_session()
    with pytest.raises(ValueError, match=message):
        wrong(session)
    wanted = a_session()
    for each in (session, wanted):
        each.keep(2)
        each.take(features_of(CONFIG, 1), [1])
    assert torch.equal(logits_of(session), logits_of(wanted))


def test_heads_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    head, rows = a_head(CONFIG)
    tokens, embedding = some_draft_tokens(), some(VOCABULARY, TINY.hidden)
    for wrong, message in (
        ((tokens[1:], rows, embedding), "does not go"),
        ((tokens, rows[:, 1:], embedding), "does not go"),
        ((tokens, rows, embedding[:, 1:]), "does not go"),
        ((tokens, rows, embedding[:50]), "target's 0 to 49"),
        ((tokens - 400, rows, embedding), "target's 0 to 299"),
        ((tokens.clamp(max=9), rows, embedding), "differ"),
        ((tokens, rows, embedding.double()), "float32 or bfloat16"),
        ((tokens, rows / 0.0, embedding), "not finite"),
    ):
        given = dict(zip(("draft_tokens", "lm_rows", "embedding"), wrong, strict=True))
        with pytest.raises(ValueError, match=message):
            native_eagle(CONFIG, head.state_dict(), **given)
    with pytest.raises(ValueError, match="ranks must be 0 to 64"):
        a_native(CONFIG).start(65)
    with pytest.raises(ValueError, match="even head_dim"):
        a_native(EagleConfig(HeadSizes(32, 48, heads=4, num_kv_heads=2, head_dim=7)))
    assert why_not(CONFIG) is None
    assert a_native(CONFIG).vocab_size == DRAFTED
    monkeypatch.setattr(library, "available", lambda: False)
    assert "C++ library" in (why_not(CONFIG) or "")
