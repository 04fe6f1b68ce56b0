"""Commands of identity: logins and where they are kept, users, keys, grants, roles, issuers, quotas, posture."""

import json
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.auth import login as login_module
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.logins import find_login, login_path
from headrace.cli.common.moments import MAX_LIFETIME_MS
from headrace.client.admin.identity import CallerDescription, GrantDescription
from headrace.client.base.errors import ConfigError
from headrace.wire.errors import NotAuthorizedError, UnauthenticatedError

from tests.fakes.identity import API_KEY
from tests.unit.cli.fake_users import CREATED_MS

GRANT = GrantDescription("ada", "reader", "topic:clicks", 0, "root", CREATED_MS)
ADA = CallerDescription("ada", ("blue", "ops"), "API key", (GRANT,), "open", 600_000)
LAST = -1


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "ada.key"
    path.write_text(API_KEY + "\n")
    return path


def credentials(held: Any) -> dict[str, Any]:
    """The credential in the settings of the last client."""
    return {
        name: value for name, value in held.settings[LAST].items() if name in ("api_key", "api_key_file", "token_file")
    }


# --- login ---


def test_login_stores_the_key_for_later_commands(headrace: Any, held: Any) -> None:
    """The key on stdin is tried, then stored; later commands name the file, and `logout` removes it."""
    held.identity.caller = ADA
    ended = headrace("auth", "login", "-b", "a:1,b:2", stdin=f"{API_KEY}\n".encode())
    assert (ended.code, ended.out) == (0, "logged in to a:1,b:2 as ada\n")
    assert credentials(held) == {"api_key": API_KEY}
    for servers in ("a:1,b:2", "b:2", "a:1"):
        headrace("topic", "list", "-b", servers)
        assert credentials(held) == {"api_key_file": str(login_path(servers.partition(",")[0]))}
    headrace("topic", "list", "-b", "c:3")
    assert credentials(held) == {}
    assert headrace("auth", "logout", "-b", "a:1").out == "logged out of a:1\n"
    assert headrace("auth", "logout", "-b", "a:1").out == "no login is stored for these addresses\n"
    headrace("topic", "list", "-b", "a:1,b:2")
    assert credentials(held) == {"api_key_file": str(login_path("b:2"))}


def test_only_the_owner_reads_the_stored_key(headrace: Any) -> None:
    """File and folder; a second login replaces the first, also where the file was readable."""
    for number in (1, 2):
        headrace("auth", "login", stdin=f"{API_KEY}{number}\n".encode())
        path = find_login("localhost:7170")
        assert path is not None
        assert path.read_text() == f"{API_KEY}{number}\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]
        path.chmod(0o644)


def test_a_key_that_is_not_accepted_is_not_stored(headrace: Any, held: Any) -> None:
    held.failures["who_am_i"] = UnauthenticatedError("the API key is not valid")
    ended = headrace("auth", "login", stdin=API_KEY.encode())
    assert (ended.code, ended.out) == (ExitCode.DENIED, "")
    assert "not valid" in ended.err
    assert find_login("localhost:7170") is None


def test_login_reads_a_file_a_terminal_or_the_environment(
    headrace: Any, held: Any, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal does not show what is typed; a token file is no login."""
    assert headrace("auth", "login", "--api-key-file", str(key_file)).code == 0
    assert credentials(held) == {"api_key": API_KEY}
    asked = []
    monkeypatch.setattr("getpass.getpass", lambda prompt, stream: asked.append((prompt, stream)) or f" {API_KEY}2 ")
    assert headrace("auth", "login", terminal=True).code == 0
    assert credentials(held) == {"api_key": API_KEY + "2"}
    assert asked == [("API key: ", sys.stderr)] or asked[0][0] == "API key: "
    assert headrace("auth", "login", stdin=b"\n").code == ExitCode.USAGE
    assert headrace("auth", "login", "--token-file", str(key_file)).code == ExitCode.USAGE
    monkeypatch.setenv("HEADRACE_API_KEY", API_KEY + "3")
    assert headrace("auth", "login").code == 0
    assert credentials(held) == {"api_key": API_KEY + "3"}
    assert login_module.__doc__


def test_a_given_credential_replaces_the_login(
    headrace: Any, held: Any, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option is before the environment, and that before the login."""
    headrace("auth", "login", stdin=API_KEY.encode())
    monkeypatch.setenv("HEADRACE_API_KEY", API_KEY)
    headrace("topic", "list")
    assert credentials(held) == {"api_key": API_KEY}
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", "/run/token")
    headrace("topic", "list", "--api-key-file", str(key_file))
    assert credentials(held) == {"api_key_file": str(key_file)}
    headrace("topic", "list", "--token-file", "/other")
    assert credentials(held) == {"token_file": "/other"}
    headrace("topic", "list")
    assert credentials(held) == {"api_key": API_KEY, "token_file": "/run/token"}


def test_plain_text_is_allowed_by_an_option(headrace: Any, held: Any) -> None:
    headrace("topic", "list", "--allow-plaintext-credentials")
    assert held.settings[LAST]["allow_plaintext_credentials"] is True
    held.failure = ConfigError("api_key would be sent to far:1 in plain text", action="Set security_protocol='SSL'.")
    ended = headrace("topic", "list", "-b", "far:1")
    assert (ended.code, "in plain text" in ended.err) == (ExitCode.USAGE, True)


def test_no_command_prints_the_key(headrace: Any, held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor an error with the traceback."""
    monkeypatch.setenv("HEADRACE_API_KEY", API_KEY)
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    ends = [headrace("auth", name, "--output", "json") for name in ("whoami", "check", "login", "logout")]
    held.failure = RuntimeError("broken")
    ends += [headrace("auth", "whoami"), headrace("topic", "list")]
    assert not [ended for ended in ends if API_KEY in ended.out + ended.err]


# --- who ---


def test_whoami_shows_user_and_grants(headrace: Any, held: Any) -> None:
    held.identity.caller = ADA
    ended = headrace("auth", "whoami")
    assert ended.out.splitlines()[:5] == [
        "User:             ada",
        "Groups:           blue,ops",
        "Identified by:    API key",
        "Session ends in:  10m",
        "Posture:          open",
    ]
    assert "topic:clicks" in ended.out
    document = json.loads(headrace("auth", "whoami", "--output", "json").out)
    assert (document["user"], document["remaining_ms"]) == ("ada", 600_000)
    assert document["grants"][0]["role"] == "reader"


def test_whoami_of_an_anonymous_caller(headrace: Any) -> None:
    assert "User:             anonymous" in headrace("auth", "whoami").out
    assert json.loads(headrace("auth", "whoami", "--output", "json").out)["user"] is None


def checked(headrace: Any, *arguments: str) -> tuple[int, dict[str, Any]]:
    ended = headrace("auth", "check", "--output", "json", *arguments)
    return ended.code, json.loads(ended.out)


def test_check_says_what_the_cluster_thinks_of_the_credential(headrace: Any, held: Any, key_file: Path) -> None:
    """Accepted, not accepted with the reason, not there, or there and of no use; the exit code tells the second."""
    option = ("--api-key-file", str(key_file))
    code, document = checked(headrace)
    assert (code, document["credential"], document["accepted"]) == (0, None, None)
    held.identity.caller = ADA
    code, document = checked(headrace, *option)
    assert (code, document["credential"], document["accepted"]) == (0, f"api_key_file={key_file}", True)
    assert (document["user"], document["problem"]) == ("ada", None)
    held.identity.caller = replace(ADA, user="", identified_by="")
    code, document = checked(headrace, *option)
    assert (code, document["accepted"]) == (ExitCode.DENIED, False)
    held.failures["who_am_i"] = UnauthenticatedError("the key has expired", action="Create a new one.")
    code, document = checked(headrace, *option)
    assert (code, document["accepted"]) == (ExitCode.DENIED, False)
    assert (document["problem"], document["action"]) == ("the key has expired", "Create a new one.")
    code, document = checked(headrace)
    assert (code, document["credential"], document["accepted"]) == (ExitCode.DENIED, None, False)


def test_check_names_the_place_of_the_credential(headrace: Any, held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    held.identity.caller = ADA
    tls = ("--security-protocol", "SSL", "--ssl-certfile", "ada.pem", "--ssl-keyfile", "ada.key")
    assert checked(headrace, *tls)[1]["credential"] == "ssl_certfile=ada.pem"
    headrace("auth", "login", stdin=API_KEY.encode())
    assert checked(headrace)[1]["credential"] == f"api_key_file={login_path('localhost:7170')}"
    monkeypatch.setenv("HEADRACE_API_KEY", API_KEY)
    assert checked(headrace)[1]["credential"] == "HEADRACE_API_KEY"


@pytest.mark.parametrize("error", [UnauthenticatedError("who"), NotAuthorizedError("no")])
def test_a_refused_command_has_an_exit_code_of_its_own(headrace: Any, held: Any, error: Exception) -> None:
    held.failure = error
    assert headrace("topic", "list").code == ExitCode.DENIED


# --- users ---


def test_user_life(headrace: Any, held: Any) -> None:
    """Create, list, describe, disable, enable, delete: each does it and says so."""
    ended = headrace(
        "user", "create", "billing", "--group", "finance", "--description", "invoices", "--certificate-name", "cn"
    )
    assert ended.out == "created user billing\n"
    assert headrace("user", "create", "billing").code == ExitCode.FAILED
    assert headrace("user", "list").out.splitlines()[1].split() == ["billing", "no", "finance", "0", "invoices"]
    held.identity.grants["group:finance", "reader", "cluster"] = replace(GRANT, principal="group:finance")
    described = json.loads(headrace("user", "describe", "billing", "--output", "json").out)
    assert (described["groups"], described["certificate_names"]) == (["finance"], ["cn"])
    assert [grant["principal"] for grant in described["grants"]] == ["group:finance"]
    assert "Certificate names:  cn" in headrace("user", "describe", "billing").out
    assert headrace("user", "disable", "billing").out == "disabled user billing\n"
    assert held.identity.users["billing"].disabled
    assert headrace("user", "enable", "billing").out == "enabled user billing\n"
    assert not held.identity.users["billing"].disabled
    assert headrace("user", "delete", "billing", stdin=b"n\n", terminal=True).code == ExitCode.FAILED
    assert headrace("user", "delete", "billing").out == "deleted user billing\n"
    assert headrace("user", "list").out == "no users\n"
    assert "there is no user" in headrace("user", "describe", "billing").err


def test_a_key_is_alone_on_stdout(headrace: Any, held: Any) -> None:
    """So that it can be written to a file; what people should know is on stderr."""
    headrace("user", "create", "billing")
    ended = headrace("user", "key", "create", "billing", "--expires", "90d", "--description", "first")
    secret = f"hrk_000000000001_{'s' * 43}"
    assert ended.out == secret + "\n"
    assert "cannot be shown again" in ended.err
    [made] = held.identity.users["billing"].api_keys
    assert (made.description, made.expires_ms) == ("first", CREATED_MS + 90 * 86_400_000)
    document = json.loads(headrace("user", "key", "create", "billing", "--output", "json").out)
    assert (document["key_id"], document["expires_ms"]) == ("000000000002", None)
    assert secret not in headrace("user", "describe", "billing").out
    assert headrace("user", "key", "delete", "000000000001", stdin=b"\n", terminal=True).code == ExitCode.FAILED
    assert headrace("user", "key", "delete", "000000000001").out == "deleted API key 000000000001\n"
    assert [key.key_id for key in held.identity.users["billing"].api_keys] == ["000000000002"]


@pytest.mark.parametrize("text", ["", "d", "0d", "90", "1.5d", "-1d", "90 d", "1y", "\u0661d", "999999999d", "36501d"])
def test_a_lifetime_that_is_none_is_refused(headrace: Any, text: str) -> None:
    assert headrace("user", "key", "create", "billing", "--expires", text).code == ExitCode.USAGE
    assert MAX_LIFETIME_MS == 36_500 * 86_400_000


# --- rights ---


def test_grants_are_given_listed_and_taken(headrace: Any, held: Any) -> None:
    assert headrace("grant", "ada", "reader", "topic:clicks").out == "ada has reader on topic:clicks\n"
    ended = headrace("grant", "group:ops", "reader", "cluster", "--expires", "12h")
    assert ended.out.startswith("group:ops has reader on cluster until 20")
    assert held.identity.grants["group:ops", "reader", "cluster"].expires_ms > CREATED_MS
    rows = json.loads(headrace("grants", "--output", "json").out)
    assert [row["principal"] for row in rows] == ["ada", "group:ops"]
    assert headrace("grants", "--who", "ada").out.splitlines()[1].split() == ["ada", "reader", "topic:clicks", "-"]
    assert len(headrace("grants", "--resource", "cluster").out.splitlines()) == 2
    assert headrace("revoke", "ada", "reader", "topic:clicks").out == "ada has no grant of reader on topic:clicks\n"
    assert list(held.identity.grants) == [("group:ops", "reader", "cluster")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("revoke ada reader topic:clikcs", "ada has no such grant: reader on topic:clikcs"),
        ("role delete importre --yes", "there is no role importre"),
        ("issuer delete crop --yes", "there is no issuer crop"),
        ("quota delete biling --yes", "biling has no quota"),
    ],
)
def test_a_misspelt_name_is_told_and_not_taken_as_done(headrace: Any, line: str, message: str) -> None:
    """An administrator who takes a right away relies on the answer."""
    ended = headrace(*line.split())
    assert (ended.code, ended.out) == (ExitCode.NOT_FOUND, "")
    assert message in ended.err


def test_can_says_why(headrace: Any, held: Any) -> None:
    """The exit code is the answer."""
    held.identity.caller = ADA
    headrace("grant", "ada", "reader", "topic:clicks")
    yes = headrace("can", "ada", "read", "topic:clicks")
    assert (yes.code, yes.out) == (0, "yes: ada has reader on topic:clicks\n")
    assert headrace("can", "-", "read", "topic:clicks").code == 0
    no = headrace("can", "ada", "write", "topic:clicks")
    assert (no.code, no.err) == (ExitCode.DENIED, "")
    assert no.out == "no: ada has no grant of write that covers topic:clicks\n"
    headrace("grant", "group:ops", "reader", "cluster")
    assert headrace("can", "bob", "read", "cluster", "--group", "ops").code == 0
    document = json.loads(headrace("can", "ada", "read", "topic:clicks", "--output", "json").out)
    assert (document["allowed"], document["grant"]["role"]) == (True, "reader")


def test_role_life(headrace: Any, held: Any) -> None:
    assert headrace("role", "create", "importer", "write", "create").out == "role importer allows write, create\n"
    assert [line.split() for line in headrace("role", "list").out.splitlines()[1:]] == [
        ["reader", "yes", "describe,read"],
        ["importer", "no", "write,create"],
    ]
    assert headrace("role", "delete", "importer").out == "deleted role importer\n"
    assert list(held.identity.roles) == ["reader"]


def test_issuer_life(headrace: Any, held: Any, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("PEM")
    options = ("--issuer", "https://id", "--audience", "headrace", "--keys-url", "https://id/jwks")
    more = ("--keys-ca-file", str(authority), "--algorithm", "ES256", "--groups-claim", "groups")
    assert "its users are corp:CLAIM" in headrace("issuer", "create", "corp", *options, *more).out
    made = held.identity.issuers["corp"]
    assert (made.keys_ca_pem, made.algorithms, made.user_claim) == ("PEM", ("ES256",), "sub")
    [row] = json.loads(headrace("issuer", "list", "--output", "json").out)
    assert (row["issuer"], row["groups_claim"], row["keys_ca"]) == ("https://id", "groups", True)
    assert headrace("issuer", "delete", "corp", stdin=b"\n", terminal=True).code == ExitCode.FAILED
    assert headrace("issuer", "delete", "corp").out == "deleted issuer corp\n"
    assert headrace("issuer", "create", "corp", *options, "--keys-ca-file", "/none").code == ExitCode.FAILED


def test_an_empty_file_of_authorities_does_not_mean_the_public_ones(headrace: Any, held: Any, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    options = ("--issuer", "https://id", "--audience", "headrace", "--keys-url", "https://id/jwks")
    refused = headrace("issuer", "create", "corp", *options, "--keys-ca-file", str(tmp_path / "ca.pem"))
    assert refused.code == ExitCode.USAGE
    assert "ca.pem is empty" in refused.err
    assert not held.identity.issuers


def test_quota_life(headrace: Any, held: Any) -> None:
    """What is not given stays, and 0 removes a bound; rates have units."""
    ended = headrace("quota", "set", "billing", "--produce-bytes", "10MB", "--fetch-bytes", "2MiB", "--requests", "500")
    assert ended.out == "quota of billing: produce 9.5 MiB/s, fetch 2.0 MiB/s, requests 500/s\n"
    headrace("quota", "set", "billing", "--produce-bytes", "0", "--changes", "60")
    found = held.identity.quotas["billing"]
    assert (found.produce_bytes_per_second, found.fetch_bytes_per_second) == (0, 2 << 20)
    assert (found.requests_per_second, found.connections, found.changes_per_minute) == (500, None, 60)
    assert headrace("quota", "set", "*", "--requests", "0").out == "quota of *: requests unbounded\n"
    assert [line.split() for line in headrace("quota", "list").out.splitlines()[1:]] == [
        ["default", "5.0", "GiB/s", "10.0", "GiB/s", "50000/s", "2048", "20000/min"],
        ["billing", "unbounded", "2.0", "MiB/s", "500/s", "-", "60/min"],
        ["*", "-", "-", "unbounded", "-", "-"],
    ]
    assert json.loads(headrace("quota", "list", "--output", "json").out)[1] == {
        "user": "billing",
        "produce_bytes_per_second": 0,
        "fetch_bytes_per_second": 2 << 20,
        "requests_per_second": 500,
        "connections": None,
        "changes_per_minute": 60,
        "set_by": "root",
        "set_ms": CREATED_MS,
        "is_default": False,
    }
    assert headrace("quota", "delete", "billing", stdin=b"\n", terminal=True).code == ExitCode.FAILED
    assert headrace("quota", "delete", "billing").out == "deleted the quota of billing\n"
    assert list(held.identity.quotas) == ["*"]


def test_each_bound_of_a_user_is_described_with_the_quota_that_has_it(headrace: Any, held: Any) -> None:
    """The user's own one, else that of '*', else the default."""
    headrace("quota", "set", "billing", "--produce-bytes", "0")
    headrace("quota", "set", "*", "--requests", "500", "--produce-bytes", "10MB")
    assert [line.split() for line in headrace("quota", "describe", "billing").out.splitlines()[1:]] == [
        ["produce", "unbounded", "billing"],
        ["fetch", "10.0", "GiB/s", "default"],
        ["requests", "500/s", "*"],
        ["connections", "2048", "default"],
        ["changes", "20000/min", "default"],
    ]
    described = json.loads(headrace("quota", "describe", "*", "--output", "json").out)
    assert (described["user"], described["requests_per_second"], described["connections"]) == ("*", 500, 2_048)
    assert (described["quota_of"]["requests_per_second"], described["quota_of"]["connections"]) == ("*", "default")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give --produce-bytes"),
        (("--fetch-bytes", "fast"), "--fetch-bytes 'fast'"),
        (("--requests", "-1"), "--requests"),
    ],
)
def test_a_quota_that_is_none_is_a_usage_error(headrace: Any, held: Any, options: tuple[str, ...], said: str) -> None:
    ended = headrace("quota", "set", "billing", *options)
    assert (ended.code, said in ended.err) == (ExitCode.USAGE, True)
    assert held.identity.quotas == {}


def test_the_posture_is_shown_and_changed(headrace: Any, held: Any) -> None:
    """The servers' settings may demand more, which is said."""
    assert headrace("auth", "posture").out == "Posture:  open\n"
    assert headrace("auth", "posture", "observe").out == "the posture is observe\n"
    assert held.identity.posture == "observe"
    held.identity.demanded = "required"
    ended = headrace("auth", "posture", "open", "--output", "json")
    assert json.loads(ended.out) == {"posture": "required", "changed": True}
    assert "demand required" in ended.err
    assert headrace("auth", "posture", "closed").code == ExitCode.USAGE
