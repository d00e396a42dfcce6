"""`attune tune`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from attune_lab.cli.output import CarryOver, ClusterName, Json, RecipeName, console, emit
from attune_lab.contracts import UserError

SEARCH_RULES = (
    "one-lever, diagnose-first, use-catalog, retry-oom-with-recompute, check-memory-first, re-measure-winner, "
    "noise-band, stop-when-not-worth-it"
)
"""Named here so that `--help` need not import the agent; a test holds it to the agent's own list."""


def tune(
    recipe: RecipeName,
    cluster: ClusterName,
    budget: Annotated[str, typer.Option(help="GPU-hours (500), or multiples of one baseline run (40x).")],
    tuner: Annotated[str, typer.Option(help="A tuner from attune tuners.")] = "attune",
    policy: Annotated[
        str | None,
        typer.Option(help="Policy of the attune tuner: catalog (when not given) or claude.", show_default=False),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help=f"Switch off a search rule (docs/rules.md); repeatable: {SEARCH_RULES}.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the tuner, KEY=VALUE, VALUE as in YAML; repeatable.")
    ] = None,
    lessons: Annotated[
        Path | None,
        typer.Option(help="What past campaigns showed: a file of attune lessons learn. Default: nothing is known."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated world and of the tuner.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Campaign folder; resumed when it exists.")] = None,
    carry_over: CarryOver = None,
    approve: Annotated[list[str] | None, typer.Option(help="A numerics change you accept, e.g. fp8.")] = None,
    as_json: Json = False,
) -> None:
    """Tune a recipe inside a GPU-hour budget and ship it only if it passes the correctness gate.

    Interrupted? Run the same command again: the campaign goes on where it stopped.

    Exit codes: 0 done, 1 the tuner failed (tuner_traceback.txt of the campaign's folder says where), 2 unusable input,
    3 the environment failed.

    Example: attune tune glm-4.5 --cluster 64xH200-SXM5-141GB --budget 40x
    """
    from attune_lab.parameters import settled_approvals
    from attune_lab.report.progress import progress_observer
    from attune_lab.report.summary import render_summary
    from attune_lab.tuning import TuneRequest, tune_recipe

    request = TuneRequest(
        recipe=recipe,
        cluster=cluster,
        budget=budget,
        tuner=tuner,
        options=_options(option or (), policy=policy, without=without, lessons=lessons and str(lessons)),
        seed=seed,
        out=out,
        carry_over=carry_over,
        approvals=settled_approvals(approve or ()),
    )
    # A tuner that prints must not spoil the one JSON object on stdout.
    with progress_observer(console(stderr=True), quiet=as_json) as observer, redirect_stdout(sys.stderr):
        result = tune_recipe(request, observer)
    emit(result, as_json=as_json, render=lambda screen: render_summary(screen, result))
    if result["tuner_failed"]:
        raise typer.Exit(1)


def _options(words: Sequence[str], **named: Any) -> tuple[tuple[str, Any], ...]:
    """A tuner's options from ``KEY=VALUE`` words and the named ones that were given.

    Raises:
        UserError: not ``KEY=VALUE``, a VALUE that is no plain YAML, or a key said twice.
    """
    options = {key: value for key, value in named.items() if value}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--option {word!r} is not KEY=VALUE; write for example --option sampler=CmaEsSampler")
        if key in options:
            raise UserError(f"--option {key} is given twice; give it once")
        options[key] = _value(key, text)
    return tuple(options.items())


def _value(key: str, text: str) -> Any:
    """``text`` read as YAML, when JSON can hold it: that is how a campaign keeps its options."""
    from ruamel.yaml.error import YAMLError

    from attune_lab.foreign import read_yaml

    try:
        value = read_yaml(text)
        json.dumps(value, allow_nan=False)
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"--option {key}={text}: not a plain value; write a number, a word or a YAML list") from error
    return value


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(tune)
