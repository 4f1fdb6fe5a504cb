"""`draftwood train value`: learn to tell answers that will be right from others."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from draftwood.cli import options
from draftwood.cli.terminal import notes, progress

if TYPE_CHECKING:
    from draftwood.model_names import ModelNames


@click.command(short_help="Head that values answers under way, by which search goes on.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@options.model_options
@click.option("--prompts", default="gsm8k", show_default=True, help="As for 'bench solve'.")
@click.option("--limit", type=click.IntRange(1), help="Most prompts in all.")
@click.option(
    "--answers",
    type=click.IntRange(2),
    default=8,
    show_default=True,
    metavar="N",
    help="To each prompt.",
)
@options.threads
@options.text_option("max_new_tokens", 256)
@options.text_option("temperature", 0.7)
@options.text_option("seed", 0)
def value(
    folder: Path,
    names: "ModelNames",
    prompts: str,
    limit: int | None,
    answers: int,
    **decoding: Any,
) -> None:
    """Write a value head into FOLDER, for 'draftwood solve --judge FOLDER'.

    The model answers prompts whose right answer is known. A head on its hidden states learns at
    each token whether the answer ends right. Answers are kept in FOLDER, so that a run that was
    stopped goes on there; the head is written last.

    \b
    Example:
      draftwood train value my-head --model qwen2.5-coder-0.5b --prompts gsm8k --limit 300
    """
    from draftwood_bench.plan.prompts import load_prompts
    from draftwood_bench.run.record_folder import RecordFolder, folders_of
    from draftwood_choices.asking import asked_of
    from draftwood_choices.search.proposals import Proposer
    from draftwood_choices.search.value_head import read_layers
    from draftwood_choices.search.value_training import (
        PROTOCOL,
        PromptAnswers,
        examples,
        trained,
        write_answers,
    )
    from draftwood_choices.solving.run import is_right

    names.require()
    chosen = {each.id: each for each in load_prompts(prompts, limit=limit).prompts}
    for each in chosen.values():
        is_right(each, "")
    lm = options.load(names, None, measure=False)
    raw = any(each.next_word is not None for each in chosen.values())
    layers, proposer = read_layers(lm.model), Proposer(lm, None, {**decoding, "raw": raw})
    RecordFolder(folder, PROTOCOL, PromptAnswers).begin(
        {
            "model": {name: str(each) for name, each in asdict(names).items()},
            **{"prompts": prompts, "answers": answers, **decoding},
        },
        chosen,
        folders_of(lm),
    )
    asked = {name: asked_of(each, lm) for name, each in chosen.items()}
    written = write_answers(
        proposer, asked, answers, lambda name, text: is_right(chosen[name], text), folder
    )
    with progress() as bar:
        made = bar.track(written, total=len(asked), description="answers")
        seen = [examples(lm, each, layers, proposer.prefixes) for each in made]
    head = trained(seen, lm, layers)
    head.save(folder)
    told = [f"{name} {each:.3g}" for name, each in head.about.items() if each is not None]
    notes().print(f"{folder}: {', '.join(told)}", markup=False, soft_wrap=True)
