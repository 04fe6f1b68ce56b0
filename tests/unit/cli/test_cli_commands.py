"""Every command against a fake cluster: output, exit codes, dry runs, one-line errors."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from headrace import __version__
from headrace.cli import local
from headrace.cli.common.exit_codes import MEANINGS, ExitCode
from headrace.cli.main import command_tree
from headrace.client.base.errors import ConfigError, NoBrokersAvailableError
from headrace.wire.errors import StorageFullError, TimedOutError


def command_paths() -> list[tuple[str, ...]]:
    """Every command of the tree, groups included."""
    found: list[tuple[str, ...]] = [()]

    def walk(command: Any, path: tuple[str, ...]) -> None:
        for name, child in getattr(command, "commands", {}).items():
            found.append((*path, name))
            walk(child, (*path, name))

    walk(command_tree(), ())
    return found


@pytest.mark.parametrize("path", [path for path in command_paths() if path[:-1] != ("local",)], ids=" ".join)
def test_every_command_has_help(headrace: Any, path: tuple[str, ...]) -> None:
    """`--help` and `-h` say how to use it and end with 0."""
    for option in ("--help", "-h"):
        ended = headrace(*path, option)
        assert ended.code == 0
        assert ended.out.startswith(f"Usage: {' '.join(('headrace', *path))}")
        assert ended.err == ""


@pytest.mark.parametrize("path", [path for path in command_paths() if path[:1] != ("local",)], ids=" ".join)
def test_an_unknown_option_is_one_line_and_exit_code_2(headrace: Any, path: tuple[str, ...]) -> None:
    """The line names the option and where help is."""
    ended = headrace(*path, "--frobnicate")
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert ended.err.count("\n") == 1
    assert "--frobnicate" in ended.err
    assert "--help'" in ended.err


def test_reads_take_output_and_changes_take_dry_run() -> None:
    """The promise of the guide, for the whole tree."""
    reads = {("topic", "list"), ("topic", "describe"), ("consume",), ("broker", "list"), ("version",)}
    reads |= {("cluster", name) for name in ("describe", "health", "dump")}
    reads |= {("broker", "describe"), ("partition", "list"), ("group", "list"), ("group", "describe")}
    changes = {("topic", name) for name in ("create", "alter", "delete")}
    changes |= {("produce",), ("bench",), ("table", "create"), ("table", "purge")}
    changes |= {("broker", name) for name in ("drain", "undrain", "delete-unclaimed")}
    changes |= {("cluster", "balance"), ("partition", "elect"), ("group", "delete")}
    changes |= {("partition", "reassign"), ("group", "reset"), ("group", "seek")}
    for path in command_paths():
        command: Any = command_tree()
        for name in path:
            command = command.commands[name]
        options = {name for parameter in command.params for name in parameter.opts}
        if path in reads | changes:
            assert "--output" in options, path
        assert ("--dry-run" in options) == (path in changes), path


def test_topic_life(headrace: Any, held: Any) -> None:
    """Create, list, describe, alter, delete: each does it and says so."""
    assert headrace("topic", "create", "clicks", "-p", "3", "--config", "retention_ms=1000").out == (
        "created topic clicks (3 partitions, 1 replica each)\n"
    )
    assert headrace("topic", "list").out.splitlines()[1].split() == ["clicks", "3", "1", "-"]
    held.append("clicks", 1, b"v")
    described = json.loads(headrace("topic", "describe", "clicks", "--output", "json").out)
    assert described["partitions"][1]["high_watermark"] == 1
    assert described["configs"]["retention_ms"] == {"value": "1000", "is_default": False, "default": "604800000"}
    altered = headrace("topic", "alter", "clicks", "--unset", "retention_ms", "--partitions", "5")
    assert altered.out == "altered topic clicks: retention_ms back to its default, 5 partitions\n"
    assert "warning: all on one rack" in altered.err
    assert held.configs["clicks"] == {}
    assert headrace("topic", "delete", "clicks").out == "deleted clicks\n"
    assert headrace("topic", "list").out == "no topics\n"


def test_dry_runs_change_nothing(headrace: Any, held: Any) -> None:
    """Every change under --dry-run checks, says `would`, and leaves the cluster as it was."""
    held.add("clicks")
    before = (dict(held.topics), dict(held.configs["clicks"]))
    assert headrace("topic", "create", "views", "--dry-run").out.startswith("would create topic views")
    assert headrace("topic", "alter", "clicks", "--config", "retention_ms=5", "-p", "9", "--dry-run").out.startswith(
        "would"
    )
    assert headrace("topic", "delete", "clicks", "--dry-run", terminal=True).out == "would delete clicks\n"
    ended = headrace("produce", "clicks", "--dry-run", stdin=b"a\nb\n")
    assert "would produce 2 records, 2 B to clicks" in ended.err
    assert (dict(held.topics), dict(held.configs["clicks"])) == before
    assert not any(held.records.values())


def test_a_failed_deletion_does_not_hide_the_others(headrace: Any, held: Any) -> None:
    """What was deleted is shown before the error."""
    held.add("clicks")
    held.add("views")
    ended = headrace("topic", "delete", "clicks", "viws", "views", "--yes", "--output", "json")
    assert (ended.code, held.topics) == (ExitCode.NOT_FOUND, {})
    assert json.loads(ended.out) == {"deleted": ["clicks", "views"], "missing": ["viws"], "dry_run": False}
    assert "there is no topic 'viws'" in ended.err


def test_a_failed_deletion_of_unclaimed_logs_does_not_hide_the_others(headrace: Any, held: Any) -> None:
    """As for topics; the question is about the logs."""
    held.add("clicks")
    ids = [bytes(range(16)), held.topics["clicks"].topic_id]
    held.unclaimed += ids
    command = ("topic", "delete", "--unclaimed", *(topic_id.hex().upper() for topic_id in ids), "--output", "json")
    assert f"Delete the unclaimed logs of {ids[0].hex()}, " in headrace(*command, stdin=b"n\n", terminal=True).err
    assert held.unclaimed == ids
    ended = headrace(*command, "--yes")
    assert (ended.code, held.unclaimed) == (ExitCode.FAILED, ids[1:])
    assert json.loads(ended.out) == {"deleted": [ids[0].hex()], "missing": [], "dry_run": False}
    assert "a topic has this id" in ended.err


@pytest.mark.parametrize("answer", [b"", b"n\n", b"no\n"])
def test_delete_asks_on_a_terminal(headrace: Any, held: Any, answer: bytes) -> None:
    """Without a yes nothing is deleted."""
    held.add("clicks")
    ended = headrace("topic", "delete", "clicks", stdin=answer, terminal=True)
    assert (ended.code, "clicks" in held.topics) == (ExitCode.FAILED, True)
    assert "nothing was deleted" in ended.err
    assert headrace("topic", "delete", "clicks", stdin=b"y\n", terminal=True).code == 0
    assert "clicks" not in held.topics


def test_unclaimed_logs_are_deleted_by_the_id_of_their_topic(headrace: Any, held: Any) -> None:
    """On purpose only: it asks, it can be tried dry, and it takes ids, so that no topic goes by mistake."""
    topic_id = bytes(range(16))
    held.unclaimed.append(topic_id)
    assert headrace("topic", "delete", "--unclaimed", topic_id.hex(), stdin=b"n\n", terminal=True).code
    dry = headrace("topic", "delete", "--unclaimed", topic_id.hex(), "--dry-run")
    assert dry.out == f"would delete the unclaimed logs of {topic_id.hex()}\n"
    assert held.unclaimed == [topic_id]
    assert "32 hexadecimal digits" in headrace("topic", "delete", "--unclaimed", "clicks").err
    done = headrace("topic", "delete", "--unclaimed", topic_id.hex(), "--yes")
    assert done.out == f"deleted the unclaimed logs of {topic_id.hex()}\n"
    assert held.unclaimed == []


def test_if_not_exists_and_if_exists(headrace: Any, held: Any) -> None:
    """Repeatable scripts: what is done already is fine."""
    held.add("clicks")
    assert headrace("topic", "create", "clicks").code == ExitCode.ALREADY_EXISTS
    assert headrace("topic", "create", "clicks", "--if-not-exists").code == 0
    assert headrace("topic", "delete", "nope").code == ExitCode.NOT_FOUND
    assert headrace("topic", "delete", "nope", "--if-exists").code == 0


def test_documents_are_the_same_in_json_and_yaml(headrace: Any, held: Any) -> None:
    """One document each, of one shape; wide adds columns to the table."""
    held.add("clicks")
    for path in (
        ("topic", "list"),
        ("topic", "describe", "clicks"),
        ("cluster", "describe"),
        ("cluster", "health"),
        ("cluster", "dump"),
        ("broker", "list"),
        ("version",),
    ):
        as_json = json.loads(headrace(*path, "--output", "json").out)
        assert yaml.safe_load(headrace(*path, "--output", "yaml").out) == as_json
        table, wide = (headrace(*path, "--output", each).out for each in ("table", "wide"))
        assert max(map(len, table.splitlines())) <= max(map(len, wide.splitlines()))


def test_health_names_the_problem_and_the_remedy(headrace: Any, held: Any) -> None:
    """Exit code 5, a sentence on what is wrong and one on what to do."""
    held.add("clicks")
    assert headrace("cluster", "health").out == "healthy: 1 brokers, 1 coordinators, 1 topics, 2 partitions\n"
    assert headrace("cluster", "health", "--quiet").out == ""
    held.lose_leader("clicks", 1)
    held.controller_id = ""
    ended = headrace("cluster", "health")
    assert ended.code == ExitCode.UNHEALTHY
    assert "* no coordinator is the controller" in ended.out
    assert "* 1 partition has no leader: clicks-1\n  -> Bring back broker 2, which" in ended.out
    kinds = [each["check"] for each in json.loads(headrace("cluster", "health", "--output", "json").out)["problems"]]
    assert kinds == ["no_controller", "offline_partitions"]


def test_a_silent_broker_is_a_problem_and_leaves_gaps(headrace: Any, held: Any) -> None:
    """Health tells it; describe shows what it knows and says what is missing."""
    held.add("clicks")
    held.failures["describe_logs"] = StorageFullError("the disk is full")
    ended = headrace("cluster", "health")
    assert (ended.code, "broker 1 did not respond: the disk is full" in ended.out) == (ExitCode.UNHEALTHY, True)
    ended = headrace("topic", "describe", "clicks")
    assert (ended.code, "offsets and sizes are missing" in ended.err) == (0, True)


@pytest.mark.parametrize(
    ("failure", "code", "says"),
    [
        (
            NoBrokersAvailableError({"a:1": "refused", "b:2": "no such host"}),
            ExitCode.UNREACHABLE,
            "(a:1: refused; b:2: no such host)",
        ),
        (TimedOutError("no answer\nwithin 1 s"), ExitCode.TIMED_OUT, "no answer within 1 s. Try again with a longer"),
        (StorageFullError("full"), ExitCode.FAILED, "full. Free disk space"),
        (ConfigError("'x' is not host:port", action="Use host:port."), ExitCode.USAGE, "Use host:port."),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, ""),
        (BrokenPipeError(), ExitCode.BROKEN_PIPE, ""),
        (RuntimeError("boom"), ExitCode.FAILED, "HEADRACE_DEBUG=1"),
    ],
)
def test_errors_are_one_line_and_a_code(
    headrace: Any, held: Any, failure: BaseException, code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a traceback, unless asked for; an interrupt and a closed pipe are silent."""
    held.failure = failure
    ended = headrace("topic", "list")
    assert (ended.code, ended.out) == (code, "")
    assert says in ended.err
    assert ended.err.count("\n") == (1 if says else 0)
    assert "Traceback" not in ended.err
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    assert type(failure).__name__ in headrace("topic", "list").err


def test_where_to_connect(headrace: Any, held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option wins over the environment, which wins over localhost:7170; --timeout is in seconds."""
    headrace("topic", "list")
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "env:1")
    headrace("topic", "list", "--timeout", "2.5")
    headrace("topic", "list", "-b", "option:2")
    assert [each["bootstrap_servers"] for each in held.settings] == ["localhost:7170", "env:1", "option:2"]
    assert [each["request_timeout_ms"] for each in held.settings] == [10_000, 2_500, 10_000]


@pytest.mark.parametrize("config", ["retention_ms", "=5", " =5"])
def test_a_setting_without_a_value_is_a_usage_error(headrace: Any, held: Any, config: str) -> None:
    """The message shows the form."""
    ended = headrace("topic", "create", "x", "--config", config)
    assert (ended.code, "is not NAME=VALUE" in ended.err, held.topics) == (ExitCode.USAGE, True, {})


def test_alter_checks_all_before_it_changes_anything(headrace: Any, held: Any) -> None:
    """A bad setting with good partitions leaves both as they were; nothing to change is a usage error."""
    held.add("clicks")
    ended = headrace("topic", "alter", "clicks", "-p", "9", "--config", "retention=5")
    assert (ended.code, len(held.topics["clicks"].partitions)) == (ExitCode.FAILED, 2)
    assert "did you mean 'retention_ms'?" in ended.err
    assert headrace("topic", "alter", "clicks").code == ExitCode.USAGE


def test_local_without_its_package_says_what_to_install(headrace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK alone has no servers."""
    monkeypatch.setattr(local, "MODULE", "headrace_devcluster_that_is_not_installed")
    ended = headrace("local", "up")
    assert (ended.code, "pip install ./sdk ./services/*" in ended.err) == (ExitCode.FAILED, True)


def test_local_passes_options_and_the_exit_code_on(
    headrace: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The child is `python -m headrace_devcluster up ...` and its code is the command's."""
    assert local.child_command("up", ["--brokers", "1"])[1:] == ["-m", "headrace_devcluster", "up", "--brokers", "1"]
    echo = tmp_path / "arguments.json"
    script = f"import json, sys; json.dump(sys.argv[1:], open({str(echo)!r}, 'w')); sys.exit(3)"
    monkeypatch.setattr(local, "child_command", lambda verb, rest: [sys.executable, "-c", script, verb, *rest])
    assert headrace("local", "status", "--data-dir", "x", "--json").code == ExitCode.UNREACHABLE
    assert json.loads(echo.read_text()) == ["status", "--data-dir", "x", "--json"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("up", "--help"), ExitCode.OK, ("--data-dir", "--fresh")),
        (("down", "-h"), ExitCode.OK, ("--wipe",)),
        (("status", "--help"), ExitCode.OK, ("--json",)),
        (("up", "--data", "x"), ExitCode.USAGE, ("No such option: --data", "--data-dir")),
    ],
)
def test_local_explains_its_options_as_other_commands_do(
    arguments: tuple[str, ...], code: int, says: tuple[str, ...]
) -> None:
    """The help and the errors are the local cluster's own, under the name of the command and without boxes."""
    command = [sys.executable, "-m", "headrace.cli", "local", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = ended.stdout or ended.stderr
    assert (ended.returncode, said.startswith(f"Usage: headrace local {arguments[0]} [OPTIONS]")) == (code, True)
    assert all(text in said for text in says)
    assert "\N{BOX DRAWINGS LIGHT HORIZONTAL}" not in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(headrace: Any, shell: str) -> None:
    """A script for each shell; another shell is a usage error that lists them."""
    assert "_HEADRACE_COMPLETE" in headrace("completion", shell).out
    ended = headrace("completion", "tcsh")
    assert (ended.code, shell in ended.err) == (ExitCode.USAGE, True)


def test_completion_answers_the_shell() -> None:
    """What the script calls on a key press gives the commands that fit."""
    environment = {"_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": "headrace topic de", "COMP_CWORD": "2"}
    ended = subprocess.run(
        [sys.executable, "-m", "headrace.cli"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.split() == ["describe", "delete"]


@pytest.mark.parametrize(
    "words",
    [
        "consume ",
        "produce c",
        "bench ",
        "topic describe ",
        "topic alter ",
        "topic delete ",
        "partition list --topic ",
        "partition reassign --topic ",
        "group describe g --topic ",
    ],
)
def test_the_shell_is_offered_topics_where_a_topic_is_due(
    headrace: Any, held: Any, words: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Every argument that names a topic that exists has the completion."""
    held.add("clicks")
    monkeypatch.setenv("_HEADRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"headrace {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(f"headrace {words}x".split()) - 1))
    with pytest.raises(SystemExit):
        headrace()
    assert capsysbinary.readouterr().out.split() == [b"clicks"]


def test_completion_asks_the_directory_that_is_given(
    headrace: Any, held: Any, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """And not the cluster of the environment, which would get the stored credential."""
    held.add("clicks")
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "other:7170")
    monkeypatch.setenv("_HEADRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "headrace topic delete --dir events ")
    monkeypatch.setenv("COMP_CWORD", "5")
    with pytest.raises(SystemExit):
        headrace()
    assert capsysbinary.readouterr().out.split() == [b"clicks"]
    assert held.settings[-1]["bootstrap_servers"] == "dir:events"


def test_help_pages(headrace: Any) -> None:
    """The exit code page lists every code; the others show grammar, letters and records."""
    page = headrace("help", "exit-codes").out
    for code, meaning in MEANINGS.items():
        assert f"{int(code):>4}  " in page
        assert meaning in page
    assert "@-1h30m" in headrace("help", "offsets").out
    assert "%p partition" in headrace("help", "format").out
    assert "base64" in headrace("help", "records").out
    assert headrace("help").out.startswith("Usage: headrace")


def test_the_sdk_is_imported_inside_commands_only() -> None:
    """`headrace --help` stays quick: neither grpc nor numpy nor yaml is loaded for it."""
    script = (
        "import sys; from headrace.cli.main import run; from headrace.cli.common.session import SdkClients\n"
        "assert run(['--help'], SdkClients()) == 0\n"
        "loaded = {'grpc', 'numpy', 'yaml', 'rich', 'google.protobuf', 'headrace.client'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_version_is_an_option_too(headrace: Any) -> None:
    """As of other programs: one line, before any command, without a cluster."""
    assert (headrace("--version").code, headrace("--version").out) == (0, f"headrace {__version__}\n")
