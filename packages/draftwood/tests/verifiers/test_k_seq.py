import numpy as np
import pytest

from draftwood.verifiers.k_seq import division_factor
from roads import softmax


def laws(seed: int, vocab: int) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    common = chance.normal(size=vocab)
    p, q = softmax(chance.normal(size=(2, vocab)) + 2 * common)
    return p, q


def slack(p: np.ndarray, q: np.ndarray, rho: float, count: int) -> float:
    beta = float(np.minimum(p / rho, q).sum())
    return rho * beta - (1 - (1 - beta) ** count)


@pytest.mark.parametrize("count", [2, 3, 8, 64])
@pytest.mark.parametrize("vocab", [3, 50, 20000])
def test_division_factor_is_the_root_from_above(vocab: int, count: int) -> None:
    p, q = laws(count + vocab, vocab)
    rho = division_factor(p, q, count)
    assert 1.0 <= rho <= count
    assert slack(p, q, rho, count) >= -1e-14
    # 0 to rounding where many children all but surely succeed
    assert slack(p, q, rho - 1e-7, count) <= 1e-15


def test_32_bits_find_the_same_factor() -> None:
    p, q = laws(0, 30000)
    assert division_factor(p.astype(np.float32), q.astype(np.float32), 4) == pytest.approx(
        division_factor(p, q, 4), abs=1e-4
    )


def test_division_factor_where_nothing_is_left_to_divide() -> None:
    p, q = laws(1, 5)
    apart = np.eye(5)
    assert division_factor(p, q, 1) == 1.0
    assert division_factor(p, p, 3) == pytest.approx(1.0, abs=1e-4)
    assert division_factor(apart[0], apart[1], 3) == 1.0


def test_few_looks_at_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def counted(*arguments: float) -> float:
        looks.append(arguments)
        return slack(*arguments)

    monkeypatch.setattr("draftwood.verifiers.k_seq._slack", counted)
    for seed in range(10):
        division_factor(*laws(seed, 20000), 4)
    assert len(looks) <= 10 * 14
