"""`headrace issuer`: create, list, delete."""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.rendering import Column, JsonValue, Report, TableSection
from headrace.cli.common.session import CommandFailed, Session, UsageProblem, Yes, command, confirm

app = typer.Typer(
    help="Manage the issuers of JSON Web Tokens that the cluster accepts.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

IssuerName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the issuer here; its users are named NAME:CLAIM.")
]


@app.command("create")
@command()
def create(
    session: Session,
    *,
    name: IssuerName,
    issuer: Annotated[str, typer.Option("--issuer", metavar="URL", help="Exact value of the claim iss.")],
    audience: Annotated[str, typer.Option("--audience", metavar="TEXT", help="Value that the claim aud must contain.")],
    keys_url: Annotated[
        str,
        typer.Option(
            "--keys-url",
            metavar="URL",
            help="Where its keys are (JWKS): an https URL, or the path of a file at each coordinator.",
        ),
    ],
    keys_ca_file: Annotated[
        Path | None,
        typer.Option(
            "--keys-ca-file", metavar="FILE", help="CA certificates for the URL, PEM; default: public authorities."
        ),
    ] = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option("--algorithm", metavar="NAME", help="RS256, ES256 or EdDSA; repeatable. Default: all three."),
    ] = None,
    user_claim: Annotated[
        str, typer.Option("--user-claim", metavar="NAME", help="The claim with the user's name.")
    ] = "sub",
    groups_claim: Annotated[
        str, typer.Option("--groups-claim", metavar="NAME", help="The claim with the user's groups; default: none.")
    ] = "",
) -> None:
    """Accept the tokens of an issuer, or change how. Coordinators fetch its keys.

    An issuer is an OpenID Connect provider, or the API server of a Kubernetes cluster. Its users need no entry here:
    grant roles to NAME:CLAIM, or to the groups that their tokens name.

    \b
    Examples:
      headrace issuer create corp --issuer https://id.example.org --audience headrace --keys-url https://id.example.org/jwks
      headrace issuer create k8s --issuer https://kubernetes --audience headrace --keys-url /etc/headrace/keys.json
    """
    keys_ca_pem = "" if keys_ca_file is None else keys_ca_file.read_text("utf-8", errors="replace")
    if keys_ca_file is not None and not keys_ca_pem:  # Without text the coordinators trust the public authorities.
        raise UsageProblem(f"--keys-ca-file: {keys_ca_file} is empty; name a file with -----BEGIN CERTIFICATE-----")
    with session.admin() as admin:
        admin.create_issuer(
            name,
            issuer=issuer,
            audience=audience,
            keys_url=keys_url,
            keys_ca_pem=keys_ca_pem,
            algorithms=algorithm or (),
            user_claim=user_claim,
            groups_claim=groups_claim,
        )
    document: dict[str, JsonValue] = {"name": name, "issuer": issuer, "audience": audience, "keys_url": keys_url}
    session.show_change(document, f"tokens of {issuer} for {audience} are accepted; its users are {name}:CLAIM")


@app.command("list")
@command()
def list_issuers(session: Session) -> None:
    """List the issuers.

    \b
    Examples:
      headrace issuer list
      headrace issuer list --output wide
    """
    with session.admin() as admin:
        rows: list[dict[str, JsonValue]] = [
            {
                "name": each.name,
                "issuer": each.issuer,
                "audience": each.audience,
                "keys_url": each.keys_url,
                "keys_ca": bool(each.keys_ca_pem),
                "algorithms": list(each.algorithms) or None,
                "user_claim": each.user_claim,
                "groups_claim": each.groups_claim or None,
            }
            for each in admin.list_issuers()
        ]
    columns = (
        Column("NAME", "name"),
        Column("ISSUER", "issuer"),
        Column("AUDIENCE", "audience"),
        Column("KEYS", "keys_url", wide=True),
        Column("OWN CA", "keys_ca", wide=True),
        Column("ALGORITHMS", "algorithms", wide=True),
        Column("USER CLAIM", "user_claim"),
        Column("GROUPS CLAIM", "groups_claim"),
    )
    session.show(Report(rows, (TableSection(columns, rows, empty="no issuers"),)))


@app.command("delete")
@command()
def delete(session: Session, *, name: IssuerName, yes: Yes = False) -> None:
    """Accept the tokens of an issuer no more; the sessions of its users end. Asks first on a terminal.

    \b
    Examples:
      headrace issuer delete corp
      headrace issuer delete corp --yes
    """
    confirm(f"Delete issuer {name}? The sessions of its users end.", yes=yes, otherwise="nothing was deleted")
    with session.admin() as admin:
        existed = admin.delete_issuer(name)
    if not existed:
        raise CommandFailed(ExitCode.NOT_FOUND, f"there is no issuer {name}. The issuers: headrace issuer list")
    session.show_change({"deleted": name}, f"deleted issuer {name}")
