"""`headrace topic`: create, list, describe, alter, delete."""

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.common.arguments import counted, parse_configs
from headrace.cli.common.names import Topic, topic_names
from headrace.cli.common.registry import DEFAULT_URL, Url, open_registry
from headrace.cli.common.rendering import Column, JsonValue, Report, TableSection
from headrace.cli.common.session import DryRun, Session, UsageProblem, Yes, command, confirm
from headrace.cli.common.topic_options import Config, NewPartitions, ReplicationFactor
from headrace.cli.topic.describe import describe

if TYPE_CHECKING:
    from headrace.client.admin.rpc import TopicDescription

app = typer.Typer(help="Create, inspect, alter and delete topics.", no_args_is_help=True, rich_markup_mode=None)

SCHEMA_PREFIX = "schema:"
NewTopic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.command("create")
@command(makes_directory=True)
def create(
    session: Session,
    *,
    topic: NewTopic,
    partitions: NewPartitions = 0,
    replication_factor: ReplicationFactor = 0,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="TEXT",
            help="Make a typed topic, for example 'page string required, user int64', or schema:SUBJECT for the fields "
            "of a registered schema.",
        ),
    ] = None,
    registry: Url = DEFAULT_URL,
    config: Config = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Create a topic.

    With three replicas acks=all waits for two of them (min_insync_replicas=2), so that records survive the loss of one
    broker and writes continue meanwhile. With fewer replicas it waits for one.

    \b
    Examples:
      headrace topic create clicks --partitions 6
      headrace topic create clicks -p 6 -r 3 --config min_insync_replicas=2
      headrace topic create clicks --config retention_ms=86400000 --if-not-exists
      headrace topic create visits --columns "page string required, user int64, ts timestamp[ms, UTC]"
      headrace topic create orders --columns schema:orders-value
    """
    from headrace.wire.errors import TopicAlreadyExistsError

    settings = parse_configs(config)
    if columns is not None:
        settings["columns"] = _columns(session, registry, columns)
    with session.admin() as admin:
        try:
            made = admin.create_topic(topic, partitions, replication_factor, settings, validate_only=dry_run)
            created = True
        except TopicAlreadyExistsError:
            if not if_not_exists:
                raise
            made, created = admin.describe_topic(topic), False
    for warning in made.warnings:
        session.note(f"warning: {warning}")
    document: dict[str, JsonValue] = {
        **_identity(made),
        "created": created and not dry_run,
        "dry_run": dry_run,
        "warnings": list(made.warnings),
    }
    if dry_run:
        document["topic_id"] = None
    size = f"{counted(len(made.partitions), 'partition')}, {counted(made.replication_factor, 'replica')} each"
    verb = "would create" if dry_run and created else "created" if created else "already there:"
    session.show_change(document, f"{verb} topic {topic} ({size})")


def _columns(session: Session, registry: str, text: str) -> str:
    """Return the text of columns; `schema:SUBJECT` is that of the latest version of a subject."""
    subject = text.removeprefix(SCHEMA_PREFIX)
    if subject == text:
        return text
    from headrace.client.schemas.subject_columns import columns_of_subject

    return columns_of_subject(open_registry(session, registry), subject)


@app.command("list")
@command()
def list_topics(session: Session) -> None:
    """List the topics.

    \b
    Examples:
      headrace topic list
      headrace topic list --output json
    """
    with session.admin() as admin:
        topics = admin.describe_topics()
    rows: list[dict[str, JsonValue]] = [
        {
            **_identity(topic),
            "max_batch_bytes": topic.max_batch_bytes,
            "offline_partitions": [each.partition for each in topic.partitions if each.leader_id < 0],
        }
        for topic in topics
    ]
    columns = (
        Column("TOPIC", "name"),
        Column("PARTITIONS", "partitions"),
        Column("REPLICAS", "replication_factor"),
        Column("WITHOUT LEADER", "offline_partitions"),
        Column("TOPIC ID", "topic_id", wide=True),
        Column("MAX BATCH BYTES", "max_batch_bytes", wide=True),
    )
    session.show(Report(rows, (TableSection(columns, rows, empty="no topics"),)))


app.command("describe")(describe)


@app.command("alter")
@command()
def alter(
    session: Session,
    *,
    topic: Topic,
    config: Config = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Reset a setting to its default; repeatable.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            help="New number of partitions; it cannot shrink. Keys map to other partitions.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Change a topic's settings or add partitions.

    \b
    Examples:
      headrace topic alter clicks --config retention_ms=3600000
      headrace topic alter clicks --unset retention_ms --dry-run
      headrace topic alter clicks --partitions 12
    """
    wanted, back = parse_configs(config), list(unset or ())
    if not wanted and not back and partitions is None:
        raise UsageProblem("nothing to change; give --config NAME=VALUE, --unset NAME or --partitions N")
    changes_config = bool(wanted or back)
    warnings: list[str] = []
    with session.admin() as admin:
        # Check everything before any change, so that an invalid part does not leave a partial change.
        if changes_config:
            admin.alter_config(topic, wanted, back, validate_only=True)
        if partitions is not None:
            warnings = admin.create_partitions(topic, partitions, validate_only=True)
        if not dry_run:
            if changes_config:
                admin.alter_config(topic, wanted, back)
            if partitions is not None:
                warnings = admin.create_partitions(topic, partitions)
    for warning in warnings:
        session.note(f"warning: {warning}")
    parts = [f"{name}={value}" for name, value in wanted.items()]
    parts += [f"{name} back to its default" for name in back]
    parts += [counted(partitions, "partition")] if partitions is not None else []
    document: dict[str, JsonValue] = {
        "name": topic,
        "set": dict(wanted),
        "unset": back,
        "partitions": partitions,
        "dry_run": dry_run,
        "warnings": warnings,
    }
    session.show_change(document, f"{'would alter' if dry_run else 'altered'} topic {topic}: {', '.join(parts)}")


@app.command("delete")
@command()
def delete(
    session: Session,
    *,
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC...", help="The topics' names.", autocompletion=topic_names)
    ],
    yes: Yes = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if it does not exist.")] = False,
    unclaimed: Annotated[
        bool, typer.Option("--unclaimed", help="TOPIC is a topic id: delete its unclaimed logs.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Delete topics and all their records. Asks first on a terminal.

    \b
    Examples:
      headrace topic delete clicks --dry-run
      headrace topic delete clicks views --yes --if-exists
      headrace topic delete --unclaimed 5f2c9d0e4b7a48c1a3e6d8f90b1c2d3e
    """
    names = list(dict.fromkeys(_topic_id(topic).hex() if unclaimed else topic for topic in topics))
    what = "the unclaimed logs of " if unclaimed else ""
    question = f"Delete {what}{', '.join(names)} and all their records?"
    confirm(question, yes=yes or dry_run, otherwise="nothing was deleted")
    from headrace.wire.errors import HeadraceError, UnknownTopicError

    deleted, missing = [], []
    failed: HeadraceError | None = None
    with session.admin() as admin:
        for name in names:
            try:
                if unclaimed:
                    admin.delete_unclaimed_logs(bytes.fromhex(name), validate_only=dry_run)
                else:
                    admin.delete_topic(name, validate_only=dry_run)
                deleted.append(name)
            except UnknownTopicError as error:
                missing.append(name)
                failed = failed if if_exists else failed or error
            except HeadraceError as error:
                failed = error
                break
    if failed is not None and not deleted:
        raise failed
    document: dict[str, JsonValue] = {"deleted": deleted, "missing": missing, "dry_run": dry_run}
    sentence = f"{'would delete' if dry_run else 'deleted'} {what}{', '.join(deleted) or 'nothing'}"
    session.show_change(document, sentence + (f" (not there: {', '.join(missing)})" if missing else ""))
    if failed is not None:
        raise failed


def _topic_id(text: str) -> bytes:
    if len(text) == 32:
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise UsageProblem(f"{text!r} is no topic id; give the 32 hexadecimal digits that `headrace doctor` shows")


def _identity(topic: "TopicDescription") -> dict[str, JsonValue]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex() or None,
        "partitions": len(topic.partitions),
        "replication_factor": topic.replication_factor,
    }
