"""The `attune` command. Modules here parse and print; they hold no logic and import heavy things on use."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import suppress

import typer
from typer.exceptions import TyperException

from attune_lab.cli import (
    calibrate,
    catalogues,
    compare,
    doctor,
    enumeration,
    gate,
    lessons,
    logs,
    predict,
    replay,
    reproduce,
    simulate,
    tune,
)
from attune_lab.cli.output import printable
from attune_lab.contracts import EnvironmentFault, UserError

app = typer.Typer(
    name="attune",
    help="Tune LLM-training recipes under a GPU-hour budget; ship only what still trains the same model.",
    epilog="Example: attune tune glm-4.5 --cluster 64xH200-SXM5-141GB --budget 40x",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
_MODULES = (
    tune, replay, compare, reproduce, simulate, enumeration, predict, calibrate, gate, logs, catalogues, lessons, doctor
)  # fmt: skip
for module in _MODULES:
    module.register(app)

_INTERRUPTED = 130
_LONGEST = 600
"""Characters of an error message."""


def main() -> None:
    """Run the command line; every failure ends in one sentence on stderr and the exit code of DESIGN.

    Exit codes: 0 done or pass, 1 the answer is no, 2 unusable input, 3 the environment failed,
    130 interrupted, 141 the reader of the output left.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character the terminal cannot show must not end the command
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run()
        if sys.stdout is not None:  # as under `>&-`
            sys.stdout.flush()
    except OSError as error:  # of the output itself; Python would say so again when it flushes at exit
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
        if not isinstance(error, BrokenPipeError):  # which only says that the reader (`| head`) has left
            code = 3
            with suppress(OSError):  # stderr may be what failed
                print(f"attune: the output cannot be written ({error.strerror}); free the disk", file=sys.stderr)
    sys.exit(code)


def _run() -> int:
    code = 0
    try:
        _refuse_undecodable(sys.argv[1:])
        answer = app(standalone_mode=False)
        code = answer if isinstance(answer, int) else 0
        if code == _INTERRUPTED:  # typer says it with a number alone
            raise KeyboardInterrupt
    except typer.Exit as stop:
        code = stop.exit_code
    except BrokenPipeError:
        raise
    except TyperException as error:
        code = 2
        if message := error.format_message():  # empty when help was shown for want of a command
            _fail("input", message)
    except UserError as error:
        code = 2
        _fail("input", str(error))
    except (EnvironmentFault, MemoryError, OSError) as error:
        code = 3
        _fail("environment", _cause(error))
    except KeyboardInterrupt:
        code = _INTERRUPTED
        _fail("interrupted", "stopped; run the same command again (a campaign goes on where it stopped)")
    except BaseException as error:  # a tuner may raise anything, SystemExit too
        if isinstance(error.__context__, BrokenPipeError):  # how typer ends when the reader has left
            raise error.__context__ from None
        if os.environ.get("ATTUNE_DEBUG"):
            raise
        code = 3
        _fail("internal", f"internal error ({type(error).__name__}: {error}); set ATTUNE_DEBUG=1 for the traceback")
    return code


def _cause(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'the system says'}: {error.strerror}; check permissions and the disk"
    return str(error) or type(error).__name__


def _refuse_undecodable(words: list[str]) -> None:
    for word in words:
        if any("\ud800" <= letter <= "\udfff" for letter in word):  # bytes that no text, so no JSON, can hold
            raise UserError(f"the argument {word!r} is not valid UTF-8; rename the file or folder")


def _fail(kind: str, message: str) -> None:
    """One sentence on stderr; under --json also one object on stdout, so that a script always gets its object."""
    sentence = printable(" ".join(message.split()))
    if len(sentence) > _LONGEST:  # it quotes what was given, and that was a whole file or a flood of digits
        sentence = f"{sentence[: _LONGEST // 2]} ... {sentence[-_LONGEST // 2 :]}"
    print(f"attune: {sentence}", file=sys.stderr)
    if "--json" in sys.argv:
        print(json.dumps({"error": {"kind": kind, "message": sentence}}))
