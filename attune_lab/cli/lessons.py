"""`attune lessons` and what stands below it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attune_lab.cli.output import Json, emit, indented, several, table
from attune_lab.contracts import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from attune_lab.lessons.records import LearntCampaign, Observation, Records

DEFAULT = Path("campaigns") / "lessons.json"
"""Named here so that `--help` need not import the records; a test holds it to theirs."""

From = Annotated[Path, typer.Option("--from", help="File of what was learnt.")]
Campaign = Annotated[str, typer.Argument(help="Folder, digest or name; the first letters will do.", show_default=False)]

group = typer.Typer(invoke_without_command=True, rich_markup_mode="rich", pretty_exceptions_enable=False)


@group.callback()
def lessons(context: typer.Context, as_json: Json = False) -> None:
    """List the catalog of lessons; below it: what past campaigns showed of them.

    Example: attune lessons
    """
    if context.invoked_subcommand is not None:
        if as_json:
            raise UserError(f"--json belongs behind {context.invoked_subcommand}")
        return
    from attune_lab.lessons.catalog import load

    rows = [lesson.to_json() for lesson in load().all()]
    drawn = table("Lessons", "lesson", "what to do, and at which symptoms", "expected step time")
    for row in rows:
        effect = row.get("step_time_pct")
        expected = f"{effect[0]:+g} to {effect[1]:+g} %" if effect else "-"
        drawn.add_row(row["id"], f"{row['title']}\n[dim]{', '.join(row['symptoms'])}[/dim]", expected)
    emit({"lessons": rows}, as_json=as_json, render=lambda console: console.print(drawn))


@group.command()
def learn(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Campaign folders, folders above them, or other such files.", show_default=False),
    ],
    into: Annotated[Path, typer.Option(help="File to add to; made when missing.")] = DEFAULT,
    as_json: Json = False,
) -> None:
    """Add what finished campaigns showed; one that is known already, or unfinished, changes nothing.

    Example: attune lessons learn campaigns
    """
    from attune_lab.lessons.learn import find_campaigns, learn_from
    from attune_lab.lessons.records import update_records

    found = list(dict.fromkeys(campaign for folder in folders for campaign in find_campaigns(folder)))
    learning = learn_from(found)
    if learning.left_out and not learning.records.campaigns:
        raise UserError("; ".join(said for _, said in learning.left_out))
    known: set[str] = set()

    def add(before: Any) -> Any:
        known.update(campaign.digest for campaign in before.campaigns)
        return before + learning.records

    after = update_records(into, add)
    new = [campaign for campaign in learning.records.campaigns if campaign.digest not in known]
    data = {
        "file": str(into),
        "learnt": [{"campaign": c.digest, "name": c.name, "observations": len(c.observations)} for c in new],
        "known": len(learning.records.campaigns) - len(new),
        "left_out": [{"folder": str(folder), "why": why} for folder, why in learning.left_out],
        "tuner_failed": [{"folder": str(folder), "why": why} for folder, why in learning.failed],
        "campaigns": len(after.campaigns),
    }

    def render(console: Console) -> None:
        tried = sum(len(campaign.observations) for campaign in new)
        known_too = f", {data['known']} were known already" if data["known"] else ""
        indented(
            console,
            f"{several(len(new), 'campaign')} learnt (tries: {tried}){known_too}; {into} has {len(after.campaigns)}",
            0,
        )
        for _, why in learning.left_out:
            indented(console, f"left out: {why}")
        for _, why in learning.failed:
            indented(console, f"what ran is learnt, but {why}")

    emit(data, as_json=as_json, render=render)


@group.command()
def show(
    lesson: Annotated[
        str | None, typer.Argument(help="A lesson; - for moves that no lesson proposed.", show_default=False)
    ] = None,
    source: From = DEFAULT,
    as_json: Json = False,
) -> None:
    """Show effect sizes with intervals by context, failures, contradictions, retractions.

    Example: attune lessons show C-dispatcher
    """
    from dataclasses import asdict

    from attune_lab.lessons.evidence import Evidence
    from attune_lab.lessons.records import read_records
    from attune_lab.lessons.summary import summaries
    from attune_lab.report.lessons import render_lesson, render_overview

    campaigns = read_records(source)[0].campaigns
    moves = summaries(Evidence(campaigns).observations())
    if lesson is not None:
        moves = [move for move in moves if move.lesson == lesson]
        if not moves:
            raise UserError(f"{source} has no try of lesson {lesson}; see attune lessons show for those it has")
    data = {
        "file": str(source),
        "moves": [{**asdict(move), "conflict": move.conflict} for move in moves],
        "campaigns": [campaign.model_dump(mode="json", exclude={"observations"}) for campaign in campaigns],
    }

    def render(console: Console) -> None:
        if lesson is None:
            render_overview(console, moves, campaigns)
        else:
            render_lesson(console, moves)

    emit(data, as_json=as_json, render=render)


@group.command()
def why(
    what: Annotated[str, typer.Argument(help="A lesson, or a campaign's folder, digest or name.", show_default=False)],
    source: From = DEFAULT,
    as_json: Json = False,
) -> None:
    """Show every observation behind the numbers of a lesson, or of a campaign.

    Example: attune lessons why L-jump
    """
    from attune_lab.lessons.records import read_records
    from attune_lab.lessons.summary import NO_LESSON, observation_row
    from attune_lab.report.lessons import render_observations

    records = read_records(source)[0]
    pairs: list[tuple[LearntCampaign, Observation]] = [
        (campaign, seen)
        for campaign in records.campaigns
        for seen in campaign.observations
        if (seen.lesson or NO_LESSON) == what
    ]
    if not pairs:
        campaign = _found(records, what, source)
        pairs = [(campaign, seen) for seen in campaign.observations]
    data = {"file": str(source), "observations": [observation_row(campaign, seen) for campaign, seen in pairs]}
    emit(data, as_json=as_json, render=lambda console: render_observations(console, pairs))


@group.command()
def export(
    file: Annotated[Path, typer.Argument(help="To write: .csv (a row a try), .json or .yaml.", show_default=False)],
    source: From = DEFAULT,
    without: Annotated[list[str] | None, typer.Option(help="Leave out this model; repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Write what was learnt to another file; .json is such a file again, for example without a held-out model.

    Example: attune lessons export others.json --without glm-4.5
    """
    from attune_lab.lessons.export import write_export
    from attune_lab.lessons.records import read_records

    if file.exists() and source.exists() and file.samefile(source):
        raise UserError(f"{file} is what is exported and only ever grows; export to another file")
    written = write_export(file, read_records(source)[0], without or ())
    data = {"file": str(file), "campaigns": len(written.campaigns)}
    emit(
        data,
        as_json=as_json,
        render=lambda console: indented(console, f"{several(len(written.campaigns), 'campaign')} in {file}", 0),
    )


@group.command()
def retract(
    campaign: Campaign,
    reason: Annotated[str, typer.Option("--why", help="For whoever reads it later.", show_default=False)] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Let a retracted campaign count again.")] = False,
    source: From = DEFAULT,
    as_json: Json = False,
) -> None:
    """Let a campaign no longer count, as when its recipe was faulty; it is kept, and learning it again changes nothing.

    Example: attune lessons retract 3f2a91c0 --why "the dataloader was broken"
    """
    from attune_lab.lessons.notes import plain
    from attune_lab.lessons.records import read_records, update_records

    said = str(plain(reason)).strip()[:500]
    if not said and not undo:
        raise UserError('say why: --why "the recipe was faulty"')
    digest = _found(read_records(source)[0], campaign, source).digest
    after = update_records(source, lambda before: before.retracted(digest, said, undo=undo)).find(digest)
    data = {"file": str(source), "campaign": after.digest, "name": after.name, "retracted": after.standing.retracted}
    state = "no longer counts" if after.standing.retracted else "counts again"
    emit(data, as_json=as_json, render=lambda console: indented(console, f"{after.digest[:8]} {after.name} {state}", 0))


def _found(records: Records, name: str, source: Path) -> LearntCampaign:
    """The campaign of this digest or name, or of the folder of this path or, beside ``source``, of this name.

    Raises:
        UserError: none, or more than one.
    """
    from attune_lab.campaign.store import DATABASE, read_campaign
    from attune_lab.lessons.learn import campaign_digest_of

    folder = next((at for at in (Path(name), source.parent / name) if (at / DATABASE).is_file()), None)
    if folder is None:
        return records.find(name)
    digest = campaign_digest_of(read_campaign(folder))
    if all(campaign.digest != digest for campaign in records.campaigns):
        raise UserError(f"{source} has nothing of {folder}; attune lessons learn {folder} adds it")
    return records.find(digest)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(group, name="lessons")
