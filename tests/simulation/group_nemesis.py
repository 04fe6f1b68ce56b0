"""What the nemesis does to consumer groups. As `nemesis`, with which it shares `shared_faults`."""

from __future__ import annotations

import random
from typing import Any

from headrace.v1 import errors_pb2, groups_pb2

from tests.simulation.group_cluster import GroupCluster
from tests.simulation.group_member import GROUP, MemberLife
from tests.simulation.shared_faults import LONG_MS, SharedFaults

DELETE_EVERY_MS = 300
DELETE_TRIES = 60
MAX_PARTITIONS = 9


class GroupNemesis(SharedFaults):
    """Owns no state but the number of the next fault."""

    def __init__(self, cluster: GroupCluster) -> None:
        shared: Any = cluster  # It has what the shared faults use: plan, world, operator, network, etcd.
        super().__init__(shared)
        self.group = cluster
        self._acts = {
            "kill": self._kill_member,
            "restart": self._restart_member,
            "leave": self._leave,
            "pause": self._pause_member,
            "second life": self._second_life,
            "subscription": self._change_subscription,
            "slow handler": self._slow_down,
            "create topic": self._create_topic,
            "delete topic": self._delete_topic,
            "grow topic": self._grow_topic,
            "cut link": self._cut_link,
            "isolate": self._isolate_node,
            "swizzle": self._swizzle,
            "break streams": self._break_streams,
            "etcd away": self._etcd_away,
            "etcd leader change": self._etcd_leader_change,
            "etcd compacts": self._compact,
            "answers lost": self._lose_answers,
            "lease ends early": self._end_lease,
            "coordinator dies": self._coordinator_dies,
            "coordinator pauses": self._coordinator_pauses,
            "clock jump": self._jump_clock,
            "delete group": self._delete_group,
        }

    def _names(self) -> list[str]:
        return ["c1", "c2", "etcd", *(place.name for place in self.group.places)]

    def _place(self, chance: random.Random) -> int:
        return chance.randrange(len(self.group.places))

    def _life(self, chance: random.Random) -> MemberLife | None:
        lives = self.group.alive(self._place(chance))
        return lives[-1] if lives else None

    # --- members ---

    def _kill_member(self, chance: random.Random) -> bool:
        """Killed, and not started again for a while."""
        index = self._place(chance)
        lives = self.group.alive(index)
        if not lives:
            return False
        self.group.wanted[index] = False
        self.world.note(self.group.places[index].name, "is killed")
        for life in lives:
            life.die()
        self._come_back(chance, index)
        return True

    def _come_back(self, chance: random.Random, index: int) -> None:
        def start() -> None:
            self.group.wanted[index] = True
            self.group.supervise(index)

        self._later(chance.choice(LONG_MS), start)

    def _restart_member(self, chance: random.Random) -> bool:
        """Killed, and started again at once."""
        life = self._life(chance)
        if life is None:
            return False
        self.world.note(life.place.name, "is killed and starts again")
        life.die()
        return True

    def _leave(self, chance: random.Random) -> bool:
        index = self._place(chance)
        lives = [life for life in self.group.alive(index) if not life.is_closing]
        if not lives:
            return False
        self.group.wanted[index] = False
        for life in lives:
            life.close()
        self._come_back(chance, index)
        return True

    def _delete_group(self, chance: random.Random) -> bool:
        """All members leave, an administrator deletes the group as soon as it is empty, and the members come back."""
        if self.group.checks.deletes_group:
            return False
        self.group.checks.deletes_group = True
        for index in range(len(self.group.places)):
            self.group.wanted[index] = False
            for life in self.group.alive(index):
                if not life.is_closing:
                    life.close()
        self._try_to_delete(chance, DELETE_TRIES)
        return True

    def _try_to_delete(self, chance: random.Random, tries: int) -> None:
        is_there = self.group.etcd.store.now(self.group.keyspace.group(GROUP)) is not None
        if not is_there or not tries or not self._active:
            self.world.count("groups deleted", not is_there)
            self.group.checks.deletes_group = False
            for index in range(len(self.group.places)):
                self.group.wanted[index] = True
                self.group.supervise(index)
            return
        running = [node.coordinator for node in self.group.coordinators if node.coordinator is not None]
        if running:
            request = groups_pb2.DeleteGroupsRequest(group_ids=[GROUP])
            self.group.checks.open_deletions += 1
            chance.choice(running).serve("DeleteGroups", request, 5.0, self._deletion_answered)
        self._later(DELETE_EVERY_MS, lambda: self._try_to_delete(chance, tries - 1))

    def _deletion_answered(self, answer: Any, error: Exception | None) -> None:
        if error is None and answer.groups[0].error.outcome != errors_pb2.OUTCOME_UNKNOWN:
            self.group.checks.open_deletions -= 1

    def _pause_member(self, chance: random.Random) -> bool:
        life = self._life(chance)
        if life is None:
            return False
        self.world.note(life.place.name, "is paused")
        self.world.pause(life.process)
        self._later(chance.choice(LONG_MS), lambda: self.world.resume(life.process))
        return True

    def _second_life(self, chance: random.Random) -> bool:
        """A process is started in a place where one still runs, as in a rolling update (H69)."""
        index = self._place(chance)
        if not self.group.places[index].instance_id or len(self.group.alive(index)) > 1:
            return False
        self.group.start_life(index)
        return True

    def _change_subscription(self, chance: random.Random) -> bool:
        """A process is started anew with other topics."""
        index = self._place(chance)
        self.group.places[index] = self.group.draw_place(index)
        for life in self.group.alive(index):
            if chance.random() < 0.5:
                life.die()
            else:
                life.close()
        return True

    def _slow_down(self, chance: random.Random) -> bool:
        life = self._life(chance)
        if life is None:
            return False
        life.slow_until_ms = self.world.now_ms + chance.choice(LONG_MS)
        return True

    # --- topics ---

    def _create_topic(self, chance: random.Random) -> bool:
        name = f"t{chance.randrange(self.group.plan.topics + 1)}"
        if name in self.group.topics:
            return False
        self.group.create_topic(name, 1 + chance.randrange(self.group.plan.partitions))
        return True

    def _delete_topic(self, chance: random.Random) -> bool:
        """A topic goes, and most often another of its name comes."""
        names = sorted(self.group.topics)
        if not names:
            return False
        name = chance.choice(names)
        self.group.delete_topic(name)
        if chance.random() < 0.8:
            self._later(chance.choice(LONG_MS), lambda: self._create_topic_again(name))
        return True

    def _create_topic_again(self, name: str) -> None:
        if name not in self.group.topics:
            self.group.create_topic(name, self.group.plan.partitions)

    def _grow_topic(self, chance: random.Random) -> bool:
        names = sorted(self.group.topics)
        if not names:
            return False
        name = chance.choice(names)
        partitions = self.group.topics[name][1] + 1 + chance.randrange(2)
        if partitions > MAX_PARTITIONS:
            return False
        self.group.grow_topic(name, partitions)
        return True

    # --- coordinators ---

    def _isolate_node(self, chance: random.Random) -> bool:
        """One node from everything, or a coordinator from etcd."""
        name = chance.choice(self._names())
        others = [other for other in self._names() if other != name]
        if name in ("c1", "c2") and chance.random() < 0.5:
            others = ["etcd"]
        until_ms = chance.choice(LONG_MS)
        links = [link for other in others for link in ((name, other), (other, name))]
        return self._cut(links, chance, until_ms=until_ms)

    def _jump_clock(self, chance: random.Random) -> bool:
        node = chance.choice(self.group.coordinators)
        node.wall.offset_ms += chance.choice((-3_600_000, -5_000, 5_000, 3_600_000))
        return True
