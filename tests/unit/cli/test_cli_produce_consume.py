"""`produce` and `consume` against a fake cluster: input forms, offsets, limits, bad input."""

import json
from pathlib import Path
from typing import Any

import pytest
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.records import line_source
from headrace.cli.records.line_source import read_blocks
from headrace.client.base.records import Record
from headrace.wire.errors import StorageFullError
from headrace.wire.ids import TopicPartition

from tests.unit.cli.conftest import FakeConsumer


@pytest.fixture
def ten(held: Any) -> Any:
    """A topic of two partitions with ten records each, a second apart, the second partition half a second later."""
    held.add("clicks")
    for partition in range(2):
        for index in range(10):
            held.append(
                "clicks", partition, b"p%d-%d" % (partition, index), timestamp_ms=1000 * index + 500 * partition + 1
            )
    return held


def values(held: Any, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in held.records[TopicPartition("clicks", partition)]]


def test_lines_become_values(headrace: Any, held: Any, tmp_path: Path) -> None:
    """Files and standard input in order; an empty line is an empty value; a last line without an end counts."""
    held.add("clicks")
    (tmp_path / "a").write_bytes(b"one\n\ntwo")
    ended = headrace("produce", "clicks", str(tmp_path / "a"), "-", stdin=b"three\n\xff\n")
    assert values(held) == [b"one", b"", b"two", b"three", b"\xff"]
    assert (ended.code, ended.out) == (0, "")
    assert "produced 5 records, 12 B" in ended.err
    assert headrace("produce", "clicks", "--quiet", stdin=b"x").err == ""


def test_keys_headers_partition(headrace: Any, held: Any) -> None:
    """The separator splits at its first place; a header and a partition are for all."""
    held.add("clicks")
    code = headrace("produce", "clicks", "-K", ":", "-H", "source=x", "-p", "1", stdin=b"k:v:w\n:empty\n").code
    assert code == 0
    records: list[Record] = held.records[TopicPartition("clicks", 1)]
    assert [(each.key, each.value, each.headers) for each in records] == [
        (b"k", b"v:w", (("source", b"x"),)),
        (b"", b"empty", (("source", b"x"),)),
    ]


def test_json_lines(headrace: Any, held: Any) -> None:
    """Key, value, headers and time of each; --key fills in where a record has none."""
    held.add("clicks")
    lines = b'{"key": "k", "value": {"base64": "AP8="}, "headers": {"a": "b"}, "timestamp_ms": 7}\n{"value": null}\n'
    assert headrace("produce", "clicks", "--input", "json", "--key", "other", stdin=lines).code == 0
    first, second = held.records[TopicPartition("clicks", 0)]
    assert (first.key, first.value, first.headers, first.timestamp_ms) == (b"k", b"\0\xff", (("a", b"b"),), 7)
    assert (second.key, second.value) == (b"other", None)


def test_a_summary_for_programs(headrace: Any, held: Any) -> None:
    """--output json prints one document on stdout."""
    held.add("clicks")
    document = json.loads(headrace("produce", "clicks", "--output", "json", stdin=b"a\nb\n").out)
    assert (document["records"], document["bytes"], document["dry_run"]) == (2, 2, False)


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "says"),
    [
        (
            ("--input", "json"),
            b'{"value": "a"}\n{"valu": 1}\n',
            ExitCode.FAILED,
            "standard input:2: unknown field 'valu'",
        ),
        (("-K", ":"), b"a:b\nc\n", ExitCode.FAILED, "standard input:2: the key separator ':' is not in the line"),
        (("-K", ""), b"", ExitCode.USAGE, "--key-separator is empty"),
        (("-K", ":", "--input", "json"), b"", ExitCode.USAGE, "is for --input lines"),
        (("-H", "novalue"), b"", ExitCode.USAGE, "is not NAME=VALUE"),
        (("-p", "2"), b"a\n", ExitCode.NOT_FOUND, "has partitions 0 to 1, not 2"),
        (("/no/such/file",), b"", ExitCode.USAGE, "/no/such/file: No such file or directory; nothing was sent"),
        (("--input", "json"), b"{}\n", ExitCode.USAGE, "standard input:1: the field 'value' is missing"),
        (("--input", "json", "--dry-run"), b'{"value": "a"}\n{}\n', ExitCode.USAGE, "standard input:2"),
        (("/no/such/file", "--dry-run"), b"", ExitCode.USAGE, "/no/such/file: No such file or directory"),
        (("--acks", "2"), b"", ExitCode.USAGE, "acks"),
    ],
)
def test_bad_input_says_where(
    headrace: Any, held: Any, arguments: tuple[str, ...], stdin: bytes, code: int, says: str
) -> None:
    """File, line and cause in one line; what came before was delivered, and the line says how many that is."""
    held.add("clicks")
    ended = headrace("produce", "clicks", *arguments, stdin=stdin)
    assert (ended.code, ended.err.count("\n")) == (code, 1)
    assert says in ended.err
    if code == ExitCode.FAILED:
        assert "the record before it was delivered" in ended.err
        assert len(values(held)) == 1


def test_a_failed_delivery_fails_the_command(headrace: Any, held: Any) -> None:
    """No summary claims what was not acknowledged."""
    held.add("clicks")
    held.failures["flush"] = StorageFullError("the disk is full")
    ended = headrace("produce", "clicks", stdin=b"a\n")
    assert (ended.code, "produced" in ended.err, "Free disk space" in ended.err) == (ExitCode.FAILED, False, True)


def test_consume_reads_as_a_member_of_a_group(headrace: Any, held: Any) -> None:
    """The group chooses partitions and offsets; `-o` says where a new one starts, and `-n` ends it exactly."""
    held.add("clicks")
    for number in range(7):
        held.append("clicks", number % 2, b"%d" % number)
    assert sorted(headrace("consume", "clicks", "-g", "billing", "-n", "5").out.split()) == ["0", "1", "2", "3", "4"]
    settings = held.settings[-1]
    assert (settings["group_id"], settings["auto_offset_reset"]) == ("billing", "latest")
    assert len(headrace("consume", "clicks", "--group", "billing", "-o", "start").out.split()) == 7
    assert held.settings[-1]["auto_offset_reset"] == "earliest"
    assert headrace("consume", "nope", "-g", "billing").code == ExitCode.NOT_FOUND
    for arguments in (("-e",), ("--last", "3"), ("-p", "0"), ("-o", "5"), ("-o", "start:end")):
        ended = headrace("consume", "clicks", "-g", "billing", *arguments)
        assert (ended.code, "--group excludes" in ended.err) == (ExitCode.USAGE, True)


def test_consume_says_what_it_waits_for(headrace: Any, held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, where neither a range nor `-e` was given: else silence looks like an empty topic."""
    held.add("clicks")
    waits = "waiting for new records; -e prints those that are there"
    assert waits not in headrace("consume", "clicks").err
    monkeypatch.setattr("headrace.cli.records.consume.sys.stderr.isatty", lambda: True)
    assert waits in headrace("consume", "clicks").err
    for arguments in (("-e",), ("-o", "end"), ("--last", "3"), ("-q",)):
        assert waits not in headrace("consume", "clicks", *arguments).err


def test_an_unknown_topic_is_not_found(headrace: Any) -> None:
    """Both directions say so before anything is read or sent."""
    assert headrace("produce", "nope", stdin=b"a\n").code == ExitCode.NOT_FOUND
    assert headrace("consume", "nope", "-e").code == ExitCode.NOT_FOUND


def test_a_line_may_not_grow_without_bound(
    headrace: Any, held: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file without line ends is refused before it fills the memory."""
    held.add("clicks")
    monkeypatch.setattr(line_source, "MAX_LINE_BYTES", 10)
    monkeypatch.setattr(line_source, "BLOCK_BYTES", 4)
    (tmp_path / "long").write_bytes(b"short\n" + b"x" * 100)
    ended = headrace("produce", "clicks", str(tmp_path / "long"))
    assert (ended.code, values(held)) == (ExitCode.FAILED, [b"short"])
    assert "from line 2 on is longer than 10 bytes; the record before it was delivered" in ended.err


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 1000])
def test_blocks_never_cut_a_line(block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of a read, the lines and their numbers are the same."""
    monkeypatch.setattr(line_source, "BLOCK_BYTES", block_bytes)
    text = b"a\n\nlonger line\n\nend"
    (tmp_path / "f").write_bytes(text)
    blocks = list(read_blocks([str(tmp_path / "f")]))
    assert [line for block in blocks for line in block.lines] == text.split(b"\n")
    assert sum(block.read_bytes for block in blocks) <= len(text)
    count = 1
    for block in blocks:
        assert block.first_line == count
        count += len(block.lines)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-e",), range(10)),
        (("-e", "-o", "start"), range(10)),
        (("-e", "-o", "end"), range(0)),
        (("-e", "-o", "-2"), range(8, 10)),
        (("-e", "-o", "+7"), range(7, 10)),
        (("-e", "-o", "4"), range(4, 10)),
        (("-o", "2:5"), range(2, 5)),
        (("-o", "start:end"), range(10)),
        (("-o", ":3"), range(3)),
        (("-o", "-3:-1"), range(7, 9)),
        (("-o", "@2001:@4001"), range(2, 4)),
        (("-e", "-o", "@1970-01-01T00:00:05Z"), range(5, 10)),
        (("-e", "-o", "@-1h"), range(0)),
        (("-n", "3", "-o", "start"), range(3)),
        (("-n", "0", "-o", "start"), range(0)),
        (("-e", "-o", "5:100"), range(5, 10)),
    ],
)
def test_each_offset_form_reads_its_records(
    headrace: Any, ten: Any, arguments: tuple[str, ...], expected: range
) -> None:
    """The records of one partition that the range names, and the command ends."""
    ended = headrace("consume", "clicks", "-p", "0", *arguments)
    assert (ended.code, ended.out.split()) == (0, [f"p0-{index}" for index in expected])


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        ((), {"on_corrupt_batch": "fail"}),
        (("--on-corrupt-batch", "skip"), {"on_corrupt_batch": "skip"}),
        (("--dead-letter-topic", "dead"), {"on_corrupt_batch": "dead_letter", "dead_letter_topic": "dead"}),
    ],
)
def test_batches_that_cannot_be_decoded_are_passed_where_told(
    headrace: Any, ten: Any, arguments: tuple[str, ...], policy: dict[str, str]
) -> None:
    """The options are the consumer's settings, and the number skipped is printed once, apart from the records."""
    ten.corrupt_batches = 2 if arguments else 0
    ended = headrace("consume", "clicks", "-p", "0", "-e", *arguments)
    assert (ended.code, len(ended.out.split())) == (0, 10)
    assert policy.items() <= ten.settings[-1].items()
    assert ("skipped 2 batches that could not be decoded" in ended.err) == bool(arguments)


def test_last_takes_the_youngest_over_all_partitions(headrace: Any, ten: Any) -> None:
    """`--last 3` is three records in all, oldest first, where -o -3 is three a partition."""
    assert headrace("consume", "clicks", "--last", "3").out.split() == ["p1-8", "p0-9", "p1-9"]
    assert len(headrace("consume", "clicks", "-e", "-o", "-3").out.split()) == 6
    assert headrace("consume", "clicks", "--last", "3", "-n", "1").out.split() == ["p1-9"]
    assert headrace("consume", "clicks", "--last", "3", "-o", "5").code == ExitCode.USAGE
    assert len(headrace("consume", "clicks", "--last", "1000").out.split()) == 20


def test_without_an_end_it_follows_until_interrupted(headrace: Any, ten: Any) -> None:
    """An open range waits for new records; Ctrl-C ends it with 130 and without a word."""
    ended = headrace("consume", "clicks", "-p", "0", "-o", "8")
    assert (ended.code, ended.out.split(), ended.err) == (ExitCode.INTERRUPTED, ["p0-8", "p0-9"], "")


@pytest.mark.parametrize("kept", [{0, 1, 2, 9}, {0, 1, 8, 9}, {2, 3, 9}])
def test_last_finds_its_records_in_a_compacted_topic(headrace: Any, ten: Any, kept: set[int]) -> None:
    """Offsets that compaction has removed do not count; a partition that has fewer records is read from its start."""
    ten.removed[TopicPartition("clicks", 0)] = set(range(10)) - kept
    expected = [f"p0-{offset}" for offset in sorted(kept)]
    for count in (1, 2, 3, 4, 5):
        ended = headrace("consume", "clicks", "-p", "0", "--last", str(count))
        assert (ended.code, ended.out.split()) == (0, expected[-count:])
    assert len(headrace("consume", "clicks", "--last", "12").out.split()) == 12


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(("-o", "8"), ["p0-8", "p0-9", "p1-8", "p1-9", "new"]), ((), ["new"]), (("-p", "0"), [])],
)
def test_it_follows_into_partitions_that_are_added(
    headrace: Any, ten: Any, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], expected: list[str]
) -> None:
    """From their start, which is after the start of the command; not if partitions were named."""
    poll = FakeConsumer.poll

    def poll_once_added(self: FakeConsumer, timeout: float, max_records: int) -> Any:
        if TopicPartition("clicks", 2) not in ten.records:
            ten.add("clicks", partitions=3)
            ten.append("clicks", 2, b"new")
        return poll(self, timeout, max_records)

    monkeypatch.setattr(FakeConsumer, "poll", poll_once_added)
    ended = headrace("consume", "clicks", *arguments)
    assert (ended.code, ended.out.split()) == (ExitCode.INTERRUPTED, expected)


def test_an_offset_outside_the_log_is_said(headrace: Any, ten: Any) -> None:
    """It starts at the nearest offset and says so on stderr."""
    ended = headrace("consume", "clicks", "-p", "0", "-e", "-o", "50")
    assert (ended.code, ended.out) == (0, "")
    assert "partition 0 has offsets 0 to 9, starting at 10, not 50" in ended.err


def test_outputs(headrace: Any, ten: Any) -> None:
    """A format string, one JSON object a line, a table."""
    assert headrace("consume", "clicks", "-o", "1:2", "-p", "1", "-f", r"%t/%p@%o=%s;").out == "clicks/1@1=p1-1;"
    lines = headrace("consume", "clicks", "-o", "1:3", "-p", "1", "--output", "json").out.splitlines()
    assert [json.loads(line)["value"] for line in lines] == ["p1-1", "p1-2"]
    table = headrace("consume", "clicks", "-o", "1:2", "-p", "1", "--output", "table").out.splitlines()
    assert table[0].split() == ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE"]
    assert table[1].split() == ["1", "1", "1970-01-01T00:00:01.501Z", "-", "p1-1"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("-o", "@-1x:"), "unknown unit 'x'"), (("-o", ""), "an offset is missing"), (("-f", "%z"), "unknown letter 'z'")],
)
def test_a_bad_expression_points_at_the_place(headrace: Any, held: Any, arguments: tuple[str, ...], says: str) -> None:
    """One line that says what is wrong, then a caret below the character, then the grammar; nothing is sent."""
    ended = headrace("consume", "clicks", *arguments)
    assert (ended.code, ended.out, held.settings) == (ExitCode.USAGE, "", [])
    first, text, caret, *grammar = ended.err.splitlines()
    assert says in first
    assert text[2:] == arguments[1]
    assert caret.lstrip().startswith("^")
    assert len(grammar) > 3
