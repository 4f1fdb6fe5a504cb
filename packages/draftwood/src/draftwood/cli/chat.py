"""`draftwood chat`: a conversation."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from draftwood.cli import chats, completers, options
from draftwood.cli.chats import SavedChat
from draftwood.cli.conversation import Conversation, Manner
from draftwood.cli.start import hear_ctrl_c
from draftwood.cli.terminal import notes
from draftwood.sampling_params import sampling_params
from draftwood.storage.home import absolute

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames
    from draftwood.model_set import ModelSet


@click.command()
@options.system
@click.option(
    "--save",
    metavar="NAME",
    help="Save the conversation under this name, after each answer.",
)
@click.option(
    "--resume",
    is_flag=False,
    flag_value=chats.NEWEST,
    metavar="[NAME]",
    shell_complete=completers.chats,
    help="Go on with a saved conversation, and save it; without NAME the newest.",
)
@options.model_options
@options.threads
@options.overlap
@options.method
@options.tree
@options.text_options(without=("raw", "json_schema", "grammar", "prediction"), max_new_tokens=512)
@click.option("--inexact", is_flag=True, help="Allow methods that change what the model says.")
@click.option(
    "--show-tree",
    is_flag=True,
    help="Draw on stderr, after each answer, the draft tree of which most was accepted.",
)
@options.colour
def chat(
    system: str | None,
    save: str | None,
    resume: str | None,
    names: "ModelNames",
    overlap: bool,
    method: str | None,
    tree: str | None,
    inexact: bool,
    show_tree: bool,
    colour: bool,
    **decoding: object,
) -> None:
    """Talk with a model. It remembers the conversation; Ctrl-C stops an answer, Ctrl-D leaves,
    /help lists commands.

    Where standard input is no terminal, every line of it is one turn. In a message @FILE puts the
    text of a file, and @@ is an @. Nothing is saved unless --save, --resume or /save asks for it.

    \b
    Examples:
      draftwood chat --temperature 0.7
      draftwood chat --system "Answer in one sentence." --save foxes
      draftwood chat --resume foxes
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
    decoding["exact"] = not inexact
    sampling_params(None, decoding)  # refused before anything is loaded
    saved_as, begun = _begun(names.model, save, resume)
    if system is not None:
        begun = replace(begun, system=system)
    loaded = options.load(names, overlap=overlap)
    manner = Manner(sys.stdin.isatty(), show_tree, colour)
    conversation = Conversation(loaded, method, decoding, manner, begun, tree, saved_as)
    if manner.interactive:
        hear_ctrl_c(ends_imports=False)  # of a command: the conversation goes on
        _greet(names.model, conversation)
    for line in _lines(manner.interactive, loaded.models):
        if line.strip() and not conversation.take(line.strip()):
            break
    loaded.calibration.keep("draftwood chat")


def _begun(model: str, save: str | None, resume: str | None) -> tuple[str | None, SavedChat]:
    """The name under which the conversation is saved, and what was said before.

    Raises:
        ValueError: for names of chats that are or are not there, and a chat of another model.
    """
    begun = SavedChat(absolute(model))
    if resume is not None:
        resume, begun = chats.read(resume)
        begun.require_model(resume, model)
    if save is not None and save != resume:
        chats.require_new(save)
    return save or resume, begun


def _greet(model: str, conversation: Conversation) -> None:
    told = f"{model}, {conversation.lm.method.name}"
    if conversation.messages:
        told += f", {conversation.saved_as} goes on after {len(conversation.messages) // 2} answers"
    notes().print(f"{told}. /help lists commands, Ctrl-D leaves.", style="dim", markup=False)


def _lines(interactive: bool, models: "ModelSet") -> Iterator[str]:
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
            doubtful = models.calibration.first_doubtful(models.draft_calibration)
            with nullcontext() if doubtful is None else doubtful.mending():
                line = input("> ")
            yield line
        except KeyboardInterrupt:
            notes().print("\n/exit or Ctrl-D leaves", style="dim")
        except EOFError:
            click.echo("", err=True)
            return
