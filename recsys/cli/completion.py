"""`recsys completion`: the script with which a shell completes the command."""

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

    Verbs, options, names of models and parameters (-p) complete. The first lines of the script say
    where to install it. To try it in the current shell:
    """
    from click.shell_completion import get_completion_class

    from recsys.cli.main import COMPLETION_VARIABLE, cli

    kind = get_completion_class(shell)
    assert kind is not None  # Click knows the shells of _INSTALL
    script = kind(cli, {}, "recsys", COMPLETION_VARIABLE)
    # Click's own `source()` starts a bash to check its version; the script needs bash 4.4.
    lines = (script.source_template % script.source_vars()).strip().splitlines()
    install, place = _INSTALL[shell]
    header = [f"# Completion of recsys for {shell}. Install it, {place}:", f"#   {install}"]
    start = 1 if lines[0].startswith("#compdef") else 0  # which zsh needs as the first line
    click.echo("\n".join([*lines[:start], *header, *lines[start:]]))
