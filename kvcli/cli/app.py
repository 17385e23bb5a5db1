"""The `kvcli` program: finds the command, runs it, and turns every failure into one sentence and an exit code.

Only the module of the invoked command is imported, and only its options are built; that is most of a plan's start-up.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from kvcli import __version__
from kvcli.errors import EXIT_CLOSED_PIPE, EXIT_INTERRUPTED, CannotRunHere, KvcliError

#: command -> module in this package, each with a one-command typer app named `app`
COMMANDS = {"plan": "plan", "run": "run", "verify": "verify", "pull": "pull", "presets": "presets", "devices": "devices", "check": "check"}

# typer vendors click from 0.26 on and depends on it before, so its exception base is found, not imported
USAGE_ERROR: Any = next(cls for cls in typer.BadParameter.mro() if cls.__name__ == "ClickException")


class Interrupted(Exception):
    """Ctrl-C, under a name that the command framework passes through."""


class ClosedPipe(Exception):
    """The reader of stdout has gone, as in `kvcli plan … | head -1`."""


class Commands(TyperGroup):
    """A group that imports a command when it is named."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(import_module(f"kvcli.cli.{COMMANDS[cmd_name]}").app)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            raise Interrupted from None
        except BrokenPipeError:
            raise ClosedPipe from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise ClosedPipe from None
            raise _io_error(error) from None


def _io_error(error: OSError) -> CannotRunHere:
    where = f" ({str(error.filename)[:80]})" if error.filename else ""
    code = "disk_full" if error.errno == errno.ENOSPC else "io_error"
    return CannotRunHere(f"{(error.strerror or str(error)).lower()}{where}", code=code)


program = typer.Typer(
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kvcli {__version__}")
        raise typer.Exit


@program.callback()
def callback(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """What the KV cache of a language model costs in memory and time: predicted, measured, proven."""


def run(arguments: list[str]) -> int:
    """Runs one command line and returns its exit code. Without words it shows the help."""
    arguments = _with_default(arguments or ["--help"], "--dp-attention", "all")
    main = partial(typer.main.get_command(program).main, args=arguments, prog_name="kvcli", standalone_mode=False)
    try:
        if os.environ.get("_KVCLI_COMPLETE") == "complete_bash":
            from kvcli.cli.complete import in_bash

            return in_bash(main)
        result = main()
        return result if isinstance(result, int) else 0
    except OSError as error:  # from help and version, which print while options are parsed
        failure = _io_error(error)
        return _fail(arguments, failure.code, failure.message, failure.hint, failure.exit_code)
    except KvcliError as error:
        return _fail(arguments, error.code, error.message, error.hint, error.exit_code)
    except USAGE_ERROR as error:
        context = getattr(error, "ctx", None)
        hint = f"{context.command_path} --help" if context else "kvcli --help"
        return _fail(arguments, "usage", error.format_message().rstrip("."), hint, error.exit_code)
    except (Interrupted, KeyboardInterrupt, typer.Abort):
        if _json_wanted(arguments):
            _print_error("interrupted", "interrupted", "")
        return EXIT_INTERRUPTED
    except ClosedPipe:
        # the interpreter would flush stdout once more on exit and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CLOSED_PIPE


def _with_default(arguments: list[str], option: str, value: str) -> list[str]:
    """`option` may stand without its number, which the option parser has no word for."""
    found: list[str] = []
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        found += [word, value] if word == option and not after.isdecimal() and after != value else [word]
    return found


def _fail(arguments: list[str], code: str, message: str, hint: str, exit_code: int) -> int:
    """One sentence and the way out on stderr; where JSON is asked for one document on stdout as well."""
    if _json_wanted(arguments):
        _print_error(code, message, hint)
    print(f"kvcli: {message}" + (f"\n  {hint}" if hint else ""), file=sys.stderr)
    return exit_code


def _json_wanted(arguments: list[str]) -> bool:
    """Whether stdout is to be one JSON document. The --json of `check` names a file."""
    if arguments[:1] != ["check"]:
        return "--json" in arguments
    pairs = set(pairwise(arguments))
    return bool(pairs & {("--format", "json"), ("--json", "-")} or {"--format=json", "--json=-"} & set(arguments))


def _print_error(code: str, message: str, hint: str) -> None:
    try:
        print(
            json.dumps({"schema_version": 1, "error": {"code": code, "message": message, "hint": hint}}, separators=(",", ":")), flush=True
        )
    except OSError:
        # stdout itself may be what failed; the sentence still reaches stderr
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> NoReturn:
    """The entry point of the `kvcli` script."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - lives as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        print("kvcli: standard output is closed, so there is nowhere to answer", file=sys.stderr)
        sys.exit(CannotRunHere.exit_code)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that cannot show a character shows its code instead of a traceback
            stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:
            print(f"kvcli: {_io_error(error).message}", file=sys.stderr)
        code = EXIT_CLOSED_PIPE if error.errno == errno.EPIPE else CannotRunHere.exit_code
    sys.exit(code)
