"""`recsys completion`: the script that teaches a shell to complete the command."""

from __future__ import annotations

import click

from recsys.cli.options import command

__all__ = ["completion"]

_INSTALL = {
    "bash": (
        "recsys completion bash > ~/.local/share/bash-completion/completions/recsys",
        "in the directory of the package bash-completion",
    ),
    "zsh": (
        "recsys completion zsh > ~/.zfunc/_recsys",
        "with `fpath+=~/.zfunc; autoload -Uz compinit && compinit` in ~/.zshrc",
    ),
    "fish": (
        "recsys completion fish > ~/.config/fish/completions/recsys.fish",
        "which fish reads by itself",
    ),
}


@command(
    "completion",
    examples=[
        'eval "$(recsys completion bash)"',
        "recsys completion fish > ~/.config/fish/completions/recsys.fish",
    ],
)
@click.argument("shell", type=click.Choice(list(_INSTALL)))
def completion(shell: str) -> None:
    """Print a shell completion script.

    The first lines of the script say where it goes. To try it in the current shell:
    """
    from click.shell_completion import get_completion_class

    from recsys.cli.main import COMPLETION_VARIABLE, cli

    kind = get_completion_class(shell)
    assert kind is not None  # Click knows the shells of _INSTALL
    script = kind(cli, {}, "recsys", COMPLETION_VARIABLE)
    # Click's own `source()` starts a bash to ask for its version; the script needs bash 4.4.
    body = script.source_template % script.source_vars()
    click.echo(_with_header(body.strip(), shell))


def _with_header(body: str, shell: str) -> str:
    """Put how to install the script at its top; zsh wants its `#compdef` line before all else."""
    install, place = _INSTALL[shell]
    header = [f"# Completion of recsys for {shell}. Install it, {place}:", f"#   {install}"]
    lines = body.splitlines()
    start = 1 if lines[0].startswith("#compdef") else 0
    return "\n".join([*lines[:start], *header, *lines[start:]])
