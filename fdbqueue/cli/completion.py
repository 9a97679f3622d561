"""The command that teaches a shell to complete our command lines, names of queues included."""

import click
from click.shell_completion import get_completion_class

from fdbqueue.cli.exits import Trouble
from fdbqueue.cli.group import cli

PROGRAM = "fdbqueue"


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes SHELL complete commands, options and names of queues.

    bash: eval "$(fdbqueue completion bash)", in ~/.bashrc; zsh the same, in ~/.zshrc; fish: fdbqueue
    completion fish | source.
    """
    completing = get_completion_class(shell)
    if completing is None:
        raise Trouble(f"no completion for {shell}")
    root = context.find_root().command
    try:
        script = completing(root, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source()
    except RuntimeError as reason:  # a bash too old for it
        raise Trouble(str(reason)) from None
    click.echo(script)
