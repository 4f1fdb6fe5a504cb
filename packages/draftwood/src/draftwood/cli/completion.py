"""`draftwood completion`: words that a shell completes."""

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script by which a shell completes commands, options, methods, models and saved chats.

    \b
    Examples:
      eval "$(draftwood completion bash)"    # in ~/.bashrc
      eval "$(draftwood completion zsh)"     # in ~/.zshrc
      draftwood completion fish > ~/.config/fish/completions/draftwood.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    root = context.find_root().command
    click.echo(found(root, {}, "draftwood", "_DRAFTWOOD_COMPLETE").source())
