"""`headrace doctor bundle` on a fake cluster: what is in it, what never is, and what is told when a part is away."""

import io
import json
import stat
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.doctor.bundle import documents
from headrace.cli.doctor.bundle.archive import write_archive
from headrace.cli.doctor.bundle.contents import BundleContents, BundleFile
from headrace.cli.doctor.bundle.logs import find_logs, lines_since, read_logs
from headrace.cli.doctor.bundle.redaction import LEFT_OUT, redact_document, redact_log
from headrace.client.admin.processes import ProcessDescription
from headrace.client.base.errors import NoBrokersAvailableError
from headrace.wire.errors import NotAuthorizedError
from headrace.wire.ids import TopicPartition

from tests.fakes.identity import API_KEY
from tests.unit.cli.fake_groups import FakeGroup

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2VjcmV0c2VjcmV0"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIplanted\n-----END PRIVATE KEY-----"
PLANTED = "planted"
"""Part of each secret here."""


def files_of(archive: bytes) -> dict[str, str]:
    """Files of a bundle by their names, as text."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {
            entry.name.removeprefix("headrace-bundle/"): opened.extractfile(entry).read().decode()  # type: ignore[union-attr]
            for entry in opened.getmembers()
        }


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the archive; the working directory has no local cluster."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "bundle.tar.gz"


def test_a_bundle_has_what_the_commands_print(headrace: Any, held: Any, out: Path) -> None:
    """Each file is the document of its command, the README names all, and JSON tells what is inside."""
    held.add("clicks")
    held.groups["billing"] = FakeGroup({TopicPartition("clicks", 0): 0})
    held.processes = [ProcessDescription("broker-1", "127.0.0.1:7181", version="0.1.0")]
    ended = headrace("doctor", "bundle", "--out", str(out), "--output", "json")
    told = json.loads(ended.out)
    files = files_of(out.read_bytes())
    assert told["path"] == str(out)
    assert {each["name"] for each in told["files"]} == set(files)
    for name, command in {
        "cluster.json": ("cluster", "describe"),
        "partitions.json": ("partition", "list"),
        "brokers/1.json": ("broker", "describe", "1"),
        "topics/clicks.json": ("topic", "describe", "clicks"),
        "groups/billing.json": ("group", "describe", "billing", "--no-time"),
    }.items():
        assert json.loads(files[name]) == json.loads(headrace(*command, "--output", "json").out), name
    assert json.loads(files["processes.json"])[0]["name"] == "broker-1"
    assert "headrace" in json.loads(files["versions.json"])["packages"]
    assert all(f"\n{name} " in files["README.txt"] for name in set(files) - {"README.txt"})
    assert [each["what"] for each in json.loads(files["problems.json"])] == ["logs", "metrics"]
    assert ended.code == ExitCode.FAILED
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert [each.name for each in out.parent.glob(".bundle*")] == []


def test_grants_and_quotas_are_asked_for_with_a_credential(
    headrace: Any, held: Any, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the bundle, and a right that is missing is a problem; the API key is in no file."""
    monkeypatch.setenv("HEADRACE_API_KEY", API_KEY)
    held.failures["list_quotas"] = NotAuthorizedError(f"no right to do this with {API_KEY}")
    headrace("doctor", "bundle", "--out", str(out))
    files = files_of(out.read_bytes())
    assert "grants.json" in files
    problems = {each["what"]: each["reason"] for each in json.loads(files["problems.json"])}
    assert problems["quotas.json"].startswith("no right to do this with [left out]")
    assert all(API_KEY[-40:] not in text for text in files.values())
    assert held.settings[-1]["api_key"] == API_KEY


def test_a_cluster_that_does_not_answer_leaves_a_bundle(headrace: Any, held: Any, out: Path) -> None:
    """What is here is in it, the exit code is that of a cluster out of reach, and it is asked twice only."""
    held.failure = NoBrokersAvailableError({"127.0.0.1:7170": "refused"})
    (out.parent / "broker-1.log").write_text("2026-11-26T17:00:00Z [info     ] serving broker_id=1\n")
    ended = headrace("doctor", "bundle", "--out", str(out), "--logs", str(out.parent))
    assert ended.code == ExitCode.UNREACHABLE
    files = files_of(out.read_bytes())
    assert "serving broker_id=1" in files["logs/broker-1.log"]
    assert "127.0.0.1:7170: refused" in files["problems.json"]
    assert {"doctor.json", "versions.json"} <= set(files)
    assert len(held.settings) == 2


def test_certificate_files_that_cannot_be_read_leave_a_bundle(
    headrace: Any, held: Any, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state in which a bundle is wanted most; only metrics by TLS need the files."""
    monkeypatch.setenv("HEADRACE_SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("HEADRACE_SSL_CAFILE", str(out.parent / "gone.pem"))
    (out.parent / "broker-1.log").write_text("serving broker_id=1\n")
    metrics = ("--metrics", "https://127.0.0.1:1", "--metrics", "http://[broker-1")
    ended = headrace("doctor", "bundle", "--out", str(out), "--logs", str(out.parent), *metrics)
    assert ended.code == ExitCode.FAILED
    files = files_of(out.read_bytes())
    assert "serving broker_id=1" in files["logs/broker-1.log"]
    problems = {each["what"]: each["reason"] for each in json.loads(files["problems.json"])}
    assert "gone.pem" in problems["metrics/127.0.0.1-1-metrics.txt"]
    assert "http://[broker-1" in problems["metrics/%5Bbroker-1-metrics.txt"]


def test_a_part_that_is_away_is_a_problem(headrace: Any, held: Any, out: Path) -> None:
    """A process that does not answer, and a broker with replicas that is not registered; the rest is there."""
    held.add("clicks", replicas=(1, 2))
    held.processes = [ProcessDescription("broker-1", "127.0.0.1:7181", error="connection refused")]
    headrace("doctor", "bundle", "--out", str(out))
    problems = {each["what"]: each["reason"] for each in json.loads(files_of(out.read_bytes())["problems.json"])}
    assert "connection refused" in problems["processes.json"]
    assert "broker 2 has replicas and is not registered" in problems["brokers/2.json"]


@pytest.mark.parametrize(("name", "most"), [("MAX_TOPICS", 1), ("MAX_SECONDS", -1.0)])
def test_descriptions_one_by_one_have_a_bound(
    headrace: Any, held: Any, out: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: float
) -> None:
    """Beyond a number or a time the topics are only in the list, and the bundle says so."""
    monkeypatch.setattr(documents, name, most)
    held.add("clicks")
    held.add("views")
    headrace("doctor", "bundle", "--out", str(out))
    files = files_of(out.read_bytes())
    problems = {each["what"]: each["reason"] for each in json.loads(files["problems.json"])}
    described = [each for each in files if each.startswith("topics/")]
    assert problems["topics"].startswith(f"only the first {len(described)} of 2 are described")
    assert len(described) == max(0, most)
    assert [each["name"] for each in json.loads(files["topics.json"])] == ["clicks", "views"]


def test_an_existing_file_is_replaced_only_by_force(headrace: Any, out: Path) -> None:
    """Without it nothing is asked and the file stays; a directory that is not there is told, too."""
    out.write_bytes(b"mine")
    ended = headrace("doctor", "bundle", "--out", str(out))
    assert (ended.code, out.read_bytes()) == (ExitCode.USAGE, b"mine")
    assert "--force" in ended.err
    headrace("doctor", "bundle", "--out", str(out), "--force")
    assert "README.txt" in files_of(out.read_bytes())
    assert headrace("doctor", "bundle", "--out", str(out / "no" / "file")).code == ExitCode.USAGE


def test_a_file_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    """The archive takes its name only if it is free, and leaves nothing behind."""
    path = tmp_path / "bundle.tar.gz"
    path.write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        write_archive(path, [BundleFile("a", b"b", "c")], at_s=0, replaces=False)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("bundle.tar.gz", b"theirs")]


def test_an_option_before_the_subcommand_is_refused(headrace: Any, out: Path) -> None:
    """`doctor` runs without its subcommand, whose own options it does not take."""
    ended = headrace("doctor", "--strict", "bundle", "--out", str(out))
    assert (ended.code, out.exists()) == (ExitCode.USAGE, False)
    assert "give --strict after `bundle`" in ended.err


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-26T17:00:00Z [info     ] odd  key=planted",
        "odd value='planted with blanks' n=1",
        "odd x= row_key=planted",
        "odd headers=[('a', b'planted')]",
        'odd "password": "planted"',
        "ValueError: cannot decode b'planted'",
        "Authorization: Bearer planted.planted",
        "connect to https://ada:planted@host/",
        '{"event": "odd", "value": {"a": {"b": 1}, "c": "planted"}}',
        '{"event": "odd", "error": "cannot read key=planted"}',
        '{"event": "odd", "etcd_password": "planted", "n": ',
        "X-Api-Key: planted",
        "private-key: planted",
        "refused api-key=planted",
        "refused passphrase=planted pwd=planted",
        "login user=ada pass=planted",
        "signed access_key=a signature=planted",
        "Server=db;Password=plan,planted;Database=x",
        "password = planted",
        "secret => planted with blanks",
        "connect to redis://:planted@cache:6379",
        "cloned https://planted@git.example/a.git",
        "connect to postgres://app:plan/planted@db",
        "connect to postgres://app:plan@planted@db",
        "connect to smtp://ada@example.org:planted@host",
        "Cookie: lang=en; sid=planted",
        'Authorization: Digest username="ada", response="planted"',
        "odd value: planted with planted blanks",
        "odd value: first, then planted",
        "odd rows=[[1, 'a'], [2, 'planted']] n=1",
        "odd row=Row(name='ada', mail='planted')",
        "odd headers=(('a', 'planted'),)",
        'said "{\\"password\\": \\"planted\\"}"',
        "started tool --api-key planted --verbose",
        "started ['tool', '--password', 'planted']",
        "-----BEGIN PRIVATE KEY-----\nplanted\n-----END PRIVATE KEY-----",
        "planted, cut here\n-----END PRIVATE KEY-----",
        f"odd {'x' * 20_000} planted",
    ],
)
def test_a_planted_secret_is_not_in_a_log(line: str) -> None:
    """Fields of records and secrets, in the formats console and json, and what tracebacks and URLs have."""
    kept = redact_log(f"{line}\n2026-11-26T17:00:01Z [info     ] next broker_id=1")
    assert PLANTED not in kept
    assert kept.endswith("2026-11-26T17:00:01Z [info     ] next broker_id=1")


@pytest.mark.parametrize("value", ["planted", {"value": "planted"}, [{"value": "planted"}], [["planted"]]])
def test_a_secret_of_any_form_is_not_in_a_document(value: Any) -> None:
    """What has the name of a secret is left out with all that is in it; figures and what is empty stay."""
    assert redact_document({"a": [{"credential": value}]}) == {"a": [{"credential": LEFT_OUT}]}
    kept: Any = {"allow_plaintext_credentials": True, "tokens": 5, "secrets": [], "api_key": None}
    assert redact_document(kept) == kept


@pytest.mark.parametrize("text", ["://" * 100_000, "a:" * 100_000, "--password " * 50_000, "key" * 100_000])
def test_no_text_takes_long(text: str) -> None:
    """A line may be as long as what is read of a log."""
    assert redact_log(text)


def test_harmless_fields_stay() -> None:
    """Ids, files and figures are what a bundle is for."""
    line = "refused key_id=abc api_key_file=/etc/key token_ms=5 topic=clicks offset=7 error='no answer'\n"
    assert redact_log(line) == line
    line = "started --token-file /etc/token --api-key-id abc url=http://host:9400/metrics bypass=1 [info] kept: 5\n"
    assert redact_log(line) == line
    assert redact_log(f"odd key={API_KEY} topic=a") == f"odd key={LEFT_OUT} topic=a"
    assert redact_log("odd {'value': 5, 'offset': 7} row=a offset=8 keys=[] offset=9") == (
        f"odd {{'value': {LEFT_OUT}, 'offset': 7}} row={LEFT_OUT} offset=8 keys={LEFT_OUT} offset=9"
    )
    assert redact_log('{"event": "a", "key_id": "b"}') == '{"event": "a", "key_id": "b"}'
    assert redact_document({"key_id": "b", "metadata": "planted", "error": f"{API_KEY} {JWT} {PEM}"}) == {
        "key_id": "b",
        "metadata": LEFT_OUT,
        "error": f"{LEFT_OUT} {LEFT_OUT} {LEFT_OUT}",
    }


def test_files_of_records_are_not_logs(tmp_path: Path) -> None:
    """Segments are called `.log`, too: by name, by content, behind a link or in a directory they are left out."""
    (tmp_path / f"{0:020}.log").write_text(PLANTED)
    (tmp_path / "binary.log").write_bytes(b"planted\0")
    (tmp_path / "link.log").symlink_to(tmp_path / f"{0:020}.log")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x.log").write_text(PLANTED)
    (tmp_path / "broker-1.log").write_text("good\n")
    contents = BundleContents()
    found = read_logs(find_logs([tmp_path], "", contents), since_ms=0, max_bytes=1024, contents=contents)
    assert [(each.name, each.text) for each in found] == [("broker-1.log", "good\n")]
    assert [each["what"] for each in contents.problems] == ["logs/binary.log"]


def test_the_newest_lines_of_a_log_are_kept(tmp_path: Path) -> None:
    """Cut at the end that is oldest, at a line, and with the address of the metrics from the beginning."""
    lines = [f"2026-11-26T17:00:{number:02}Z event n={number}\n" for number in range(60)]
    (tmp_path / "a.log").write_text("serving metrics_address=127.0.0.1:9400\n" + "".join(lines))
    contents = BundleContents()
    (log,) = read_logs([tmp_path / "a.log"], since_ms=0, max_bytes=100, contents=contents)
    assert log.text == "".join(lines[-3:])
    assert log.metrics_address == "127.0.0.1:9400"
    since_ms = round(datetime(2026, 11, 26, 17, 0, 58, tzinfo=UTC).timestamp() * 1000)
    assert lines_since("".join(lines), since_ms) == "".join(lines[-2:])
    assert lines_since("0000-00-00 00:00:00Z n=1\n" + "".join(lines), since_ms) == "".join(lines[-2:])
    assert lines_since("none\nhas a time\n", 1) == "none\nhas a time\n"


def test_what_is_too_large_is_a_problem() -> None:
    """A document is whole or not there."""
    contents = BundleContents()
    contents.add_text("a.txt", "x" * 11, "a", max_bytes=10)
    assert (contents.files, [each["what"] for each in contents.problems]) == ([], ["a.txt"])
