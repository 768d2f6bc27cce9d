"""docs/reference/options.md: every setting, from the options models of the services."""

from collections.abc import Iterator

from popwheel_cli.options import ClusterOptions, StandaloneOptions
from popwheel_common.settings.option_fields import OptionField, option_fields
from tools.reference.markdown import head, table

_HEAD = """\
There are four ways to give a setting. A later one in this list wins:

1. a YAML file: `--config FILE`, nested as the dots say;
2. the environment: `broker.flush` is `POPWHEEL_BROKER__FLUSH`, its value YAML;
3. `--set broker.flush=async`;
4. a flag of its own.

One file can serve every process of a cluster: each takes its own part. A process refuses unknown keys and impossible
values at its start.
"""

SECTIONS = {
    "proxy": "Serves clients.",
    "broker": "Stores messages and knows which consumer has which.",
    "controller": "Owns topics, groups and the list of brokers.",
    "tls": "Between the services themselves: controllers, brokers, proxies. Clients have `proxy.tls`.",
    "access": "Who may do what: clients at the proxies, callers of the admin API ([access](../operate/access.md)).",
    "children": "Processes that another one keeps running: `--workers N`, `popwheel cluster`.",
    "http": "Health, metrics and the admin API of every process ([security](../operate/access.md)).",
    "console": "Pages for browsers, where the admin API is ([console](../operate/monitor.md)).",
    "otel": "Traces for a collector of OpenTelemetry ([monitor](../operate/monitor.md)).",
    "log": "Log lines of the process, on standard error.",
}


def options_page() -> str:
    """The whole page, in Markdown.

    Raises:
        ValueError: SECTIONS does not name what the options model has.
    """
    fields = list(option_fields(ClusterOptions))
    there = {field.key.partition(".")[0] for field in fields}
    if missing := sorted(there - SECTIONS.keys()):
        raise ValueError(
            f"options.md would leave out {', '.join(missing)}: say in SECTIONS of tools/reference/options.py what it "
            "is for"
        )
    if gone := sorted(SECTIONS.keys() - there):
        raise ValueError(
            f"SECTIONS of tools/reference/options.py has {', '.join(gone)}, of which there are no options any more: "
            "take it out"
        )
    standalone = {field.key: field for field in option_fields(StandaloneOptions)}
    return "\n".join([head("Options", "the options models of the services", _HEAD), *_sections(fields, standalone)])


def _sections(fields: list[OptionField], standalone: dict[str, OptionField]) -> Iterator[str]:
    for name, text in SECTIONS.items():
        rows = [
            (f"`{field.key}`", field.possible, _default(field, standalone[field.key]), field.description)
            for field in fields
            if field.key.startswith(f"{name}.")
        ]
        yield f"## {name}\n\n{text}\n"
        yield table(("setting", "values", "default", "meaning"), rows)


def _default(field: OptionField, standalone: OptionField) -> str:
    shown = f"`{field.default}`" if field.default else ""
    return shown if standalone.default == field.default else f"{shown} (standalone: `{standalone.default}`)"
