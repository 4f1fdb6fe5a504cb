"""A search in the terminal: a table of answers, and a tree."""

from typing import TYPE_CHECKING

from draftwood.cli.terminal import notes
from draftwood_choices.search.methods import Solution
from draftwood_choices.search.nodes import SearchNode, nodes_of, short
from draftwood_choices.search.proposals import Spent

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

CHOSEN = "bold green"


def say_proposals(found: Solution, spent: Spent) -> None:
    """Print all answers that were looked at, with values and scores, and what it took."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("", "value", "score"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("answer", overflow="fold")
    table.add_column("note", overflow="fold")
    for place, each in enumerate(found.proposals, start=1):
        judged = each.judgement
        score = "" if judged is None else "none" if judged.score is None else f"{judged.score:g}"
        note = "" if judged is None else judged.note
        texts = (f"{place}", f"{each.value:.3g}", score, short(each.step or each.text), note)
        style = CHOSEN if each is found.best else ""
        table.add_row(*(Text(text) for text in texts), style=style)
    notes().print(table)
    judge = f", {spent.judge_calls} judgements" if spent.judge_calls else ""
    told = f"{spent.tokens} tokens in {spent.passes} passes{judge}, {spent.seconds:.1f} s"
    notes().print(told, style="dim", soft_wrap=True)


def say_tree(found: Solution) -> None:
    """Draw the search on stderr, with the path to the chosen answer."""
    notes().print(draw_search(found))


def draw_search(found: Solution) -> "Tree":
    """Draw what goes on from what; answers of the task itself stand at its root."""
    from rich.tree import Tree

    drawing, nodes = Tree("task", guide_style="dim"), nodes_of(found)
    branches: dict[int | None, Tree] = {None: drawing}
    for place, each in enumerate(nodes):
        branches[place] = branches[each.above].add(_label(each))
    return drawing


def _label(node: SearchNode) -> "Text":
    from rich.text import Text

    text = f"{node.line}{'  ✓' if node.is_chosen else ''}"
    return Text.assemble((text, CHOSEN if node.is_chosen else ""), (f"  {node.figures}", "dim"))
