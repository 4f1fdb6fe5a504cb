"""Rules that change logits by the text before them: draftwood's own, and those of packages.

A package adds one by an entry point of the group ``draftwood.rules`` that names a ``TextRule``.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from draftwood.optional import entry_points, install_command
from draftwood.validation import require_number

if TYPE_CHECKING:
    from draftwood.sampling_params import DrawingOptions, SamplingParams

GROUP = "draftwood.rules"
"""Entry points of packages that name rules: ``TextRule``, one each, by its name."""


class Before(Protocol):
    """The tokens before a position, of which the first ``prompt`` are not the answer's."""

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def prompt(self) -> int: ...


Row = Any
"""An array of logits, [vocab]; its type would import NumPy."""

Rule = Callable[[Row, Before, "DrawingOptions"], None]
"""Changes a row in its place, before the temperature."""

StartExecutor = Callable[[Any, float], Any]
"""From an ``engine.Sequence``, whose drafter has started, and a strength to an ``Executor`` of the
engine, whose types would import it.
"""

RulePromise = Literal["trades quality", "another aim"]
"""Promise of a rule about its text, which is another one than the model's own."""


@dataclass(frozen=True)
class TextRule:
    """A published way to choose tokens by the text before them, which every drafter accelerates.

    Attributes:
        name: as given in ``SamplingParams.rules``, and of its entry point.
        summary: one line.
        source: authors, year, arXiv id or address.
        promise: what it promises of the text.
        published: strength in its paper.
        change: changes a row [vocab] in its place, before the temperature, given the tokens before
            it and a strength. Tokens that are banned have minus infinity in the row; some other
            token must keep a finite number.
        executor: starts what makes the steps of a text; None leaves them to the core.
        greatest: strength above which no greater one means anything else.
        require: raises ValueError for options of a text that it does not go with; None where it
            goes with all.

    Raises:
        ValueError: for another promise.
    """

    name: str
    summary: str
    source: str
    promise: RulePromise
    published: float
    change: Callable[[Row, Before, float], None]
    executor: StartExecutor | None = None
    greatest: float = float("inf")
    require: "Callable[[SamplingParams], None] | None" = None

    def __post_init__(self) -> None:
        if self.promise not in get_args(RulePromise):
            raise ValueError(
                f"rule {self.name!r} promises {self.promise!r}; a rule changes what the model"
                f" says, so it promises {' or '.join(map(repr, get_args(RulePromise)))}"
            )


class RulesWarning(UserWarning):
    """An installed package's rule cannot be used."""


@cache
def text_rule(name: str) -> TextRule:
    """The rule of this name, of an installed package; no other is imported.

    Raises:
        ValueError: for an unknown name, for one that two packages have, and for a package that
            cannot be imported or names something else.
    """
    entries = entry_points(GROUP)
    found = [entry for entry in entries if entry.name == name]
    if not found:
        known = f"the rules are {', '.join(rule_names())}"
        cure = f"rules come with packages: {install_command('draftwood-choices')}"
        raise ValueError(f"there is no rule {name!r}; {known if entries else cure}")
    if len(found) > 1:
        places = " and ".join(entry.value for entry in found)
        raise ValueError(f"two rules have the name {name!r}: {places}; remove one package")
    try:
        rule = found[0].load()
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"rule {name!r}, {found[0].value}, cannot be imported"
            f" ({type(error).__name__}: {error}); mend or remove its package"
        ) from error
    if not isinstance(rule, TextRule) or rule.name != name:
        raise ValueError(f"{found[0].value} is no TextRule with the name {name!r}")
    return rule


def rule_names() -> list[str]:
    """Names of the rules of installed packages; none is imported."""
    return list(dict.fromkeys(entry.name for entry in entry_points(GROUP)))


def installed_rules() -> list[TextRule]:
    """All rules of installed packages; one that cannot be had is left out, with a warning."""
    found = list[TextRule]()
    for name in rule_names():
        try:
            found.append(text_rule(name))
        except ValueError as error:
            warnings.warn(str(error), RulesWarning, stacklevel=2)
    return found


def parse_rules(text: str) -> dict[str, float]:
    """Rules as users type them: ``name=strength``, or a name alone for its published strength.

    Raises:
        ValueError: for an unknown name, one that is given twice, and a strength that is no number.
    """
    found = dict[str, float]()
    for part in text.split(","):
        name, given, strength = part.strip().partition("=")
        if name in found:
            raise ValueError(f"rule {name!r} is given twice; give it once")
        try:
            found[name] = float(strength) if given else text_rule(name).published
        except ValueError:
            if not given:
                raise
            raise ValueError(f"the strength of rule {name!r} is no number: {strength!r}") from None
    require_rules("rules", found)
    return found


def require_rules(option: str, value: object) -> None:
    """Refuse what is no mapping from names of rules to strengths.

    Raises:
        TypeError: for another type.
        ValueError: for an unknown rule, and for a strength out of the rule's range.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{option} must be a dict from names to strengths, got {value!r:.80}")
    for name, strength in value.items():
        if not isinstance(name, str):
            raise TypeError(f"each name in {option} must be a text, got {name!r:.80}")
        greatest = text_rule(name).greatest
        require_number(f"{option}[{name!r}]", strength)
        if not 0.0 <= strength < float("inf") or strength > greatest:
            bounded = f"between 0 and {greatest:g}"
            told = "a finite number >= 0" if greatest == float("inf") else bounded
            raise ValueError(f"{option}[{name!r}] must be {told}, got {strength}")


def require_allowed(rules: Collection[str], exact: bool) -> None:
    """Raise ValueError where a text is to be exact and a rule trades its quality."""
    lossy = [name for name in rules if text_rule(name).promise == "trades quality"]
    if lossy and exact:
        raise ValueError(
            f"rule {lossy[0]!r} changes what the model would say; --inexact, in Python exact=False,"
            " allows that"
        )


def require_options(params: "SamplingParams") -> None:
    """Raise ValueError where a rule does not go with the other options, or with another rule."""
    for name in params.rules or ():
        require = text_rule(name).require
        if require is not None:
            require(params)
    executor_of(params.rules)


def executor_of(rules: Mapping[str, float] | None) -> Callable[[Any], Any] | None:
    """Find what starts the executor that a rule brings; None where all leave steps to the core.

    Raises:
        ValueError: where two rules bring one.
    """
    found = [name for name in rules or () if text_rule(name).executor is not None]
    if len(found) > 1:
        raise ValueError(f"rules {found[0]!r} and {found[1]!r} both make steps; give one")
    if not rules or not found:
        return None
    start, strength = text_rule(found[0]).executor, rules[found[0]]
    assert start is not None  # it was found by that
    return lambda text: start(text, strength)


def follow_rules(row: Row, before: Before, options: "DrawingOptions") -> None:
    """Follow the rules of packages, in the order in which they were given."""
    for name, strength in (options.rules or {}).items():
        text_rule(name).change(row, before, strength)


def penalise_repetition(row: Row, before: Before, options: "DrawingOptions") -> None:
    """Keskar et al. 2019, arXiv:1909.05858."""
    seen, penalty = sorted(set(before.tokens)), options.repetition_penalty
    old = row[seen]
    new, low = old / penalty, old < 0
    new[low] = old[low] * penalty
    row[seen] = new


def penalise_said(row: Row, before: Before, options: "DrawingOptions") -> None:
    """Take both penalties off at once, as rounding depends on it."""
    times = Counter(before.tokens[before.prompt :])
    presence, frequency = options.presence_penalty, options.frequency_penalty
    row[list(times)] -= [presence + frequency * count for count in times.values()]
