"""What administrators do while everything fails."""

from __future__ import annotations

import random

from headrace.log.directory import LogId

from tests.fakes.memory_filesystem import Loss
from tests.simulation import typed_rows
from tests.simulation.administration import BOTH, Administration
from tests.simulation.faults import Faults, duration

MOST_PARTITIONS = 3
"""A topic grows up to this number."""


class AdminFaults(Faults):
    """Each method does one thing and says whether it could."""

    @property
    def _administration(self) -> Administration:
        return self.cluster.administration

    def _drain(self, chance: random.Random) -> bool:
        broker_id = chance.choice(list(self.cluster.brokers))
        if self.cluster.recovery.is_due:
            return False
        self._administration.drain(broker_id)
        self._later(duration(chance), lambda: self._undrain(broker_id))
        return True

    def _undrain(self, broker_id: int) -> None:
        if self._active and not self.cluster.recovery.is_due:
            self._administration.undrain(broker_id)

    def _move_leader(self, chance: random.Random) -> bool:
        key = self._partition(chance)
        if key is None:
            return False
        self._administration.move_leader(key, chance.randrange(8))
        return True

    def _move(self, chance: random.Random) -> bool:
        """Begin a move, change the target of one that is under way, or cancel it (H25)."""
        key = self._partition(chance)
        if key is None:
            return False
        state = self.cluster.state(key)
        if (state.adding or state.removing) and chance.random() < 0.3:
            self._administration.cancel_move(key)
            return True
        count = self.cluster.plan.replication_factor
        if count == len(self.cluster.brokers):
            count = max(self.cluster.plan.min_insync_replicas, 1) if chance.random() < 0.3 else count
        self._administration.move(key, chance.sample(sorted(self.cluster.brokers), count))
        return True

    def _delete_records(self, chance: random.Random) -> bool:
        key = self._partition(chance)
        host = None if key is None else self.cluster.leader_host(key)
        if host is None or host.broker.process.paused or self.cluster.plan.is_table:
            return False  # Rows that are removed would be missed.
        start, end = int(host.log.log_start_offset), int(host.replica.high_watermark)
        host.broker.delete_records(host, start + chance.randrange(end - start + 1))
        return True

    def _change_minimum(self, chance: random.Random) -> bool:
        """The topic asks for more replicas in sync, or for as many as at first (H15, H30)."""
        plan = self.cluster.plan
        if self._partition(chance) is None:
            return False
        for _ in range(1 + (chance.random() < BOTH)):  # Of two requests at once one comes after the other.
            minimum = chance.randint(plan.min_insync_replicas, plan.replication_factor)
            self._administration.configure(min_insync_replicas=str(minimum))
        return True

    def _grow(self, chance: random.Random) -> bool:
        """The topic gets another partition."""
        if self._partition(chance) is None or self.cluster.topic.partitions >= MOST_PARTITIONS:
            return False
        self._administration.grow()
        return True

    def _change_columns(self, chance: random.Random) -> bool:
        """Columns of the typed topic are renamed, added or dropped (H160)."""
        if self._partition(chance) is None:
            return False
        self._administration.configure(columns=typed_rows.changed(self.cluster.topic.configs["columns"], chance))
        return True

    def _change_durability(self, chance: random.Random) -> bool:
        """Only from a whole cluster to async: who lost power before comes back as one that async promises nothing."""
        running = all(node.running is not None for node in self.cluster.brokers.values())
        durable = self._administration.wants_flushed
        if self._partition(chance) is None or (durable and not (running and self.cluster.is_whole())):
            return False
        self._administration.change_durability(durable=not durable)
        return True

    def _elect_uncleanly(self, chance: random.Random) -> bool:
        """All members of a partition's sets die; an administrator lets a replica lead that may lack records (H21)."""
        key = self._partition(chance)
        if key is None:
            return False
        state = self.cluster.state(key)
        members = {entry.broker_id for entry in (*state.in_sync, *state.eligible_leaders)}
        others = [broker_id for broker_id in state.replicas if broker_id not in members]
        if not any(self.cluster.host(broker_id, key) is not None for broker_id in others):
            return False
        for broker_id in sorted(members):
            node = self.cluster.brokers[broker_id]
            self._end_session(broker_id)
            node.kill(Loss.NOTHING)
            self._later(2_500, node.start)
        self._later(600, lambda: self._ask_for_unclean(key))
        return True

    def _make_topic_anew(self, chance: random.Random) -> bool:
        """Delete the topic; another one gets its name, sooner or later."""
        if self._partition(chance) is None or not self.cluster.is_healthy():
            return False
        self._administration.delete_topic()
        self._later(duration(chance), self._create_topic)
        return True

    def _put_etcd_back(self, chance: random.Random) -> bool:
        """etcd is lost and put back to a snapshot; a while later an operator begins a new generation (H81)."""
        recovery = self.cluster.recovery
        if recovery.backup is not None or recovery.is_due:
            return False
        recovery.take_backup()
        bumped = chance.random() < 0.5
        self._later(1_500 + duration(chance), lambda: self._put_back_now(duration(chance), bumped=bumped))
        return True

    def _put_back_now(self, recovers_after_ms: int, *, bumped: bool) -> None:
        if self._active:
            self.cluster.recovery.put_etcd_back(bumped=bumped)
            self._later(recovers_after_ms, self.cluster.recovery.begin)

    def _create_topic(self) -> None:
        if self._active:
            self._administration.create_topic()
            if not self.cluster.partitions:
                self._later(300, self._create_topic)

    def _ask_for_unclean(self, key: LogId) -> None:
        if self._active:
            self._administration.elect_uncleanly(key)
