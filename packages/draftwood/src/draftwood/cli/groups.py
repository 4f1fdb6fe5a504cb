"""Groups of commands to which packages add theirs."""

import click

from draftwood.optional import entry_points


class OpenGroup(click.Group):
    """A group with the commands of packages too, which are imported when they are used.

    Args:
        entries: group of the entry points that name click's commands, one each.
        given: as for click's own.
    """

    def __init__(self, *given: object, entries: str = "", **more: object) -> None:
        super().__init__(*given, **more)  # type: ignore[arg-type]
        self.entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        others = (each.name for each in entry_points(self.entries))
        return [*super().list_commands(ctx), *sorted(others)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        others = (each for each in entry_points(self.entries) if each.name == cmd_name)
        return own or next((each.load() for each in others), None)
