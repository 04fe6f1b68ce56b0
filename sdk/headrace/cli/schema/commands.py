"""`headrace schema`: register, list, get, check, delete, diff."""

import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.registry import DEFAULT_URL, Url, open_registry
from headrace.cli.common.rendering import Column, Facts, JsonValue, Note, Report, TableSection
from headrace.cli.common.session import CommandFailed, Session, UsageProblem, Yes, command, confirm

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.client.schemas.registry import RegisteredSchema, SchemaReference, SchemaRegistry

app = typer.Typer(help="Manage schemas in the registry.", no_args_is_help=True, rich_markup_mode=None)

TYPES = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="The subject, such as orders-value.")]
SchemaFile = Annotated[Path, typer.Argument(metavar="FILE", help="File with the schema.", dir_okay=False)]
SchemaType = Annotated[
    str,
    typer.Option(
        "--type", metavar="TYPE", help="AVRO, JSON or PROTOBUF; by default as the file ends: .avsc, .json, .proto."
    ),
]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="Schema that the file refers to: by the name of a type, a $ref or an import; repeatable.",
    ),
]


@app.command("register")
@command()
def register(
    session: Session,
    *,
    subject: Subject,
    file: SchemaFile,
    type_: SchemaType = "",
    reference: References = None,
    registry: Url = DEFAULT_URL,
) -> None:
    """Register a schema as the next version of a subject, unless the subject has it.

    \b
    Examples:
      headrace schema register orders-value order.avsc
      headrace schema register orders-value order.proto --reference common.proto=common:1
    """
    schema_id = open_registry(session, registry).register(subject, *_read(file, type_, reference))
    session.show_change({"subject": subject, "id": schema_id}, f"{subject} has the schema with id {schema_id}")


@app.command("list")
@command()
def list_schemas(
    session: Session,
    *,
    subject: Annotated[str, typer.Argument(metavar="[SUBJECT]", help="Only the versions of this subject.")] = "",
    registry: Url = DEFAULT_URL,
) -> None:
    """List the latest schema of every subject, or all versions of one.

    \b
    Examples:
      headrace schema list
      headrace schema list orders-value --output json
    """
    from urllib.parse import quote

    client = open_registry(session, registry)
    found: Iterable[dict[str, Any]]
    if subject:
        versions = client.request("GET", f"/subjects/{quote(subject, safe='')}/versions")
        found = (client.request("GET", f"/subjects/{quote(subject, safe='')}/versions/{each}") for each in versions)
    else:
        found = client.list_latest()
    rows: list[dict[str, JsonValue]] = [
        {
            "subject": each["subject"],
            "version": each["version"],
            "id": each["id"],
            "type": each.get("schemaType", "AVRO"),
        }
        for each in found
    ]
    columns = [Column(name.upper(), name) for name in ("subject", "version", "id", "type")]
    session.show(Report(rows, (TableSection(columns, rows, empty="(no schemas)"),)))


@app.command("get")
@command()
def get(
    session: Session,
    *,
    subject: Subject,
    version: Annotated[int | None, typer.Option("--version", min=1, help="Version; by default the latest.")] = None,
    registry: Url = DEFAULT_URL,
) -> None:
    """Print a schema.

    \b
    Examples:
      headrace schema get orders-value
      headrace schema get orders-value --version 1 --output json
    """
    found = _get(open_registry(session, registry), subject, version)
    document: dict[str, JsonValue] = {
        "subject": found.subject,
        "version": found.version,
        "id": found.schema_id,
        "type": found.schema_type,
        "references": [{"name": r.name, "subject": r.subject, "version": r.version} for r in found.references],
        "schema": found.text,
    }
    facts = Facts([(name, document[name]) for name in ("subject", "version", "id", "type")])
    session.show(Report(document, (facts, Note(_readable(found)))))


@app.command("check")
@command()
def check(
    session: Session,
    *,
    subject: Subject,
    file: SchemaFile,
    type_: SchemaType = "",
    reference: References = None,
    registry: Url = DEFAULT_URL,
) -> None:
    """Check whether a schema may be the next version of a subject. The exit code is 1 if it may not.

    \b
    Examples:
      headrace schema check orders-value order.avsc
      headrace schema check orders-value order.json --type JSON
    """
    reasons = open_registry(session, registry).check(subject, *_read(file, type_, reference))
    sentence = f"{file} is compatible with {subject}" if not reasons else "\n".join(reasons)
    session.show(Report({"compatible": not reasons, "reasons": reasons}, (Note(sentence),)))
    if reasons:
        raise CommandFailed(ExitCode.FAILED, f"{file} is not compatible with {subject}")


@app.command("delete")
@command()
def delete(
    session: Session,
    *,
    subject: Subject,
    version: Annotated[int | None, typer.Option("--version", min=1, help="Version; by default all.")] = None,
    permanent: Annotated[
        bool,
        typer.Option("--permanent", help="Delete for ever what was deleted before; its records become unreadable."),
    ] = False,
    yes: Yes = False,
    registry: Url = DEFAULT_URL,
) -> None:
    """Delete a subject or a version. Its records stay readable until it is deleted permanently.

    \b
    Examples:
      headrace schema delete orders-value --version 2
      headrace schema delete orders-value --permanent --yes
    """
    from urllib.parse import quote

    what = f"version {version} of {subject}" if version else f"all versions of {subject}"
    confirm(f"Delete {what}{' permanently' if permanent else ''}?", yes=yes, otherwise="nothing was deleted")
    path = f"/subjects/{quote(subject, safe='')}" + (f"/versions/{version}" if version else "")
    answer = open_registry(session, registry).request("DELETE", f"{path}?permanent={str(permanent).lower()}")
    versions = answer if isinstance(answer, list) else [answer]
    session.show_change({"subject": subject, "versions": versions}, f"deleted {what}")


@app.command("diff")
@command()
def diff(
    session: Session,
    *,
    subject: Subject,
    old: Annotated[int, typer.Argument(metavar="OLD", min=1, help="Version to compare.")],
    new: Annotated[int, typer.Argument(metavar="NEW", min=1, help="Version to compare it with.")],
    registry: Url = DEFAULT_URL,
) -> None:
    """Print the differences of two versions of a subject, line by line.

    \b
    Examples:
      headrace schema diff orders-value 1 2
      headrace schema diff orders-value 1 2 --output json
    """
    client = open_registry(session, registry)
    before, after = _get(client, subject, old), _get(client, subject, new)
    lines = [
        line.rstrip("\n")
        for line in difflib.unified_diff(
            _readable(before).splitlines(),
            _readable(after).splitlines(),
            f"version {old}",
            f"version {new}",
            lineterm="",
        )
    ]
    document: dict[str, JsonValue] = {"subject": subject, "old": old, "new": new, "lines": lines}
    session.show(Report(document, (Note("\n".join(lines) or "the versions are equal"),)))


def _get(client: "SchemaRegistry", subject: str, version: int | None) -> "RegisteredSchema":
    return client.version(subject, version) if version else client.latest(subject)


def _read(file: Path, type_: str, references: list[str] | None) -> tuple[str, str, list["SchemaReference"]]:
    """Return the text, type and references of a schema that is given on the command line."""
    schema_type = type_.upper() or TYPES.get(file.suffix, "")
    if schema_type not in TYPES.values():
        raise UsageProblem(f"The type of {file} is none of {', '.join(TYPES.values())}: set --type.")
    return file.read_text("utf-8"), schema_type, [_reference(text) for text in references or ()]


def _reference(text: str) -> "SchemaReference":
    from headrace.client.schemas.registry import SchemaReference

    name, equals, target = text.partition("=")
    subject, colon, version = target.rpartition(":")
    if not (name and equals and subject and colon and version.isdigit()):
        raise UsageProblem(f"--reference {text} is not of the form NAME=SUBJECT:VERSION.")
    return SchemaReference(name, subject, int(version))


def _readable(schema: "RegisteredSchema") -> str:
    """Return the text of a schema with a line for each value, if it is JSON."""
    if schema.schema_type == "PROTOBUF":
        return schema.text
    return json.dumps(json.loads(schema.text), indent=2, ensure_ascii=False)
