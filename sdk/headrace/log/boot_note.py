"""Boot of the machine at the last write to a data directory: `<data_dir>/boot`, sealed JSON (PROTOCOL H31).

boot_id         id of that boot
incarnation     16 bytes in hexadecimal, drawn after the last reboot or I/O error

The file exists from the recovery of every log in that boot until an I/O error.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from headrace.log.checkpoint import read_sealed, replace_file, seal
from headrace.log.filesystem import FileSystem

FILE = "boot"


class BootNote:
    """Read at the start, which removes a note of another boot. `forget` may be called in any thread."""

    def __init__(self, filesystem: FileSystem, path: str, boot_id: str, new_incarnation: bytes) -> None:
        """Compare the file with the current boot; an empty `boot_id` equals no other. Raises OSError."""
        self._filesystem = filesystem
        self._path = path
        self._boot_id = boot_id
        payload = read_sealed(filesystem, f"{path}/{FILE}")
        noted = {"boot_id": "", "incarnation": ""} if payload is None else json.loads(payload)
        # Whether the machine has not rebooted since the last process: all its writes, flushed or not, are present.
        self.same_boot = bool(boot_id) and noted["boot_id"] == boot_id
        # Id of the period since the last reboot or I/O error; empty if the boot is unknown.
        self.incarnation = new_incarnation if boot_id else b""
        if self.same_boot:
            self.incarnation = bytes.fromhex(noted["incarnation"])
        elif filesystem.exists(f"{path}/{FILE}"):
            self._remove()

    def write(self) -> None:
        """Write the current boot, synced, if it is known and another one was recorded. Raises OSError."""
        if not self.same_boot and self._boot_id:
            note = json.dumps({"boot_id": self._boot_id, "incarnation": self.incarnation.hex()}).encode()
            replace_file(self._filesystem, self._path, FILE, seal(note))

    def forget(self) -> None:
        """Remove the note: after an I/O error the kernel may have dropped writes, so the next start scans all."""
        with suppress(OSError):  # It stays on a read-only disk: the leader checks a member that returns from there.
            self._remove()

    def _remove(self) -> None:
        self._filesystem.unlink(f"{self._path}/{FILE}")
        self._filesystem.fsync_directory(self._path)


def read_boot_id() -> str:
    """Return an id of the current boot of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
