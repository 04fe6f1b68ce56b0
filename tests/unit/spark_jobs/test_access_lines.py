"""Lines of Apache's combined format: read, or kept with what is wrong; and which bytes of a file are new."""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_jobs.access_lines import AccessLine, AccessLineError, ReplacedFileError, lines_of, parse_line, row_of
from spark_jobs.log_files import LogFileError, new_parts

from spark_jobs import log_files

LINE = (
    b'10.1.2.3 - alice [21/Nov/2026:10:05:03 +0130] "GET /shop?q=1 HTTP/1.1" 200 512 '
    b'"https://example.org/" "Browser/1.0 (X; \\"quoted\\")"'
)


def test_every_field_of_a_line():
    """Times become UTC; a quoted text may contain escaped quotes."""
    assert parse_line(LINE) == AccessLine(
        client="10.1.2.3",
        user="alice",
        at=datetime(2026, 11, 21, 8, 35, 3, tzinfo=UTC),
        method="GET",
        path="/shop?q=1",
        protocol="HTTP/1.1",
        status=200,
        bytes=512,
        referrer="https://example.org/",
        agent='Browser/1.0 (X; \\"quoted\\")',
    )


def test_a_minus_is_nothing():
    """No user, no referrer, no agent, no bytes; a user's name may have a space."""
    found = parse_line(b'::1 - - [01/Jan/2026:00:00:00 -0000] "GET / HTTP/2" 304 - "-" "-"')
    assert (found.user, found.bytes, found.referrer, found.agent) == (None, 0, None, None)
    assert parse_line(LINE.replace(b"alice", b"al ice")).user == "al ice"


def test_a_request_that_is_no_http_is_a_line_all_the_same():
    """Servers log what they were sent."""
    found = parse_line(LINE.replace(b"GET /shop?q=1 HTTP/1.1", b"\\x16\\x03\\x01"))
    assert (found.method, found.path, found.protocol) == (None, "\\x16\\x03\\x01", None)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (b"", "empty line"),
        (b"   ", "empty line"),
        (b"hello", "ident"),
        (LINE[:-1], "agent"),
        (LINE + b" more", "end of line"),
        (LINE.replace(b" 200 ", b" two "), "status"),
        (LINE.replace(b"[21/Nov/2026", b"[31/Feb/2026"), "time"),
        (LINE.replace(b"Nov", b"Nox"), "time"),
        (LINE.replace(b" 512 ", b" -512 "), "bytes"),
        (LINE.replace(b'"GET', b"GET"), "request"),
    ],
)
def test_a_line_that_cannot_be_read_is_kept_with_its_first_wrong_field(line, wrong):
    """All of it, to the byte."""
    with pytest.raises(AccessLineError, match=wrong):
        parse_line(line)
    row = row_of("t/0", 7, line)
    assert (row[:3], row[-2:]) == (("t/0", 7, "bad"), (line, wrong))
    assert set(row[3:-2]) == {None}


@given(st.binary(max_size=200))
def test_no_line_ends_the_job(line):
    """Every line becomes a row, whatever bytes it is."""
    row = row_of("t/0", 0, line)
    assert len(row) == 15
    assert row[2] in {"good", "bad"}


LINES = st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b"")), max_size=20)


@given(LINES, st.data())
def test_ranges_of_a_file_have_every_line_once(tmp_path_factory, lines, data):
    """Wherever it is cut: a line belongs to the range in which it begins."""
    text = b"".join(line + b"\n" for line in lines)
    path = tmp_path_factory.mktemp("log") / "x.log"
    path.write_bytes(text)
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=4))})
    identity = new_parts([path], {})[0].identity if text else ""
    found = [entry for start, end in pairwise(cuts) for entry in lines_of(str(path), start, end, identity)]
    assert [line for _, line in found] == lines
    assert all(text[at : at + len(line) + 1] == line + b"\n" for at, line in found)


def test_a_file_that_grows_is_continued_and_a_rotated_one_is_not_loaded_again(tmp_path):
    """By its first line, not its name; a last line without an end waits."""
    path = tmp_path / "access.log"
    path.write_bytes(b"first\nsecond\nthi")
    (part,) = new_parts([path], {})
    assert (part.start, part.end) == (0, 13)
    positions = {part.identity: part.end}
    path.write_bytes(b"first\nsecond\nthird\n")
    (part,) = new_parts([path], positions)
    assert (part.start, part.end) == (13, 19)
    positions = {part.identity: part.end}
    rotated = path.rename(tmp_path / "access.log.1")
    path.write_bytes(b"another\n")
    old, new = new_parts([rotated, path], positions)
    assert (old.start, old.end) == (19, 19)
    assert (new.start, new.end) == (0, 8)


def test_files_that_cannot_be_continued_are_named(tmp_path):
    """Cut, twice the same, or not to be read; one without a complete line has nothing yet."""
    path, copy = tmp_path / "a.log", tmp_path / "b.log"
    path.write_bytes(b"first\n")
    copy.write_bytes(b"first\nsecond\n")
    (part,) = new_parts([copy], {})
    with pytest.raises(LogFileError, match="was cut"):
        new_parts([path], {part.identity: part.end})
    with pytest.raises(LogFileError, match="begin with the same line"):
        new_parts([path, copy], {})
    with pytest.raises(LogFileError, match=r"c\.log cannot be read"):
        new_parts([tmp_path / "c.log"], {})
    path.write_bytes(b"no end")
    assert new_parts([path], {}) == []


def test_a_large_file_is_divided_over_tasks(tmp_path, monkeypatch):
    """Without gap or overlap."""
    monkeypatch.setattr(log_files, "SPLIT_BYTES", 10)
    path = tmp_path / "a.log"
    path.write_bytes(b"line\n" * 5)
    (part,) = new_parts([path], {})
    assert [split[:3] for split in part.splits()] == [(str(path), 0, 10), (str(path), 10, 20), (str(path), 20, 25)]


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
@pytest.mark.parametrize("new", [b"other\nlines\nmore\n", b"first\n"])
def test_a_file_that_is_replaced_while_the_job_reads_it_ends_the_job(tmp_path, moment, new):
    """Renamed and created again before a task opens it, or cut in place; its lines would count as loaded."""
    path = tmp_path / "access.log"
    path.write_bytes(b"first\nsecond\n")
    (part,) = new_parts([path], {})
    lines = lines_of(*part.splits()[0])
    if moment == "before":
        path.rename(tmp_path / "access.log.1")
    else:
        assert next(lines) == (0, b"first")
    path.write_bytes(new)
    with pytest.raises(ReplacedFileError, match="run the job again"):
        list(lines)
