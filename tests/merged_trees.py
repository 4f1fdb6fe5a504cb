"""Trees that a merger grows over a random text."""

import random

import numpy as np

from draftwood.costs.budget import Budget
from draftwood.drafters import DraftRequest, VerifiedTree
from draftwood.models.model import ModelOutput
from draftwood.sources.merger import Grown, Merger
from draftwood.testing import TableModel
from draftwood.tree import DraftTree
from roads import normals

VOCAB = 40
BUDGET = Budget(lambda nodes: 1.0 + 0.02 * nodes, per_draft_token=0.0, max_draft_tokens=24)


def model_of(seed: int) -> TableModel:
    return TableModel(3 * normals(seed, (VOCAB, VOCAB), stream=10)[0])


def trees(
    merged: Merger,
    request: DraftRequest,
    model: TableModel,
    seed: int,
    company: tuple[int, ...] = (0, 0, 3, 15),
) -> list[tuple[Grown, list[set[str]]]]:
    """Trees drafted on a text that repeats itself, with rejected drafts and quiet steps."""
    chance, found = random.Random(seed), []
    prompt = [chance.randrange(VOCAB) for _ in range(20)] * 2
    merged.learn(
        VerifiedTree(
            DraftTree.chain(prompt), range(len(prompt)), ModelOutput(model.logits[prompt])
        ),
        quiet=False,
    )
    text = list(prompt)
    for step in range(60):
        root = int(model.logits[text[-1]].argmax()) if step % 3 else chance.randrange(VOCAB)
        if step % 11 == 10:
            merged.learn(VerifiedTree(DraftTree.chain([root]), [0]), quiet=True)
            continue
        others = float(chance.choice(company))  # texts that share the pass
        grown = merged.grow(root, BUDGET.beside(int(others)), others=others)
        found.append((grown, [set(names) for names in merged.proposers(len(grown.tokens))]))
        tree, path = DraftTree.of(grown.tokens, grown.parents), [0]
        while tree.children[path[-1]] and chance.random() < 0.7:
            path.append(chance.choice(tree.children[path[-1]]))
        merged.learn(VerifiedTree(tree, path, ModelOutput(model.logits[tree.tokens])), quiet=False)
        text += [tree.token_list[node] for node in path]
        for _ in path:
            request.rng.draw(np.ones(VOCAB))
    return found
