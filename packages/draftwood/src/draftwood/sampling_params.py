"""Every option of a text, declared once.

The command line, the server, the hook into Transformers and ``LanguageModel`` take their options,
defaults, ranges and help from the fields of ``SamplingParams``. Imports no PyTorch, so that bad
values are refused in no time.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from draftwood.rules import (
    Rule,
    follow_rules,
    penalise_repetition,
    penalise_said,
    require_allowed,
    require_options,
    require_rules,
)
from draftwood.validation import (
    JsonSchema,
    require_biases,
    require_flag,
    require_kind,
    require_number,
    require_one_grammar,
    require_small,
    require_whole,
    schema_text,
    stop_strings,
)

if TYPE_CHECKING:
    from draftwood.engine.constraint import Constraint

Kind = Literal["number", "whole", "flag", "text", "stops", "biases", "rules", "schema", "grammar"]
Place = Literal["command line", "server"]
Called = TypeVar("Called", bound=Callable[..., Any])


@dataclass(frozen=True)
class TextOption:
    """An option of a text, as its field in ``SamplingParams`` declares it.

    Attributes:
        help: one sentence for ``--help``, the server's schema and the docstring.
        kind: of its values.
        least: smallest value; None for no bound.
        above: True where ``least`` itself is too small.
        most: largest value; None for no bound.
        optional: None is a value too.
        places: where users may give it, besides ``LanguageModel``.
        transformers: its name in ``GenerationConfig``; None where there is none.
        holds: says whether a number within the bounds is taken; None takes all of them.
        wanted: its values in words, where bounds do not tell them.
        rule: for an option that changes logits by the text before them: what it does to a row
            where it is not the default.
        in_steps: True if whole steps of the library obey it, see ``native/filters.py``; where
            another option is not the default, Python makes the steps.
    """

    help: str
    kind: Kind
    least: float | None = None
    above: bool = False
    most: float | None = None
    optional: bool = False
    places: frozenset[Place] = frozenset(("command line", "server"))
    transformers: str | None = None
    holds: Callable[[float], bool] | None = None
    wanted: str = ""
    rule: "Rule | None" = None
    in_steps: bool = False

    @property
    def range(self) -> str:
        """Values that are taken, in words."""
        if self.wanted:
            return self.wanted
        kind = {"whole": "whole number", "number": "finite number"}[self.kind]
        more = " or None" if self.optional else ""
        if self.most is not None:
            opening = "above" if self.above else "from"
            closing = "and at most" if self.above else "to"
            return f"a {kind} {opening} {self.least:g} {closing} {self.most:g}{more}"
        bound = "" if self.least is None else f" {'>' if self.above else '>='} {self.least:g}"
        return f"a {kind}{bound}{more}"

    @property
    def bounds(self) -> dict[str, float]:
        """Bounds of its values as JSON schemas and pydantic name them: gt, ge, le."""
        low = {} if self.least is None else {"gt" if self.above else "ge": self.least}
        return low if self.most is None else {**low, "le": self.most}

    def require(self, name: str, value: Any) -> None:
        """Refuse a value that no text can have.

        Raises:
            TypeError: for a value of another type.
            ValueError: for a value outside the range, naming the range.
        """
        if value is None and self.optional:
            return
        _CHECKS[self.kind](self, name, value)

    def plain(self, value: Any) -> Any:
        """A value whose number is one of Python, whatever library it came from."""
        if value is None or isinstance(value, int) or self.kind not in ("number", "whole"):
            return value
        return float(value) if self.kind == "number" else int(value)

    def _require_in_range(self, name: str, value: Any) -> None:
        checked = require_whole if self.kind == "whole" else require_number
        checked(name, value, self.range)
        low = self.least is not None and (value <= self.least if self.above else value < self.least)
        high = self.most is not None and value > self.most
        odd = self.holds is not None and not self.holds(value)
        if low or high or odd or not abs(value) < float("inf"):
            raise ValueError(f"{name} must be {self.range}, got {value}")


def _require_text(option: TextOption, name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a text, got {value!r:.80}")


def _require_grammar(option: TextOption, name: str, value: object) -> None:
    if isinstance(value, str):
        require_small("the Lark grammar", value)
        return
    from draftwood.engine.constraint import Constraint

    require_kind(name, value, Constraint, "Lark or a compiled grammar")


_CHECKS: Mapping[Kind, Callable[[TextOption, str, Any], object]] = {
    "number": TextOption._require_in_range,
    "whole": TextOption._require_in_range,
    "flag": lambda option, name, value: require_flag(name, value),
    "text": _require_text,
    "stops": lambda option, name, value: stop_strings(value),
    "biases": lambda option, name, value: require_biases(name, value),
    "rules": lambda option, name, value: require_rules(name, value),
    "schema": lambda option, name, value: schema_text(value),
    "grammar": _require_grammar,
}


def _option(default: Any, kind: Kind, help: str, **more: Any) -> Any:
    more["optional"] = more.get("optional", default is None)
    if "places" in more:
        more["places"] = frozenset(more["places"])
    kw_only = more.pop("kw_only", False)
    metadata = {"option": TextOption(help, kind, **more)}
    return field(default=default, kw_only=kw_only, metadata=metadata)


_TYPED: tuple[Place, ...] = ("command line",)
_SAID: dict[str, Any] = {"least": -1e30, "most": 1e30, "rule": penalise_said, "in_steps": True}
"""Penalties of what was said; 32 bits hold their sums."""


@dataclass(frozen=True)
class CheckedOptions:
    """Fields that are options of a text are checked here, whichever class has them; their numbers
    become Python's.

    Raises:
        TypeError: for a value of another type.
        ValueError: for a value outside its range, naming the range.
    """

    def __post_init__(self) -> None:
        for each in fields(self):
            if (option := OPTIONS.get(each.name)) is not None:
                value = getattr(self, each.name)
                option.require(each.name, value)
                object.__setattr__(self, each.name, option.plain(value))


@dataclass(frozen=True)
class LengthOptions(CheckedOptions):
    """Options of how long a text is."""

    max_new_tokens: int = _option(
        128, "whole", "Most tokens to write.", least=1, places=_TYPED, transformers="max_new_tokens"
    )
    min_tokens: int = _option(
        0,
        "whole",
        "Let no end token or stop string end the text before so many tokens.",
        least=0,
        transformers="min_new_tokens",
    )


@dataclass(frozen=True)
class DrawingOptions(CheckedOptions):
    """Options of how each token is drawn.

    Tokens are drawn by the rules of Transformers' logits processors, in this order: logit bias, end
    tokens before ``min_tokens``, repetition, presence and frequency penalty, rules of packages,
    temperature, top-k, top-p, min-p.
    """

    temperature: float = _option(
        0.0,
        "number",
        "0 is greedy decoding.",
        least=0,
        transformers="temperature",
        holds=lambda value: value == 0.0 or 1e-30 <= value <= 1e30,  # else no numbers in 32 bits
        wanted="0 (the likeliest token) or a number from 1e-30 to 1e30",
        in_steps=True,
    )
    top_k: int = _option(
        0,
        "whole",
        "Keep the k likeliest tokens and ties with the last; 0 keeps all.",
        least=0,
        transformers="top_k",
        in_steps=True,
    )
    top_p: float = _option(
        1.0,
        "number",
        "Keep the likeliest tokens that reach this sum of probabilities.",
        least=0,
        above=True,
        most=1,
        transformers="top_p",
        in_steps=True,
    )
    min_p: float = _option(
        0.0,
        "number",
        "Drop tokens below this share of the likeliest one's probability.",
        least=0,
        most=1,
        transformers="min_p",
        in_steps=True,
    )
    repetition_penalty: float = _option(
        1.0,
        "number",
        "Above 1 makes tokens of prompt and answer less likely.",
        least=1e-30,
        most=1e30,
        transformers="repetition_penalty",
        rule=penalise_repetition,
        in_steps=True,
    )
    presence_penalty: float = _option(
        0.0,
        "number",
        "Taken off the logits of tokens that the answer holds.",
        **_SAID,
    )
    frequency_penalty: float = _option(
        0.0,
        "number",
        "Taken off for each time that the answer holds a token.",
        **_SAID,
    )
    logit_bias: Mapping[int, float] | None = _option(
        None,
        "biases",
        "Added to the logits of single tokens; minus infinity bans one.",
        places=("server",),
        transformers="sequence_bias",
        in_steps=True,
    )
    rules: Mapping[str, float] | None = _option(
        None, "rules", "Choose tokens by rules of packages.", rule=follow_rules, kw_only=True
    )

    @property
    def in_steps(self) -> bool:
        """True if whole steps of the library obey all options that are not their defaults."""
        others = (each for each in fields(DrawingOptions) if not OPTIONS[each.name].in_steps)
        return all(getattr(self, each.name) == each.default for each in others)

    @cached_property
    def active_rules(self) -> list[Rule]:
        """Rules of the options that have other values than their defaults, in the fields' order."""
        active = [
            each.metadata["option"].rule
            for each in fields(DrawingOptions)
            if getattr(self, each.name) != each.default
        ]
        return [rule for rule in dict.fromkeys(active) if rule is not None]


@dataclass(frozen=True)
class SamplingParams(DrawingOptions, LengthOptions):
    """Options of a text: its length, how its tokens are drawn, and what it must satisfy.

    Raises:
        TypeError: for a value of another type.
        ValueError: for a value outside its range, naming the range, and for options that exclude
            each other.
    """

    seed: int | None = _option(None, "whole", "The same seed gives the same text.")
    stop: str | Sequence[str] | None = _option(
        (),
        "stops",
        "End the text before this string. Repeatable.",
        optional=True,
        transformers="stop_strings",
    )
    ignore_eos: bool = _option(False, "flag", "Go on after the model's own end of text.")
    logprobs: int | None = _option(
        None,
        "whole",
        "Tell log-probabilities, before temperature and penalties, of so many likeliest tokens"
        " beside each emitted one; 0 tells its own alone.",
        least=0,
        places=(),
    )
    json_schema: JsonSchema | None = _option(  # noqa: RUF009  a field, as above
        None, "schema", "Write JSON of this schema.", places=("command line",)
    )
    grammar: "Constraint | str | None" = _option(  # noqa: RUF009  a field, as above
        None, "grammar", "Write a text of this Lark grammar.", places=("command line",)
    )
    raw: bool = _option(
        False,
        "flag",
        "Go on with the prompt as it stands, without the chat template.",
        places=("command line",),
    )
    prediction: str | None = _option(
        None, "text", "Draft along a text that the answer may follow.", places=("command line",)
    )
    exact: bool = _option(
        True, "flag", "Refuse methods that change what the model says.", places=()
    )
    salt: str = _option(
        "", "text", "Texts with different ones share no computed prefix.", places=()
    )
    context: int | None = _option(
        None, "whole", "Most tokens of prompt and answer.", least=2, places=_TYPED
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_grammar(self.json_schema, self.grammar)
        require_allowed(self.rules or (), self.exact)
        require_options(self)
        if self.min_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_tokens ({self.min_tokens}) must be at most max_new_tokens"
                f" ({self.max_new_tokens})"
            )
        if self.min_tokens and (self.json_schema is not None or self.grammar is not None):
            raise ValueError(
                "a json_schema or grammar says itself where a text may end; leave min_tokens out"
            )

    def given(self) -> list[str]:
        """Names of the options that have other values than their defaults, in the fields' order."""
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]

    @property
    def stops(self) -> list[str]:
        """Stop strings as a list."""
        return stop_strings(self.stop)


OPTIONS: Mapping[str, TextOption] = {
    each.name: each.metadata["option"] for each in fields(SamplingParams)
}
"""Every option of a text, by name."""


def sampling_params(given: SamplingParams | None, options: Mapping[str, Any]) -> SamplingParams:
    """Options as an object, as keywords, or both: keywords replace the object's fields.

    Raises:
        TypeError: for a keyword that is no option, naming the one that is meant.
    """
    unknown = next((name for name in options if name not in OPTIONS), None)
    if unknown is not None:
        near = [f"did you mean {each}?" for each in get_close_matches(unknown, OPTIONS, 1)]
        known = f"the options are {', '.join(OPTIONS)}; draftwood.load takes those of a model"
        raise TypeError(f"{unknown} is no option of a text; {(near or [known])[0]}")
    if given is not None and not isinstance(given, SamplingParams):
        raise TypeError(f"params must be a SamplingParams, got {given!r:.80}")
    if given is None:
        return SamplingParams(**options)
    return replace(given, **options) if options else given


def takes_options(function: Called) -> Called:
    """Show every option of a text in a function's signature, for ``help`` and editors."""
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    own = [each for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
        )
        for each in fields(SamplingParams)
    ]
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return function
