"""Compile schemas and grammars into token masks."""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from draftwood.grammar.grammar import Grammar, first_line
from draftwood.grammar.schemas import PATTERNS, mended
from draftwood.grammar.tools import Tool, ToolChoice, lark_of_tools
from draftwood.grammar.trial import SECONDS, compiles, on_deep_stack
from draftwood.optional import install_command
from draftwood.tokenizer.protocol import AnyTokenizer
from draftwood.validation import JsonSchema, require_small, schema_text

if TYPE_CHECKING:
    import llguidance

WHITESPACE = r"(\x20|\n[\x20\t]{0,40})"
"""Between the parts of JSON: a blank, or a line break and an indent. Without a bound, small models
go on with blanks for ever.
"""
ESCAPES = 'nrbtf\\"'
"""Letters behind a backslash in JSON. Names of properties are compared as they are written, so
none may be written in another way, as with ``u``.
"""
SPELLING = {"whitespace_pattern": WHITESPACE, "json_allowed_escapes": ESCAPES}
"""Options for the compiler of schemas."""

ITS_ADVICE = "Enable 'coerce_one_of' option to approximate oneOf with anyOf"
MISTAKES = ("Invalid type", "does not exist", "Unsatisfiable schema", "leads to no schema")
"""Signs of reasons against a schema that no model could follow."""
OUR_ADVICE = "Use anyOf, or alternatives that a required constant tells apart"
ADDED, VOCAB = '"added_tokens":', '"vocab":{'
"""Beginnings of parts in the JSON that a tokenizer is written as, without blanks."""
RECENT = 16
"""Compiled grammars that are kept: agents send the same tools and schemas every time."""
FEW_PATTERNS, SMALL = 8, 16_000
"""Patterns and characters of a grammar that is compiled without being tried first: others may take
for ever, see ``trial``.
"""


class Compiler:
    """Compiles grammars for one model; several threads may do so at once.

    A hard grammar takes up to a second, during which other threads run; the first one waits for
    ``prepare``. The newest ones are kept. It does not need the model.

    Args:
        tokenizer: of the model; a fast one.
        vocab_size: width of the model's logits, which may be more than the tokenizer has.
        end_tokens: tokens with which the model ends its text.

    Raises:
        ImportError: on the first use, where ``llguidance`` is missing.
        ValueError: on the first use, for a tokenizer whose tokens it cannot read.
    """

    def __init__(
        self, tokenizer: AnyTokenizer, vocab_size: int, end_tokens: frozenset[int]
    ) -> None:
        self.tokenizer, self.vocab_size, self.end_tokens = tokenizer, vocab_size, end_tokens
        self._recent: OrderedDict[str, Grammar | None] = OrderedDict()
        self._lock = Lock()

    def prepare(self) -> None:
        """Read the vocabulary, which keeps all threads waiting: 0.3 s for 50,000 tokens, 3 s for
        260,000.
        """
        self._tokens  # noqa: B018

    def _kept(self, key: str, make: Callable[[], Grammar | None]) -> Any:
        """Give what was made for a key not long ago, else make it."""
        with self._lock:
            if key in self._recent:
                self._recent.move_to_end(key)
                return self._recent[key]
        made = make()
        with self._lock:
            self._recent[key] = made
            if len(self._recent) > RECENT:
                self._recent.popitem(last=False)
        return made

    def json_schema(self, schema: JsonSchema) -> Grammar:
        """Compile a JSON schema, given as a dict, as JSON or by a class of Pydantic.

        Properties come in the order of the schema. References lead to places in the schema alone.

        Raises:
            TypeError: for another type.
            ValueError: for a schema that is no JSON, too large, unsatisfiable, or that has keywords
                which cannot be kept; it says which.
        """
        text = schema_text(schema)
        return self._kept(f"JSON {text}", lambda: self._of_schema(text))

    def _of_schema(self, text: str) -> Grammar:
        text = _mended(text)
        try:
            source = _guidance().LLMatcher.grammar_from_json_schema(text, dict(SPELLING))
        except ValueError as error:  # NaN, half characters
            raise ValueError(f"the JSON schema is no JSON: {error}") from None
        return self._compiled(source, "the JSON schema", begins_at_once=True)

    def json_object(self) -> Grammar:
        """Grammar of any JSON object."""
        return self.json_schema({"type": "object"})

    def lark(self, grammar: str) -> Grammar:
        """Compile a grammar in llguidance's dialect of Lark, whose first rule is ``start``."""
        _require_text("a Lark grammar", grammar)
        require_small("the Lark grammar", grammar)
        source = _guidance().LLMatcher.grammar_from_lark(_with_mended_schemas(grammar))
        doubtful = len(grammar) > SMALL or any(sign in grammar for sign in "&~")
        return self._compiled(source, "the Lark grammar", doubtful=doubtful)

    def regex(self, pattern: str) -> Grammar:
        """Compile a regular expression that matches whole texts; it has no look-around."""
        _require_text("a regular expression", pattern)
        require_small("the regular expression", pattern)
        source = _guidance().LLMatcher.grammar_from_regex(pattern)
        return self._compiled(source, "the regular expression", doubtful=len(pattern) > SMALL)

    def tools(
        self, tools: Sequence[Tool], choice: ToolChoice, answer: Mapping[str, Any] | None = None
    ) -> Grammar | None:
        """Compile a grammar of texts that may or must call tools, with arguments by their schemas.

        Of a tool that is not strict, what cannot be kept of its schema is left out.

        Args:
            tools: that may be called.
            choice: whether they are.
            answer: schema of a text that calls none, where it may.

        Returns:
            None where any text will do.

        Raises:
            ValueError: for a schema with a mistake, or, where it is strict, with what cannot be
                kept; it names the tool.
        """
        if choice.mode == "none" or not tools:
            return None
        asked = repr((tools, choice, answer))
        return self._kept(f"tools {asked}", lambda: self._of_lax_tools(tools, choice, answer))

    def _of_lax_tools(
        self, tools: Sequence[Tool], choice: ToolChoice, answer: Mapping[str, Any] | None
    ) -> Grammar:
        try:
            return self._of_tools(tools, choice, answer)
        except ValueError:
            followed = [self._followed(tool) for tool in tools]
            if followed == [*tools]:
                raise
            return self._of_tools(followed, choice, answer)

    def _of_tools(
        self, tools: Sequence[Tool], choice: ToolChoice, answer: Mapping[str, Any] | None = None
    ) -> Grammar:
        try:
            lark = lark_of_tools(tools, choice, SPELLING, self._words, answer)
        except RecursionError:
            raise ValueError("the tools' schemas are nested too deeply") from None
        require_small("the tools' schemas", lark)
        source = _guidance().LLMatcher.grammar_from_lark(lark)
        is_free = choice.mode == "auto" and answer is None
        return self._compiled(source, "the tools' schemas", begins_at_once=not is_free)

    def _followed(self, tool: Tool) -> Tool:
        """A tool whose schema can be followed, without what cannot be kept."""
        ways = (
            lambda: tool.parameters,
            lambda: mended(tool.parameters, True, PATTERNS),
            lambda: {"type": "object"},
        )
        for way in ways:
            try:
                found = replace(tool, parameters=way())
                self._of_tools([found], ToolChoice("required"))
                return found
            except ValueError as error:
                reason = _reason_in_schema(str(error))
                if tool.strict or any(sign in reason for sign in MISTAKES):
                    raise ValueError(
                        f"the parameters of the tool {tool.name} cannot be followed: {reason}"
                    ) from None
        return tool

    @property
    def _backend(self) -> Any:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError(
                f"grammars need a fast tokenizer, and {type(self.tokenizer).__name__} is none; load"
                " it with use_fast=True"
            )
        return backend

    @cached_property
    def _words(self) -> dict[str, int]:
        """Added tokens that are no special ones and look like some, such as ``<tool_call>``."""
        added = self._backend.get_added_tokens_decoder().items()
        return {
            token.content: number
            for number, token in added
            if not token.special and re.fullmatch(r"<[!-~]+>", token.content)
        }

    @cached_property
    def _tokens(self) -> "llguidance.LLTokenizer":
        if not self.end_tokens:
            raise ValueError(
                "grammars need a token that ends a text, and this model has none; set the"
                " tokenizer's eos_token"
            )
        guidance, given = _guidance(), self._arguments()
        try:
            return guidance.LLTokenizer(given.pop("text"), **given)
        except ValueError as error:
            raise ValueError(
                "grammars cannot read the tokens of this tokenizer"
                f" ({type(self.tokenizer).__name__}): {first_line(str(error))}; take a model whose"
                " tokenizer splits texts into bytes"
            ) from None

    def _arguments(self) -> dict[str, Any]:
        """Arguments of llguidance's reader of the vocabulary."""
        backend = self._backend
        beyond = [id for id in self.tokenizer.get_vocab().values() if id >= self.vocab_size]
        if not set(beyond) <= set(backend.get_added_tokens_decoder()):
            raise ValueError(
                f"the tokenizer has {len(self.tokenizer)} tokens and the model's logits"
                f" {self.vocab_size}: it belongs to another model"
            )
        width = 1 + max([self.vocab_size - 1, *beyond])  # markers without a logit
        text = _text_of(backend, self._words)
        return {"text": text, "n_vocab": width, "eos_token": sorted(self.end_tokens)}

    def _compiled(
        self, source: str, what: str, begins_at_once: bool = False, doubtful: bool = False
    ) -> Grammar:
        guidance, tokens = _guidance(), self._tokens
        doubtful = doubtful or source.count('"pattern') > FEW_PATTERNS
        if doubtful and not compiles(source, self._arguments()):
            raise ValueError(
                f"{what} cannot be followed: it is not compiled within {SECONDS:g} s; give fewer"
                " patterns that the same text has to fit, or fewer rules"
            )
        limits = guidance.LLParserLimits(verbose_errors=False)
        matcher = on_deep_stack(
            lambda: guidance.LLMatcher(tokens, source, log_level=0, limits=limits)
        )
        if matcher.is_error():
            raise ValueError(f"{what} cannot be followed: {_reason(matcher.get_error())}")
        grammar = Grammar(matcher, self.vocab_size, self.end_tokens, begins_at_once)
        if not bool(grammar.start().allowed().any()):
            raise ValueError(f"{what} forbids every text: no token may come first")
        return grammar


def _guidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise ImportError(
            "grammars need the package llguidance; install it with:"
            f" {install_command('draftwood[grammar]')}"
        ) from None
    return llguidance


def _text_of(backend: Any, words: Mapping[str, int]) -> str:
    """A tokenizer's JSON without padding and truncation, which are for batches.

    Args:
        words: added ones that become usual: llguidance takes them for special, so that it forces
            them where a grammar asks for their text, and then refuses them.
    """
    if backend.padding is not None or backend.truncation is not None:
        backend = copy(backend)
        backend.no_padding()
        backend.no_truncation()
    text = backend.to_str()
    added, vocab = text.find(ADDED), text.find(VOCAB, max(0, text.find('"model":')))
    if not words or added < 0 or vocab < 0:  # none, or those with scores
        return text
    # parts of it are replaced: to read and write all of a large one takes a second
    listed, end = json.JSONDecoder().raw_decode(text, added + len(ADDED))
    left = json.dumps([each for each in listed if each["content"] not in words])
    vocab += len(VOCAB)
    more = json.dumps(words)[1:-1] + "," * (text[vocab] != "}")
    return f"{text[: added + len(ADDED)]}{left}{text[end:vocab]}{more}{text[vocab:]}"


def _mended(text: str) -> str:
    """A schema in JSON as it is compiled; options for the compiler are none of its keywords."""
    try:
        told = mended(json.loads(text))
    except RecursionError:
        raise ValueError("the JSON schema is nested too deeply") from None
    told.pop("x-guidance", None)
    return json.dumps(told)


def _with_mended_schemas(grammar: str) -> str:
    """A Lark grammar with its JSON schemas as they are compiled."""
    parts, end = list[str](), 0
    for found in re.finditer(r"%json\s*", grammar):
        if found.start() < end:  # in a schema
            continue
        try:
            schema, behind = json.JSONDecoder().raw_decode(grammar, found.end())
        except (ValueError, RecursionError):  # told by the compiler
            continue
        try:
            told = json.dumps(_spelled(mended(schema)))
        except RecursionError:
            raise ValueError("a JSON schema in the Lark grammar is nested too deeply") from None
        parts += [grammar[end : found.end()], told]
        end = behind
    return "".join([*parts, grammar[end:]])


def _spelled(schema: Any) -> Any:
    """A schema of a Lark grammar in our spelling, where it does not choose its own."""
    own = schema.get("x-guidance", {}) if isinstance(schema, dict) else None
    if not schema or not isinstance(own, dict):  # {} may stand in a quoted text
        return schema
    ours = {"json_allowed_escapes": ESCAPES} if "whitespace_flexible" in own else SPELLING
    return {**schema, "x-guidance": {**ours, **own}}


def _require_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{what} is a text, got {type(text).__name__}")


def _reason_in_schema(told: str) -> str:
    """Reason against a tool's schema, without the grammar around it."""
    reason = re.split(r" \d+ \| ", told.rpartition("cannot be followed: ")[2])[0]
    return reason.rpartition("failed to compile JSON schema: ")[2]


def _reason(error: str) -> str:
    """Reason that llguidance gives against a grammar, on one line."""
    told, *_ = error.replace("<non-verbose/>", "").split("<backtrace>")
    told = told.replace(ITS_ADVICE, OUR_ADVICE)
    return " ".join(told.split())[:300] or "no reason given"
