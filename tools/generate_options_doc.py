"""Write docs/reference/options.md from the options models (run by `make docs`)."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

from popwheel_cli.options import ClusterOptions, StandaloneOptions
from popwheel_common.settings.option_fields import OptionField, option_fields

LINE_LENGTH = 120
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "options.md"

_HEAD = """\
# Options

Made by `make docs` from the options models of the services; do not edit.

There are four ways to give a setting. A later one in this list wins:

1. a YAML file: `--config FILE`, nested as the dots say;
2. the environment: `broker.flush` is `POPWHEEL_BROKER__FLUSH`, its value YAML;
3. `--set broker.flush=async`;
4. a flag of its own.

One file can serve every process of a cluster: each takes its own part. A process refuses unknown keys and impossible
values at its start.

Each entry has the key, the possible values, the default, and the meaning.
"""

SECTIONS = {
    "proxy": "Serves clients.",
    "broker": "Stores messages and knows who holds which.",
    "controller": "Owns topics, groups and the list of brokers.",
    "tls": "Between the services themselves: controllers, brokers, proxies. Clients have `proxy.tls`.",
    "access": "Who may do what: clients at the proxies, callers of the admin API ([access](../operate/access.md)).",
    "children": "Processes that another one keeps running: `--workers N`, `popwheel cluster`.",
    "http": "Health, metrics and the admin API of every process ([security](../operate/security.md#http)).",
    "console": "Pages for browsers, where the admin API is ([console](../operate/console.md)).",
    "otel": "What proxies and clients send to collectors of OpenTelemetry ([tracing](../operate/tracing.md)).",
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
            f"docs/reference/options.md would leave out {', '.join(missing)}: say in SECTIONS of "
            "tools/generate_options_doc.py what it is for"
        )
    if gone := sorted(SECTIONS.keys() - there):
        raise ValueError(
            f"SECTIONS of tools/generate_options_doc.py has {', '.join(gone)}, of which there are no options any more: "
            "take it out"
        )
    standalone = {field.key: field for field in option_fields(StandaloneOptions)}
    return "\n".join([_HEAD, *_sections(fields, standalone)])


def _sections(fields: list[OptionField], standalone: dict[str, OptionField]) -> Iterator[str]:
    for name, text in SECTIONS.items():
        yield f"## {name}\n\n{text}\n"
        for field in fields:
            if field.key.startswith(f"{name}."):
                default = f"default `{field.default}`"
                other = standalone[field.key].default
                if other != field.default:
                    default += f" (standalone: `{other}`)"
                yield _entry(f"- `{field.key}`: {field.possible}; {default}. {field.description}")
        yield ""


def _entry(text: str) -> str:
    """One line for each entry would be wider than a screen."""
    return textwrap.fill(text, LINE_LENGTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Write the page."""
    PAGE.write_text(options_page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
