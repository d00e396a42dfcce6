"""The `attune` command. Modules here parse and print; they hold no logic and import heavy things on use."""

from __future__ import annotations

import json
import os
import sys

import typer
from typer.exceptions import TyperException

from attune_lab.cli import catalogues, doctor, gate, predict, simulate, tune
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
for module in (tune, simulate, predict, gate, catalogues, doctor):
    module.register(app)


def main() -> None:
    """Run the command line; every failure ends in one sentence on stderr and the exit code of DESIGN.

    Exit codes: 0 done or pass, 1 the answer is no, 2 unusable input, 3 the environment failed, 130 interrupted.
    """
    try:
        code = app(standalone_mode=False)
    except typer.Exit as stop:
        code = stop.exit_code
    except TyperException as error:
        if message := error.format_message():  # empty when help was shown for want of a command
            _fail("input", message)
        code = 2
    except UserError as error:
        _fail("input", str(error))
        code = 2
    except (EnvironmentFault, MemoryError, OSError) as error:
        _fail("environment", str(error) or type(error).__name__)
        code = 3
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", "stopped; run the same command again to go on where it stopped")
        code = 130
    except Exception as error:
        if os.environ.get("ATTUNE_DEBUG"):
            raise
        _fail("internal", f"internal error ({type(error).__name__}: {error}); set ATTUNE_DEBUG=1 for the traceback")
        code = 3
    sys.exit(code if isinstance(code, int) else 0)


def _fail(kind: str, message: str) -> None:
    """One sentence on stderr; under --json also one object on stdout, so that a script always gets its object."""
    sentence = " ".join(message.split())
    if "--json" in sys.argv:
        print(json.dumps({"error": {"kind": kind, "message": sentence}}))
    print(f"attune: {sentence}", file=sys.stderr)
