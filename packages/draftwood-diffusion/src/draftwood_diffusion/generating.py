"""Methods of ``draftwood generate`` that fill masks, and what each takes of a text's options."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from draftwood.methods.answers import AnswersMethod
from draftwood.sampling_params import SamplingParams
from draftwood_diffusion.part import Part
from draftwood_diffusion.settings import settings_of
from draftwood_diffusion.unmasking import PARTS, Unmasking, alone, parse

if TYPE_CHECKING:
    from draftwood import Generation
    from draftwood.engine import Options
    from draftwood.text.language_model import LanguageModel
    from draftwood_diffusion.loop import WrittenText
    from draftwood_diffusion.served import ServedText

TAKEN = frozenset(
    ("max_new_tokens", "ignore_eos", "raw", "exact", "temperature", "top_k", "top_p", "min_p")
) | {"seed"}
"""Options of a text that places have a use for."""
SERVED = frozenset(("stop", "salt", "context"))
"""Options that a server gives besides."""


@dataclass(frozen=True)
class Writing:
    """Writes texts by a method.

    Attributes:
        text: the method as the user typed it.
        method: its parts.
        settings: of the model, by the options that give them.
    """

    text: str
    method: Unmasking
    settings: Mapping[str, int]

    def __call__(
        self, lm: "LanguageModel", prompt: Any, count: int, params: SamplingParams
    ) -> "list[Generation]":
        """Write so many texts, of which text i is that of seed + i."""
        from draftwood_diffusion.loop import written
        from draftwood_diffusion.opening import masked_model

        require_taken(self.text, params)
        masked, tokens = masked_model(lm, self.settings), lm.encode(prompt, params.raw)
        method, behind = for_model(self.method, lm), lm.text_before(tokens, params.raw)
        made = list["Generation"]()
        for number in range(count):
            seed = None if params.seed is None else params.seed + number
            options = options_of(lm, replace(params, seed=seed))
            found, ends = written(masked, tokens, options, method), options.stop_tokens
            made.append(_generation(lm, self.text, found, ends, behind))
        return made

    def serve(self, lm: "LanguageModel", tokens: list[int], params: SamplingParams) -> "ServedText":
        """Begin a text that a server runs beside others.

        Raises:
            ValueError: as ``MaskedText``, and for options that it does not take.
        """
        from draftwood.text.builder import StopStrings
        from draftwood_diffusion.opening import masked_model
        from draftwood_diffusion.served import ServedText

        require_taken(self.text, params, SERVED)
        masked, method = masked_model(lm, self.settings), for_model(self.method, lm)
        method.rule.require_file()
        behind = lm.text_before(tokens, params.raw)
        ends = StopStrings(lm.tokenizer, params.stops, behind=behind)
        options = replace(options_of(lm, params), stop_rules=[ends])
        return ServedText(masked, tokens, options, method, lm.tokenizer, behind)

    def require_served(self, folder: Path | None, is_own: bool) -> None:
        """Refuse what a server cannot run, as ``AnswersMethod`` asks.

        Raises:
            ValueError: for a rule that is told the text, one that names a file unless it is the
                server's own, a model without masks, and a reuse that the model has no use for.
        """
        rule = self.method.rule
        if rule.knows_text:
            raise ValueError(
                f"method {self.text!r} is told the text in advance, which a server does not know;"
                " take it in 'draftwood generate'"
            )
        if rule.names_file and not is_own:
            raise ValueError(
                f"method {self.text!r} reads a file, and requests name no files of the server;"
                " start it with that --method, or take another one"
            )
        if rule.names_file or folder is not None:
            rule.beside(folder).require_file()
        if folder is not None:
            found = settings_of(folder)
            if found is None:
                raise ValueError(
                    f"method {self.text!r} fills masks, and this model writes from left to right;"
                    " take another method, or a masked-diffusion model such as stories-diffusion"
                )
            self.method.reuse.require(found.bidirectional)


def for_model(method: Unmasking, lm: "LanguageModel") -> Unmasking:
    """The method, told which tokens of the model break lines and which files its folder has."""
    from draftwood_diffusion.blocks.adablock import AdaBlock

    folder = lm.calibration.folder
    method = replace(method, rule=method.rule.beside(None if folder is None else Path(folder)))
    blocks = method.blocks
    if not isinstance(blocks, AdaBlock) or blocks.delimiters:
        return method
    return replace(method, blocks=replace(blocks, delimiters=tokens_with(lm, "\n")))


def tokens_with(lm: "LanguageModel", characters: str) -> frozenset[int]:
    """Tokens that hold one of these characters."""
    texts = ((n, str(lm.tokenizer.decode([n]))) for n in range(lm.model.vocab_size))
    return frozenset(n for n, text in texts if not set(characters).isdisjoint(text))


def options_of(lm: "LanguageModel", params: SamplingParams) -> "Options":
    """Length, sampling, end tokens and seed of a text."""
    from draftwood.engine import Options
    from draftwood.sampling import Sampling

    ends = frozenset[int]() if params.ignore_eos else lm.end_tokens
    return Options(Sampling.of(params, ends), params.max_new_tokens, ends, params.seed)


def require_taken(name: str, params: SamplingParams, more: Set[str] = frozenset()) -> None:
    """Raise ValueError for an option of a text that filling masks does not take.

    Args:
        name: of the method.
        params: options.
        more: names of options that are taken here besides.
    """
    for each in params.given():
        if each not in TAKEN | more:
            raise ValueError(
                f"method {name!r} does not take {each}, as it writes out of order; leave it"
                " out, or take a model that writes token by token"
            )


def _generation(
    lm: "LanguageModel",
    name: str,
    found: "WrittenText",
    ends: Set[int],
    behind: Sequence[int],
) -> "Generation":
    """A text in the form of others, with its passes and the order of its tokens.

    Args:
        ends: tokens that end it.
        behind: tokens before it.
    """
    from draftwood import Generation
    from draftwood.stats import Stats
    from draftwood.text.builder import TextBuilder

    tokens, text = found.tokens, TextBuilder.whole(lm.tokenizer, found.tokens, behind)
    stats = Stats(tokens=len(tokens), target_runs=found.runs)  # the prompt's passes emit none
    stats.seconds["prefill"] = found.prompt_seconds
    stats.seconds["target"] = found.seconds - found.prompt_seconds
    details = found.details()
    reason = "stop" if tokens and tokens[-1] in ends else "length"
    return Generation(text, list(tokens), reason, lm.name, name, stats, details=details)


def _adjusted(text: str, settings: Mapping[str, int]) -> AnswersMethod:
    """The method that a user types."""
    return answers_of(text, parse(text), settings)


def answers_of(text: str, method: Unmasking, settings: Mapping[str, int]) -> AnswersMethod:
    """A method as ``draftwood generate`` and ``draftwood methods`` know it."""
    part: type[Part] = PARTS[text.partition("+")[0].partition(",")[0].strip()]
    writing = Writing(text, method, settings)
    inexact = " --inexact" if method.promise == "trades quality" else ""
    typed = part.option() if text == part.name else text
    return AnswersMethod(
        *(text, f"draftwood generate --model DIFFUSION_MODEL --method {typed}{inexact}"),
        *(part.summary, part.source, method.promise, writing),
        adjust=_adjusted,
        show=_show,
        serve=writing.serve,
        require_served=writing.require_served,
    )


def _show(lm: "LanguageModel", generation: "Generation") -> None:
    from draftwood_diffusion.painting import paint

    paint(lm.tokenizer, generation)


DEFAULTS = ("fixed", "step", "keep", "exact")
"""Parts that a method has where it names no others of their kind."""
METHODS = SimpleNamespace(
    **{
        name.replace("-", "_"): answers_of(name, alone(PARTS[name]), {})
        for name in PARTS
        if name not in DEFAULTS
    }
)
"""Each part beside the usual ones; entry points name them one by one."""
