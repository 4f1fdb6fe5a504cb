"""The option that names a leader which is loaded here."""

import click


def _here(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value.startswith(("http://", "https://")):
        raise click.BadParameter(
            "an address sends texts alone, and here the leader judges texts too; name a model"
        )
    return value


leader_option = click.option(
    "--leader", required=True, metavar="MODEL", callback=_here, help="The larger model."
)
