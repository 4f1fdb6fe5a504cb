"""Checkers: programs, patterns and schemas that judge an answer."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import regex

from draftwood import validation
from draftwood.limited import run_limited

if TYPE_CHECKING:
    from jsonschema import ValidationError

PASSED = 1.0
"""Score from which an answer passes."""
LONGEST_NOTE = 200
"""Characters of a note that are kept."""


@dataclass(frozen=True)
class Judgement:
    """A checker's opinion of an answer.

    Attributes:
        score: 1 passes, 0 does not; below 0 the answer cannot even be begun with. None where the
            checker failed.
        note: in the checker's words; for one that failed, why.
    """

    score: float | None
    note: str = ""

    @property
    def passed(self) -> bool:
        return self.score is not None and self.score >= PASSED

    @property
    def value(self) -> float:
        """The score, clamped to 0..1; 0 where there is none."""
        return 0.0 if self.score is None else min(max(self.score, 0.0), 1.0)


class Checker(Protocol):
    """Judges answers; a failure is a judgement without a score, never an exception."""

    def __call__(self, answer: str) -> Judgement: ...


@dataclass(frozen=True)
class Program:
    """A program that reads the answer from standard input and prints a score, and a note behind it.

    The score stands first on the last line: 1 passes, 0 does not. A file that ends in ``.py`` is
    run by this Python. The program runs without a shell, in a group of its own.

    Args:
        file: to run.
        seconds: that it may take, in all and on the CPU.
        memory: bytes that it may take.
    """

    file: Path
    seconds: float = 10.0
    memory: int = 1 << 30

    def __call__(self, answer: str) -> Judgement:
        path = str(self.file.resolve())
        command = [sys.executable, path] if self.file.suffix == ".py" else [path]
        try:
            ended = run_limited(
                command, answer.encode("utf-8", "replace"), self.seconds, self.memory
            )
        except TimeoutError:
            return Judgement(None, f"the checker took more than {self.seconds:g} s")
        except (OSError, subprocess.SubprocessError) as error:
            return Judgement(None, f"the checker cannot be run: {error}"[:LONGEST_NOTE])
        return self._read(ended.code, ended.out, ended.err)

    @staticmethod
    def _read(code: int, out: bytes, err: bytes) -> Judgement:
        printed = out.decode("utf-8", "replace").strip()
        if code:
            told = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
            how = f"ended with exit code {code}" if code > 0 else f"was ended by {_signal(-code)}"
            ended = f"the checker {how}"
            return Judgement(None, f"{ended}: {told}"[:LONGEST_NOTE] if told else ended)
        if not printed:
            return Judgement(None, "the checker printed nothing; its last line must be a score")
        number, _, note = printed.rpartition("\n")[2].partition(" ")
        try:
            score = float(number)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            return Judgement(None, f"the checker printed no score: {number!r:.80}")
        return Judgement(score, note.strip()[:LONGEST_NOTE])


def _signal(number: int) -> str:
    """Name a signal."""
    known = [each.name for each in signal.Signals if each == number]
    return known[0] if known else f"signal {number}"


@dataclass(frozen=True)
class Pattern:
    """A regular expression that an answer must hold.

    Args:
        text: as ``regex`` reads it.
        seconds: that it may take for one answer.

    Raises:
        ValueError: for one that is none.
    """

    text: str
    seconds: float = 10.0
    pattern: "regex.Pattern[str]" = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", pattern_of("the checker", self.text))

    def __call__(self, answer: str) -> Judgement:
        try:
            found = self.pattern.search(answer, timeout=self.seconds)
        except TimeoutError:
            return Judgement(None, f"the pattern took more than {self.seconds:g} s")
        return Judgement(float(found is not None), "" if found is None else found[0][:LONGEST_NOTE])


@dataclass(frozen=True)
class Schema:
    """A JSON schema that an answer must fit.

    Args:
        seconds: that each of its patterns may take for a string.

    Raises:
        ValueError: for one that is none.
    """

    text: str
    seconds: float = 10.0
    validator: Any = field(init=False)

    def __post_init__(self) -> None:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError, ValidationError
        from jsonschema.validators import extend

        def pattern(validator: Any, wanted: str, value: Any, _: Any) -> "Iterator[ValidationError]":
            if validator.is_type(value, "string") and not self._finds(wanted, value):
                yield ValidationError(f"{value!r} does not match {wanted!r}")

        def properties(
            validator: Any, wanted: Mapping[str, Any], value: Any, _: Any
        ) -> "Iterator[ValidationError]":
            for each, schema in wanted.items() if validator.is_type(value, "object") else ():
                for name, own in value.items():
                    if self._finds(each, name):
                        yield from validator.descend(own, schema, path=name, schema_path=each)

        schema = json.loads(validation.schema_text(self.text))
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise ValueError(f"the JSON schema cannot be used: {error.message}") from None
        limited = {"pattern": pattern, "patternProperties": properties}
        object.__setattr__(self, "validator", extend(Draft202012Validator, limited)(schema))

    def _finds(self, pattern: str, text: str) -> bool:
        return regex.search(pattern, text, timeout=self.seconds) is not None

    def __call__(self, answer: str) -> Judgement:
        try:
            value = json.loads(answer)
        except (ValueError, RecursionError) as error:
            return Judgement(0.0, f"no JSON: {error}"[:LONGEST_NOTE])
        from referencing.exceptions import Unresolvable

        try:
            error = next(iter(self.validator.iter_errors(value)), None)
        except RecursionError:
            return Judgement(None, "the answer is nested too deeply for the schema")
        except TimeoutError:
            return Judgement(None, f"a pattern of the schema took more than {self.seconds:g} s")
        except Unresolvable as missing:
            return Judgement(None, f"the schema has no {missing.ref}"[:LONGEST_NOTE])
        return Judgement(
            float(error is None), "" if error is None else error.message[:LONGEST_NOTE]
        )


def pattern_of(what: str, text: str) -> "regex.Pattern[str]":
    """Compile a regular expression; ValueError names what it is for."""
    try:
        return regex.compile(text, regex.MULTILINE)
    except regex.error as error:
        raise ValueError(f"{what} is no regular expression: {error}") from None


def checker_of(given: str, seconds: float, memory: int) -> Checker:
    """The checker that a user means: ``regex:PATTERN``, a file of a JSON schema, or a program.

    Args:
        seconds, memory: limits of a program; the first of patterns, too.

    Raises:
        ValueError: for a file that is not there, and one that is none of these.
    """
    if given.startswith("regex:"):
        return Pattern(given.removeprefix("regex:"), seconds)
    path = Path(os.path.expanduser(given))
    if not path.is_file():
        raise ValueError(
            f"there is no checker {given}; give a program, a JSON schema's file (.json), or"
            " regex:PATTERN"
        )
    if path.suffix == ".json":
        try:
            return Schema(path.read_text(encoding="utf-8"), seconds)
        except UnicodeDecodeError:
            raise ValueError(f"{given} is not UTF-8 text") from None
    if path.suffix != ".py" and not os.access(path, os.X_OK):
        raise ValueError(
            f"the checker {given} is no program that may run; make it executable, or give a .py or"
            " .json file"
        )
    return Program(path, seconds, memory)
