"""Judges what clients saw: from their histories alone, whatever the brokers thought (PROTOCOL T6).

Knows nothing of headrace: a history is a list of plain tuples, records are named by the strings that clients gave them.
One pass a partition; each anomaly has a name of its own, after Jepsen's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

OK = "ok"
"""The send was acknowledged; `offset` is the first record's, -1 where it was forgotten."""
FAIL = "fail"
"""Certainly nothing of it was written."""
UNKNOWN = "unknown"
"""It may have been written, or may yet be."""


class Send(NamedTuple):
    """One batch of a producer, in the order in which it was sent."""

    process: str
    partition: int
    values: tuple[str, ...]
    outcome: str
    offset: int
    promised: bool
    """The acknowledgement promises that the records stay."""
    sent_at: int
    ended_at: int
    numbered: bool = True
    """Retries do not repeat it, and keep its place."""


class Poll(NamedTuple):
    """What one fetch of a consumer gave, in the order of its fetches; `start` is the offset that it asked for."""

    process: str
    partition: int
    start: int
    records: tuple[tuple[int, str], ...]
    moved: bool = False
    """The consumer changed its position on purpose since its last poll: told to, by retention or a truncation."""
    end: int | None = None
    """Offset at which it was told that it has everything; `None`: it was not."""


class Final(NamedTuple):
    """Everything that one replica holds below the high watermark, once all is quiet."""

    replica: str
    partition: int
    log_start: int
    records: tuple[tuple[int, str], ...]


ANOMALIES = (
    "lost-write",
    "lost-prefix",
    "duplicate",
    "phantom",
    "aborted-read",
    "ack-offset-mismatch",
    "inconsistent-offset",
    "poll-skip",
    "nonmonotonic-poll",
    "nonmonotonic-send",
    "gap",
    "divergence-by-replica",
    "resurrection",
)
"""What is looked for; a lost write behind the log's end is called lost-postfix."""


REPLACEABLE = "~"
"""How the names of records begin that share a key with others: it ends at a colon, behind a minus if it is deleted."""


def shared_name(key: str, name: str, *, deletes: bool) -> str:
    """The name of a record that replaces those of the same key, or deletes them."""
    return f"{REPLACEABLE}{key}{'-' if deletes else ''}:{name}"


def is_replaceable(name: str) -> bool:
    """Whether compaction may remove a record for a later one."""
    return name.startswith(REPLACEABLE)


def is_deletion(name: str) -> bool:
    """Whether the record deletes its key."""
    return is_replaceable(name) and name.partition(":")[0].endswith("-")


def key_of(name: str) -> str:
    """The key of a record: of one that is not replaceable its name."""
    return name.partition(":")[0].removesuffix("-") if is_replaceable(name) else name


class Anomaly(NamedTuple):
    """One broken promise."""

    name: str
    partition: int
    message: str


def check(
    sends: Iterable[Send],
    polls: Iterable[Poll],
    finals: Sequence[Final],
    *,
    committed: Iterable[Final] = (),
    removable: Mapping[int, int],
    deletions_go: bool = False,
    lost: Iterable[tuple[int, int, int]] = (),
    resent: Iterable[tuple[int, int, int]] = (),
    compared: Counter[str] | None = None,
) -> list[Anomaly]:
    """Compare what was sent and acknowledged with what was read.

    `committed`: all that ever was, with what has been removed since, so that each record is judged wherever a log
    begins now. `removable`: the offset below which records of a partition may be removed. `deletions_go`: a deletion is
    removed with all that it deletes, as soon as compaction likes. `lost`: (partition, from, to)
    ranges that an administrator gave up; what stood there is not asked for. `resent`: such ranges of what was stored
    again after all that its producer had stored was removed, so that a leader did not know the producer. `compared` is
    told how often each anomaly could have shown itself.
    """
    by_partition: dict[int, _Partition] = {}

    def judged(number: int) -> _Partition:
        return by_partition.setdefault(number, _Partition(number, deletions_go=deletions_go))

    for final in (*finals, *committed):
        judged(final.partition).finals.append(final)
    for send in sends:
        judged(send.partition).sends.append(send)
    for poll in polls:
        judged(poll.partition).polls.append(poll)
    for partition, start, end in lost:
        judged(partition).lost.append((start, end))
    for partition, start, end in resent:
        judged(partition).resent.append((start, end))
    for final in finals:
        by_partition[final.partition].check_log_start(final, removable.get(final.partition, 0))
    found: list[Anomaly] = []
    for number in sorted(by_partition):
        found += by_partition[number].check()
        if compared is not None:
            compared.update(by_partition[number].compared)
    return found


class _Partition:
    """The histories of one partition."""

    def __init__(self, number: int, *, deletions_go: bool) -> None:
        self.number = number
        self.deletions_go = deletions_go
        self.sends: list[Send] = []
        self.polls: list[Poll] = []
        self.finals: list[Final] = []
        self.lost: list[tuple[int, int]] = []
        self.resent: list[tuple[int, int]] = []
        self.again: dict[str, int] = {}
        self.replaced: set[int] = set()
        self.found: list[Anomaly] = []
        self.compared: Counter[str] = Counter()

    def check_log_start(self, final: Final, removable: int) -> None:
        """Everything behind what was to be removed is there."""
        self.compared["lost-prefix"] += 1
        if final.log_start > removable:
            self._add("lost-prefix", f"{final.replica} begins at {final.log_start}; below {removable} all could go")

    def check(self) -> list[Anomaly]:
        log = self._final_log()
        start = min((final.log_start for final in self.finals), default=0)
        sent = {value: send for send in self.sends for value in send.values}
        places = self._places(log, sent)
        self._check_sends(log, places, start)
        self._check_values(sent, ((value, f"is stored at {offset}") for value, offset in places.items()))
        read = {value: f"was read at {offset}" for poll in self.polls for offset, value in poll.records}
        self._check_values(sent, ((value, how) for value, how in read.items() if value not in places))
        self._check_order(places)
        self._check_polls(log, start)
        return self.found

    def _add(self, name: str, message: str) -> None:
        self.found.append(Anomaly(name, self.number, message))

    def _was_given_up(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.lost)

    def _find_replaced(self) -> None:
        """Find the records that compaction may remove: all of a key but the newest; with acks=0 one may come twice.

        The newest may go, too, if it is a deletion.
        """
        everything = {offset: value for final in self.finals for offset, value in final.records}
        newest: dict[str, int] = {}
        for offset, value in sorted(everything.items()):
            key = key_of(value)
            self.replaced.update([newest[key]] if key in newest else ())
            newest[key] = offset
        deleted = {key: offset for key, offset in newest.items() if is_deletion(everything[offset])}
        self._check_deleted(deleted)
        self.replaced.update(deleted.values() if self.deletions_go else ())

    def _check_deleted(self, deleted: Mapping[str, int]) -> None:
        """A replica that lacks the deletion of a key, at its newest offset, has nothing of what that deletes."""
        for final in self.finals:
            held = {key_of(value): offset for offset, value in final.records}
            for key, newest in deleted.items():
                self.compared["resurrection"] += 1
                if held.get(key, newest) != newest and not self._was_given_up(newest):
                    self._add("resurrection", f"{final.replica} has {key} at {held[key]}, which {newest} deletes")

    def _may_skip(self, start: int, end: int) -> bool:
        """Whether no record is left at these offsets, or none need be."""
        return all(offset in self.replaced for offset in range(start, end))

    def _final_log(self) -> dict[int, str]:
        """The records by offset; all replicas must agree, without gaps."""
        self._find_replaced()
        log: dict[int, str] = {}
        owner: dict[int, str] = {}
        ends = {}
        for final in self.finals:
            offsets = [offset for offset, _ in final.records]
            self.compared["gap"] += len(offsets) > 1
            if not all(self._may_skip(before + 1, after) for before, after in pairwise(offsets)):
                self._add("gap", f"{final.replica} has offsets {offsets[:3]} .. {offsets[-3:]}")
            if offsets and not self._may_skip(final.log_start, offsets[0]):
                self._add("gap", f"{final.replica} begins at {final.log_start}, its first record is at {offsets[0]}")
            ends[final.replica] = offsets[-1] + 1 if offsets else final.log_start
            for offset, value in final.records:
                self.compared["divergence-by-replica"] += offset in log
                if log.setdefault(offset, value) != value:
                    self._add(
                        "divergence-by-replica",
                        f"offset {offset} is {value} on {final.replica} and {log[offset]} on {owner[offset]}",
                    )
                owner.setdefault(offset, final.replica)
        if len(set(ends.values())) > 1:
            self._add("divergence-by-replica", f"the replicas end at {ends}")
        return log

    def _places(self, log: dict[int, str], sent: Mapping[str, Send]) -> dict[str, int]:
        places: dict[str, int] = {}
        for offset, value in sorted(log.items()):
            is_numbered = value not in sent or sent[value].numbered
            self.compared["duplicate"] += is_numbered
            if value in places and any(start <= offset < end for start, end in self.resent):
                self.again[value] = offset  # Its first place shows in which order it was sent.
                continue
            if value in places and is_numbered:
                self._add("duplicate", f"{value} is stored at {places[value]} and {offset}")
            places[value] = offset
        return places

    def _check_sends(self, log: dict[int, str], places: dict[str, int], start: int) -> None:
        for send in self.sends:
            if send.outcome == OK and send.promised:
                self._check_acknowledged(send, log, places, start)
            if send.outcome == FAIL:
                self.compared["aborted-read"] += len(send.values)

    def _check_values(self, sent: Mapping[str, Send], found: Iterable[tuple[str, str]]) -> None:
        """What is in the log, or was read, has been sent and was not refused."""
        for value, how in found:
            self.compared["phantom"] += 1
            send = sent.get(value)
            if send is None:
                self._add("phantom", f"{value} {how} and was never sent")
            elif send.outcome == FAIL:
                self._add("aborted-read", f"{value} was refused and {how}")

    def _check_acknowledged(self, send: Send, log: dict[int, str], places: dict[str, int], start: int) -> None:
        for index, value in enumerate(send.values):
            offset = send.offset + index
            self.compared["lost-write"] += 1
            if value in places:
                self.compared["ack-offset-mismatch"] += send.offset >= 0
                at = (places[value], self.again.get(value))
                if send.offset >= 0 and offset not in at and not self._was_given_up(offset):
                    self._add("ack-offset-mismatch", f"{value} was acknowledged at {offset}, is at {places[value]}")
            elif is_replaceable(value) and (send.offset < 0 or offset in self.replaced):
                pass  # A later one has replaced it.
            elif send.offset < 0 and start > 0:
                pass  # It may be below the log start.
            elif send.offset < 0 or (offset >= start and not self._was_given_up(offset)):
                end = max(log, default=-1)
                kind = "lost-postfix" if offset > end else "lost-write"
                self._add(kind, f"{value} was acknowledged at {offset}; there is {log.get(offset)}")

    def _check_order(self, places: dict[str, int]) -> None:
        """Two sends of one process keep their order."""
        last: dict[str, tuple[int, str]] = {}
        for send in sorted((each for each in self.sends if each.numbered), key=lambda each: each.sent_at):
            for value in send.values:
                offset = places.get(value)
                if offset is None:
                    continue
                self.compared["nonmonotonic-send"] += send.process in last
                before, value_before = last.get(send.process, (-1, ""))
                if offset < before:
                    self._add("nonmonotonic-send", f"{value} at {offset} was sent after {value_before} at {before}")
                last[send.process] = offset, value

    def _check_polls(self, log: dict[int, str], start: int) -> None:
        end: dict[str, int] = {}
        for poll in self.polls:
            expected = poll.start if poll.moved else end.get(poll.process, poll.start)
            if poll.start < expected:
                self._add("nonmonotonic-poll", f"{poll.process} asked for {poll.start} after {expected}")
            for offset, value in poll.records:
                self.compared["poll-skip"] += 1
                self.compared["nonmonotonic-poll"] += 1
                self.compared["inconsistent-offset"] += offset >= start
                if offset < expected:
                    self._add("nonmonotonic-poll", f"{poll.process} got {offset} where {expected} was due")
                elif not self._may_skip(expected, offset):
                    self._add("poll-skip", f"{poll.process} got {offset} where {expected} was due")
                expected = max(expected, offset + 1)
                if offset >= start and log.get(offset) != value and not self._was_given_up(offset):
                    self._add(
                        "inconsistent-offset", f"{poll.process} read {value} at {offset}; in the end: {log.get(offset)}"
                    )
            if poll.end is not None and not self._may_skip(expected, poll.end):
                self._add("poll-skip", f"{poll.process} ended at {expected}, before {poll.end}")
            end[poll.process] = expected
