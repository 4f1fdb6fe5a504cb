"""One text written plainly and by another method: both speeds, and whether it is the same."""

from collections.abc import Mapping, Sequence
from secrets import randbits
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from draftwood.text.language_model import LanguageModel
    from draftwood.text.stream import Generation


def race(
    plain: "LanguageModel",
    other: "LanguageModel",
    prompt: Sequence[int],
    decoding: Mapping[str, Any],
    console: "Console",
) -> None:
    """Write a text by both methods with the same seed, one after the other, and print both."""
    seed = decoding.get("seed")
    fixed = {**decoding, "seed": randbits(31) if seed is None else seed}
    written, redone = (lm.generate(list(prompt), **fixed) for lm in (plain, other))
    print_speeds(console, written, redone)
    if decoding.get("temperature"):
        _print_drawn(console, other, written, redone)
    else:
        print_sameness(console, plain, prompt, written, redone)


def print_speeds(console: "Console", written: "Generation", redone: "Generation") -> None:
    """Print a bar for each text."""
    fastest = max(written.stats.tokens_per_second, redone.stats.tokens_per_second, 1e-9)
    for title, made in (("one by one", written), ("with trees", redone)):
        speed = made.stats.tokens_per_second
        bar = "█" * max(1, round(28 * speed / fastest))
        console.print(
            f"{title}  [green]{bar:28}[/] [bold]{speed:6.1f}[/] tokens/s "
            f" {made.stats.block_efficiency:.2f} tokens/pass"
        )


def print_sameness(
    console: "Console",
    plain: "LanguageModel",
    prompt: Sequence[int],
    written: "Generation",
    redone: "Generation",
) -> None:
    """Print that two greedy texts are the same, or where they part."""
    from draftwood.testing.promises import describe, first_divergence

    found = first_divergence(plain.model, prompt, written.token_ids, redone.token_ids)
    if found is None:
        _print_same(console, written, redone)
    else:
        console.print(f"[bold yellow]![/] the texts part at {describe(found)}", soft_wrap=True)


def _print_drawn(
    console: "Console", other: "LanguageModel", written: "Generation", redone: "Generation"
) -> None:
    """Compare sampled texts, which may differ unless the method verifies by match."""
    if written.token_ids == redone.token_ids:
        _print_same(console, written, redone)
        return
    pairs = zip(written.token_ids, redone.token_ids, strict=False)
    shorter = min(len(written.token_ids), len(redone.token_ids))
    place = next((n for n, (one, two) in enumerate(pairs) if one != two), shorter)
    why = f"{other.method.name} draws from the same distribution by draws of its own"
    if other.method.verifier.name == "match":
        why = "passes of other sizes round differently"
    console.print(f"[bold yellow]![/] the texts part at token {place}: {why}", soft_wrap=True)


def _print_same(console: "Console", written: "Generation", redone: "Generation") -> None:
    ratio = redone.stats.tokens_per_second / max(written.stats.tokens_per_second, 1e-9)
    console.print(
        f"[bold green]✓[/] the same {len(written.token_ids)} tokens, [bold]{ratio:.2f}x[/] the"
        f" speed ({redone.method})"
    )
