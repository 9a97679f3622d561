"""`fdbqueue completion`: a script with which a shell completes commands and names of queues."""

import click
from click.shell_completion import get_completion_class

from fdbqueue.operate.cli.exits import CommandError, require_stdout
from fdbqueue.operate.cli.group import cli

PROGRAM = "fdbqueue"


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script with which SHELL completes commands, options and names of queues.

    bash: put eval "$(fdbqueue completion bash)" into ~/.bashrc. zsh: put eval "$(fdbqueue completion zsh)"
    into ~/.zshrc. fish: run fdbqueue completion fish | source.
    """
    require_stdout()
    completing = get_completion_class(shell)
    if completing is None:
        raise CommandError(f"no completion for {shell}")
    root = context.find_root().command
    try:
        script = completing(root, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source()
    except RuntimeError as reason:  # this bash is too old
        raise CommandError(str(reason)) from None
    click.echo(script)
