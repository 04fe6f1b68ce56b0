"""`headrace group`: list, describe, reset, seek, delete."""

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import counted
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.names import group_names
from headrace.cli.common.rendering import Column, JsonValue, Report, TableSection
from headrace.cli.common.session import CommandFailed, DryRun, Session, Yes, command, confirm, tell
from headrace.cli.group.describe import describe
from headrace.cli.group.lag import NO_LAG, time_text, total_lag
from headrace.cli.group.reset import reset, seek

if TYPE_CHECKING:
    from headrace.client.admin.admin import Admin

app = typer.Typer(
    help="Inspect consumer groups and their lag; reset their offsets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("describe")(describe)
app.command("reset")(reset)
app.command("seek")(seek)


@app.command("list")
@command()
def list_groups(
    session: Session,
    *,
    lag: Annotated[
        bool, typer.Option("--lag", help="Show the lag of each group: records, and the age of the oldest.")
    ] = False,
) -> None:
    """List the consumer groups.

    \b
    Examples:
      headrace group list
      headrace group list --lag --output json
    """
    with session.admin() as admin:
        rows: list[dict[str, JsonValue]] = [
            {
                "group_id": each.group_id,
                "state": each.state,
                "members": each.members,
                "partitions": each.partitions,
                "assignor": each.assignor or None,
                "empty_since_ms": each.empty_since_ms or None,
                **NO_LAG,
            }
            for each in admin.list_groups()
        ]
        if lag:
            _add_lags(session, admin, rows)
    shown = [
        {**row, "behind": time_text(value) if isinstance(value := row.get("lag_ms"), int) else None} for row in rows
    ]
    columns = [
        Column("GROUP", "group_id"),
        Column("STATE", "state"),
        Column("MEMBERS", "members"),
        Column("PARTITIONS", "partitions"),
        Column("ASSIGNOR", "assignor"),
        Column("EMPTY SINCE MS", "empty_since_ms", wide=True),
    ]
    if lag:
        columns += [Column("LAG", "lag_records"), Column("BEHIND", "behind")]
    session.show(Report(rows, (TableSection(columns, shown, empty="no groups"),)))


def _add_lags(session: Session, admin: "Admin", rows: list[dict[str, JsonValue]]) -> None:
    """Add each group's lag; an unavailable one, for example of a deleted group, is omitted with a note."""
    from headrace.client.base.errors import NoBrokersAvailableError
    from headrace.wire.errors import HeadraceError

    for number, row in enumerate(rows, 1):
        session.detail(f"{row['group_id']}, {number} of {len(rows)}")
        try:
            lags = admin.group_lag(str(row["group_id"]))
        except NoBrokersAvailableError:
            raise
        except HeadraceError as error:
            session.note(f"{row['group_id']}: {error}")
            lags = []
        row.update(total_lag(lags).row())


@app.command("delete")
@command()
def delete(
    session: Session,
    *,
    groups: Annotated[
        list[str], typer.Argument(metavar="GROUP...", help="The groups' ids.", autocompletion=group_names)
    ],
    yes: Yes = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if it does not exist.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Delete groups and the offsets that they have committed. Asks first on a terminal.

    The groups must have no members: stop them first. A group without members expires with its offsets after some time,
    so that deleting it is needed only to reuse its name or to discard its offsets.

    \b
    Examples:
      headrace group delete billing --dry-run
      headrace group delete billing reports --yes --if-exists
    """
    from headrace.wire.errors import UnknownGroupError

    wanted = list(dict.fromkeys(groups))
    epochs: dict[str, int] = {}
    if not yes and not dry_run and sys.stdin.isatty():
        with session.admin() as admin:
            for group in wanted:
                with contextlib.suppress(UnknownGroupError):
                    epochs[group] = admin.describe_group(group).group_epoch
        confirm(f"Delete {', '.join(wanted)} and all their offsets?", yes=False, otherwise="nothing was deleted")
    with session.admin() as admin:
        if dry_run:
            errors = _check(admin, wanted)
        else:
            results = admin.delete_groups(wanted, expected_group_epochs=epochs)
            errors = {each.group_id: each.error for each in results}
    missing = [group for group, error in errors.items() if isinstance(error, UnknownGroupError)]
    deleted = [group for group, error in errors.items() if error is None]
    refused = {group: error for group, error in errors.items() if error and not (if_exists and group in missing)}
    document: dict[str, JsonValue] = {
        "deleted": deleted,
        "missing": missing,
        "refused": {group: str(error) for group, error in refused.items() if group not in missing},
        "dry_run": dry_run,
    }
    sentence = f"{'would delete' if dry_run else 'deleted'} {', '.join(deleted) or 'nothing'}"
    session.show_change(document, sentence + (f" (not there: {', '.join(missing)})" if missing else ""))
    if len(refused) == 1:
        raise next(iter(refused.values()))
    for group, error in refused.items():
        tell(f"{group}: {error}")
    if refused:
        raise CommandFailed(ExitCode.FAILED, f"{counted(len(refused), 'group')} not deleted")


def _check(admin: "Admin", groups: list[str]) -> "dict[str, Exception | None]":
    """Return the error that a deletion would have for each group, or `None`."""
    from headrace.wire.errors import GroupNotEmptyError, UnknownGroupError

    listed = {each.group_id: each for each in admin.list_groups()}
    found: dict[str, Exception | None] = {}
    for group in groups:
        if group not in listed:
            found[group] = UnknownGroupError(f"there is no group {group!r}")
        elif listed[group].members:
            found[group] = GroupNotEmptyError(f"group {group} has {counted(listed[group].members, 'member')}")
        else:
            found[group] = None
    return found
