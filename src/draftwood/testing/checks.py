"""Checks that every method must pass, for those who add one."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.rng import Rng
from draftwood.testing.laws import Grow, Walk, at_nodes, distance, law_of, plain_tree, target_law
from draftwood.testing.outcomes import outcomes
from draftwood.verifiers.base import Verifier

TOLERANCE = 1e-9
SMALL = ((), (1,), (2,), (3,), (1, 1), (2, 1), (1, 2))
LARGE = ((2, 2), (3, 1), (1, 1, 1))


def check_verifier(verifier: Verifier) -> None:
    """Prove on small tables that a verifier loses nothing on the draws it is exact for.

    Chains and trees are drafted in every possible way and verified in every possible way; the law of the emitted
    tokens must be the target's to 1e-9. The tables include zeros, rows where target and draft agree or have nothing
    in common, and certain rows. A verifier may refuse trees that branch, with ValueError. A lossy one, exact for no
    draw, is only held to walk properly.

    Raises:
        AssertionError: naming the draw, the tree's widths, the tables and what went wrong.
    """
    for draw in sorted(verifier.exact_for) or ["distinct"]:
        for widths, kind, target, draft in _cases():
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
                assert off <= TOLERANCE, f"{case}: the law of the first {length} tokens is {off:.6g} from the target's"


def _watched_walks(verifier: Verifier, grow: Grow, target: Float[Tensor, "vocab vocab"]) -> list[Walk]:
    """Every walk, each of them looked at."""
    found = []
    for drafted, tree in outcomes(grow):
        rows = at_nodes(target, tree)
        before = rows.clone(), None if tree.probs is None else tree.probs.clone()
        for decided, verdict in outcomes(lambda rng, tree=tree, rows=rows: verifier(tree, rows, rng)):
            path, token = verdict.path, verdict.next_token
            assert path == (tree.path_to(path[-1]) if path else []), f"{path} is no path from the root of {tree}"
            assert type(token) is int, f"next_token must be an int, got {token!r}"
            assert 0 <= token < len(target), f"{token} is no token"
            found.append(Walk(drafted * decided, tree, verdict))
        unchanged = torch.equal(rows, before[0]) and (tree.probs is None or torch.equal(tree.probs, before[1]))
        assert unchanged, "a verifier must not write to the tree or to the target's rows"
    return found


def _refuses(verifier: Verifier, grow: Grow, target: Float[Tensor, "vocab vocab"]) -> bool:
    tree = grow(Rng(0))
    try:
        verifier(tree, at_nodes(target, tree), Rng(0))
    except ValueError:
        return True
    return False


Rows = list[tuple[Float[Tensor, " vocab"], Float[Tensor, " vocab"]]]


def _cases() -> Iterator[tuple[tuple[int, ...], str, Float[Tensor, "vocab vocab"], Float[Tensor, "vocab vocab"]]]:
    """(widths, kind, target, draft): all tables for small trees, the first for large ones."""
    tables = _tables()
    for widths in (*SMALL, *LARGE):
        for kind, rows in list(tables.items())[: None if widths in SMALL else 1]:
            target, draft = (torch.stack(side) for side in zip(*rows, strict=True))
            yield widths, kind, target, draft


def _tables() -> dict[str, Rows]:
    """By kind, (target, draft) after each of three tokens. The root is token 0, so its row counts most."""
    generator = torch.Generator().manual_seed(20)

    def law(spread: float = 1.5) -> Float[Tensor, " vocab"]:
        return (torch.randn(3, dtype=torch.float64, generator=generator) * spread).softmax(-1)

    same, certain = law(), torch.eye(3, dtype=torch.float64)
    narrow = torch.tensor([0.4, 0.6, 0.0], dtype=torch.float64), torch.tensor([0.0, 0.3, 0.7], dtype=torch.float64)
    equal, sure_target, sure_draft, apart = (
        (same, same),
        (certain[2], law()),
        (law(), certain[1]),
        (certain[0], narrow[1]),
    )
    return {
        "random rows": [(law(), law()) for _ in range(3)],
        "rows with different zeros": [narrow, (law(), law()), sure_draft],
        "rows alike": [equal, equal, (law(), law())],
        "sure target": [sure_target, apart, sure_target],
        "sure draft": [sure_draft, narrow, apart],
        "nothing in common": [apart, (law(), law()), equal],
    }
