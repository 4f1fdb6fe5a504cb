"""A text on the screen, token by token in the order in which it was fixed."""

import time
from typing import TYPE_CHECKING, Any

from draftwood.cli.terminal import notes, output
from draftwood.tokenizer.protocol import AnyTokenizer

if TYPE_CHECKING:
    from rich.text import Text

    from draftwood import Generation

OPEN = "░"
HALF = "\ufffd"  # what bytes decode to that make no character yet
EARLY, LATE = (64, 120, 255), (255, 120, 40)
"""Colours of the first pass and of the last one."""
SECONDS = 3.0  # that a replay takes at most


def paint(tokenizer: AnyTokenizer, generation: "Generation") -> None:
    """Print a text in colours by the pass that fixed each token; a terminal replays the passes."""
    details: Any = generation.details
    passes, order = details["passes"], details["order"]
    console = output()
    if console.is_terminal:
        _replay(tokenizer, order, passes, len(generation.token_ids))
    console.print(frame(tokenizer, order, passes, len(generation.token_ids)), soft_wrap=True)
    told = (
        f"{len(generation.token_ids)} tokens in {passes} passes,"
        f" {details['tokens_per_pass']:.2f} a pass, {generation.method}"
    )
    notes().print(told, style="dim", soft_wrap=True, markup=False)


def _replay(tokenizer: AnyTokenizer, order: Any, passes: int, places: int) -> None:
    from rich.live import Live

    with Live(console=output(), transient=True, auto_refresh=False) as live:
        for run in range(1, passes + 1):
            shown = [each for each in order if each["pass"] <= run]
            live.update(frame(tokenizer, shown, passes, places), refresh=True)
            time.sleep(min(0.15, SECONDS / passes))


def frame(tokenizer: AnyTokenizer, order: Any, passes: int, places: int) -> "Text":
    """The text after some fixings, with a shade for each open place.

    Args:
        tokenizer: of the model.
        order: fixings so far, as ``Generation.details`` has them.
        passes: of the whole text.
        places: likewise.
    """
    from rich.text import Text

    newest = {each["place"]: each for each in order}
    found = Text()
    for place, piece in enumerate(pieces(tokenizer, [newest.get(i) for i in range(places)])):
        each = newest.get(place)
        style = (
            "dim" if each is None else f"rgb({','.join(map(str, colour(each['pass'], passes)))})"
        )
        found.append(piece, style)
    return found


def pieces(tokenizer: AnyTokenizer, fixings: list[Any]) -> list[str]:
    """Text of each place; a run of written places is decoded together, so that words join.

    A character of several tokens stands at the one that completes it.
    """
    found, run, shown = list[str](), list[int](), ""
    for each in fixings:
        if each is None:
            found.append(OPEN)
            run, shown = [], ""
            continue
        run.append(each["token"])
        text = str(tokenizer.decode(run, skip_special_tokens=True))
        if text.endswith(HALF) and len(found) < len(fixings) - 1:
            found.append("")
            continue
        found.append(text[len(shown) :])
        shown = text
    return found


def colour(run: int, passes: int) -> tuple[int, ...]:
    """Red, green and blue of a pass, from the first one's colour to the last one's."""
    share = (run - 1) / max(1, passes - 1)
    return tuple(round(a + share * (b - a)) for a, b in zip(EARLY, LATE, strict=True))
