from collections import Counter
from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest

from draftwood.native.rows import softmax
from draftwood.rng import Rng
from draftwood.testing import chi_square, outcomes

LAW = np.array([0.5, 0.0, 0.3, 0.15, 0.05], np.float32)
DRAWS = 4000
ALARM = 1e-4  # a correct generator raises it once in ten thousand seeds


def order_law(probs: np.ndarray, count: int) -> dict[tuple[int, ...], float]:
    """Probability of each order of ``count`` tokens drawn one after the other without
    replacement."""
    law = {}
    weights = (probs / probs.sum(dtype=np.float64)).tolist()
    for order in permutations([token for token, weight in enumerate(weights) if weight > 0], count):
        chance, left = 1.0, 1.0
        for token in order:
            chance, left = chance * weights[token] / left, left - weights[token]
        law[order] = chance
    return law


def drawn_orders(seed: int) -> Counter[tuple[int, ...]]:
    rng = Rng(seed)
    return Counter(tuple(row) for row in rng.draw_distinct(np.tile(LAW, (DRAWS, 1)), 3).tolist())


def test_draw_distinct_follows_the_sequential_law() -> None:
    assert chi_square(drawn_orders(1), order_law(LAW, 3)) > ALARM


def test_a_wrong_order_law_is_noticed() -> None:
    turned = {order[::-1]: chance for order, chance in order_law(LAW, 3).items()}
    assert chi_square(drawn_orders(1), turned) < ALARM


def test_enumeration_and_formula_give_the_same_order_law() -> None:
    law = order_law(LAW.astype(np.float64), 3)
    for probability, order in outcomes(
        lambda rng: tuple(rng.draw_distinct(LAW.astype(np.float64)[None], 3)[0].tolist())
    ):
        assert probability == pytest.approx(law.pop(order), abs=1e-12)
    assert not law


def test_draw_follows_unnormalised_weights() -> None:
    rng = Rng(2)
    law = {token: float(weight) for token, weight in enumerate(LAW)}
    assert chi_square(Counter(rng.draw(LAW * 7) for _ in range(DRAWS)), law) > ALARM
    assert chi_square(Counter(rng.draw(LAW**2) for _ in range(DRAWS)), law) < ALARM


def test_draw_independent_follows_the_product_law() -> None:
    drawn = Rng(3).draw_independent(np.tile(LAW, (DRAWS, 1)), 2).tolist()
    law = {(a, b): float(LAW[a] * LAW[b]) for a in range(5) for b in range(5)}
    assert chi_square(Counter(map(tuple, drawn)), law) > ALARM


def test_accept_has_its_probability() -> None:
    rng = Rng(4)
    counts = Counter(rng.accept(0.3) for _ in range(DRAWS))
    assert chi_square(counts, {True: 0.3, False: 0.7}) > ALARM
    assert all(rng.accept(1.0) and rng.accept(1.5) and not rng.accept(0.0) for _ in range(100))


def test_exponential_has_mean_and_variance_one() -> None:
    values = Rng(5).exponential(50, 100)
    assert values.shape == (50, 100)
    assert values.dtype == np.float64
    assert float(values.min()) >= 0.0
    assert float(values.mean()) == pytest.approx(1.0, abs=0.06)
    assert float(values.var()) == pytest.approx(1.0, abs=0.2)


def test_the_same_seed_gives_the_same_acts() -> None:
    def acts(rng: Rng) -> list[object]:
        rows = np.tile(LAW, (3, 1))
        return [
            rng.uniform(),
            rng.accept(0.5),
            rng.draw(LAW),
            rng.draw_distinct(rows, 2).tolist(),
            rng.draw_independent(rows, 2).tolist(),
            rng.exponential(1, 2).tolist(),
        ]

    assert acts(Rng(7)) == acts(Rng(7))
    assert acts(Rng(7)) != acts(Rng(8))
    assert acts(Rng()) != acts(Rng())


def test_global_seeds_are_neither_read_nor_written() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = Rng(9).draw_distinct(LAW[None], 3).tolist()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(1)
    assert Rng(9).draw_distinct(LAW[None], 3).tolist() == first


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tokens_of_probability_0_are_never_drawn(dtype: type) -> None:
    probs = np.array([0.0, 0.7, 0.0, 1e-6, 0.3, 0.0], dtype)
    rng = Rng(10)
    assert {rng.draw(probs) for _ in range(500)} <= {1, 3, 4}
    assert set(rng.draw_independent(np.tile(probs, (500, 1)), 2).flatten().tolist()) <= {1, 3, 4}
    for row in rng.draw_distinct(np.tile(probs, (500, 1)), 3).tolist():
        assert sorted(row) == [1, 3, 4]


def test_draw_distinct_fills_up_where_nothing_is_left() -> None:
    probs = np.array([[0.0, 1.0, 0.0], [0.2, 0.3, 0.5]], np.float32)
    rows = Rng(11).draw_distinct(probs, 3).tolist()
    assert rows[0][0] == 1
    assert sorted(rows[1]) == [0, 1, 2]


def test_without_noise_drafts_are_the_likeliest_tokens() -> None:
    rng = Rng(12, noise=False)
    rows = np.stack([LAW, LAW[::-1]])
    assert rng.draw_distinct(rows, 3).tolist() == [[0, 2, 3], [4, 2, 1]]
    assert rng.draw_independent(rows, 2).tolist() == [[0, 2], [4, 2]]
    assert len({rng.draw(LAW) for _ in range(100)}) > 1  # the target's own draws stay draws


def test_noise_is_exponential_and_differs_from_place_to_place() -> None:
    rng = Rng(13)
    here, there = (np.array(rng.exponential_noise(range(20_000), ahead)) for ahead in (0, 1))
    for times in (here, there):
        uniforms = np.sort(np.exp(-times))
        steps = np.arange(1, len(uniforms) + 1) / len(uniforms)
        # Kolmogorov-Smirnov, p = 7e-4
        assert abs(uniforms - steps).max() < 2.0 / len(uniforms) ** 0.5
    assert abs(np.corrcoef(here, there)[0, 1]) < 0.03
    assert abs(np.corrcoef(here[1:], here[:-1])[0, 1]) < 0.03
    assert np.corrcoef(here, here.copy())[0, 1] > 0.99


def test_who_looks_at_the_noise_knows_what_is_drawn() -> None:
    rng, probs = Rng(14), np.random.default_rng(1).random(300, np.float32)
    times = [np.array(rng.exponential_noise(range(300), ahead)) for ahead in range(50)]
    expected = [int((probs / time).argmax()) for time in times]
    assert [rng.draw(probs) for _ in range(50)] == expected


def pairs_of_draws(draws: Callable[[Rng], tuple[int, int]]) -> Counter:
    return Counter(draws(Rng(seed)) for seed in range(DRAWS))


def test_draws_that_follow_each_other_are_independent() -> None:
    law = {(a, b): float(LAW[a] * LAW[b]) for a in range(5) for b in range(5)}
    assert chi_square(pairs_of_draws(lambda rng: (rng.draw(LAW), rng.draw(LAW))), law) > ALARM

    def stuck(rng: Rng) -> tuple[int, int]:
        first = rng.draw(LAW)
        rng._place -= 1
        return first, rng.draw(LAW)

    assert chi_square(pairs_of_draws(stuck), law) < ALARM  # noise that does not move on is noticed


def test_draws_are_the_same_with_and_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = np.random.default_rng(2).random(1000, np.float32)
    with_library = [Rng(15).draw(probs), *(Rng(seed).draw(probs) for seed in range(100))]
    monkeypatch.setattr("draftwood.native.rows.in_cpp", lambda rows: False)
    assert [Rng(15).draw(probs), *(Rng(seed).draw(probs) for seed in range(100))] == with_library


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_drawing_from_logits_is_drawing_from_their_softmax(temperature: float) -> None:
    logits = np.random.default_rng(1).standard_normal((50, 1003), np.float32) * 4
    logits[:, 17] = -np.inf
    first, second = Rng(3), Rng(3)
    drawn = [first.draw_from_logits(logits, row, temperature) for row in range(50)]
    assert drawn == [second.draw(row) for row in softmax(logits, temperature)]
    assert len(set(drawn)) > 20
    assert first.next_draw == second.next_draw


def test_drawing_from_logits_at_temperature_0_takes_the_likeliest() -> None:
    logits = np.random.default_rng(2).standard_normal((50, 1003), np.float32)
    rng = Rng(0)
    assert [rng.draw_from_logits(logits, row, 0.0) for row in range(50)] == logits.argmax(
        -1
    ).tolist()
    assert rng.next_draw[1] == 50


def test_the_end_of_a_row_is_drawn_too() -> None:
    logits = np.zeros((1, 17), np.float32)
    drawn = Counter(Rng(seed).draw_from_logits(logits, 0, 1.0) for seed in range(1700))
    assert set(drawn) == set(range(17))
    assert [Rng(seed).draw_from_logits(logits, 0, 1.0) for seed in range(200)] == [
        Rng(seed).draw(np.full(17, 1 / 17, np.float32)) for seed in range(200)
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_draws_from_logits_are_the_same_in_numpy(
    temperature: float, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = (np.random.default_rng(3).standard_normal((50, 1003)) * 4).astype(dtype)
    drawn = [Rng(seed).draw_from_logits(logits, seed, temperature) for seed in range(50)]
    monkeypatch.setattr("draftwood.native.rows.in_cpp", lambda rows: False)
    assert [Rng(seed).draw_from_logits(logits, seed, temperature) for seed in range(50)] == drawn
    broken = logits.copy()
    broken[0, 3], broken[1, 5], broken[2] = np.nan, np.inf, -np.inf
    assert [Rng(0).draw_from_logits(broken, row, temperature) for row in range(3)] == [-1] * 3
