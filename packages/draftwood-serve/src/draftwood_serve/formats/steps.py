"""Steps with their trees, as answers tell them."""

from collections.abc import Sequence
from typing import Any

from draftwood.text.builder import TextBuilder
from draftwood.tree import DraftTree
from draftwood_serve.texts import TracedStep
from draftwood_serve.token_texts import TokenTexts


class StepTeller:
    """Tells the steps of one text in their order.

    Args:
        texts: of the model's tokens.
        method: that proposed a draft token where its tree does not say what did.
        started: when the request's turn came, in seconds of ``time.perf_counter``.
        of: builds the text; here it is built a token at a time.
    """

    def __init__(self, texts: TokenTexts, method: str, started: float, of: TextBuilder) -> None:
        self.texts, self.method, self.started = texts, method, started
        self._builder = of.without_stops()

    def tell_all(self, steps: Sequence[TracedStep]) -> list[dict[str, Any]]:
        """All steps of a text that is whole."""
        last = len(steps) - 1
        return [self.tell(each, final=place == last) for place, each in enumerate(steps)]

    def tell(self, traced: TracedStep, final: bool) -> dict[str, Any]:
        """One more step; its tokens put together are the text, stop strings included."""
        step = traced.step
        return {
            "tokens": self._pieces(step.tokens, final),
            "drafted": step.drafted,
            "accepted": step.accepted,
            "ms": round(1e3 * sum(step.seconds.values()), 2),
            "elapsed_ms": round(1e3 * (traced.at - self.started), 2),
            "tree": None if step.tree is None else self._tree(step.tree, step.path),
        }

    def _pieces(self, tokens: Sequence[int], final: bool) -> list[str]:
        """The text that each token brings; a character of several comes with its last one."""
        pieces = []
        for token in tokens:
            before = len(self._builder.text)
            self._builder.add([token])
            pieces.append(self._builder.text[before:])
        if final:
            before = len(self._builder.text)
            self._builder.finish()
            pieces[-1:] = [piece + self._builder.text[before:] for piece in pieces[-1:]]
        return pieces

    def _tree(self, tree: DraftTree, path: Sequence[int]) -> dict[str, Any]:
        sources = tree.sources or ((), *[(self.method,)] * (len(tree) - 1))
        return {
            "tokens": [self.texts.of(token)[0] for token in tree.token_list],
            "parents": list(tree.parent_list),
            "proposers": [list(names) for names in sources],
            "path": list(path),
        }
