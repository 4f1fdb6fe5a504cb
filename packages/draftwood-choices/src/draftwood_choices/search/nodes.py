"""Nodes of a search: what goes on from what, and the path to the answer that was chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from draftwood_choices.search.methods import Solution
from draftwood_choices.search.proposals import Proposal

SHOWN = 80
"""Characters of an answer that are shown."""


@dataclass(frozen=True)
class SearchNode:
    """An answer or a step of one, as a drawing and a record show it.

    Attributes:
        text: that it adds.
        value: by which the method ranks it.
        log_prob: mean log-probability of its tokens, in nats; None where it is not known.
        above: place of the node that it goes on from; None for the task.
        is_chosen: True on the path to the answer that was chosen.
    """

    text: str
    value: float
    log_prob: float | None = None
    above: int | None = None
    is_chosen: bool = False

    @property
    def line(self) -> str:
        """Its text on one line, shortened."""
        return short(self.text)

    @property
    def figures(self) -> str:
        """Its value, and its likelihood where that is known."""
        likely = "" if self.log_prob is None else f", log-probability {self.log_prob:.3g}"
        return f"value {self.value:.3g}{likely}"


def nodes_of(found: Solution) -> list[SearchNode]:
    """Nodes of a search in their order, the task itself left out."""
    path, step = set[int](), found.best
    while step is not None:
        path.add(id(step))
        step = step.above
    kept = [each for each in found.proposals if not _is_task(each)]
    places = {id(each): place for place, each in enumerate(kept)}
    return [
        SearchNode(
            each.step or each.text,
            each.value,
            each.log_prob,
            None if each.above is None else places.get(id(each.above)),
            id(each) in path,
        )
        for each in kept
    ]


def node_from(record: dict[str, Any]) -> SearchNode:
    """A node as a line of records holds it."""
    return SearchNode(**record)


def below(nodes: Sequence[SearchNode], above: int | None) -> list[int]:
    """Places of the nodes that go on from one; None for the task."""
    return [place for place, each in enumerate(nodes) if each.above == above]


def as_html(nodes: Sequence[SearchNode]) -> str:
    """The search as nested lists; the chosen path is seen without colour too."""
    inner = "".join(_item(nodes, place) for place in below(nodes, None))
    return f'<ul class="tree"><li><span class="node root">task</span><ul>{inner}</ul></li></ul>'


def _item(nodes: Sequence[SearchNode], place: int) -> str:
    each = nodes[place]
    kind, tick = (" kept", '<span class="tick"> ✓</span>') if each.is_chosen else ("", "")
    shown = f'<span class="node{kind}" title="{escape(each.text)}">{escape(each.line)}{tick}</span>'
    inner = "".join(_item(nodes, further) for further in below(nodes, place))
    return f"<li>{shown} <small>{each.figures}</small>{f'<ul>{inner}</ul>' * bool(inner)}</li>"


def short(text: str) -> str:
    """A text on one line, of so many characters at most."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"


def _is_task(each: Proposal) -> bool:
    return each.above is None and not each.text and not each.is_whole
