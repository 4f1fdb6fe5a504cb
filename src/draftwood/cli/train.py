"""`draftwood train`: data that the target writes, and drafters that learn from them."""

import click

from draftwood.cli.train_data import data


@click.group(short_help="Make training data, and train drafters on them.")
def train() -> None:
    """Train a drafter for your own model: make data first, then train on them.

    \b
    Example:
      draftwood train data my-data --tokens 1m
    """


train.add_command(data)
