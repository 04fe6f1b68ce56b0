"""The command `headrace-broker export-log-state`: the log ends on the disk of a stopped broker.

`headrace-coordinator recover-metadata` reads its output. The command locks the data directory, recovers and flushes the
logs as a start does, and reports the end of each. It can be repeated, and does not need etcd.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from headrace.log.boot_note import read_boot_id
from headrace.log.directory import DataDirectory, LogId
from headrace.log.errors import CorruptLogError
from headrace.log.filesystem import FileSystem
from headrace.log.identity import read_identity
from headrace.log.settings import LogSettings

from headrace_broker.settings import BrokerSettings

FORMAT_VERSION = 1


def export_log_state(settings: BrokerSettings) -> dict[str, Any]:
    """Return the state of every log below `data_dir`.

    Raises:
        DirectoryInUseError: If the broker runs.
        WrongDirectoryError: If the directory belongs to another broker, or its identity is unreadable.
        StorageOfflineError: If the disk fails.
    """
    return look_at(settings.data_dir, settings.broker_id, boot_id=read_boot_id())


def look_at(data_dir: str, broker_id: int, *, boot_id: str, filesystem: FileSystem | None = None) -> dict[str, Any]:
    """Return as `export_log_state`, with the machine's `boot_id` as an argument."""
    identity = read_identity(data_dir, filesystem)
    directory = DataDirectory.open(
        data_dir,
        cluster_id=identity["cluster_id"],
        generation=identity["generation"],
        broker_id=broker_id,
        new_storage_id=secrets.token_bytes(16),
        boot_id=boot_id,
        filesystem=filesystem,
    )
    whole = directory.clean_broker_epoch is not None
    try:
        logs = [_describe(directory, log_id) for log_id in directory.log_ids()]
        if not any("corruption" in log for log in logs):
            directory.note_boot()
    finally:
        directory.close(clean=whole)
    return {
        "format": FORMAT_VERSION,
        "cluster_id": identity["cluster_id"],
        "generation": identity["generation"],
        "broker_id": broker_id,
        "storage_id": directory.storage_id.hex(),
        "storage_incarnation": directory.boot.incarnation.hex(),
        "directory_version": directory.session.version,
        "logs": logs,
    }


def as_text(log_state: dict[str, Any]) -> str:
    """Return JSON with one line per log, so that two exports can be compared by eye."""
    head = {name: value for name, value in log_state.items() if name != "logs"}
    lines = ",\n".join(f"    {json.dumps(log)}" for log in log_state["logs"])
    return json.dumps(head, indent=2)[:-2] + f',\n  "logs": [\n{lines}\n  ]\n}}'


def _describe(directory: DataDirectory, log_id: LogId) -> dict[str, Any]:
    where: dict[str, Any] = {"topic_id": log_id.topic_id.hex(), "partition": log_id.partition}
    try:
        log = directory.open_log(log_id.topic_id, log_id.partition, LogSettings())
    except CorruptLogError as error:
        return {**where, "corruption": str(error)}
    end = log.end
    try:
        return {
            **where,
            "log_start_offset": log.log_start_offset,
            "log_end_offset": end.offset,
            "last_batch_epoch": end.epoch,
            "last_crc": end.crc,
            "last_epoch": log.last_epoch,
        }
    finally:
        directory.close_log(log)
