"""Three replicas of a partition that each compacts by itself; see `three_replicas`.

Records have keys, and a null value deletes one. What may not be lost is the newest committed record of each key, and
what may not come back is a deleted one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from headrace.log import LogSettings
from headrace.log.record_selection import Kept
from headrace.wire.batch import iter_batches, read_header
from headrace.wire.columns import decode_batch
from headrace.wire.encoding import encode_batch
from headrace.wire.ids import Offset
from headrace_broker.core.messages import Appended

from tests.unit.broker.three_replicas import Node, ThreeReplicas

START_MS = 1_700_000_000_000
DELETE_RETENTION_MS = 5_000


class Row(NamedTuple):
    """One record of a log."""

    offset: int
    epoch: int
    key: bytes
    value: bytes | None


class CompactedNode(Node):
    """One broker's replica of a compacted partition."""

    partition: CompactedReplicas
    _read_state: object = None
    _read_rows: Sequence[Row] = ()

    def produce(self, records: int = 1, *, producer: tuple[int, int, int] = (-1, -1, -1), token: int = -1) -> int:
        """Append one batch of new values of some keys as the leader; its base offset."""
        partition, replica = self.partition, self.replica
        partition.made += 1
        chance = random.Random(partition.made)
        keys = [b"k%d" % chance.randrange(partition.keys) for _ in range(records)]
        values = [None if chance.random() < 0.3 else b"v%d-%d" % (partition.made, row) for row in range(records)]
        at_ms = START_MS + partition.at_ms
        batch = encode_batch(values, keys, base_timestamp_ms=at_ms)
        replica.check_leading(-1)
        base = self.log.append(
            [(batch, read_header(batch))], leader_epoch=replica.leader_epoch, append_timestamp_ms=at_ms
        )
        self.handle(Appended(base, Offset(base + records), at_ms=at_ms))
        return base

    def compact(self) -> None:
        """Compact what is committed, and roll what is not, so that the next time has more to do."""
        if self.log._segments.active.size_bytes > 300:
            self.log._writer.roll()
        self.flush()
        chance, start = random.Random(self.partition.made), self.log.log_start_offset
        headers = self.log.reader.headers(start) if start < self.log.log_end_offset else ()
        sent_again = frozenset(header.base_offset for header in headers if chance.random() < 0.05)
        now_ms = START_MS + self.partition.at_ms
        self.log.compaction.compact(now_ms, self.replica.high_watermark, Kept(sent_again, 20_000))

    def rows(self) -> Sequence[Row]:
        """All records of the log; read again where it has changed."""
        log, found = self.log, []
        state = log, log.log_start_offset, [(each.path, each.size_bytes, each.cuts) for each in log._segments.items]
        if state == self._read_state:
            return self._read_rows
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            with log.reader.read(offset, 1 << 20, log.log_end_offset) as part:
                for header, batch in iter_batches(part.read()):
                    columns = decode_batch(bytes(batch), max_payload_bytes=1 << 20)
                    for each, key, value in zip(columns.offsets(), columns.keys(), columns.values(), strict=True):
                        assert key is not None
                        found.append(Row(each, header.leader_epoch, key, value))
                offset = part.end_offset
        self._read_state, self._read_rows = state, found
        return found

    def chain(self) -> dict[tuple[int, int], int]:
        """Chain value by the end and the epoch of each batch."""
        start = self.log.log_start_offset
        headers = self.log.reader.headers(start) if start < self.log.log_end_offset else ()
        return {(header.end_offset, header.leader_epoch): header.chain_crc for header in headers}


class CompactedReplicas(ThreeReplicas):
    """The partition, and the records that were ever committed."""

    settings = LogSettings(
        segment_bytes=600, index_interval_bytes=300, compacts=True, delete_retention_ms=DELETE_RETENTION_MS
    )
    node_type = CompactedNode
    keys = 6

    def __init__(self, *, durable: bool = True, min_insync_replicas: int = 2) -> None:
        self.committed_rows: dict[int, Row] = {}
        super().__init__(durable=durable, min_insync_replicas=min_insync_replicas)

    def note_committed(self, node: Node) -> None:
        """A high watermark has risen: what is below it is final."""
        assert isinstance(node, CompactedNode)
        if node.replica.leadership is None or node.replica.leader_epoch < self.state.unclean_epoch:
            return
        for row in node.rows():
            if row.offset < node.replica.high_watermark:
                assert self.committed_rows.setdefault(row.offset, row) == row, f"I1: {node.broker_id} committed {row}"

    def _give_up_what_is_lost(self, leader: Node) -> None:
        assert isinstance(leader, CompactedNode)
        self.committed_rows = {row.offset: row for row in leader.rows() if row.offset in self.committed_rows}

    def newest(self) -> dict[bytes, Row]:
        """The newest committed record of each key."""
        return {row.key: row for _, row in sorted(self.committed_rows.items())}

    def _check_complete(self, node: Node, which: str) -> None:
        assert isinstance(node, CompactedNode)
        rows = node.rows()
        there = {row.offset: row for row in rows}
        for row in self.newest().values():
            if row.offset < node.log.log_start_offset:
                continue
            if row.value is not None or row.offset in there:
                assert there.get(row.offset) == row, f"{which}: broker {node.broker_id} lacks {row}"
            else:
                older = [each for each in rows if each.key == row.key and each.offset < row.offset]
                assert not older, f"{which}: broker {node.broker_id} has {older} again, deleted by {row}"

    def check(self) -> None:
        """As `ThreeReplicas.check`, for records instead of batches."""
        for node in self.nodes.values():
            assert isinstance(node, CompactedNode)
            node.replica.validate_state()
            self._check_epochs(node)
            if node.replica.leadership is not None and node.replica.leader_epoch == self.state.leader_epoch:
                self._check_complete(node, "I2")
        for entry in (*self.state.in_sync, *self.state.eligible_leaders):
            if self.is_live(entry):
                self._check_complete(self.nodes[entry.broker_id], "I3")
        for one, other in ((1, 2), (1, 3), (2, 3)):
            first, second = self.nodes[one].chain(), self.nodes[other].chain()
            for end in first.keys() & second.keys():
                assert first[end] == second[end], f"I7: brokers {one} and {other} differ up to {end}"

    def _check_epochs(self, node: CompactedNode) -> None:
        log = node.log
        starts: dict[int, int] = {}
        for batch in node.batches():
            starts.setdefault(batch.leader_epoch, max(batch.base_offset, log.log_start_offset))
        history = [(int(epoch), int(start)) for epoch, start in log.epochs() if start < log.log_end_offset]
        assert history == list(starts.items()), "I6: the epoch history is what a scan gives"
