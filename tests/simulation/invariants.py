"""The invariants of docs/protocols/rules.md (I1 to I20), as the simulator sees all replicas, all disks and all of etcd.

Beside each real log stands a shadow: its batches as (offsets, epoch, crc) with a running digest, so that "has this
prefix" is one look-up. After each event the replicas that it touched are checked, every hundredth everything is, disks
read anew. Nothing here asks the core what is right; its own `validate_state` is called beside.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import google_crc32c
from headrace.wire.batch import BatchHeader, iter_batches, sequence_after
from headrace.wire.crc import ReadableBuffer
from headrace_broker.core.replica import Role
from headrace_broker.core.replica_fetch import FetchRequest
from headrace_server.keys import LiveKey, PartitionKey
from headrace_server.metastore.api import PutEvent, WatchEvent
from headrace_server.partition_state import PartitionState, Replica, decode

from tests.simulation.shadows import Entry, Partition, Shadow
from tests.simulation.world import SimulationError

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.cluster import Cluster
    from tests.simulation.host import Host


class Checks:
    """The invariants, and what they remember."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.partitions: dict[int, Partition] = {number: Partition() for number in cluster.partitions}
        self._touched: dict[tuple[int, int], Host] = {}
        self._broker_epochs: dict[int, int] = {}
        self._controller_epoch = 0
        cluster.etcd.store.on_commit.append(self._on_commit)
        cluster.etcd.on_controlled_write = self._on_controlled_write

    # --- what the hosts report ---

    def touched(self, host: Host) -> None:
        """An event reached this replica: look at it once the event is over."""
        self._touched[(host.partition, host.broker.broker_id)] = host

    def opened(self, host: Host) -> None:
        """A log was opened: what is on the disk is what there is."""
        shadow = self._shadow(host)
        before = Shadow(shadow.broker_id, start=shadow.start, bases=shadow.bases, entries=shadow.entries)
        before.flushed, before.certain = shadow.flushed, shadow.certain
        if shadow.damaged:
            shadow.cut(int(host.log.log_end_offset))
        else:
            with host.broker.node.sound_disk():
                self._read(host, shadow)
        shadow.host, shadow.certain = host, True
        if host.replica.flushed_only and not shadow.damaged and before.flushed > shadow.end:
            raise SimulationError("I16", f"{_name(host)} had fsynced up to {before.flushed} and holds {shadow.end}")
        if before.certain and before.end != shadow.end and before.entries:
            raise SimulationError("I15", f"{_name(host)} ended at {before.end} and was opened with {shadow.end}")
        shadow.flushed = max(int(host.log.flushed_offset), min(before.flushed, shadow.end))
        self.touched(host)

    def _read(self, host: Host, shadow: Shadow) -> None:
        """Take the shadow from the disk."""
        log = host.log
        shadow.bases, shadow.entries, shadow.start = [], [], int(log.log_start_offset)
        for header in log.headers(shadow.start) if shadow.start < log.log_end_offset else ():
            if not shadow.entries:
                shadow.start = min(shadow.start, header.base_offset)
            self._add(host, shadow, header, header.base_offset, header.leader_epoch)
        if not shadow.entries:
            shadow.start = int(log.log_end_offset)

    def appended(self, host: Host, header: BatchHeader, base: int, epoch: int) -> None:
        """One batch was written at the log's end."""
        shadow = self._shadow(host)
        if base != shadow.end:
            raise SimulationError("I6", f"{_name(host)} appends at {base} and ends at {shadow.end}")
        if shadow.entries and epoch < shadow.entries[-1].epoch:
            raise SimulationError("I6", f"{_name(host)} appends epoch {epoch} after {shadow.entries[-1].epoch}")
        self._add(host, shadow, header, base, epoch)

    def _add(self, host: Host, shadow: Shadow, header: BatchHeader, base: int, epoch: int) -> None:
        partition = self.partitions[host.partition]
        known = partition.digests.get((base, epoch))
        if shadow.entries or base == 0:
            before = shadow.entries[-1].digest if shadow.entries else 0
            digest = zlib.crc32(b"%d %d %d" % (base, epoch, header.crc), before)
        elif known is not None:
            digest = known[1]
        elif partition.committed.entries and partition.committed.end == base:  # Retention took all there was.
            before = partition.committed.entries[-1].digest
            digest = zlib.crc32(b"%d %d %d" % (base, epoch, header.crc), before)
        else:
            raise SimulationError("I7", f"{_name(host)} starts at {base} with a batch that nobody has")
        if known is None:
            partition.digests[(base, epoch)] = header.crc, digest
        elif known != (header.crc, digest):
            raise SimulationError("I7", f"{_name(host)} has another log up to {base} of epoch {epoch} than others had")
        end = base + header.record_count
        entry = Entry(
            base, end, epoch, header.crc, header.producer_id, header.producer_epoch, header.base_sequence, digest
        )
        shadow.add(entry)

    def accepted(self, host: Host, batches: ReadableBuffer) -> None:
        """A follower took these bytes from its leader: none of them is damaged (I17)."""
        for header, view in iter_batches(batches):
            if google_crc32c.value(bytes(view[36:])) != header.crc:
                raise SimulationError("I17", f"{_name(host)} accepts a damaged batch at {header.base_offset}")

    def cut(self, host: Host, end: int) -> None:
        """The log was truncated; the core hears of it next."""
        shadow = self._shadow(host)
        shadow.cut(end)
        shadow.flushed, shadow.certain = min(shadow.flushed, end), True
        if shadow.end != end:
            raise SimulationError("I6", f"{_name(host)} cut to {end}, inside a batch")
        partition = self.partitions[host.partition]
        if end < host.replica.high_watermark and not partition.unclean:
            raise SimulationError(
                "I18", f"{_name(host)} cut to {end}, below its high watermark {host.replica.high_watermark}"
            )

    def started_over(self, host: Host, offset: int) -> None:
        """The log was thrown away and begins at `offset`."""
        shadow = self._shadow(host)
        shadow.bases.clear()
        shadow.entries.clear()
        shadow.start = shadow.flushed = offset
        shadow.certain = True
        if offset < host.replica.high_watermark and not self.partitions[host.partition].unclean:
            raise SimulationError("I18", f"{_name(host)} starts over at {offset}, below its high watermark")

    def shortens(self, host: Host, end: int) -> None:
        """The log is about to be cut to `end` or to start over: should it die in that, what lies behind is open."""
        shadow = self._shadow(host)
        shadow.flushed, shadow.certain = min(shadow.flushed, end), False

    def failed(self, host: Host) -> None:
        """A log met an I/O error: what was not fsynced may be gone from the page cache."""
        self._shadow(host).certain = False

    def set_aside(self, broker_id: int, number: int) -> None:
        """A log was quarantined or deleted: there is none."""
        self.partitions[number].replicas.pop(broker_id, None)
        self._touched.pop((number, broker_id), None)

    def damaged(self, broker_id: int, number: int) -> None:
        """The simulator damages this log now."""
        shadow = self.partitions[number].replicas.get(broker_id)
        if shadow is not None:
            shadow.damaged = True

    def died(self, broker: Broker, *, certain: bool) -> None:
        """A process died: its logs are what their disk kept; `certain`: all that was written."""
        for number, partition in self.partitions.items():
            self._touched.pop((number, broker.broker_id), None)
            shadow = partition.replicas.get(broker.broker_id)
            if shadow is not None:
                shadow.host, shadow.certain = None, certain and shadow.certain

    def stopped(self, broker: Broker) -> None:
        """A process closed its logs in order: all of them is fsynced."""
        for number, host in broker.hosts.items():
            shadow = self.partitions[number].replicas[broker.broker_id]
            if shadow.host is host and host.replica.role is not Role.OFFLINE:
                shadow.host, shadow.flushed = None, shadow.end

    def leads(self, host: Host) -> None:
        """It begins to lead: it has everything (I2), by its own election (I5, I12)."""
        shadow = self._shadow(host)
        shadow.acknowledged.clear()
        shadow.high_watermark = host.replica.high_watermark
        if host.replica.flushed_only and host.log.flushed_offset < shadow.end:
            raise SimulationError("I2", f"{_name(host)} leads before its log is fsynced")

    def _give_up(self, number: int, partition: Partition, leader: Replica) -> None:
        """After an unclean election committed is what the leader has (H21)."""
        if not partition.unclean:
            raise SimulationError("H21", f"p{number}: {leader} is elected uncleanly and nobody asked for it")
        shadow, committed = partition.replicas[leader.broker_id], partition.committed
        while committed.entries and shadow.find(committed.entries[-1].base) != committed.entries[-1]:
            gone = committed.entries[-1]
            if gone.end <= shadow.start:
                break
            partition.lost.append((gone.base, gone.end))
            committed.cut(gone.base)
        partition.sequences.clear()
        for entry in committed.entries:
            if entry.producer_id >= 0:
                after = sequence_after(entry.sequence, entry.end - entry.base)
                partition.sequences[entry.producer_id] = entry.producer_epoch, after

    def unclean_allowed(self, number: int) -> None:
        """An administrator accepts the loss of records."""
        self.partitions[number].unclean = True

    def fetched(self, host: Host, request: FetchRequest) -> None:
        """A leader took note of what a follower has."""
        self._shadow(host).acknowledged[request.follower] = request.offset, request.durable_offset
        follower = self.partitions[host.partition].replicas.get(request.follower.broker_id)
        mine = self._shadow(host)
        if request.leader_epoch != host.replica.leader_epoch:
            raise SimulationError("I8", f"{_name(host)} counts a fetch of epoch {request.leader_epoch} (H4)")
        if request.offset > mine.end:
            raise SimulationError("I7", f"{_name(host)} takes a follower at {request.offset} beyond its end {mine.end}")
        if follower is not None:
            follower.flushed = max(follower.flushed, min(request.durable_offset, follower.end))

    def advanced(self, host: Host) -> None:
        """A high watermark rose: at a leader this is what makes records committed (I1, I8, I9)."""
        replica, shadow = host.replica, self._shadow(host)
        partition = self.partitions[host.partition]
        high_watermark = int(replica.high_watermark)
        if replica.leader_epoch < partition.unclean_epoch:
            partition.lost.append((max(0, shadow.high_watermark), high_watermark))  # By a leader that was given up.
        elif replica.role is Role.LEADING:
            self._check_rise(host, shadow, high_watermark)
            self._commit(host, shadow, partition, high_watermark)
        elif not partition.unclean and high_watermark > partition.committed.end:
            raise SimulationError(
                "I8", f"{_name(host)} follows with {high_watermark}, committed is {partition.committed.end}"
            )

    def _check_rise(self, host: Host, shadow: Shadow, high_watermark: int) -> None:
        replica = host.replica
        state = replica.state
        assert state is not None
        if high_watermark < shadow.high_watermark:
            raise SimulationError("I8", f"{_name(host)}: the high watermark fell to {high_watermark}")
        shadow.high_watermark = high_watermark
        if len(state.in_sync) < state.min_insync_replicas:
            raise SimulationError("I8", f"{_name(host)}: the high watermark rose with {len(state.in_sync)} in sync")
        me = Replica(host.broker.broker_id, replica.broker_epoch)
        for member in (*state.in_sync, *replica.proposals.members()):
            if member != me and shadow.acknowledged.get(member, (0, 0))[replica.flushed_only] < high_watermark:
                raise SimulationError(
                    "I8", f"{_name(host)}: high watermark {high_watermark}, {member} has acknowledged less"
                )
        if replica.flushed_only and host.log.flushed_offset < high_watermark:
            raise SimulationError("I9", f"{_name(host)}: high watermark {high_watermark} beyond its own fsync")

    def _commit(self, host: Host, shadow: Shadow, partition: Partition, high_watermark: int) -> None:
        """Extend what is committed by this leader's log, which must have all of it as it is."""
        committed = partition.committed
        last = committed.entries[-1] if committed.entries else None
        if last is not None and last.end <= high_watermark and last.base >= shadow.start:
            found = shadow.find(last.base)
            if found is None or found.digest != last.digest:
                raise SimulationError("I1", f"{_name(host)} has something else than what was committed at {last.base}")
        at = bisect_left(shadow.bases, committed.end)
        for entry in shadow.entries[at:]:
            if entry.end > high_watermark:
                break
            committed.add(entry)
            self._check_sequence(host, partition, entry)

    def _check_sequence(self, host: Host, partition: Partition, entry: Entry) -> None:
        if entry.producer_id < 0:
            return
        epoch, wanted = partition.sequences.get(entry.producer_id, (-1, 0))
        if entry.producer_epoch > epoch:
            wanted = 0
        if entry.sequence == 0 and 0 < partition.ends.get(entry.producer_id, 0) <= self._cluster.log_start(
            host.partition
        ):
            wanted = 0  # All that it had sent was deleted: a replica that began behind that does not know it (H49).
            self._cluster.world.count("producers forgotten with their records")
        if entry.producer_epoch < epoch or entry.sequence != wanted:
            raise SimulationError(
                "I20",
                f"{_name(host)} commits sequence {entry.sequence} of producer {entry.producer_id} epoch "
                f"{entry.producer_epoch} at {entry.base}, after epoch {epoch} expecting {wanted}",
            )
        partition.sequences[entry.producer_id] = entry.producer_epoch, wanted + entry.end - entry.base
        partition.ends[entry.producer_id] = entry.end

    def acknowledged(self, host: Host, base: int, end: int) -> None:
        """A produce was answered (I9)."""
        shadow, partition = self._shadow(host), self.partitions[host.partition]
        committed = partition.committed
        if host.replica.leader_epoch < partition.unclean_epoch:
            return
        if host.replica.high_watermark < end or (base >= 0 and committed.end < end):
            raise SimulationError("I9", f"{_name(host)} acknowledges {end} before it is committed")
        if base >= shadow.start and shadow.end < end:
            raise SimulationError("I9", f"{_name(host)} acknowledges {base} to {end}, which it does not have")

    # --- what etcd does ---

    def _on_commit(self, revision: int, events: Sequence[WatchEvent]) -> None:
        keyspace = self._cluster.keyspace
        for event in events:
            if not isinstance(event, PutEvent):
                continue
            key_value = event.key_value
            match keyspace.parse(key_value.key):
                case PartitionKey(_, number):
                    self._check_write(number, decode(key_value.value))
                case LiveKey(broker_id) if key_value.version == 1:
                    if self._broker_epochs.get(broker_id, 0) >= key_value.create_revision:
                        raise SimulationError("I13", f"broker epoch {key_value.create_revision} of b{broker_id}")
                    self._broker_epochs[broker_id] = key_value.create_revision
        controller = self._cluster.etcd.store.now(keyspace.controller())
        if controller is not None:
            self._controller_epoch = max(self._controller_epoch, controller.create_revision)

    def _on_controlled_write(self, epoch: int) -> None:
        if epoch < self._controller_epoch:
            raise SimulationError("I14", f"controller {epoch} wrote after {self._controller_epoch} was elected")

    def _check_write(self, number: int, after: PartitionState) -> None:
        """One write of a partition's key (I5, I11, I12)."""
        partition = self.partitions[number]
        before, partition.state = partition.state, after
        members = [entry.broker_id for entry in (*after.in_sync, *after.eligible_leaders)]
        if (
            (after.leader is not None and after.leader not in after.in_sync)
            or len(set(members)) != len(members)
            or not set(members) <= set(after.replicas)
            or (len(after.in_sync) >= after.min_insync_replicas and after.eligible_leaders)
        ):
            raise SimulationError("I11", f"p{number}: {after}")
        if before is not None:
            if after.unclean_epoch != before.unclean_epoch and after.leader is not None:
                partition.unclean_epoch = after.unclean_epoch
                self._give_up(number, partition, after.leader)
            rises = after.leader_epoch == before.leader_epoch + (after.leader != before.leader)
            if not rises or after.partition_epoch != before.partition_epoch + 1:
                raise SimulationError("I11", f"p{number}: {after} after {before}")
            self._check_sessions(number, before, after)
        if after.leader is not None:
            elected = partition.sessions.setdefault(after.leader_epoch, after.leader)
            if elected != after.leader:
                raise SimulationError("I5", f"p{number}: epoch {after.leader_epoch} belongs to {elected}: {after}")
        self.check_members(number)

    def _check_sessions(self, number: int, before: PartitionState, after: PartitionState) -> None:
        known = (*before.in_sync, *before.eligible_leaders)
        named = [entry for entry in (*after.in_sync, *after.eligible_leaders) if entry not in known]
        if after.leader is not None and after.leader != before.leader:
            named.append(after.leader)
        for entry in named:
            if not self._is_registered(entry):
                raise SimulationError("I12", f"p{number}: {entry} is named and not registered")

    def _is_registered(self, entry: Replica) -> bool:
        found = self._cluster.etcd.store.now(self._cluster.keyspace.live(entry.broker_id))
        return found is not None and found.create_revision == entry.broker_epoch

    def check_members(self, number: int) -> None:
        """Every registered member of the key's sets has all that is committed (I3)."""
        partition = self.partitions[number]
        state = partition.state
        if state is None:
            return
        for entry in (*state.in_sync, *state.eligible_leaders):
            shadow = partition.replicas.get(entry.broker_id)
            host = None if shadow is None else shadow.host
            if shadow is None or host is None or shadow.damaged or host.replica.broker_epoch != entry.broker_epoch:
                continue
            if host.replica.role is not Role.OFFLINE and self._is_registered(entry):
                self._check_prefix("I3", partition, shadow, f"b{entry.broker_id} p{number} is a member")

    def _check_prefix(self, name: str, partition: Partition, shadow: Shadow, who: str) -> None:
        committed = partition.committed
        if not committed.entries:
            return
        last = committed.entries[-1]
        if last.end <= shadow.start:
            return  # All of it was removed by retention.
        found = shadow.find(last.base)
        if found is None or found.digest != last.digest:
            raise SimulationError(
                name, f"{who} and ends at {shadow.end} without what is committed up to {committed.end}"
            )

    # --- after events ---

    def after_event(self) -> None:
        """Check the replicas that the event touched."""
        if not self._touched:
            return
        numbers: dict[int, None] = {}
        for host in self._touched.values():
            self._check_replica(host)
            numbers[host.partition] = None
        self._touched.clear()
        for number in numbers:
            self.check_members(number)

    def _check_replica(self, host: Host) -> None:
        replica = host.replica
        if replica.role in (Role.OFFLINE, Role.DELETED):
            return
        shadow, partition = self._shadow(host), self.partitions[host.partition]
        if not shadow.damaged:  # Rot below the headers' own checksum may have reached the producers' windows.
            replica.validate_state()
        if not replica.log_end_offset == host.log.log_end_offset == shadow.end:
            ends = replica.log_end_offset, host.log.log_end_offset, shadow.end
            raise SimulationError("I6", f"{_name(host)}: core, log and batches end at {ends}")
        if not 0 <= replica.log_start_offset <= replica.high_watermark <= replica.log_end_offset:
            raise SimulationError("I8", f"{_name(host)}: {replica.log_start_offset}, {replica.high_watermark}")
        if replica.flushed_offset > host.log.flushed_offset:
            raise SimulationError("I9", f"{_name(host)}: the core counts {replica.flushed_offset} as fsynced")
        shadow.flushed = max(shadow.flushed, replica.flushed_offset)
        if replica.role is not Role.LEADING:
            return
        me = Replica(host.broker.broker_id, replica.broker_epoch)
        if partition.sessions.get(replica.leader_epoch) != me:
            raise SimulationError("I12", f"{_name(host)} leads epoch {replica.leader_epoch} unelected")
        state, seen = partition.state, replica.state
        assert state is not None
        assert seen is not None
        if replica.leader_epoch != state.leader_epoch:
            return
        if not shadow.damaged:
            self._check_prefix("I2", partition, shadow, f"{_name(host)} leads")
        if len(seen.in_sync) >= seen.min_insync_replicas:
            # A later session of a member that kept all its data stands for it, before the leader hears of it.
            maximal = [entry.broker_id for entry in (*seen.in_sync, *replica.proposals.members())]
            for entry in (*state.in_sync, *state.eligible_leaders):
                if entry.broker_id not in maximal:
                    raise SimulationError("I4", f"{_name(host)} does not count {entry}, which the key names")

    def check_all(self) -> None:
        """Check everything: disks against shadows, epochs, caches, and that nothing committed is on no disk."""
        for number, partition in self.partitions.items():
            for shadow in partition.replicas.values():
                if shadow.host is not None and shadow.host.replica.role is not Role.OFFLINE and not shadow.damaged:
                    with shadow.host.broker.node.sound_disk():
                        self._check_disk(shadow.host, shadow)
            self.check_members(number)
            self._check_kept(number, partition)
        if not self._cluster.plan.buggy_etcd:
            self._check_views()

    def _check_disk(self, host: Host, shadow: Shadow) -> None:
        log = host.log
        if log.offline:
            return
        if log.log_start_offset < log.log_end_offset:
            log.verify()
        read = Shadow(shadow.broker_id)
        self._read(host, read)
        self._check_bytes(host)
        mine = shadow.entries[len(shadow.entries) - len(read.entries) :]
        if read.entries != mine or read.end != shadow.end:
            raise SimulationError("I6", f"{_name(host)}: the disk does not hold what was written")
        first = read.entries[0].base if read.entries else 0
        starts: list[tuple[int, int]] = []
        for entry in read.entries:
            if not starts or starts[-1][0] != entry.epoch:
                starts.append((entry.epoch, entry.base))
        held = [(int(epoch), int(start)) for epoch, start in log.epochs()]
        # Epochs that nothing was appended in stand in the history too; the log start may lie inside the first batch.
        if not set(starts[1:]) <= set(held) or held != sorted(set(held)):
            raise SimulationError("I6", f"{_name(host)}: epochs {held}, a scan from {first} gives {starts}")

    def _check_bytes(self, host: Host) -> None:
        """The payloads are what their headers say, by a checksum that the code under test did not compute (I17)."""
        log, offset = host.log, int(host.log.log_start_offset)
        while offset < log.log_end_offset:
            with log.read(offset, 1 << 20, log.log_end_offset) as found:
                for header, view in iter_batches(found.read()):
                    if google_crc32c.value(bytes(view[36:])) != header.crc:
                        raise SimulationError("I17", f"{_name(host)}: the batch at {header.base_offset} is damaged")
                offset = found.end_offset

    def _check_kept(self, number: int, partition: Partition) -> None:
        committed = partition.committed
        if not committed.entries or partition.unclean:
            return
        last = committed.entries[-1]
        for shadow in partition.replicas.values():
            found = shadow.find(last.base)
            has_it = last.end <= shadow.start or (found is not None and found.digest == last.digest)
            if has_it and not shadow.damaged and (shadow.certain or shadow.flushed >= last.end):
                return
        raise SimulationError("I15", f"p{number}: no disk holds what is committed up to {committed.end}")

    def _check_views(self) -> None:
        """A cache at revision r is etcd at r (I19)."""
        store, prefix = self._cluster.etcd.store, self._cluster.keyspace.prefix
        for process, metadata in self._cluster.caches():
            source = metadata.source
            seen = {each.key: each for each in source.items(prefix)}
            true = {each.key: each for each in store.range_at(prefix, source.revision).key_values}
            wrong = [key for key in sorted({*seen, *true}) if seen.get(key) != true.get(key)]
            if source.revision and wrong:
                raise SimulationError("I19", f"{process.name} at revision {source.revision} is wrong about {wrong}")

    def _shadow(self, host: Host) -> Shadow:
        replicas = self.partitions[host.partition].replicas
        shadow = replicas.get(host.broker.broker_id)
        if shadow is None:
            shadow = replicas[host.broker.broker_id] = Shadow(host.broker.broker_id, host)
        return shadow


def _name(host: Host) -> str:
    return f"b{host.broker.broker_id} {host.name}"
