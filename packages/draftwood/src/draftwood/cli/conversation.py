"""Turns and commands of `draftwood chat`."""

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftwood.cli import chats, edit, options
from draftwood.cli.chats import SavedChat
from draftwood.cli.edit import FileEdit
from draftwood.cli.generate import details, verdict
from draftwood.cli.painter import writer
from draftwood.cli.race import race
from draftwood.cli.start import await_ctrl_c
from draftwood.cli.terminal import notes, say_summary, summary
from draftwood.cli.text_files import with_files
from draftwood.cli.tree_view import say_tree

if TYPE_CHECKING:
    from draftwood.text.language_model import LanguageModel
    from draftwood.text.stream import Generation, Stream

HELP = {
    "/help": "this list",
    "/system TEXT": "tell the model something before all else; without TEXT says what it is told,"
    " - takes it back",
    "/method NAME TREE": "decode by another method and tree; without a name says which is in use",
    "/stats": "what the conversation took so far",
    "/tree N": "the draft tree of the answer's forward pass N; without N the one that gave most",
    "/race TEXT": "an answer to TEXT, or the last one, written plainly too: the same, both speeds",
    "/edit FILE TEXT": "show how the model would change a file; /write writes it",
    "/save NAME": "save the conversation, now and after each answer",
    "/clear": "forget the conversation; what is saved stays",
    "/exit": "leave; so does Ctrl-D",
}


@dataclass(frozen=True)
class Manner:
    """The way in which a conversation is shown.

    Attributes:
        interactive: whether somebody is there to go on.
        show_tree: draw a tree after each answer.
        colour: show Markdown in colour where a terminal can.
    """

    interactive: bool
    show_tree: bool = False
    colour: bool = True


class Conversation:
    """Messages so far, and the method that answers.

    Args:
        loaded: the model.
        method: None takes the one that follows from what drafts.
        decoding: options of its texts.
        manner: of showing them.
        tree: other than the method's usual one.
        begun: what was said before.
        saved_as: name under which it is saved after each answer; None saves nothing.

    Raises:
        ValueError: where the model cannot hold a conversation, or be told a system message.
    """

    def __init__(
        self,
        loaded: "LanguageModel",
        method: str | None,
        decoding: dict[str, object],
        manner: Manner,
        begun: SavedChat,
        tree: str | None = None,
        saved_as: str | None = None,
    ) -> None:
        from draftwood.engine.prefill import context_limit
        from draftwood.models.native.prefixes import Prefixes
        from draftwood.stats import Stats

        self.loaded, self.lm = loaded, loaded.with_method(method, tree=tree)
        if self.lm.tokenizer.chat_template is None:
            raise ValueError(
                f"{self.lm.name} has no chat template, so it cannot hold a conversation; "
                "use draftwood generate --raw, or a model tuned for chat"
            )
        if begun.system is not None:
            options.require_system(self.lm, begun.system)
        self.decoding, self.manner, self.saved_as = decoding, manner, saved_as
        self.prefixes = Prefixes.of(loaded.model)  # a turn reads only what is new
        self.system, self.model = begun.system, begun.model
        self.limit = context_limit(self.lm.model, decoding.get("context"))  # type: ignore[arg-type]
        self.messages: list[dict[str, str]] = list(begun.messages)
        self.asked: list[dict[str, str]] = []  # what the newest answer answers
        self.stream: Stream | None = None  # of the newest answer
        self.stats, self.used = Stats(), dict[str, None]()  # by these methods
        self._edit: FileEdit | None = None  # shown, and not written yet
        self._commands = {
            "/clear": self._clear,
            "/stats": self._say_stats,
            "/method": self._change_method,
            "/system": self._change_system,
            "/save": self._save_as,
            "/tree": self._draw,
            "/race": self._race,
            "/edit": self._edit_file,
            "/write": self._write_file,
            "/help": self._help,
        }

    def take(self, line: str) -> bool:
        """Obey a command or answer; False ends the conversation."""
        try:
            if re.fullmatch(r"/\w+(\s.*)?", line):  # "/usr/bin is what?" is a question
                goes_on = self._obey(*line.split(maxsplit=1))
            else:
                goes_on = True
                self._answer(line)
            await_ctrl_c()  # else the next line would be lost with it, or the conversation
            return goes_on
        except KeyboardInterrupt:
            if not self.manner.interactive:  # nobody is there to go on
                raise
            self._say("stopped")
        return True

    def _obey(self, command: str, argument: str = "") -> bool:
        if command in ("/exit", "/quit"):
            return False
        if command in self._commands:
            try:
                self._commands[command](argument.strip())
            except (ValueError, OSError) as error:
                self._say(str(error))
        else:
            near = difflib.get_close_matches(command, [name.split()[0] for name in HELP], n=1)
            self._say(
                f"there is no command {command};"
                f" {f'did you mean {near[0]}?' if near else '/help lists them'}"
            )
        return True

    def _clear(self, _: str) -> None:
        saved, told = self.saved_as, "the conversation is forgotten"
        self.messages, self.asked, self.stream, self.saved_as = [], [], None, None
        if self.prefixes is not None:
            self.prefixes.clear()
        self._say(told if saved is None else f"{told}; {saved} stays, /save NAME saves a new one")

    def _say_stats(self, _: str) -> None:
        costs = verdict(self.stats, self.lm)
        used = ", ".join(self.used) or self.lm.method.name
        for text in [summary(self.stats, used), *details(self.stats, costs)]:
            self._say(text)

    def _help(self, _: str) -> None:
        from rich.table import Table
        from rich.text import Text

        listed = Table.grid(padding=(0, 2))
        listed.add_column(no_wrap=True)
        for name, meaning in HELP.items():
            listed.add_row(Text(name), Text(meaning))
        notes().print(listed, style="dim")

    def _change_method(self, wanted: str) -> None:
        name, _, tree = wanted.partition(" ")
        if name:
            found = self.loaded.with_method(name, tree=tree.strip() or None)
            options.require_promise([name], inexact=not self.decoding["exact"])
            self.lm = found
        self._say(f"method: {self.lm.method.name}")

    def _change_system(self, wanted: str) -> None:
        if wanted == "-":
            self.system = None
        elif wanted:
            text = with_files(wanted)
            options.require_system(self.lm, text)
            self.system = text
        self._say("system: none of its own" if self.system is None else f"system: {self.system}")

    def _save_as(self, name: str) -> None:
        if not name and self.saved_as is None:
            self._say("a chat is saved under a name; /save NAME gives it one")
            return
        if name and name != self.saved_as:
            chats.require_new(name)
        name = name or str(self.saved_as)
        path = chats.write(name, self.as_saved)
        self.saved_as = name
        self._say(f"saved in {path}, and after each answer")

    @property
    def as_saved(self) -> SavedChat:
        """The conversation so far."""
        return SavedChat(self.model, self.messages, self.system)

    def _draw(self, number: str) -> None:
        if self.stream is None:
            self._say("there is no answer yet whose trees could be drawn")
        elif number and not number.isdecimal():
            self._say(f"/tree takes the number of a forward pass, got {number}")
        else:
            say_tree(self.stream, self.lm.tokenizer, int(number) if number else None)

    def _race(self, text: str) -> None:
        """Write an answer twice; the conversation stays as it is."""
        asked = self._with(with_files(text)) if text else self.asked
        if not asked:
            self._say("there is no question yet; ask one, or give it: /race Name a colour.")
        elif self.lm.method.name == "plain":
            self._say("plain would race with itself; /method auto takes another one")
        elif self._fits(tokens := self.lm.encode(asked)):
            race(self.loaded, self.lm, tokens, self.decoding, notes())

    def _edit_file(self, wanted: str) -> None:
        """Show how a file would change; the conversation stays as it is."""
        self._edit = None
        file, stream = edit.begin(self.lm, wanted, self.decoding)
        for _ in stream:
            pass
        self._count(stream.result)
        found = edit.proposed(file, stream.result, self.lm.thought(stream.sequence.prompt))
        found.show(self.manner.colour)
        self._edit = found if found.diff else None
        self._say("/write writes this" if found.diff else "the model would change nothing")

    def _write_file(self, _: str) -> None:
        if self._edit is None:
            self._say("there is nothing to write; /edit FILE TEXT shows a change first")
            return
        self._edit.write()
        self._say(f"wrote {self._edit.file.path}")
        self._edit = None

    def _with(self, question: str) -> list[dict[str, str]]:
        """All that the model reads for a question."""
        told = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*told, *self.messages, {"role": "user", "content": question}]

    def _answer(self, text: str) -> None:
        try:
            asked = self._with(with_files(text))
            tokens = self.lm.encode(asked)
            if not self._fits(tokens):
                return
            stream = self.lm.stream(tokens, prefixes=self.prefixes, **self.decoding)  # type: ignore[arg-type]
        except ValueError as error:  # others may be asked
            self._say(str(error))
            return
        self.asked, self.stream = asked, stream
        stopped = self._print(stream)
        result = stream.result
        self._count(result)
        # a question without an answer would break templates in which the roles take turns
        if said := self.lm.said(result.text, tokens):
            self.messages += [asked[-1], {"role": "assistant", "content": said}]
            self._keep()
        if stopped:
            self._say("stopped")
        elif result.finish_reason == "length":
            self._explain_cut(len(result.token_ids))
        if self.manner.show_tree:
            say_tree(stream, self.lm.tokenizer)
        if self.manner.interactive:
            say_summary(result.stats, result.method)

    def _count(self, result: "Generation") -> None:
        self.stats += result.stats
        self.used[result.method] = None

    def _keep(self) -> None:
        """Save the conversation where that was asked for; an error does not end it."""
        if self.saved_as is not None:
            try:
                chats.write(self.saved_as, self.as_saved)
            except (OSError, ValueError) as error:
                self._say(str(error))

    def _print(self, stream: "Stream") -> bool:
        """Show the answer as it comes; True if the user stopped it."""
        place = writer(self.manner.colour, self.lm.thought(stream.sequence.prompt))
        try:
            for piece in stream:
                place.write(piece)
        except KeyboardInterrupt:
            if not self.manner.interactive:
                raise
            return True
        finally:
            place.end()
        return False

    def _fits(self, tokens: list[int]) -> bool:
        if self.limit is None or len(tokens) < self.limit:
            return True
        self._say(
            f"the conversation would have {len(tokens)} tokens, the model reads at most"
            f" {self.limit}; /clear starts a new one"
        )
        return False

    def _explain_cut(self, written: int) -> None:
        if written >= int(self.decoding["max_new_tokens"]):  # type: ignore[call-overload]
            self._say(f"cut after {written} tokens; --max-new-tokens allows more")
        else:
            self._say(f"the context of {self.limit} tokens is full; /clear starts a new one")

    def _say(self, text: str) -> None:
        notes().print(text, style="dim", soft_wrap=True, markup=False)
