"""Write docs/use/cli.md from the command line itself: python docs/scripts/generate_cli.py

The text is laid out here, not by typer, so that it does not change with typer's release or the width of a terminal.
"""

import inspect
import textwrap
import types
import typing
from pathlib import Path
from typing import Any

import typer

from procon.cli import app
from procon.cli.flags import SETTINGS
from procon.config import RESTRICTIONS, Config

PAGE = Path(__file__).resolve().parent.parent / "use" / "cli.md"
WIDTH = 100
INDENT = 30  # where descriptions begin

INTRODUCTION = """\
# The command line

Written by `python docs/scripts/generate_cli.py` (or `make docs`) from the program itself; a test compares the two.
Do not edit.

Flags that set the method carry the names of the [settings](../understand/method.md#settings), with hyphens. Every other
setting is `--set NAME=VALUE`, checked in the same way; the [table below](#settings) lists all of them. A setting that
is left out has its default.

Sizes are WIDTHxHEIGHT, typed and printed. `procon --install-completion` teaches your shell to complete commands and
flags; `procon --version` prints the version.

Exit status: 0 success; 2 an error you can fix, with one sentence that says how, or problems that `check` found; 130
interrupted with Ctrl-C; 1 the reader of the output left early (as `head` does), or a bug.
"""

_KINDS = {str: "TEXT", int: "INTEGER", float: "NUMBER", Path: "PATH"}


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(), encoding="utf-8")


def render() -> str:
    """The whole page."""
    group: Any = typer.main.get_command(app)
    overview, panel = [_wrap(group.help, 0)], ""
    for name, command in group.commands.items():
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            overview += ["", f"{panel}:"]
        overview.append(_entry(name, _summary(command)))
    sections = [INTRODUCTION, _block("procon COMMAND ...", overview)]
    for name, command in group.commands.items():
        sections += [f"## procon {name}\n", _block(*_describe(name, command))]
    return "\n".join([*sections, _settings(), _refusals()])


def _settings() -> str:
    """A table of all settings by group."""
    words = {"user": "flag", "recipe": "`--set`, the recipe of the method", "ablation": "`--set`, for experiments"}
    rows = [
        f"| `{name}` | {words[setting.group]} | `{getattr(Config, name)!r}` | {setting.help} |"
        for name, setting in SETTINGS.items()
    ]
    return "\n".join(["## Settings\n", "| name | how | default | what |", "|---|---|---|---|", *rows, ""])


def _refusals() -> str:
    """A table of the combinations that are refused."""
    rows = [
        f"| {restriction.context} | `{restriction.setting}` | must be {restriction.expected} |"
        for restriction in RESTRICTIONS
    ]
    note = "`always`: in every `Config`. The others: in `procon fit`, benchmark runs, exports, `--shards`, and edits.\n"
    return "\n".join(["## Refused combinations\n", note, "| where | setting | rule |", "|---|---|---|", *rows, ""])


def _block(usage: str, lines: list[str]) -> str:
    return "\n".join(["```text", f"Usage: {usage}", "", *lines, "```", ""])


def _describe(name: str, command: Any) -> tuple[str, list[str]]:
    """Usage line and body of one command."""
    hints = typing.get_type_hints(command.callback)
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    metavars = [argument.name.upper() + ("..." if argument.nargs == -1 else "") for argument in arguments]
    lines = [_wrap(_summary(command), 0)]
    if arguments:
        lines += ["", "Arguments:"]
        lines += [_entry(metavar, argument.help) for metavar, argument in zip(metavars, arguments, strict=True)]
    lines += ["", "Options:"]
    lines += [_entry(_flags(option, hints[option.name]), option.help + _default(option)) for option in options]
    lines.append(_entry("--help", "Show this text."))
    return " ".join(["procon", name, "[OPTIONS]", *metavars]), lines


def _summary(command: Any) -> str:
    return " ".join(inspect.cleandoc(command.callback.__doc__ or "").split())


def _flags(option: Any, hint: Any) -> str:
    """``-o, --output PATH``."""
    names = ", ".join(sorted(option.opts, key=len))
    members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(member for member in members if member is not type(None))
    if option.metavar:
        return f"{names} {option.metavar}"
    return names if kind is bool else f"{names} {_KINDS[kind]}"


def _default(option: Any) -> str:
    return "" if option.default is None or option.default is False else f" [default: {option.default}]"


def _entry(left: str, right: str) -> str:
    first = f"  {left}".ljust(INDENT)
    lines = textwrap.wrap(right, WIDTH - INDENT, break_on_hyphens=False)
    gap = "" if len(first) <= INDENT and first.endswith(" ") else "\n" + " " * INDENT
    return first + gap + ("\n" + " " * INDENT).join(lines)


def _wrap(text: str, indent: int) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)


if __name__ == "__main__":
    main()
