"""`draftwood train`: data that the target writes, and drafters that learn from them."""

import click

from draftwood.cli.groups import OpenGroup
from draftwood_train.allocator import keep_freed_memory
from draftwood_train.cli.data import data
from draftwood_train.cli.doctor import doctor
from draftwood_train.cli.export import export, import_head, pack
from draftwood_train.cli.judge import judge
from draftwood_train.cli.recipe import RecipeCommand, recipe_names

TRAINERS = "draftwood.trainers"
"""Entry points of packages that train something: click's commands, one each."""


@click.group(cls=OpenGroup, entries=TRAINERS)
def train() -> None:
    """Train a drafter for your own model: make data first, then train on them.

    \b
    Example:
      draftwood train data my-data --tokens 1m
      draftwood train eagle my-data my-drafter --minutes 60
    """
    keep_freed_memory()


for command in (data, doctor, export, import_head, judge, pack):
    train.add_command(command)
for name in recipe_names():
    train.add_command(RecipeCommand(name))
