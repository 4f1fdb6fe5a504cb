"""Turn requests into tasks of the batch."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

from draftwood import engine
from draftwood.grammar import Tool, ToolChoice
from draftwood.methods.answers import AnswersMethod
from draftwood.models.native.prefixes import Prefixes
from draftwood.sampling_params import OPTIONS, SamplingParams
from draftwood.stats import Stats
from draftwood.text import infill
from draftwood.text.language_model import LanguageModel
from draftwood_serve.errors import bad_request, one_line
from draftwood_serve.mailbox import Mailbox
from draftwood_serve.texts import Choice, PromptText

Prompt = str | Sequence[Mapping[str, Any]]
"""A text, or the messages of a chat."""

UNLIMITED = 4096  # tokens of an answer if neither request nor model limits it


class SharedCache(Protocol):
    """Part of the model's cache that all requests share, and what they are limited to."""

    @property
    def prefixes(self) -> Prefixes | None: ...

    @property
    def context_length(self) -> int | None:
        """Most tokens of prompt and answer; None for no limit."""
        ...

    @property
    def own_context(self) -> int | None:
        """The same, however much the cache holds."""
        ...

    @property
    def curve(self) -> Callable[[int], float]:
        """Seconds of a pass by its tokens."""
        ...

    @property
    def exact(self) -> bool:
        """False where texts may be other than the model's own by a method or rule."""
        ...

    def require_room(self, tokens: int, answer: int | None) -> None:
        """Raise ValueError for a prompt that can never be held.

        Args:
            answer: most tokens of the answer; None for as many as there is room for.
        """
        ...

    def texts_at_once(self, prompt: int, answer: int) -> int:
        """Most texts of one prompt that can be held together; tokens of it and of each answer."""
        ...

    def other_method(self, wanted: "Speculation") -> AnswersMethod | None:
        """A package's method that writes the texts; None where the engine's loop does."""
        ...


@dataclass(frozen=True)
class Speculation:
    """Decoding method of a request.

    Attributes:
        method: None takes the server's.
        budget: most draft tokens in a step; None leaves it to the method.
        tree: draft tree of the method; None takes the server's, or the method's usual one.
        trace: whether each step's counts are reported; ``tree`` adds its tree.
    """

    method: str | None = None
    budget: int | None = None
    trace: bool | Literal["tree"] = False
    tree: str | None = None


@dataclass(frozen=True)
class TextRequest:
    """Texts that a request asks for, whatever its endpoint.

    Attributes:
        prompts: texts, messages or token ids.
        options: for ``LanguageModel.stream``, all but the prompt, the seed and the length.
        n: texts of each prompt.
        seed: of each prompt's first text; its others count on from it. None draws the seed of the
            first text of all.
        max_tokens: of each text; None takes as many as the model's context holds.
        raw: whether prompts are texts as they are, without a chat template.
        echo: whether the prompts' own texts are returned before the answers.
        prompt_logprobs: most probable tokens reported at each place of the prompt; None for none.
        json_schema: that each text must fit; None for any.
        form: another form of the texts, as a field of ``structured_outputs`` and its value.
        tools: that a chat's answer may call.
        tool_choice: whether it does.
        gap: text behind what is to be written, and other files; None goes on with the prompt.
        names: what the chat template may ask for.
        thinks: whether the answer begins with a thought, or how hard it thinks; None as usual.
        must_think: whether a model without thoughts is refused.
        prompt_field, format_field: of the request's body, which errors name.
    """

    prompts: Sequence[Prompt | Sequence[int]]
    options: Mapping[str, Any]
    n: int = 1
    seed: int | None = None
    max_tokens: int | None = None
    raw: bool = False
    echo: bool = False
    prompt_logprobs: int | None = None
    json_schema: Mapping[str, Any] | None = None
    form: tuple[str, Any] | None = None
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    speculation: Speculation = field(default_factory=Speculation)
    gap: infill.Gap | None = None
    names: Mapping[str, Any] = field(default_factory=dict)
    thinks: bool | str | None = None
    must_think: bool = False
    prompt_field: str = "messages"
    format_field: str = "response_format"

    @property
    def calls(self) -> bool:
        """True if texts may hold calls of tools."""
        return bool(self.tools) and self.tool_choice.mode != "none"

    @property
    def has_grammar(self) -> bool:
        """True if texts have to fit something that is compiled first."""
        return self.calls or self.json_schema is not None or self.form is not None


@dataclass(eq=False)
class TaskOfJob:
    """A task of the batch, and the texts it writes."""

    task: engine.Sequence | engine.ParallelSampling
    choices: list[Choice]


@dataclass(eq=False)
class TextJob:
    """Running request. The thread that runs the model writes its fields, the event loop its
    mailbox and ``error``.

    Attributes:
        tasks: that write it.
        choices: its texts in order, prompt by prompt.
        prompt_tokens: of all prompts, each counted once however many texts follow it.
        seed: of the first text.
        curve: seconds of a pass by its tokens, as far as they are known.
        n: texts of each prompt.
        alone: whether no other text shared its passes, or ran between them.
        end: how it ended: finished, cancelled or failed; empty before.
        error: code of the error with which its stream ended, if any.
        load_seconds: that it waited for its model.
        arrived, started, first_token, ended: seconds of ``time.perf_counter``; 0 before.
    """

    tasks: list[TaskOfJob]
    choices: list[Choice]
    prompt_tokens: int
    seed: int
    method: str
    loop: asyncio.AbstractEventLoop
    speculation: Speculation
    arrived: float
    curve: Callable[[int], float]
    n: int = 1
    alone: bool = True
    end: str = ""
    error: str | None = None
    mailbox: Mailbox = field(default_factory=Mailbox)
    load_seconds: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    ended: float = 0.0
    over: bool = False  # no further updates

    @property
    def predicted(self) -> tuple[int, int] | None:
        """Tokens of the texts' predictions, and how many of them became text; None without any."""
        texts = [each.sequence for each in self.choices]
        given = [each.options.predicted for each in texts if each.options.predicted is not None]
        if not given:
            return None
        return sum(len(each.tokens) for each in given), sum(each.followed for each in texts)

    @property
    def stats(self) -> Stats:
        """Stats of all its texts."""
        return sum((each.stats for each in self.choices), Stats())

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompts that were in the cache when the first text of each began."""
        return sum(each.sequence.prefill.reused for each in self.choices[:: self.n])


def draw_seed() -> int:
    """A seed that every client's JSON can hold."""
    return secrets.randbits(31)


def make_job(
    lm: LanguageModel,
    wanted: TextRequest,
    most_texts: int,
    loop: asyncio.AbstractEventLoop,
    cache: SharedCache,
    owner: str,
) -> TextJob:
    """Check a request and build its tasks; no cache is opened and no model is run.

    Args:
        most_texts: that one task writes.
        cache: of all texts.
        owner: of the API key; requests of others share no prefix with this one.

    Raises:
        ApiError: where the request is at fault.
    """
    arrived = time.perf_counter()
    seed = draw_seed() if wanted.seed is None else wanted.seed
    _require_tokens(lm, wanted.options.get("logit_bias", ()), "logit_bias")
    _require_options(wanted.options, cache.exact)
    grammar = _grammar(lm, wanted)
    limit, other = cache.context_length, cache.other_method(wanted.speculation)
    options = {**wanted.options, "grammar": grammar, "salt": owner, "context": limit}
    options |= {"raw": wanted.raw, "exact": cache.exact}
    if wanted.gap is not None:
        field = "input_suffix" if wanted.prompt_field == "input_prefix" else "suffix"
        options["ends"] = blaming_the_request(lambda: _marks(lm), field).ends
    if wanted.prompt_logprobs is None:
        options["prefixes"] = cache.prefixes
    tasks: list[TaskOfJob] = []
    choices: list[Choice] = []
    prompt_tokens = 0
    for prompt in wanted.prompts:
        asked = wanted.prompt_field
        tokens = blaming_the_request(lambda prompt=prompt: _tokens(lm, prompt, wanted), asked)
        most = None if wanted.max_tokens is None else max(1, wanted.max_tokens)
        require_room(len(tokens), cache, asked, most)
        begin = seed if wanted.seed is not None else seed + len(choices)  # equal prompts differ
        texts = [
            blaming_the_request(
                lambda own=own, tokens=tokens: _choice(
                    lm, {**options, "seed": own}, wanted, tokens, limit, other
                )
            )
            for own in range(begin, begin + wanted.n)
        ]
        prompt_tokens += len(texts[0].sequence.prompt)  # with a thought that was closed
        prompt_text = PromptText.of(lm.tokenizer, tokens) if wanted.echo else None
        for place, choice in enumerate(texts, start=len(choices)):
            choice.number, choice.prompt_text = place, prompt_text
            choice.traced = wanted.speculation.trace == "tree"
        choices += texts
        alone = (TaskOfJob(each.sequence, [each]) for each in texts)
        tasks += _tasks(lm, texts, most_texts, cache) if other is None else alone
    return TextJob(
        *(tasks, choices, prompt_tokens, seed, lm.method.name if other is None else other.name),
        *(loop, wanted.speculation, arrived),
        curve=cache.curve,
        n=wanted.n,
    )


def blaming_the_request(make: Callable[[], Any], param: str | None = None) -> Any:
    """Call ``make``; turn its errors about values into status 400."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise bad_request(one_line(error), param) from error
    except RecursionError as error:
        raise bad_request("something in it is nested too deeply", param) from error


def _require_options(given: Mapping[str, Any], exact: bool) -> None:
    """Raise 400, naming the option, for a value that no text of this server can have."""
    for name, value in given.items():
        blaming_the_request(partial(OPTIONS[name].require, name, value), name)
    rules = given.get("rules")
    blaming_the_request(partial(SamplingParams, rules=rules, exact=exact), "rules")


def _grammar(lm: LanguageModel, wanted: TextRequest) -> Any:
    """Grammar that an answer must fit, None for any; compiled in up to a second.

    A format is not asked of an answer that has to call a tool; else the answer fits one of both.
    """
    schema, form, alone = wanted.json_schema, wanted.form, None
    if form is not None:
        return blaming_the_request(lambda: _form(lm, *form), wanted.format_field)
    if schema is not None:
        alone = blaming_the_request(lambda: lm.grammars.json_schema(schema), wanted.format_field)
    if not wanted.calls:
        return alone
    tools, choice = wanted.tools, wanted.tool_choice
    return blaming_the_request(lambda: lm.grammars.tools(tools, choice, schema), "tools")


def _form(lm: LanguageModel, kind: str, value: Any) -> Any:
    """Grammar of an answer that is no thought."""
    if kind == "choice":
        texts = (json.dumps(each, ensure_ascii=False) for each in value)  # as Lark quotes
        kind, value = "grammar", f"start: {' | '.join(texts)}".replace("\x7f", "\\u007f")
    found = lm.grammars.regex(value) if kind == "regex" else lm.grammars.lark(value)
    return replace(found, begins_at_once=True)


def _tokens(lm: LanguageModel, prompt: Any, wanted: TextRequest) -> list[int]:
    if wanted.gap is not None:
        return wanted.gap.encode(lm.tokenizer, _marks(lm), prompt)
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], int):
        _require_tokens(lm, prompt, wanted.prompt_field)
        return list(prompt)
    blaming_the_request(lambda: lm.require_names(wanted.names), "chat_template_kwargs")
    return lm.encode(prompt, wanted.raw, wanted.tools, wanted.tool_choice, _names(lm, wanted))


def _names(lm: LanguageModel, wanted: TextRequest) -> Mapping[str, Any]:
    """Names that the chat template is told: how to think, and those of the request."""
    thinks = wanted.thinks
    if thinks is None:
        return wanted.names
    asked = lm.template_names
    told: dict[str, Any] = {name: bool(thinks) for name in asked & {"enable_thinking", "thinking"}}
    if isinstance(thinks, str) and "reasoning_effort" in asked:
        told["reasoning_effort"] = thinks
    if wanted.must_think and not told and lm.thought(()) is None:
        raise bad_request("this model does not support thinking; leave think out", "think")
    return {**told, **wanted.names}


def _marks(lm: LanguageModel) -> infill.InfillTokens:
    return infill.InfillTokens.need(lm.tokenizer, lm.name)


def require_room(tokens: int, cache: SharedCache, field: str, answer: int | None) -> None:
    """Raise 400 for a prompt that leaves too little room in the context, or in the cache.

    Args:
        field: of the request's body, which the error names.
        answer: most tokens of the answer; None for as many as there is room for.
    """
    limit, least = cache.own_context, 0 if answer == 0 else 1
    if limit is not None and tokens + least > limit:
        raise bad_request(
            f"This model's maximum context length is {limit} tokens. However, your prompt has"
            f" {tokens} tokens; shorten it to at most {limit - least}.",
            field,
            "context_length_exceeded",
        )
    try:
        cache.require_room(tokens, answer)
    except ValueError as error:
        raise bad_request(one_line(error), field, "context_length_exceeded") from error


def _require_tokens(lm: LanguageModel, tokens: Iterable[Any], field: str) -> None:
    last = lm.model.vocab_size - 1
    strange = [token for token in tokens if token > last]
    if strange:
        raise bad_request(f"{field} has token ids outside 0..{last}: {strange[:5]}", field)


def _choice(
    lm: LanguageModel,
    options: Mapping[str, Any],
    wanted: TextRequest,
    tokens: list[int],
    limit: int | None,
    other: AnswersMethod | None,
) -> Choice:
    room = UNLIMITED if limit is None else limit - len(tokens)
    length = room if wanted.max_tokens is None else wanted.max_tokens
    if limit is not None:
        length = min(length, room)
    asked = options.get("min_tokens", 0)
    if wanted.max_tokens is not None and asked > wanted.max_tokens:
        raise bad_request(
            f"min_tokens ({asked}) must be at most max_tokens ({wanted.max_tokens})", "min_tokens"
        )
    least = min(asked, length)  # the context may end the text before
    own = {**options, "max_new_tokens": length, "min_tokens": least}
    if other is not None:
        return Choice(_other_text(other, lm, tokens, own, wanted))
    sequence = lm.stream(tokens, **own).sequence
    if wanted.prompt_logprobs is not None:
        sequence.record_prompt(wanted.prompt_logprobs)
    return Choice(sequence, None if wanted.raw else lm.thought(sequence.prompt))


def _other_text(
    other: AnswersMethod,
    lm: LanguageModel,
    tokens: list[int],
    options: Mapping[str, Any],
    wanted: TextRequest,
) -> Any:
    """A text that a package's method writes, where nothing is asked that it does not know."""
    if wanted.gap is not None or wanted.prompt_logprobs is not None:
        what = "suffix" if wanted.gap is not None else "logprobs"
        raise bad_request(f"method {other.name!r} does not take {what}; leave it out", what)
    own = {name: each for name, each in options.items() if name not in ("prefixes", "ends")}
    assert other.serve is not None
    return other.serve(lm, tokens, SamplingParams(**own))


def _tasks(
    lm: LanguageModel, texts: list[Choice], most: int, cache: SharedCache
) -> list[TaskOfJob]:
    """Make the tasks of one prompt's texts; they share its pass unless its logits are read.

    Texts of one task never give way to each other, so all of them must fit the cache.
    """
    first = texts[0].sequence
    most = min(most, cache.texts_at_once(len(first.prompt), first.options.max_new_tokens))
    if len(texts) > 1 and not texts[0].prompt_logprobs and "fork" in lm.model.abilities:
        groups = [texts[first : first + most] for first in range(0, len(texts), most)]
        return [
            TaskOfJob(engine.ParallelSampling([each.sequence for each in own]), own)
            for own in groups
        ]
    return [TaskOfJob(each.sequence, [each]) for each in texts]
