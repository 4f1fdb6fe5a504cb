"""Draft trees as nested lists.

Nodes without a fork share one line; the accepted path is seen without colour too.
"""

from collections.abc import Sequence
from html import escape

from draftwood_bench.report.reading import Drawn

VISIBLE = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"})
FAN = 8  # children shown at once where none leads on


def tree(drawn: Drawn) -> str:
    """The drawing of one step."""
    return f'<ul class="tree">{_TreeList(drawn).line(0)}</ul>'


def count(drawn: Drawn) -> str:
    """Counts of drafted and accepted tokens, as a caption."""
    kept, drafted = len(drawn["path"]), len(drawn["tokens"]) - 1
    return f"step {drawn['step']}: {kept} of {drafted} draft tokens accepted"


class _TreeList:
    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self.path = {0, *drawn["path"]}
        self.children: list[list[int]] = [[] for _ in drawn["tokens"]]
        for node, parent in enumerate(drawn["parents"]):
            if parent >= 0:
                self.children[parent].append(node)

    def line(self, node: int) -> str:
        """A node, those that follow it without a fork, and what forks from the last of them."""
        nodes = [node]
        while len(self.children[nodes[-1]]) == 1 and self._alike(nodes[-1]):
            nodes.append(self.children[nodes[-1]][0])
        shown = " ".join(self._node(each) for each in nodes)
        below = self._below(self.children[nodes[-1]])
        if not below:
            return f"<li>{shown}</li>"
        if node in self.path:
            return f"<li>{shown}<ul>{below}</ul></li>"
        return f"<li><details><summary>{shown}</summary><ul>{below}</ul></details></li>"

    def _alike(self, node: int) -> bool:
        """True if its only child shares its fate: both accepted, or both rejected."""
        return (self.children[node][0] in self.path) == (node in self.path)

    def _below(self, children: Sequence[int]) -> str:
        kept = [child for child in children if child in self.path]
        rest = [child for child in children if child not in self.path]
        lines = [self.line(child) for child in [*kept, *rest[:FAN]]]
        if len(rest) > FAN:
            more = "".join(self.line(child) for child in rest[FAN:])
            lines.append(
                f"<li><details><summary>{len(rest) - FAN}"
                f" more</summary><ul>{more}</ul></details></li>"
            )
        return "".join(lines)

    def _node(self, node: int) -> str:
        token = escape(self.drawn["tokens"][node].translate(VISIBLE)) or "&nbsp;"
        if node == 0:
            return f'<span class="node root">{token}</span> <small>newest token</small>'
        said = []
        if self.drawn.get("probabilities"):
            chance = self.drawn["probabilities"][node]
            said += [] if chance is None else [f"drafted with probability {chance:.2f}"]
        if self.drawn.get("sources"):
            said += [" + ".join(self.drawn["sources"][node])]
        title = f' title="{escape("; ".join(filter(None, said)))}"' if any(said) else ""
        if node in self.path:
            return (
                f'<span class="node kept"{title}>{token}<span class="tick" aria-label="accepted">'
                " ✓</span></span>"
            )
        return f'<span class="node"{title}>{token}</span>'
