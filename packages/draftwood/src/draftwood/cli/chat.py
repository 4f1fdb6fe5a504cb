"""`draftwood chat`: a conversation."""

import difflib
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from draftwood.cli import options
from draftwood.cli.generate import details
from draftwood.cli.race import race
from draftwood.cli.terminal import notes, say_summary, summary
from draftwood.cli.tree_view import say_tree
from draftwood.sampling_params import sampling_params

if TYPE_CHECKING:
    from draftwood.costs.calibration import Calibration
    from draftwood.model_names import ModelNames
    from draftwood.text.language_model import LanguageModel
    from draftwood.text.stream import Stream

HELP = {
    "/help": "this list",
    "/method NAME TREE": "decode by another method and tree; without a name says which is in use",
    "/stats": "what the conversation took so far",
    "/tree N": "the draft tree of the answer's forward pass N; without N the one that gave most",
    "/race TEXT": "an answer to TEXT, or the last one, written plainly too: the same, both speeds",
    "/clear": "forget the conversation",
    "/exit": "leave; so does Ctrl-D",
}


@click.command(short_help="Talk with a model.")
@options.model_options
@options.overlap
@options.method
@options.tree
@options.text_options(without=("raw", "json_schema", "grammar"), max_new_tokens=512)
@click.option("--inexact", is_flag=True, help="Allow methods that change what the model says.")
@click.option(
    "--show-tree",
    is_flag=True,
    help="Draw on stderr, after each answer, the draft tree of which most was accepted.",
)
def chat(
    names: "ModelNames",
    overlap: bool,
    method: str | None,
    tree: str | None,
    inexact: bool,
    show_tree: bool,
    **decoding: object,
) -> None:
    """Talk with a model. It remembers the conversation; Ctrl-C stops an answer, Ctrl-D leaves,
    /help lists commands.

    Where standard input is no terminal, every line of it is one turn.

    \b
    Examples:
      draftwood chat --temperature 0.7
      printf 'Name a colour.\\nAnother one.\\n' | draftwood chat
    """
    from draftwood import methods

    first = methods.spec(method or names.drafts.method)
    if tree is not None:
        method = first.name
    used = methods.taken(first, names.given)
    options.check_methods([first.name], used, inexact)
    methods.require_tree([first.name], tree, names.drafts.levels)
    # what it does not use may be there for a later /method
    idle = options.left_aside(first, names.given, names.drafts)
    idle += ["--overlap"] * (overlap and not first.drafts_ahead)
    if idle:
        given = ", ".join(idle)
        notes().print(f"{first.name} does without {given}; a /method may use it", style="dim")
    sampling_params(None, decoding)  # refused before anything is loaded
    loaded = options.load(names, overlap=overlap)
    interactive = sys.stdin.isatty()
    options_of_texts = {"exact": not inexact, **decoding}
    conversation = Conversation(loaded, method, options_of_texts, interactive, show_tree, tree)
    if interactive:
        model = f"{names.model}, {conversation.lm.method.name}"
        notes().print(f"{model}. /help lists commands, Ctrl-D leaves.", style="dim")
    calibration = loaded.calibration
    for line in _lines(interactive, calibration):
        if line.strip() and not conversation.take(line.strip()):
            break
    calibration.keep("draftwood chat")


def _lines(interactive: bool, calibration: "Calibration") -> Iterator[str]:
    """Read lines from the user, with a prompt and line editing on a terminal.

    While they think, a doubtful curve is measured again.
    """
    if not interactive:
        yield from sys.stdin
        return
    # not on every system; its import gives input() line editing and history
    with suppress(ImportError):
        import readline  # noqa: F401
    while True:
        try:
            with calibration.mending():
                line = input("> ")
            yield line
        except KeyboardInterrupt:
            notes().print("\n/exit or Ctrl-D leaves", style="dim")
        except EOFError:
            click.echo("", err=True)
            return


class Conversation:
    """Messages so far, and the method that answers.

    Raises:
        ValueError: where the model cannot hold a conversation.
    """

    def __init__(
        self,
        loaded: "LanguageModel",
        method: str | None,
        decoding: dict[str, object],
        interactive: bool,
        show_tree: bool = False,
        tree: str | None = None,
    ) -> None:
        from draftwood.stats import Stats

        self.loaded, self.lm = loaded, loaded.with_method(method, tree=tree)
        if self.lm.tokenizer.chat_template is None:
            raise ValueError(
                f"{self.lm.name} has no chat template, so it cannot hold a conversation; "
                "use draftwood generate --raw, or a model tuned for chat"
            )
        self.decoding, self.interactive, self.show_tree = decoding, interactive, show_tree
        self.messages: list[dict[str, str]] = []
        self.asked: list[dict[str, str]] = []  # what the newest answer answers
        self.stream: Stream | None = None  # of the newest answer
        self.stats = Stats()

    def take(self, line: str) -> bool:
        """Obey a command or answer; False ends the conversation."""
        if re.fullmatch(r"/\w+(\s.*)?", line):  # "/usr/bin is what?" is a question
            return self._obey(*line.split(maxsplit=1))
        self._answer(line)
        return True

    def _obey(self, command: str, argument: str = "") -> bool:
        if command in ("/exit", "/quit"):
            return False
        if command == "/clear":
            self.messages, self.asked, self.stream = [], [], None
            self._say("the conversation is forgotten")
        elif command == "/stats":
            for text in [summary(self.stats, self.lm.method.name), *details(self.stats, self.lm)]:
                self._say(text)
        elif command == "/method":
            self._change_method(argument.strip())
        elif command == "/tree":
            self._draw(argument.strip())
        elif command == "/race":
            self._race(argument.strip())
        elif command == "/help":
            for name, meaning in HELP.items():
                self._say(f"{name:18}{meaning}")
        else:
            near = difflib.get_close_matches(command, [name.split()[0] for name in HELP], n=1)
            self._say(
                f"there is no command {command};"
                f" {f'did you mean {near[0]}?' if near else '/help lists them'}"
            )
        return True

    def _change_method(self, wanted: str) -> None:
        name, _, tree = wanted.partition(" ")
        try:
            if name:
                self.lm = self.loaded.with_method(name, tree=tree.strip() or None)
        except ValueError as error:
            self._say(str(error))
        else:
            self._say(f"method: {self.lm.method.name}")

    def _draw(self, number: str) -> None:
        if self.stream is None:
            self._say("there is no answer yet whose trees could be drawn")
        elif number and not number.isdecimal():
            self._say(f"/tree takes the number of a forward pass, got {number}")
        else:
            try:
                say_tree(self.stream, self.lm.tokenizer, int(number) if number else None)
            except ValueError as error:
                self._say(str(error))

    def _race(self, text: str) -> None:
        """Write an answer twice; the conversation stays as it is."""
        asked = [*self.messages, {"role": "user", "content": text}] if text else self.asked
        if not asked:
            self._say("there is no question yet; ask one, or give it: /race Name a colour.")
        elif self.lm.method.name == "plain":
            self._say("plain would race with itself; /method auto takes another one")
        elif self._fits(asked):
            try:
                prompt = self.lm.encode(asked)
                race(self.loaded, self.lm, prompt, self.decoding, notes())
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                self._say("stopped")

    def _answer(self, text: str) -> None:
        question = {"role": "user", "content": text}
        asked = [*self.messages, question]
        if not self._fits(asked):
            return
        stream = self.lm.stream(asked, **self.decoding)  # type: ignore[arg-type]
        self.asked, self.stream = asked, stream
        stopped = self._print(stream)
        result = stream.result
        self.stats += result.stats
        # a question without an answer would break templates in which the roles take turns
        if result.text:
            self.messages += [question, {"role": "assistant", "content": result.text}]
        if stopped:
            self._say("stopped")
        elif result.finish_reason == "length":
            self._explain_cut(len(result.token_ids))
        if self.show_tree:
            say_tree(stream, self.lm.tokenizer)
        if self.interactive:
            say_summary(result.stats, result.method)

    def _print(self, stream: "Stream") -> bool:
        """Show the answer as it comes; True if the user stopped it."""
        try:
            for piece in stream:
                click.echo(piece, nl=False)
        except KeyboardInterrupt:
            click.echo()
            if not self.interactive:  # nobody is there to go on
                raise
            return True
        click.echo()
        return False

    def _fits(self, messages: list[dict[str, str]]) -> bool:
        limit, tokens = self.lm.model.context_length, len(self.lm.encode(messages))
        if limit is None or tokens < limit:
            return True
        self._say(
            f"the conversation would have {tokens} tokens, the model reads at most {limit}; /clear"
            " starts a new one"
        )
        return False

    def _explain_cut(self, written: int) -> None:
        if written >= int(self.decoding["max_new_tokens"]):  # type: ignore[call-overload]
            self._say(f"cut after {written} tokens; --max-new-tokens allows more")
        else:
            self._say(
                f"the model's context of {self.lm.model.context_length} tokens is full; /clear"
                " starts a new one"
            )

    def _say(self, text: str) -> None:
        notes().print(text, style="dim", soft_wrap=True, markup=False)
