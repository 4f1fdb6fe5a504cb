"""A text on the screen, token by token in the order in which it was fixed."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from draftwood.cli.terminal import notes, output
from draftwood.text.builder import TextBuilder
from draftwood.tokenizer.protocol import AnyTokenizer

if TYPE_CHECKING:
    from rich.text import Text

    from draftwood import Generation

OPEN = "░"
EARLY, LATE = (64, 120, 255), (255, 120, 40)
"""Colours of the first pass and of the last one."""
SECONDS = 3.0  # that a replay takes at most


def paint(tokenizer: AnyTokenizer, generation: "Generation") -> None:
    """Print a text in colours by the pass that fixed each token; a terminal replays the passes."""
    details: Any = generation.details
    passes, order = details["passes"], details["order"]
    console, behind = output(), _behind(tokenizer, generation)
    if console.is_terminal:
        _replay(tokenizer, order, passes, len(generation.token_ids), behind)
    whole = frame(tokenizer, order, passes, len(generation.token_ids), behind)
    console.print(whole, soft_wrap=True)
    told = (
        f"{len(generation.token_ids)} tokens in {passes} passes,"
        f" {details['tokens_per_pass']:.2f} a pass, {generation.method}"
    )
    notes().print(told, style="dim", soft_wrap=True, markup=False)


def _behind(tokenizer: AnyTokenizer, generation: "Generation") -> Sequence[int]:
    """Tokens behind which a text decodes to what it says; none where it begins anew."""
    anchor = anchor_of(tokenizer)
    found = pieces(tokenizer, [{"token": each} for each in generation.token_ids], anchor)
    return anchor if "".join(found) == generation.text else ()


def _replay(
    tokenizer: AnyTokenizer, order: Any, passes: int, places: int, behind: Sequence[int]
) -> None:
    from rich.live import Live

    with Live(console=output(), transient=True, auto_refresh=False) as live:
        for run in range(1, passes + 1):
            shown = [each for each in order if each["pass"] <= run]
            live.update(frame(tokenizer, shown, passes, places, behind), refresh=True)
            time.sleep(min(0.15, SECONDS / passes))


def frame(
    tokenizer: AnyTokenizer, order: Any, passes: int, places: int, behind: Sequence[int] = ()
) -> "Text":
    """The text after some fixings, with a shade for each open place.

    Args:
        tokenizer: of the model.
        order: fixings so far, as ``Generation.details`` has them.
        passes: of the whole text.
        places: likewise.
        behind: as for ``pieces``.
    """
    from rich.text import Text

    newest = {each["place"]: each for each in order}
    found = Text()
    fixings = [newest.get(place) for place in range(places)]
    for place, piece in enumerate(pieces(tokenizer, fixings, behind)):
        each = newest.get(place)
        style = (
            "dim" if each is None else f"rgb({','.join(map(str, colour(each['pass'], passes)))})"
        )
        found.append(piece, style)
    return found


def pieces(
    tokenizer: AnyTokenizer, fixings: Sequence[Any], behind: Sequence[int] = ()
) -> list[str]:
    """Text of each place; a run of written places is decoded together, so that words join.

    A character of several tokens stands at the one that completes it.

    Args:
        tokenizer: of the model.
        fixings: of the places in turn, None for an open one.
        behind: tokens before the text, which decide whether it begins with a space.
    """
    found, anchor = list[str](), anchor_of(tokenizer)
    run: TextBuilder | None = TextBuilder(tokenizer, behind=behind)
    for each in fixings:
        if each is None:
            found.append(OPEN)
            run = None
            continue
        run = run or TextBuilder(tokenizer, behind=anchor)
        run.add([each["token"]])
        if len(found) == len(fixings) - 1:
            run.finish()
        found.append(run.new_text())
    return found


def anchor_of(tokenizer: AnyTokenizer) -> Sequence[int]:
    """Tokens behind which a run shows the space with which it begins."""
    return list(tokenizer("a", add_special_tokens=False)["input_ids"])


def colour(run: int, passes: int) -> tuple[int, ...]:
    """Red, green and blue of a pass, from the first one's colour to the last one's."""
    share = (run - 1) / max(1, passes - 1)
    return tuple(round(a + share * (b - a)) for a, b in zip(EARLY, LATE, strict=True))
