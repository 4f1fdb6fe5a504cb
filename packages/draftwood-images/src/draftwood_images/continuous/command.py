"""`draftwood train continuous`: a target and a draft that draw pictures in continuous tokens."""

from pathlib import Path

import click

from draftwood.cli.terminal import notes, progress


@click.command("continuous", short_help="Target and draft that draw digits in continuous tokens.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--digits", is_flag=True, help="Learn scikit-learn's digits, the only pictures yet.")
@click.option(
    "--patch", type=click.Choice(["2", "4"]), default="2", show_default=True, help="Pixels a side."
)
@click.option("--updates", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--apart", is_flag=True, help="The draft learns pictures, not its target's answers.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def continuous(
    folder: Path, digits: bool, patch: str, updates: int, apart: bool, seed: int
) -> None:
    """Write two models into FOLDER, for 'python -m draftwood_images.continuous FOLDER'.

    Squares of pixels are the tokens. The draft, of two layers, learns to move as the target does.

    \b
    Example:
      draftwood train continuous my-digits --digits
    """
    if not digits:
        raise ValueError("there is nothing to learn; --digits takes scikit-learn's digits")
    from draftwood_images.continuous import training
    from draftwood_images.continuous.patches import FILES, tokens_of

    learnt, held = (tokens_of(each, int(patch)) for each in training.split(training.digits()))
    lessons = training.lessons(int(patch), updates, seed)
    models = {}
    with progress() as bar:
        for role, lesson in lessons.items():
            task = bar.add_task(role, total=updates)
            models[role] = training.train(
                *(lesson, learnt, None if apart else models.get("target")),
                lambda done, of, task=task: bar.update(task, completed=done),
            )
    for role, model in models.items():
        model.save(folder / FILES[role])
        loss = training.held_out_loss(model, held)
        notes().print(f"{folder / FILES[role]}: held-out error {loss:.3f}", soft_wrap=True)
