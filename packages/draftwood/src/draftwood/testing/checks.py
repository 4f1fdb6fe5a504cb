"""Checks that every method must pass, for those who add one."""

from collections.abc import Iterator

import numpy as np

from draftwood.arrays import Float
from draftwood.rng import Rng
from draftwood.sampling import Context, LazyProbs, Sampling
from draftwood.testing.laws import Grow, Walk, at_nodes, distance, law_of, plain_tree, target_law
from draftwood.testing.outcomes import outcomes
from draftwood.tree import DraftTree, Draw
from draftwood.verifiers.verifier import NodeProbs, Verifier

TOLERANCE, IN_32_BITS = 1e-9, 1e-5
SMALL = ((), (1,), (2,), (3,), (1, 1), (2, 1), (1, 2))
LARGE = ((2, 2), (3, 1), (1, 1, 1))
SAMPLINGS = {
    "temperature 0": Sampling(0.0),
    "temperature 1": Sampling(1.0),
    "temperature 0.7": Sampling(0.7),
    "top-p 0.8": Sampling(1.0, top_p=0.8),
    "a banned token": Sampling(1.0, logit_bias={1: -np.inf}),
}
"""Ways in which the engine hands over rows: as logits, which a rule reads under these options."""

Rows = Float[np.ndarray, "vocab vocab"]
Case = tuple[tuple[int, ...], str, Rows, Rows, Sampling | None]


def check_verifier(verifier: Verifier) -> None:
    """Prove on small tables that a verifier loses nothing on the draws it is exact for.

    Chains and trees are drafted in every possible way and verified in every possible way; the
    distribution of the emitted tokens must be the target's. The tables include zeros, rows where
    target and draft agree or have nothing in common, and certain rows. They are handed over as
    arrays, and held to 1e-9; and as the engine does it, as ``LazyProbs`` of 32 bits under
    temperatures, top-p and a ban. A verifier may refuse trees that branch, with ValueError. A lossy
    one, exact for no draw, is only held to walk properly.

    Raises:
        AssertionError: naming the draw, the tree's widths, the tables and what went wrong.
    """
    for draw in sorted(verifier.exact_for) or ["distinct"]:
        for widths, kind, target, draft, sampling in _cases(draw):
            case = f"{verifier.name}, {draw} draws, widths {widths}, {kind}"
            grow = plain_tree(widths, draw, draft)
            if max(widths, default=1) > 1 and _refuses(verifier, draw, widths):
                continue
            try:
                found = _watched_walks(verifier, grow, target, sampling)
            except (ValueError, IndexError) as error:
                raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
            except AssertionError as error:
                raise AssertionError(f"{case}: {error}") from error
            wanted = target if sampling is None else sampling.probs(_logits(target))
            for length in range(1, len(widths) + 2) if verifier.exact_for else ():
                off = distance(law_of(found, wanted, length), target_law(wanted, length))
                assert off <= (TOLERANCE if sampling is None else IN_32_BITS), (
                    f"{case}: the distribution of the first {length} tokens is {off:.6g} from the"
                    " target's"
                )


def _watched_walks(
    verifier: Verifier, grow: Grow, target: Rows, sampling: Sampling | None
) -> list[Walk]:
    """Every walk, each of them looked at."""
    table = target if sampling is None else _logits(target)
    found = []
    for drafted, tree in outcomes(grow):
        rows = at_nodes(table, tree)
        read = [rows] if tree.probs is None else [rows, tree.probs]
        before = np.concatenate(read)
        for decided, verdict in outcomes(
            lambda rng, tree=tree, rows=rows: verifier(tree, _given(tree, rows, sampling), rng)
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


def _given(tree: DraftTree, rows: Rows, sampling: Sampling | None) -> NodeProbs:
    """Rows as a rule reads them: these, or the distributions of these logits."""
    return rows if sampling is None else LazyProbs(rows, sampling, tree, Context([], 0))


def _logits(table: Rows) -> Rows:
    with np.errstate(divide="ignore"):
        return np.log(table).astype(np.float32)


def _refuses(verifier: Verifier, draw: Draw, widths: tuple[int, ...]) -> bool:
    """True if a verifier takes no tree of this form; rows without zeros give no other reason."""
    target, draft = _random(40, 3)
    tree = plain_tree(widths, draw, draft)(Rng(0))
    try:
        verifier(tree, at_nodes(target, tree), Rng(0))
    except ValueError:
        return True
    return False


def _cases(draw: Draw) -> Iterator[Case]:
    """(widths, kind, target, draft, sampling): all tables for small trees, random ones for large
    trees; and random rows as logits for small trees.
    """
    for widths in SMALL:
        for kind, rows in _tables().items():
            target, draft = (np.stack(side) for side in zip(*rows, strict=True))
            yield widths, kind, target, draft, None
    # trees that may hold a token twice below one node are too many otherwise
    vocab = 2 if draw in ("independent", "named") else 3
    for widths in LARGE:
        yield widths, f"random rows of {vocab} tokens", *_random(40, vocab), None
    for widths in SMALL:
        for options, sampling in SAMPLINGS.items():
            yield widths, f"random logits at {options}", *_random(60, 3), sampling


def _random(seed: int, vocab: int) -> tuple[Rows, Rows]:
    target, draft = (
        np.stack([_law(each + row, vocab) for row in range(vocab)]) for each in (seed, seed + 10)
    )
    return target, draft


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
