"""Checks that every method must pass, for those who add one."""

from collections.abc import Iterator

import numpy as np

from draftwood.arrays import Float
from draftwood.rng import Rng
from draftwood.testing.laws import Grow, Walk, at_nodes, distance, law_of, plain_tree, target_law
from draftwood.testing.outcomes import outcomes
from draftwood.tree import Draw
from draftwood.verifiers.verifier import Verifier

TOLERANCE = 1e-9
SMALL = ((), (1,), (2,), (3,), (1, 1), (2, 1), (1, 2))
LARGE = ((2, 2), (3, 1), (1, 1, 1))


def check_verifier(verifier: Verifier) -> None:
    """Prove on small tables that a verifier loses nothing on the draws it is exact for.

    Chains and trees are drafted in every possible way and verified in every possible way; the
    distribution of the emitted tokens must be the target's to 1e-9. The tables include zeros, rows
    where target and draft agree or have nothing in common, and certain rows. A verifier may refuse
    trees that branch, with ValueError. A lossy one, exact for no draw, is only held to walk
    properly.

    Raises:
        AssertionError: naming the draw, the tree's widths, the tables and what went wrong.
    """
    for draw in sorted(verifier.exact_for) or ["distinct"]:
        for widths, kind, target, draft in _cases(draw):
            case = f"{verifier.name}, {draw} draws, widths {widths}, {kind}"
            grow = plain_tree(widths, draw, draft)
            if max(widths, default=1) > 1 and _refuses(verifier, grow, target):
                continue
            try:
                found = _watched_walks(verifier, grow, target)
            except (ValueError, IndexError) as error:
                raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
            except AssertionError as error:
                raise AssertionError(f"{case}: {error}") from error
            for length in range(1, len(widths) + 2) if verifier.exact_for else ():
                off = distance(law_of(found, target, length), target_law(target, length))
                assert off <= TOLERANCE, (
                    f"{case}: the distribution of the first {length} tokens is {off:.6g} from the"
                    " target's"
                )


def _watched_walks(
    verifier: Verifier, grow: Grow, target: Float[np.ndarray, "vocab vocab"]
) -> list[Walk]:
    """Every walk, each of them looked at."""
    found = []
    for drafted, tree in outcomes(grow):
        rows = at_nodes(target, tree)
        read = [rows] if tree.probs is None else [rows, tree.probs]
        before = np.concatenate(read)
        for decided, verdict in outcomes(
            lambda rng, tree=tree, rows=rows: verifier(tree, rows, rng)
        ):
            path, token = verdict.path, verdict.next_token
            assert path == (tree.path_to(path[-1]) if path else []), (
                f"{path} is no path from the root of {tree}"
            )
            assert type(token) is int, f"next_token must be an int, got {token!r}"
            assert 0 <= token < len(target), f"{token} is no token"
            found.append(Walk(drafted * decided, tree, verdict))
        unchanged = np.array_equal(np.concatenate(read), before)
        assert unchanged, "a verifier must not write to the tree or to the target's rows"
    return found


def _refuses(verifier: Verifier, grow: Grow, target: Float[np.ndarray, "vocab vocab"]) -> bool:
    tree = grow(Rng(0))
    try:
        verifier(tree, at_nodes(target, tree), Rng(0))
    except ValueError:
        return True
    return False


Case = tuple[
    tuple[int, ...], str, Float[np.ndarray, "vocab vocab"], Float[np.ndarray, "vocab vocab"]
]


def _cases(draw: Draw) -> Iterator[Case]:
    """(widths, kind, target, draft): all tables for small trees, random ones for large trees."""
    for widths in SMALL:
        for kind, rows in _tables().items():
            target, draft = (np.stack(side) for side in zip(*rows, strict=True))
            yield widths, kind, target, draft
    # trees that may hold a token twice below one node are too many otherwise
    vocab = 2 if draw in ("independent", "named") else 3
    for widths in LARGE:
        target, draft = (
            np.stack([_law(seed + row, vocab) for row in range(vocab)]) for seed in (40, 50)
        )
        yield widths, f"random rows of {vocab} tokens", target, draft


def _law(seed: int, vocab: int = 3) -> Float[np.ndarray, " vocab"]:
    return random_law(np.random.default_rng(seed), (vocab,), 1.5)


def random_law(
    rng: np.random.Generator, sizes: tuple[int, ...], spread: float
) -> Float[np.ndarray, "*before vocab"]:
    """Distributions in float64 whose logits are normal, with this standard deviation."""
    weights = np.exp(rng.standard_normal(sizes) * spread)
    return weights / weights.sum(-1, keepdims=True)


def _tables() -> dict[str, list[tuple[Float[np.ndarray, " vocab"], Float[np.ndarray, " vocab"]]]]:
    """By kind, (target, draft) after each of three tokens.

    The root is token 0, so its row counts most.
    """
    certain, same = np.eye(3), _law(1)
    random = [(_law(seed), _law(seed + 1)) for seed in range(20, 26, 2)]
    narrow = (
        np.array([0.4, 0.6, 0.0]),
        np.array([0.0, 0.3, 0.7]),
    )
    equal, apart = (same, same), (certain[0], narrow[1])
    sure_target, sure_draft = (certain[2], _law(2)), (_law(3), certain[1])
    return {
        "random rows": random,
        "rows with different zeros": [narrow, random[1], sure_draft],
        "rows alike": [equal, equal, random[2]],
        "sure target": [sure_target, apart, sure_target],
        "sure draft": [sure_draft, narrow, apart],
        "nothing in common": [apart, random[1], equal],
    }
