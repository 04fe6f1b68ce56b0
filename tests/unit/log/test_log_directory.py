"""Who owns a data directory, on the real file system (PROTOCOL H39, H40, H42)."""

from __future__ import annotations

import errno
import json

import pytest
from headrace.log import DataDirectory, DirectoryInUseError, DiskLimits, LogSettings, WrongDirectoryError
from headrace.log.checkpoint import read_sealed, seal
from headrace.log.errors import LogClosedError, storage_offline
from headrace.log.identity import read_identity
from headrace.log.os_filesystem import OsFileSystem
from headrace.wire.batch import read_header
from headrace.wire.columns import encode_batch
from headrace.wire.errors import InvalidConfigError, StorageFullError, StorageOfflineError

from tests.fakes.memory_filesystem import MemoryFileSystem

OWNER = {"cluster_id": "c", "generation": 1, "broker_id": 1, "new_storage_id": b"s" * 16}


def test_directory_opened_twice_is_refused(tmp_path):
    """flock: a second opener gets an error that names the directory, and may open it after the first closes."""
    first = DataDirectory.open(str(tmp_path / "data"), **OWNER)
    with pytest.raises(DirectoryInUseError, match="data"):
        DataDirectory.open(str(tmp_path / "data"), **OWNER)
    first.close(clean=True, broker_epoch=5)
    second = DataDirectory.open(str(tmp_path / "data"), **(OWNER | {"new_storage_id": b"t" * 16}))
    assert second.storage_id == b"s" * 16
    assert second.clean_broker_epoch == 5
    second.close(clean=False)
    third = DataDirectory.open(str(tmp_path / "data"), **OWNER)
    assert third.clean_broker_epoch is None
    third.close(clean=False)


@pytest.mark.parametrize("other", [{"cluster_id": "d"}, {"generation": 2}, {"broker_id": 2}])
def test_directory_of_another_is_refused_and_left_alone(tmp_path, other):
    """Another cluster, generation or broker: a clear error, and the owner can still open it."""
    DataDirectory.open(str(tmp_path / "data"), **OWNER).close(clean=True, broker_epoch=5)
    with pytest.raises(WrongDirectoryError, match=next(iter(other))):
        DataDirectory.open(str(tmp_path / "data"), **(OWNER | other))
    again = DataDirectory.open(str(tmp_path / "data"), **OWNER)
    assert again.clean_broker_epoch == 5
    again.close(clean=True)


def test_a_directory_continues_in_a_later_generation_that_names_it(tmp_path):
    """After a restore of etcd the new generation says which disks it counted: only these are taken over, for good."""
    path = str(tmp_path / "data")
    DataDirectory.open(path, **OWNER).close(clean=True, broker_epoch=5)
    later = OWNER | {"generation": 2}
    with pytest.raises(WrongDirectoryError, match="generation 2 began without it") as refused:
        DataDirectory.open(path, **later, adopts=b"another storage!")
    assert "empty data directory" in str(refused.value)
    DataDirectory.open(path, **later, adopts=OWNER["new_storage_id"]).close(clean=True)
    assert read_identity(path)["generation"] == 2
    with pytest.raises(WrongDirectoryError, match="generation 2, not 1"):
        DataDirectory.open(path, **OWNER, adopts=OWNER["new_storage_id"])


def test_a_directory_knows_whether_the_machine_was_started_anew(tmp_path):
    """Within one boot the kernel keeps what a killed process wrote; without a boot id that is not provable."""

    def opened(**boot):
        directory = DataDirectory.open(str(tmp_path / "data"), **OWNER, **boot)
        directory.note_boot()
        directory.close(clean=False)
        return directory.boot.same_boot

    assert [opened(boot_id="a"), opened(boot_id="a"), opened(boot_id="b"), opened(boot_id="b")] == [
        False,
        True,
        False,
        True,
    ]
    assert [opened(), opened(), opened(boot_id="b")] == [False, False, False]


def test_corrupt_identity_is_refused(tmp_path):
    """The broker does not guess the owner of the data."""
    DataDirectory.open(str(tmp_path / "data"), **OWNER).close(clean=True)
    (tmp_path / "data" / "identity").write_bytes(b"garbage")
    with pytest.raises(WrongDirectoryError, match="corrupt"):
        DataDirectory.open(str(tmp_path / "data"), **OWNER)


def test_a_log_is_created_reopened_and_deleted_on_a_real_disk(tmp_path):
    """Append, flush, read without waiting, restart, quarantine and delete, on the real file system."""
    directory = DataDirectory.open(str(tmp_path / "data"), **OWNER)
    log = directory.open_log(b"t" * 16, 7, LogSettings(segment_bytes=3_000))
    batch = encode_batch([b"x" * 100] * 10, base_timestamp_ms=1)
    for at_ms in range(10):
        log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=at_ms)
    assert log.flush() == 100
    with log.reader.read(55, 1 << 20, 100) as found:
        assert found.base_offset == 50
        data = found.read()
        assert found.try_read_nowait() in (None, data)
    directory.close(clean=True)
    directory = DataDirectory.open(str(tmp_path / "data"), **OWNER)
    assert [log_id.partition for log_id in directory.log_ids()] == [7]
    path = directory.quarantine_log(directory.log_ids()[0])
    assert path.endswith(".corrupt-0")
    assert directory.log_ids() == []
    directory.delete_log(directory.open_log(b"u" * 16, 0, LogSettings()))
    assert directory.log_ids() == []
    assert directory.remove_deleted() == 1
    assert not list((tmp_path / "data").glob("*.deleted*"))
    directory.close(clean=True)


def test_a_log_that_is_deleted_is_not_written_first():
    """Its records may be gigabytes that only the page cache has: the disk of other logs must not wait for them."""
    disk = MemoryFileSystem()
    directory = DataDirectory.open("/data", **OWNER, boot_id="b", filesystem=disk)
    log = directory.open_log(b"u" * 16, 0, LogSettings())
    batch = encode_batch([b"x" * 100], base_timestamp_ms=1)
    log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=1)
    before = disk.calls.copy()
    directory.delete_log(log)
    assert disk.calls["fsync"] == before["fsync"]
    assert disk.calls["pwritev"] == before["pwritev"]
    assert directory.log_ids() == []
    log.close()
    with pytest.raises(LogClosedError):
        log.append([(batch, read_header(batch))], leader_epoch=0, append_timestamp_ms=1)


@pytest.mark.parametrize("below", [False, True])
def test_data_dir_that_is_a_file_is_a_bad_setting(tmp_path, below):
    """The start ends with exit code 2 and names the file; it has no disk to repair."""
    file = tmp_path / "data"
    file.write_text("mine")
    with pytest.raises(InvalidConfigError, match="is not a directory") as caught:
        DataDirectory.open(str(file / "deeper" if below else file), **OWNER)
    assert "Set data_dir to a directory" in str(caught.value)
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "The broker runs as uid"),
        (errno.EPERM, "The broker runs as uid"),
        (errno.EROFS, "mounted read-only"),
        (errno.ENAMETOOLONG, "another path"),
    ],
)
@pytest.mark.parametrize("operation", ["make_directory", "open"])
def test_data_dir_that_is_not_permitted_is_a_bad_setting(number, advice, operation):
    """Each with its own next step; EACCES names who runs and whose the directory is."""
    disk = MemoryFileSystem()
    disk.fail(operation, number)
    with pytest.raises(InvalidConfigError, match=advice):
        DataDirectory.open("/data", **OWNER, filesystem=disk)


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, StorageFullError), (errno.EIO, StorageOfflineError)])
def test_data_dir_on_a_full_or_broken_disk_is_no_bad_setting(number, error):
    """A supervisor starts the broker again: with room it starts."""
    disk = MemoryFileSystem()
    disk.fail("open", number, suffix="identity.tmp")
    with pytest.raises(error):
        DataDirectory.open("/data", **OWNER, filesystem=disk)


def test_data_of_a_newer_release_name_the_release_to_start(tmp_path):
    """Not "an empty directory": the data are whole, and this release is too old for them."""
    DataDirectory.open(str(tmp_path), **OWNER).close(clean=True)
    identity = json.loads(read_sealed(OsFileSystem(), f"{tmp_path}/identity"))
    (tmp_path / "identity").write_bytes(seal(json.dumps(identity | {"format": 99}).encode()))
    with pytest.raises(WrongDirectoryError, match=r"written by a newer release. Start that release"):
        DataDirectory.open(str(tmp_path), **OWNER)


def test_a_volume_on_which_nothing_fits_says_so():
    """Smaller than the room that is kept free: appends could never succeed. Free and needed bytes are named."""
    limits = DiskLimits(reserve_bytes=1_000, refuse_below_bytes=100_000, resume_above_bytes=100_000)
    small = DataDirectory.open("/data", **OWNER, limits=limits, filesystem=MemoryFileSystem(101_000))
    assert "has 101000 bytes" in small.lacks_room()
    assert "101000: disk_refuse_below_bytes" in small.lacks_room()
    large = DataDirectory.open("/data", **OWNER, limits=limits, filesystem=MemoryFileSystem(200_000))
    assert large.lacks_room() == ""


@pytest.mark.parametrize(
    ("operation", "suffix", "call"),
    [
        ("list_directory", "", lambda directory, log, _: directory.log_ids()),
        ("list_directory", "", lambda directory, log, _: directory.remove_deleted()),
        ("space", "", lambda directory, log, _: directory.check_space()),
        ("make_directory", "-1", lambda directory, log, _: directory.open_log(b"u" * 16, 1, LogSettings())),
        ("rename", "", lambda directory, log, _: directory.delete_log(log)),
        ("pwritev", "", lambda directory, log, _: directory.become(b"v" * 16)),
        ("pwritev", "", lambda directory, log, _: directory.session.write(1, 1, 1)),
        ("pwritev", "", lambda directory, log, _: directory.note_boot()),
        ("open", "identity", lambda directory, log, disk: read_identity("/data", disk)),
    ],
)
def test_a_disk_that_fails_under_a_directory_is_named(operation, suffix, call):
    """Each call raises the storage's own error with the path, never a plain OSError."""
    disk = MemoryFileSystem()
    directory = DataDirectory.open("/data", **OWNER, boot_id="b", filesystem=disk)
    log = directory.open_log(b"u" * 16, 0, LogSettings())
    disk.fail(operation, errno.EIO, suffix=suffix)
    with pytest.raises(StorageOfflineError, match="/data"):
        call(directory, log, disk)


@pytest.mark.parametrize(
    ("number", "path", "advice"),
    [
        (errno.ENOENT, "/data/log", "A file was removed from the data directory"),
        (errno.EFBIG, "/data/log", "ulimit -f"),
        (errno.ELOOP, "/data/log", "Set data_dir to another path"),
        (errno.EACCES, "/data/log", "belongs to uid"),
        (errno.EIO, "/data/log", "restart"),
    ],
)
def test_a_disk_that_fails_says_what_to_do(number, path, advice):
    """The next step is that of the error, not one for all."""
    assert advice in str(storage_offline(path, OSError(number, "it failed", path)))
