"""docs/reference/cli.md: every command of `popwheel`, from its own help."""

import re
from collections.abc import Iterator

import click

from popwheel_cli.main import main
from tools.reference.markdown import head, table

_EVERYWHERE = {
    "output",
    "file",
    "assignments",
    "parent",
    "heartbeat",
    "proxy",
    "tls",
    "tls_ca",
    "shared_port",
    "lock_inherited",
}
"""Options that the page explains once, or that only our own processes give to one another."""
_HEAD = """\
Each command of the group `admin` is also a verb of its own: `popwheel topic list` is `popwheel admin topic list`.
`broker` and `cluster` are not, as services have these names. `--help` at each explains its options; `--config FILE` and
`--set KEY=VALUE` of services are [options](options.md).
"""
_TEXT = """\
## Which cluster

Each value is taken from the first place that has it. A context is a cluster by name: `popwheel context add`.

| value | option, before the verb or behind `admin` | variable | context |
|---|---|---|---|
| the cluster | `--server`, `--context` | `POPWHEEL_SERVER`, `POPWHEEL_CONTEXT` | the one in use |
| token | `--token` | `POPWHEEL_TOKEN` | `--token-file`, `--token-variable` |
| user | `--access-key` | `POPWHEEL_ACCESS_KEY` | `--access-key` |
| that user's secret | `--secret` | `POPWHEEL_SECRET` | `--secret-file`, `--secret-variable` |

- Where none is named, the cluster is `http://127.0.0.1:8080`. If `--server` or `POPWHEEL_SERVER` names it, no context
  counts: a context's token never goes to another server.
- Contexts are in `$XDG_CONFIG_HOME/popwheel/contexts.yaml`, else in `~/.config`. Only you may read the file. It holds
  where secrets are, and no secret.
- Messages go through a proxy: `--proxy HOST:PORT`, that of the context, one that the cluster names as ready, or port
  8081 of the controller's host. `--tls` speaks TLS to it; `--tls-ca FILE` says who vouches for it.

## How answers look

- `-o table` (the default) is for people, `json` and `yaml` have all that is known, `name` has a name or id a line.
- Bodies are text where they are UTF-8. Else `json` and `yaml` have `body_base64`. `--raw` prints bodies byte for byte.
- Answers go to standard output. Remarks and errors go to standard error. An error is one sentence.
- The exit code is 0 if all went well, 1 if it failed, 2 if it cannot be asked for.

## Completion

```sh
eval "$(_POPWHEEL_COMPLETE=bash_source popwheel)"       # in ~/.bashrc; bash 4.4 or newer
eval "$(_POPWHEEL_COMPLETE=zsh_source popwheel)"        # in ~/.zshrc
_POPWHEEL_COMPLETE=fish_source popwheel | source        # in ~/.config/fish/completions/popwheel.fish
```
"""


def cli_page() -> str:
    """The whole page, in Markdown."""
    return "\n".join(
        [
            head(
                "Command line",
                "the help of `popwheel`",
                _HEAD,
            ),
            table(("command", "what it does", "its options"), sorted(_rows(main, ("popwheel",)))),
            _TEXT,
        ]
    )


def _rows(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            short = words[-1] == "admin" and len(words) == 2 and name in main.commands and name not in _SERVICES
            if not each.hidden and not short:
                yield from _rows(each, (*words, name))
        return
    arguments = " ".join(each.make_metavar(_CONTEXT) for each in command.params if isinstance(each, click.Argument))
    options = [
        _shown(each)
        for each in command.params
        if isinstance(each, click.Option)
        and each.name not in _EVERYWHERE
        and "--config" not in each.opts
        and not each.hidden
        and each.help
    ]
    yield f"`{' '.join((*words, arguments)).strip()}`", command.get_short_help_str(500), ", ".join(options)


_SERVICES = ("broker", "cluster")
_CONTEXT = click.Context(main)


def _shown(option: click.Option) -> str:
    names = "/".join((*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or option.count else f" {_metavar(option)}"
    return f"`{names}{value}`"


def _metavar(option: click.Option) -> str:
    shown = re.sub(r"^\[(.*)\]$", r"\1", option.make_metavar(_CONTEXT))
    return re.sub(r"^(INTEGER|FLOAT)( RANGE)?$", "N", shown)
