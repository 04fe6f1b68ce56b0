"""Rules of what runs the cores: streams, flushes and replicas of a broker, the controller's loop."""

from __future__ import annotations

from tests.mutation.mutants import BROKER, COORDINATOR, Mutant, Simulation, Test

RUNTIME = f"{BROKER}/runtime"
CONTROLLER = f"{COORDINATOR}/runtime/controller.py"
EVERY_WRITE = "tests/unit/coordinator/test_controller.py::test_every_write_compares_the_controller_epoch"
CORRUPTION = {"faults": ("corruption", "scrub"), "durable": True, "replication_factor": 3, "min_insync_replicas": 2}

RUNTIME_RULES = (
    Mutant(
        "append-during-a-flush-not-flushed",
        "H34",
        f"{RUNTIME}/flusher.py",
        "            for each in asked_again:\n",
        "            for each in ():\n",
        "What was appended while a flush ran waits for the next append to be flushed.",
        Test(
            "tests/unit/broker/test_broker_runtime.py::test_one_fsync_serves_all_that_wait",
            "It takes an append during the very last flush of a partition: one seed in forty.",
        ),
    ),
    Mutant(
        "fetch-of-a-broken-stream-awaited",
        "H6",
        f"{RUNTIME}/replica_fetcher.py",
        "            partition.replica.fetches.end()\n            self.fetch(partition)\n",
        "            self.fetch(partition)\n",
        "A follower goes on awaiting the answer to a fetch whose stream has broken.",
        Simulation(50),
    ),
    Mutant(
        "session-lost-by-the-broker-alone",
        "H76",
        f"{RUNTIME}/replica_manager.py",
        "        for partition in self.partitions:\n            partition.handle(SessionLost())\n",
        "",
        "Partitions lead on when the broker's registration is gone.",
        Simulation(60, changes={"faults": ("lease ends early",)}),
    ),
    Mutant(
        "corrupt-log-kept",
        "H33",
        f"{RUNTIME}/replica_manager.py",
        "        if is_news:\n            self._note_left(partition)\n",
        "",
        "A corrupt replica that has left its key stays as it is: nobody copies its log anew.",
        Simulation(50, durability="fsync", changes=CORRUPTION),
    ),
    Mutant(
        "partition-not-looked-at-after-a-write",
        "C2",
        CONTROLLER,
        "            self._partitions.note_again(change, written=written)\n",
        "            if written:\n                self._partitions.note_again(change, written=written)\n",
        "A controller whose write got no answer, or lost, does not look at the partition again.",
        Simulation(60, changes={"faults": ("answers lost", "kill"), "rates": ("lost answers",), "rate": 0.08}),
    ),
    Mutant(
        "controller-key-not-compared",
        "H19",
        CONTROLLER,
        "            CreateRevisionIs(self._keyspace.controller(), epoch),\n            *(",
        "            *(",
        "A controller that has been replaced goes on writing wherever its successor has not written yet.",
        Test(EVERY_WRITE, "What the two of them want is the same, as a rule: forty seeds saw nothing."),
    ),
    Mutant(
        "candidate-not-compared",
        "C1",
        CONTROLLER,
        "            *(\n"
        "                CreateRevisionIs(self._keyspace.broker(entry.broker_id), entry.broker_epoch)\n"
        "                for entry in change.sessions()\n"
        "            ),\n",
        "",
        "A broker is elected in a session that is over when the write lands.",
        Test(EVERY_WRITE, "The session has to end while the write is on its way: one seed in thirty."),
    ),
)
