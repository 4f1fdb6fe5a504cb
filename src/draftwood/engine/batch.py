"""Several requests that share forward passes of the target."""

from collections.abc import Generator, Iterator, Sequence

from draftwood.engine.decoding import Decoding
from draftwood.engine.options import Options
from draftwood.engine.stopwatch import Stopwatch
from draftwood.interfaces.drafter import Drafter
from draftwood.interfaces.model import Model
from draftwood.interfaces.verifier import Verifier
from draftwood.stats import Step


def generate(
    target: Model, drafter: Drafter, verifier: Verifier, prompt: Sequence[int], options: Options
) -> Iterator[Step]:
    """Decode one prompt; yields a step per run of the target, the prompt's run first.

    Raises:
        ValueError: for a prompt that is empty or too long, or a verifier that is not exact for the
            drafts.
    """
    return (
        step for _, step in generate_batch([Decoding(target, drafter, verifier, prompt, options)])
    )


def generate_batch(decodings: Sequence[Decoding]) -> Generator[tuple[int, Step], None, None]:
    """Decode several prompts with one padded run of the target per round; yields (number of the
    prompt, step).

    Each text is the same as alone, whatever else is in the batch, up to rounding of the target's
    arithmetic.
    """
    try:
        for number, decoding in enumerate(decodings):
            yield number, decoding.prefill()
        while active := [
            number for number, decoding in enumerate(decodings) if decoding.finish_reason is None
        ]:
            proposals = [decodings[number].propose() for number in active]
            watch = Stopwatch()
            first = decodings[active[0]]
            outputs = first.target.forward([run for run, _ in proposals])
            watch.lap("target")
            for number, (run, seconds), output in zip(active, proposals, outputs, strict=True):
                shared = {
                    "draft": seconds["draft"],
                    "target": watch.seconds["target"] / len(active),
                }
                yield number, decodings[number].settle(run, output, shared)
    finally:
        for decoding in decodings:
            decoding.close()
