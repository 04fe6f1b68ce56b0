"""A `KeySource` whose keys a test writes, for the tests of views of the metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace_server.metastore.api import KeyValue


class WrittenKeys:
    """Keys in a dictionary, that change one revision at a time."""

    def __init__(self) -> None:
        self.revision = 1
        self.key_values: dict[str, KeyValue] = {}
        self.callbacks: list[Callable[[int, Sequence[str]], None]] = []

    def age_ms(self) -> int:
        """Five."""
        return 5

    def get(self, key: str) -> KeyValue | None:
        """See `KeySource`."""
        return self.key_values.get(key)

    def items(self, prefix: str) -> list[KeyValue]:
        """See `KeySource`."""
        return [self.key_values[key] for key in sorted(self.key_values) if key.startswith(prefix)]

    def subscribe(self, callback: Callable[[int, Sequence[str]], None]) -> Callable[[], None]:
        """See `KeySource`."""
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def write(self, changes: Mapping[str, bytes | None]) -> None:
        """One revision: values put keys, `None` deletes them."""
        self.revision += 1
        for key, value in changes.items():
            if value is None:
                del self.key_values[key]
            else:
                before = self.key_values.get(key)
                created = before.create_revision if before else self.revision
                self.key_values[key] = KeyValue(key, value, created, self.revision, 1, 0)
        for callback in self.callbacks:
            callback(self.revision, list(changes))
