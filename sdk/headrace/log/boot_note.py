"""The boot of the machine that wrote a data directory last: `<data_dir>/boot`, sealed JSON (PROTOCOL H31).

boot_id         names that boot
incarnation     16 bytes in hexadecimal, drawn after the last reboot or I/O error

The file is there once every log was recovered in that boot, and until an I/O error.
"""

from __future__ import annotations

import json
from contextlib import suppress

from headrace.log.checkpoint import read_sealed, replace_file, seal
from headrace.log.filesystem import FileSystem

FILE = "boot"


class BootNote:
    """Read at the start, when a note of another boot is removed. `forget` may be called in any thread."""

    def __init__(self, filesystem: FileSystem, path: str, boot_id: str, new_incarnation: bytes) -> None:
        """Compare the file with the current boot; an empty `boot_id` equals no other. Raises OSError."""
        self._filesystem = filesystem
        self._path = path
        self._boot_id = boot_id
        payload = read_sealed(filesystem, f"{path}/{FILE}")
        noted = {"boot_id": "", "incarnation": ""} if payload is None else json.loads(payload)
        # The machine has not rebooted since the last process: everything that process wrote, flushed or not, is there.
        self.same_boot = bool(boot_id) and noted["boot_id"] == boot_id
        # Names the period since the last reboot or I/O error; empty if the boot is not known.
        self.incarnation = new_incarnation if boot_id else b""
        if self.same_boot:
            self.incarnation = bytes.fromhex(noted["incarnation"])
        elif filesystem.exists(f"{path}/{FILE}"):
            self._remove()

    def write(self) -> None:
        """Note the current boot, synced, if it is known and another one was noted. Raises OSError."""
        if not self.same_boot and self._boot_id:
            note = json.dumps({"boot_id": self._boot_id, "incarnation": self.incarnation.hex()}).encode()
            replace_file(self._filesystem, self._path, FILE, seal(note))

    def forget(self) -> None:
        """Remove the note: after an I/O error the kernel may have dropped writes, so the next start scans all."""
        with suppress(
            OSError
        ):  # It stays on a disk that takes no writes: its leader checks a member that returns on it.
            self._remove()

    def _remove(self) -> None:
        self._filesystem.unlink(f"{self._path}/{FILE}")
        self._filesystem.fsync_directory(self._path)
