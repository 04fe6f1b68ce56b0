"""The invariants of docs/protocols/rules.md (I1 to I20), as the simulator sees all replicas, all disks and all of etcd.

Each real log has a reference model: its batches as (offsets, epoch, crc) with a running digest, so that "has this
prefix" is one look-up. After each event the replicas that it touched are checked, every hundredth everything is, disks
read anew. Nothing here asks the core what is right; its own `validate_state` is called as well.
"""

from __future__ import annotations

import errno
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import google_crc32c
from headrace.log.directory import LogId
from headrace.wire.batch import BatchHeader, iter_batches, sequence_after
from headrace.wire.crc import ReadableBuffer
from headrace_broker.core.replica_fetch import FetchRequest
from headrace_broker.core.roles import Role
from headrace_coordinator.core.election import carry_over, sessions_of
from headrace_server.internal_v1.metadata_pb2 import BrokerLive
from headrace_server.key_table import BrokerKey, PartitionKey
from headrace_server.metastore.api import PutEvent, WatchEvent
from headrace_server.partition_state import PartitionState, Replica, decode

from tests.simulation.disk_checks import DiskChecks
from tests.simulation.exercise import CHECKED
from tests.simulation.reference_log import Entry, Partition, ReferenceLog, entry_of
from tests.simulation.world import SimulationError

if TYPE_CHECKING:
    from tests.simulation.broker import Broker
    from tests.simulation.cluster import Cluster
    from tests.simulation.host import Host

REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)
"""What a sound disk answers to a call that may succeed later."""
CLOCKS_DIFFER_MS = 200
"""By so much at most, where retention is by time, but for jumps that are guarded against."""


class Checks:
    """The invariants, and what they remember."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.partitions: dict[LogId, Partition] = {}
        self._disks = DiskChecks(self)
        self.broken: SimulationError | None = None
        """The first promise that was broken in the middle of an event."""
        self._consumed: dict[tuple[LogId, int], Host] = {}
        self._broker_epochs: dict[int, int] = {}
        self._controller_epoch = 0
        self._is_etcd_past = False
        cluster.etcd.store.on_commit.append(self._on_commit)
        cluster.etcd.on_controlled_write = self._on_controlled_write

    def add(self, key: LogId) -> None:
        """A partition is about to be made."""
        self.partitions[key] = Partition(self._cluster.name_of(key))

    def deleted(self, key: LogId) -> None:
        """A partition is about to be deleted: nothing of it is promised any more."""
        self.partitions[key].is_deleted = True

    def etcd_went_back(self) -> None:
        """etcd is one of the past: its keys about members are void until a generation begins."""
        self._is_etcd_past = True
        self._cluster.promises.forget_tables()
        for partition in self.partitions.values():
            if partition.is_deleted:
                partition.unclean = partition.gives_up = True  # It may come back, and its records are gone.

    def generation_began(self) -> None:
        """A new generation began: its sessions and leader epochs are counted anew, and it has all that is committed."""
        cluster = self._cluster
        self._is_etcd_past = False
        cluster.promises.forget_tables()
        self._broker_epochs.clear()
        self._controller_epoch = 0
        for key, partition in self.partitions.items():
            partition.sessions.clear()
            found = cluster.etcd.store.now(cluster.partition_key(key))
            if found is not None:
                partition.state = decode(found.value)
            elif not partition.is_deleted and partition.committed.entries:
                raise SimulationError("I15", f"{partition.name}: the new generation lacks it")

    def break_promise(self, error: SimulationError) -> None:
        """End the run by this when the event is over."""
        self.broken = self.broken or error

    # --- what the hosts report ---

    def touched(self, host: Host) -> None:
        """An event reached this replica: look at it once the event is over."""
        self._consumed[(host.key, host.broker.broker_id)] = host

    def opened(self, host: Host) -> None:
        """A log was opened: what is on the disk is what there is."""
        reference = self._reference(host)
        before = ReferenceLog(
            reference.broker_id, start=reference.start, bases=reference.bases, entries=reference.entries
        )
        before.flushed, before.certain = reference.flushed, reference.certain
        if reference.corrupt:
            reference.cut(int(host.log.log_end_offset))
        else:
            with host.broker.node.sound_disk():
                self.read_log(host, reference, int(host.log.log_start_offset))
        reference.host, reference.certain = host, True
        self._checked("I16", before.flushed > 0 and not reference.corrupt)
        self._checked("I15", before.certain and bool(before.entries))
        if not reference.corrupt and before.flushed > reference.end:
            raise SimulationError("I16", f"{host.label} had fsynced up to {before.flushed} and holds {reference.end}")
        if before.certain and before.end != reference.end and before.entries:
            raise SimulationError("I15", f"{host.label} ended at {before.end} and was opened with {reference.end}")
        reference.flushed = max(int(host.log.flushed_offset), min(before.flushed, reference.end))
        self._check_start(host, reference)

    def closed(self, host: Host, *, in_order: bool) -> None:
        """A log was closed; in order: all of it is fsynced."""
        reference = self._reference(host)
        if reference.host is host and not host.log.offline:
            reference.host = None
            if in_order:
                reference.flushed = reference.end
        self._consumed.pop((host.key, host.broker.broker_id), None)

    def read_log(self, host: Host, reference: ReferenceLog, begin: int) -> None:
        """Take the reference from the disk, from an offset on."""
        log = host.log
        reference.bases, reference.entries, reference.start = [], [], begin
        for header in log.reader.headers(reference.start) if reference.start < log.log_end_offset else ():
            if not reference.entries:
                reference.start = min(reference.start, header.base_offset)
            self._add(host, reference, header, header.base_offset, header.leader_epoch)
        if not reference.entries:
            reference.start = int(log.log_end_offset)

    def appended(self, host: Host, header: BatchHeader, base: int, epoch: int, at_ms: int | None = None) -> None:
        """One batch was written at the log's end; a leader stamped it at `at_ms`, by the world's clock."""
        reference = self._reference(host)
        self._checked("I6")
        if base != reference.end:
            raise SimulationError("I6", f"{host.label} appends at {base} and ends at {reference.end}")
        if reference.entries and epoch < reference.entries[-1].epoch:
            raise SimulationError("I6", f"{host.label} appends epoch {epoch} after {reference.entries[-1].epoch}")
        self._add(host, reference, header, base, epoch)
        if at_ms is not None:
            self.partitions[host.key].appended_ms[(base, epoch)] = at_ms

    def last_entry(self, host: Host) -> Entry | None:
        """Return the last batch of a log."""
        entries = self._reference(host).entries
        return entries[-1] if entries else None

    def _add(self, host: Host, reference: ReferenceLog, header: BatchHeader, base: int, epoch: int) -> None:
        partition = self.partitions[host.key]
        if header.is_compacted:
            self._add_compacted(host, reference, header)
            return
        known = partition.digests.get((base, epoch))
        if reference.entries or base == 0:
            before = reference.entries[-1].digest if reference.entries else 0
            digest = zlib.crc32(b"%d %d %d" % (base, epoch, header.crc), before)
        elif known is not None:
            digest = known[1]
        elif partition.committed.entries and partition.committed.end == base:  # Retention took all there was.
            before = partition.committed.entries[-1].digest
            digest = zlib.crc32(b"%d %d %d" % (base, epoch, header.crc), before)
        else:
            raise SimulationError("I7", f"{host.label} starts at {base} with a batch that no other log has")
        self._checked("I7", known is not None)
        if known is None or partition.is_deleted:  # Of a topic that comes back with an etcd of the past, empty.
            partition.digests[(base, epoch)] = header.crc, digest
        elif known != (header.crc, digest):
            raise SimulationError("I7", f"{host.label} has another log up to {base} of epoch {epoch} than others had")
        reference.add(entry_of(header, base, epoch, digest))

    def _add_compacted(self, host: Host, reference: ReferenceLog, header: BatchHeader) -> None:
        """A compacted batch counts as those that it replaces, which were committed, with their chain."""
        partition = self.partitions[host.key]
        at = bisect_left(partition.committed.bases, header.base_offset)
        known = partition.committed.entries[at:]
        if partition.given_up:  # One epoch has one batch at an offset.
            known = sorted((*known, *partition.given_up), key=lambda each: each.base)
            known = [e for e in known if e.epoch == header.leader_epoch and e.base >= header.base_offset]
        replaced = [each for each in known if each.end <= header.end_offset]
        self._checked("compaction")
        if (
            not replaced
            or (replaced[0].base, replaced[-1].end) != (header.base_offset, header.end_offset)
            or {each.epoch for each in replaced} != {header.leader_epoch}
            or replaced[-1].crc != header.chain_crc
        ):
            where = f"{header.base_offset} to {header.end_offset}"
            raise SimulationError("I7", f"{host.label}: {where} are compacted and not what was committed")
        for entry in replaced:
            reference.add(entry)

    def accepted(self, host: Host, batches: ReadableBuffer) -> None:
        """A follower took these bytes from its leader: none of them is corrupt (I17)."""
        for header, view in iter_batches(batches):
            self._checked("I17")
            if google_crc32c.value(bytes(view[36:])) != header.crc:
                raise SimulationError("I17", f"{host.label} accepts a corrupt batch at {header.base_offset}")

    def cut(self, host: Host, end: int) -> None:
        """The log was truncated; the core hears of it next."""
        reference = self._reference(host)
        reference.cut(end)
        reference.flushed, reference.certain, host.followed = min(reference.flushed, end), True, None
        if reference.end != end:
            raise SimulationError("I6", f"{host.label} cut to {end}, inside a batch")
        partition = self.partitions[host.key]
        self._checked("I18", not partition.gives_up)
        is_promised = not (partition.gives_up or partition.is_deleted or self._is_behind_compaction(host))
        if end < host.replica.high_watermark and is_promised:
            raise SimulationError(
                "I18", f"{host.label} cut to {end}, below its high watermark {host.replica.high_watermark}"
            )

    def started_over(self, host: Host, offset: int) -> None:
        """The log was thrown away and begins at `offset`."""
        reference = self._reference(host)
        reference.bases.clear()
        reference.entries.clear()
        reference.start = reference.log_start = reference.flushed = offset
        reference.certain, host.followed = True, None
        is_promised = not (self.partitions[host.key].gives_up or self._is_behind_compaction(host))
        if offset < host.replica.high_watermark and is_promised:
            raise SimulationError("I18", f"{host.label} starts over at {offset}, below its high watermark")

    def _is_behind_compaction(self, host: Host) -> bool:
        """Whether a replica may give up what is committed and copy it again: others have compacted without it.

        One that the key names may not, unless its broker came back without all its data in a session that the key has
        yet to learn of.
        """
        state, broker_id = self.partitions[host.key].state, host.broker.broker_id
        if state is None or not self._cluster.plan.compacts:
            return self._cluster.plan.compacts
        found = self._cluster.etcd.store.now(self._cluster.keyspace.broker(broker_id))
        registered = [] if found is None else [(broker_id, found.create_revision, BrokerLive.FromString(found.value))]
        named, _ = carry_over(
            (*state.in_sync, *state.eligible_leaders), sessions_of(registered, ()), durable=state.durable
        )
        return all(each.broker_id != broker_id for each in named)

    def shortens(self, host: Host, end: int) -> None:
        """The log is about to be cut to `end` or to start over: should it die in that, what lies behind is open."""
        reference = self._reference(host)
        reference.flushed, reference.certain = min(reference.flushed, end), False

    def failed(self, host: Host, reason: str, error: BaseException | None) -> None:
        """A log met an I/O error: what was not fsynced may be gone from the page cache.

        A call that a full or busy machine refused is none (H35).
        """
        self._reference(host).certain = False
        while error is not None:
            if isinstance(error, OSError) and error.errno in REFUSED:
                raise SimulationError("H35", f"{host.label} is taken offline for a refusal: {reason}")
            error = error.__cause__
        if "would truncate to offset" in reason:
            raise SimulationError("I18", f"{host.label}: {reason}")

    def expired(self, host: Host, start: int) -> None:
        """Retention takes what lies below `start` for too old, and it is, by true time (H43)."""
        partition = self.partitions[host.key]
        least_ms = self._cluster.plan.retention_ms - CLOCKS_DIFFER_MS
        kept = set(host.offsets_below(start)) if self._cluster.plan.compacts else None
        for entry in self._reference(host).entries:
            if kept is not None and kept.isdisjoint(range(entry.base, entry.end)):
                continue  # Compaction has taken all of it.
            if host.log.log_start_offset <= entry.base and entry.end <= start:
                self._checked("H43")
                age_ms = self._cluster.world.now_ms - partition.appended_ms.get((entry.base, entry.epoch), 0)
                if age_ms < least_ms:
                    raise SimulationError("H43", f"{host.label} removes {entry.base} to {entry.end} after {age_ms} ms")

    def set_aside(self, broker_id: int, key: LogId) -> None:
        """A log was quarantined or deleted: there is none."""
        self.partitions[key].replicas.pop(broker_id, None)
        self._consumed.pop((key, broker_id), None)

    def corrupt(self, broker_id: int, key: LogId) -> None:
        """The simulator corrupts this log now."""
        reference = self.partitions[key].replicas.get(broker_id)
        if reference is not None:
            reference.corrupt = True

    def log_start_is_open(self, host: Host) -> None:
        """A checkpoint may be lost now: the log may begin where the one before says, or at its first segment."""
        self._reference(host).log_start = 0

    def is_corrupt(self, broker_id: int) -> bool:
        """Return whether the simulator has corrupted a log that a broker has."""
        replicas = (partition.replicas.get(broker_id) for partition in self.partitions.values())
        return any(each is not None and each.corrupt for each in replicas)

    def died(self, broker: Broker, *, certain: bool) -> None:
        """A process died: its logs are what their disk kept; `certain`: all that was written."""
        for key, partition in self.partitions.items():
            self._consumed.pop((key, broker.broker_id), None)
            reference = partition.replicas.get(broker.broker_id)
            if reference is not None:
                reference.host, reference.certain = None, certain and reference.certain

    def leads(self, host: Host) -> None:
        """It begins to lead: it has everything (I2), by its own election (I5, I12)."""
        reference = self._reference(host)
        reference.acknowledged.clear()
        reference.high_watermark = host.replica.high_watermark
        if host.replica.flushed_only and host.log.flushed_offset < reference.end:
            raise SimulationError("I2", f"{host.label} leads before its log is fsynced")

    def _give_up(self, partition: Partition, leader: Replica) -> None:
        """After an unclean election committed is what the leader has (H21)."""
        self._checked("H21")
        if not partition.unclean:
            raise SimulationError("H21", f"{partition.name}: {leader} is elected uncleanly without a request")
        partition.gives_up = True
        reference, committed = partition.replicas[leader.broker_id], partition.committed
        while committed.entries and reference.find(committed.entries[-1].base) != committed.entries[-1]:
            gone = committed.entries[-1]
            if gone.end <= reference.start:
                break
            partition.lost.append((gone.base, gone.end))
            partition.given_up.append(gone)
            committed.cut(gone.base)
        partition.sequences.clear()
        for entry in committed.entries:
            if entry.producer_id >= 0:
                after = sequence_after(entry.sequence, entry.end - entry.base)
                partition.sequences[entry.producer_id] = entry.producer_epoch, after

    def unclean_allowed(self, key: LogId) -> None:
        """An administrator accepts the loss of records."""
        self.partitions[key].unclean = self.partitions[key].gives_up = True

    def fetched(self, host: Host, request: FetchRequest) -> None:
        """A leader took note of what a follower has."""
        self._reference(host).acknowledged[request.follower] = request.offset, request.durable_offset
        follower = self.partitions[host.key].replicas.get(request.follower.broker_id)
        mine = self._reference(host)
        self._checked("I8")
        if request.leader_epoch != host.replica.leader_epoch:
            raise SimulationError("I8", f"{host.label} counts a fetch of epoch {request.leader_epoch} (H4)")
        if request.offset > mine.end:
            raise SimulationError("I7", f"{host.label} takes a follower at {request.offset} beyond its end {mine.end}")
        if follower is not None:
            follower.flushed = max(follower.flushed, min(request.durable_offset, follower.end))

    def advanced(self, host: Host) -> None:
        """A high watermark rose: at a leader this is what makes records committed (I1, I8, I9)."""
        replica, reference = host.replica, self._reference(host)
        partition = self.partitions[host.key]
        high_watermark = int(replica.high_watermark)
        if replica.leader_epoch < partition.unclean_epoch:
            partition.lost.append((max(0, reference.high_watermark), high_watermark))  # By a leader that was given up.
        elif replica.role is Role.LEADING:
            self._check_rise(host, reference, high_watermark)
            self._commit(host, reference, partition, high_watermark)
        elif not partition.gives_up and high_watermark > partition.committed.end:
            raise SimulationError(
                "I8", f"{host.label} follows with {high_watermark}, committed is {partition.committed.end}"
            )

    def _check_rise(self, host: Host, reference: ReferenceLog, high_watermark: int) -> None:
        replica = host.replica
        state = replica.state
        assert state is not None
        self._checked("I8")
        self._checked("I9", replica.flushed_only)
        if high_watermark < reference.high_watermark:
            raise SimulationError("I8", f"{host.label}: the high watermark fell to {high_watermark}")
        reference.high_watermark = high_watermark
        if len(state.in_sync) < state.min_insync_replicas:
            raise SimulationError("I8", f"{host.label}: the high watermark rose with {len(state.in_sync)} in sync")
        me = Replica(host.broker.broker_id, replica.broker_epoch)
        for member in (*state.in_sync, *host.leadership.proposals.members()):
            if member != me and reference.acknowledged.get(member, (0, 0))[replica.flushed_only] < high_watermark:
                raise SimulationError(
                    "I8", f"{host.label}: high watermark {high_watermark}, {member} has acknowledged less"
                )
        if replica.flushed_only:
            if host.log.flushed_offset < high_watermark:
                raise SimulationError("I9", f"{host.label}: high watermark {high_watermark} beyond its own fsync")
            reference.flushed = max(
                reference.flushed, high_watermark
            )  # It may lose its power before the event is over.

    def _commit(self, host: Host, reference: ReferenceLog, partition: Partition, high_watermark: int) -> None:
        """Extend what is committed by this leader's log, which must have all of it as it is."""
        committed = partition.committed
        last = committed.entries[-1] if committed.entries else None
        if last is not None and last.end <= high_watermark and last.base >= reference.start:
            found = reference.find(last.base)
            self._checked("I1")
            if found is None or found.digest != last.digest:
                raise SimulationError("I1", f"{host.label} has something else than what was committed at {last.base}")
        at = bisect_left(reference.bases, committed.end)
        for entry in reference.entries[at:]:
            if entry.end > high_watermark:
                break
            committed.add(entry)
            self._check_sequence(host, partition, entry)

    def _check_sequence(self, host: Host, partition: Partition, entry: Entry) -> None:
        if entry.producer_id < 0:
            return
        self._checked("I20")
        epoch, wanted = partition.sequences.get(entry.producer_id, (-1, 0))
        if entry.producer_epoch > epoch:
            wanted = 0
            partition.forgotten.pop(entry.producer_id, None)
        if entry.sequence == 0 and 0 < partition.ends.get(entry.producer_id, 0) <= self._cluster.log_start(host.key):
            # All that it had sent was deleted: a replica that began behind that does not know it (H49).
            partition.forgotten[entry.producer_id] = max(wanted, partition.forgotten.get(entry.producer_id, 0))
            wanted = 0
            self._cluster.world.count("producers forgotten with their records")
        if entry.producer_epoch < epoch or entry.sequence != wanted:
            raise SimulationError(
                "I20",
                f"{host.label} commits sequence {entry.sequence} of producer {entry.producer_id} epoch "
                f"{entry.producer_epoch} at {entry.base}, after epoch {epoch} expecting {wanted}",
            )
        if entry.sequence < partition.forgotten.get(entry.producer_id, 0):
            partition.resent.append((entry.base, entry.end))
        partition.sequences[entry.producer_id] = entry.producer_epoch, wanted + entry.end - entry.base
        partition.ends[entry.producer_id] = entry.end

    def acknowledged(self, host: Host, base: int, end: int) -> None:
        """A produce was answered (I9)."""
        reference, partition = self._reference(host), self.partitions[host.key]
        committed = partition.committed
        if host.replica.leader_epoch < partition.unclean_epoch:
            return
        self._checked("I9")
        if host.replica.high_watermark < end or (base >= 0 and committed.end < end):
            raise SimulationError("I9", f"{host.label} acknowledges {end} before it is committed")
        if base >= reference.start and reference.end < end:
            raise SimulationError("I9", f"{host.label} acknowledges {base} to {end}, which it does not have")

    def records_deleted(self, host: Host, before: int) -> None:
        """A DeleteRecords was answered: no later leader begins below (I18)."""
        partition = self.partitions[host.key]
        if host.replica.leader_epoch >= partition.unclean_epoch:
            self._cluster.world.count("deletions answered")
            partition.log_start = max(partition.log_start, before)

    # --- what etcd does ---

    def _on_commit(self, revision: int, events: Sequence[WatchEvent]) -> None:
        keyspace = self._cluster.keyspace
        if self._is_etcd_past:
            return
        for event in events:
            if not isinstance(event, PutEvent):
                continue
            key_value = event.key_value
            match keyspace.parse(key_value.key):
                case PartitionKey(topic_id, number):
                    self._check_write(LogId(topic_id, number), decode(key_value.value))
                case BrokerKey(broker_id) if key_value.version == 1:
                    self._checked("I13", broker_id in self._broker_epochs)
                    if self._broker_epochs.get(broker_id, 0) >= key_value.create_revision:
                        raise SimulationError("I13", f"broker epoch {key_value.create_revision} of b{broker_id}")
                    self._broker_epochs[broker_id] = key_value.create_revision
        controller = self._cluster.etcd.store.now(keyspace.controller())
        if controller is not None:
            self._controller_epoch = max(self._controller_epoch, controller.create_revision)

    def _on_controlled_write(self, epoch: int) -> None:
        if self._is_etcd_past:
            return
        self._checked("I14")
        if epoch < self._controller_epoch:
            raise SimulationError("I14", f"controller {epoch} wrote after {self._controller_epoch} was elected")

    def _check_write(self, key: LogId, after: PartitionState) -> None:
        """One write of a partition's key (I5, I11, I12)."""
        partition = self.partitions[key]
        before, partition.state = partition.state, after
        self._cluster.administration.placed(key, before, after)
        members = [entry.broker_id for entry in (*after.in_sync, *after.eligible_leaders)]
        if (
            (after.leader is not None and after.leader not in after.in_sync)
            or len(set(members)) != len(members)
            or not set(members) <= set(after.replicas)
            or (len(after.in_sync) >= after.min_insync_replicas and after.eligible_leaders)
        ):
            raise SimulationError("I11", f"{partition.name}: {after}")
        if before is not None:
            if after.unclean_epoch != before.unclean_epoch and after.leader is not None:
                partition.unclean_epoch = after.unclean_epoch
                self._give_up(partition, after.leader)
            was_in_sync = after.leader is None or before.replica_of(after.leader.broker_id) is not None
            if after.unclean_epoch != before.unclean_epoch or not was_in_sync:
                partition.log_start = 0  # An eligible leader may lack what was on its way when it left (H14).
                self._cluster.promises.log_starts_forgotten(key)
            self._checked("I11")
            rises = after.leader_epoch == before.leader_epoch + (after.leader != before.leader)
            if not rises or after.partition_epoch != before.partition_epoch + 1:
                raise SimulationError("I11", f"{partition.name}: {after} after {before}")
            self._check_sessions(partition, before, after)
            if after.leader is not None and len(after.in_sync) == len(after.replicas) and not partition.is_deleted:
                partition.gives_up = False  # All are in sync with a leader that was elected since.
        if after.leader is not None:
            self._checked("I5", after.leader_epoch in partition.sessions)
            elected = partition.sessions.setdefault(after.leader_epoch, after.leader)
            if elected != after.leader:
                raise SimulationError(
                    "I5", f"{partition.name}: epoch {after.leader_epoch} belongs to {elected}: {after}"
                )
        self.check_members(partition)

    def _check_sessions(self, partition: Partition, before: PartitionState, after: PartitionState) -> None:
        known = (*before.in_sync, *before.eligible_leaders)
        named = [entry for entry in (*after.in_sync, *after.eligible_leaders) if entry not in known]
        if after.leader is not None and after.leader != before.leader:
            named.append(after.leader)
        for entry in named:
            self._checked("I12")
            if not self._is_registered(entry):
                raise SimulationError("I12", f"{partition.name}: {entry} is named and not registered")

    def _is_registered(self, entry: Replica) -> bool:
        found = self._cluster.etcd.store.now(self._cluster.keyspace.broker(entry.broker_id))
        return found is not None and found.create_revision == entry.broker_epoch

    def check_members(self, partition: Partition) -> None:
        """Every registered member of the key's sets has all that is committed (I3)."""
        state = partition.state
        if state is None or partition.is_deleted or self._is_etcd_past:
            return
        for entry in (*state.in_sync, *state.eligible_leaders):
            reference = partition.replicas.get(entry.broker_id)
            host = None if reference is None else reference.host
            if reference is None or host is None or reference.corrupt or host.partition is None:
                continue
            if host.replica.broker_epoch != entry.broker_epoch:
                continue
            if host.replica.role is not Role.OFFLINE and self._is_registered(entry):
                self._check_prefix("I3", partition, reference, f"b{entry.broker_id} {partition.name} is a member")

    def _check_prefix(self, name: str, partition: Partition, reference: ReferenceLog, who: str) -> None:
        committed = partition.committed
        if not committed.entries:
            return
        last = committed.entries[-1]
        if last.end <= reference.start:
            return  # All of it was removed by retention.
        self._checked(name)
        found = reference.find(last.base)
        if found is None or found.digest != last.digest:
            raise SimulationError(
                name, f"{who} and ends at {reference.end} without what is committed up to {committed.end}"
            )

    # --- after events ---

    def after_event(self) -> None:
        """Check the replicas that the event touched."""
        if self.broken is not None:
            raise self.broken
        if not self._consumed:
            return
        touched: dict[LogId, Partition] = {}
        for host in self._consumed.values():
            partition = self.partitions[host.key]
            if not partition.is_deleted:
                self._check_replica(host, partition)
                touched[host.key] = partition
        self._consumed.clear()
        for partition in touched.values():
            self.check_members(partition)

    def _check_replica(self, host: Host, partition: Partition) -> None:
        replica = host.replica
        if replica.role in (Role.OFFLINE, Role.DELETED):
            return
        reference = self._reference(host)
        if not (
            reference.corrupt or host.is_busy
        ):  # Rot that no header's checksum covers may have reached the producers.
            replica.validate_state()
        if not 0 <= replica.log_start_offset <= replica.high_watermark <= replica.log_end_offset:
            raise SimulationError("I8", f"{host.label}: {replica.log_start_offset}, {replica.high_watermark}")
        if host.log.log_end_offset != reference.end:
            raise SimulationError("I6", f"{host.label}: the log ends at {host.log.log_end_offset}, not {reference.end}")
        reference.flushed = max(reference.flushed, min(int(host.log.flushed_offset), reference.end))
        self._check_start(host, reference)
        self._check_high_watermark(host)
        if not host.is_busy:
            self._check_told(host, reference)
        if replica.role is Role.LEADING and not self._is_etcd_past:
            self._check_leader(host, reference, partition)

    def _check_start(self, host: Host, reference: ReferenceLog) -> None:
        """The log start of a replica never falls, also when its log is opened again (I18)."""
        start = int(host.log.log_start_offset)
        self._checked("I18", reference.log_start > 0)
        if start < reference.log_start and not (reference.corrupt or self.partitions[host.key].gives_up):
            raise SimulationError("I18", f"{host.label} begins at {start}, and began at {reference.log_start}")
        reference.log_start = start

    def _check_high_watermark(self, host: Host) -> None:
        """It never falls within an epoch, at a leader or at a follower of it (I8).

        A follower that is behind a compaction or a purge cuts its log, or starts over, and has it no higher than that.
        """
        epoch, high_watermark = host.replica.leader_epoch, int(host.replica.high_watermark)
        before, host.followed = host.followed, (epoch, high_watermark)
        self._checked("I8")
        was_cut = host.replica.role is not Role.LEADING and high_watermark == host.log.log_end_offset
        if self.partitions[host.key].gives_up or (was_cut and self._cluster.plan.compacts):
            host.followed = None
        elif before is not None and before[0] == epoch and high_watermark < before[1]:
            raise SimulationError("I8", f"{host.label}: the high watermark fell from {before[1]} to {high_watermark}")

    def _check_told(self, host: Host, reference: ReferenceLog) -> None:
        """The core knows what a log holds that no thread is at."""
        replica = host.replica
        if replica.log_end_offset != reference.end:
            raise SimulationError("I6", f"{host.label}: the core ends at {replica.log_end_offset}, not {reference.end}")
        if replica.flushed_offset > host.log.flushed_offset:
            raise SimulationError("I9", f"{host.label}: the core counts {replica.flushed_offset} as fsynced")

    def _check_leader(self, host: Host, reference: ReferenceLog, partition: Partition) -> None:
        replica = host.replica
        me = Replica(host.broker.broker_id, replica.broker_epoch)
        if partition.sessions.get(replica.leader_epoch) != me:
            raise SimulationError("I12", f"{host.label} leads epoch {replica.leader_epoch} unelected")
        state, seen = partition.state, replica.state
        assert state is not None
        assert seen is not None
        if replica.leader_epoch != state.leader_epoch:
            self._cluster.world.count("looks at a leader of an older epoch")
            return
        self._check_log_start(host, partition)
        if not reference.corrupt:
            self._check_prefix("I2", partition, reference, f"{host.label} leads")
        if len(seen.in_sync) >= seen.min_insync_replicas:
            # A later session of a member that kept all its data counts as it, before the leader is notified.
            self._checked("I4")
            maximal = [entry.broker_id for entry in (*seen.in_sync, *host.leadership.proposals.members())]
            for entry in (*state.in_sync, *state.eligible_leaders):
                if entry.broker_id not in maximal:
                    raise SimulationError("I4", f"{host.label} does not count {entry}, which the key names")

    def _check_log_start(self, host: Host, partition: Partition) -> None:
        """The log start that a leader of this epoch tells clients is no lower than any that was told before (I18)."""
        start = int(host.replica.known_log_start)
        self._checked("I18", start >= 0 and partition.log_start > 0)
        if 0 <= start < partition.log_start:
            raise SimulationError("I18", f"{host.label} begins at {start}, clients saw {partition.log_start}")
        partition.log_start = max(partition.log_start, start)

    def check_all(self, *, is_last: bool = False) -> None:
        """Check everything: disks against references, epochs, caches, and that nothing committed is on no disk.

        A disk that did not change since its last check is read again only by the last one of a run.
        """
        for partition in self.partitions.values():
            if partition.is_deleted:
                continue
            for reference in partition.replicas.values():
                if reference.host is not None and reference.host.is_open and not reference.corrupt:
                    self._disks.check(reference.host, reference, anew=is_last)
            self.check_members(partition)
            self._check_kept(partition)
        if not (self._cluster.plan.buggy_etcd or self._is_etcd_past) and (wrong := self.wrong_caches()):
            raise SimulationError("I19", wrong[0])

    def _check_kept(self, partition: Partition) -> None:
        committed = partition.committed
        if not committed.entries or partition.gives_up:
            return
        self._checked("I15")
        last = committed.entries[-1]
        for reference in partition.replicas.values():
            found = reference.find(last.base)
            has_it = last.end <= reference.start or (found is not None and found.digest == last.digest)
            if has_it and not reference.corrupt and (reference.certain or reference.flushed >= last.end):
                return
        raise SimulationError("I15", f"{partition.name}: no disk holds what is committed up to {committed.end}")

    def wrong_caches(self) -> list[str]:
        """Return which caches at a revision r are not etcd at r (I19)."""
        store, prefix, found = self._cluster.etcd.store, self._cluster.keyspace.prefix, []
        for process, view in self._cluster.caches():
            source: Any = view.source
            seen = {each.key: each for each in source.items(prefix)}
            true = {each.key: each for each in store.range_at(prefix, source.revision).key_values}
            self._checked("I19", bool(true))
            wrong = [key for key in sorted({*seen, *true}) if seen.get(key) != true.get(key)]
            if source.revision and wrong:
                found.append(f"{process.name} at revision {source.revision} is wrong about {wrong}")
        return found

    def _checked(self, name: str, has_compared: bool = True) -> None:
        """Count a comparison that could have broken a promise."""
        if has_compared:
            self._cluster.world.count(CHECKED + name)

    def _reference(self, host: Host) -> ReferenceLog:
        replicas = self.partitions[host.key].replicas
        reference = replicas.get(host.broker.broker_id)
        if reference is None:
            reference = replicas[host.broker.broker_id] = ReferenceLog(host.broker.broker_id, host)
        return reference
