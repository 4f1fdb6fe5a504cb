"""A draft tree drawn in the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftwood.cli.terminal import notes
from draftwood.tokenizer.protocol import AnyTokenizer

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from draftwood.stats import Step
    from draftwood.text.stream import Stream
    from draftwood.tree import DraftTree

ACCEPTED, GUESS, HIDDEN = "bold green", "default", "dim"
VISIBLE = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}


def best_step(steps: Sequence["Step"]) -> "Step | None":
    """Return the first step that accepted most; None if nothing was drafted."""
    drafted = [step for step in steps if step.tree is not None and step.drafted]
    return max(drafted, key=lambda step: step.accepted, default=None)


def say_tree(stream: "Stream", tokenizer: AnyTokenizer, number: int | None = None) -> None:
    """Draw on stderr the tree of a forward pass; without a number the one that gave most.

    Raises:
        ValueError: where the text took no pass of this number.
    """
    passes = len(stream.steps) - 1  # the prompt's is none of them
    if number is not None and not 1 <= number <= passes:
        raise ValueError(f"the answer took {passes} forward passes; there is no number {number}")
    step = best_step(stream.steps) if number is None else stream.steps[number]
    if step is None:
        notes().print(
            "no draft tree to show: this text was written without draft tokens", style="dim"
        )
        return
    shown = next(place for place, each in enumerate(stream.steps) if each is step)
    notes().print(
        f"pass {shown} of {passes}: {step.drafted} draft tokens, {step.accepted} accepted",
        style="dim",
    )
    notes().print(draw_step(step, tokenizer))


def visible(token: int, tokenizer: AnyTokenizer) -> str:
    """Text of a token with visible spaces and line breaks, without control characters."""
    piece = str(tokenizer.convert_ids_to_tokens(token))
    if piece.startswith("▁"):  # SentencePiece; decoding a token alone would drop its space
        text = piece.replace("▁", " ")
    else:
        text = str(tokenizer.decode([token]))
        # part of a character, or a special token
        text = piece if "\ufffd" in text or not text else text
    return "".join(VISIBLE.get(c, c if c.isprintable() else f"\\x{ord(c):02x}") for c in text)


def draw_step(step: "Step", tokenizer: AnyTokenizer, limit: int = 24) -> "Tree":
    """Draw the tree of a step, with the model's own token after the accepted path.

    Args:
        step: one that drafted.
        tokenizer: of the target.
        limit: a tree of more nodes shows the children of the accepted path alone, and counts the
            rest.
    """
    assert step.tree is not None  # not the prompt's forward pass
    own = visible(step.tokens[-1], tokenizer) if len(step.tokens) > step.accepted else None
    return _Drawing(step.tree, step.path, tokenizer, own, limit).draw()


class _Drawing:
    def __init__(
        self,
        tree: "DraftTree",
        path: Sequence[int],
        tokenizer: AnyTokenizer,
        own: str | None,
        limit: int,
    ) -> None:
        self.tree, self.tokenizer, self.own = tree, tokenizer, own
        self.path = {0, *path}
        self.last = path[-1] if path else 0
        self.below = self._count_below()
        self.whole = len(tree) <= limit
        # children shown below each node of the path
        self.fan = max(3, limit // (len(path) + 1) - 1)

    def draw(self) -> "Tree":
        from rich.text import Text
        from rich.tree import Tree

        label = Text.assemble((self._token(0), "bold"), ("  newest token", HIDDEN))
        drawing = Tree(label, guide_style=HIDDEN)
        self._add(drawing, 0)
        return drawing

    def _add(self, drawing: "Tree", node: int) -> None:
        from rich.text import Text

        children = self.tree.children[node]
        shown = children if self.whole else self._shown(children)
        for child in shown:
            branch = drawing.add(
                self._label(child), guide_style=ACCEPTED if child in self.path else HIDDEN
            )
            if self.whole or child in self.path:
                self._add(branch, child)
        rest = sum(1 + self.below[child] for child in children if child not in shown)
        if rest:
            drawing.add(Text(f"… {rest} more", style=HIDDEN))
        if node == self.last and self.own is not None:
            drawing.add(Text.assemble((self.own, "bold"), ("  the model's own", HIDDEN)))

    def _shown(self, children: list[int]) -> list[int]:
        """The first children, and the accepted one."""
        return [
            child for place, child in enumerate(children) if place < self.fan or child in self.path
        ]

    def _label(self, node: int) -> "Text":
        from rich.text import Text

        names = self.tree.sources[node] if self.tree.sources is not None else ()
        source = f"  {' + '.join(names)}" if names else ""
        if node in self.path:
            return Text.assemble((f"{self._token(node)}  ✓", ACCEPTED), (source, HIDDEN))
        hidden = "" if self.whole or not self.below[node] else f"  … {self.below[node]} more"
        return Text.assemble((self._token(node), GUESS), (source + hidden, HIDDEN))

    def _token(self, node: int) -> str:
        return visible(self.tree.token_list[node], self.tokenizer)

    def _count_below(self) -> list[int]:
        below = [0] * len(self.tree)
        for node, parent in reversed(list(enumerate(self.tree.parent_list))):
            if parent >= 0:
                below[parent] += 1 + below[node]
        return below
