"""Rules of etcd: compares, unknown outcomes, views, and the sessions that brokers register."""

from __future__ import annotations

from tests.mutation.mutants import Mutant, Scenario, Simulation, Test, always, drop, never, omit, replace

OWN_ETCD = "The simulator has an etcd of its own, and no gRPC."
NO_THREADS = "The simulator renews leases itself: the keeper is a thread with a channel of its own."

ETCD = (
    Mutant(
        "proposal-over-any-version",
        "C1",
        "IsrUpdater.write",
        omit("ModRevisionIs(key, proposal.base_revision)"),
        "A leader's write replaces any version of the key.",
        Simulation(120),
    ),
    Mutant(
        "no-answer-called-not-applied",
        "C2 H78",
        "EtcdMetastore._write",
        replace("MetastoreUnknownOutcomeError", "MetastoreUnavailableError"),
        "A write that etcd did not answer is reported as not applied.",
        Test(
            "tests/unit/common/test_etcd_calls.py::test_a_write_without_a_good_answer_is_unknown_and_not_sent_again",
            OWN_ETCD,
        ),
    ),
    Mutant(
        "refused-leaving-believed",
        "C4",
        "IsrUpdater.leave",
        always("result.succeeded"),
        "A broker with a corrupt log takes a write that was computed from a read of the past for done.",
        Scenario("test_stale_read.py::test_a_corrupt_replica_leaves_though_it_reads_that_it_has_left"),
    ),
    Mutant(
        "registered-twice",
        "I13",
        "Registration._put",
        omit("VersionIs(live_key, 0)"),
        "A broker registers though its id is registered already.",
        Simulation(60),
    ),
    Mutant(
        "deletions-missed-by-a-list",
        "I19",
        "PrefixView._take_list",
        replace("[key for key in self._key_values if key not in fresh]", "[]"),
        "A view that was read anew keeps the keys that were deleted meanwhile.",
        Simulation(60, changes={"faults": ("etcd compacts", "kill"), "fault_period_ms": 300}),
    ),
    Mutant(
        "older-copy-counted",
        "H16",
        "Registration._raise_version",
        never("known.storage_id == storage.storage_id and storage.version < known.version"),
        "A volume that was put back counts as the member that it was.",
        Simulation(
            60,
            durability="fsync",
            changes={
                "faults": ("volume put back", "kill"),
                "fault_period_ms": 700,
                "brokers": 3,
                "replication_factor": 3,
                "min_insync_replicas": 2,
                "rates": (),
            },
        ),
    ),
    Mutant(
        "controller-key-not-compared",
        "H19 C1 I14",
        "Controller._write_partition",
        omit("CreateRevisionIs(self._keyspace.controller(), epoch)"),
        "A controller that was replaced still writes where its successor has not written yet.",
        Test(
            "tests/unit/coordinator/test_controller.py::test_every_write_compares_the_controller_epoch",
            "Both controllers compute the same writes as a rule: forty seeds found nothing.",
        ),
    ),
    Mutant(
        "lease-in-doubt-serves-on",
        "H28",
        "BrokerService.check_lease",
        never("not session.keeper.alive_now()"),
        "A broker that may be deposed answers reads of any age although it is configured to fence itself.",
        Test(
            "tests/unit/broker/test_broker_start.py::test_a_broker_that_may_be_deposed_answers_nobody_where_it_is_asked_to",
            "In the simulator an answer of a deposed leader is no broken promise.",
        ),
    ),
    Mutant(
        "storage-of-before-not-compared",
        "H42",
        "Registration._describe_past",
        never("before.storage_id != storage.storage_id"),
        "A broker with a new directory registers as the continuation of the old one.",
        Scenario("test_lost_disk.py::test_a_broker_with_an_empty_directory_is_nobody"),
    ),
    Mutant(
        "lost-lease-breaks-continuity",
        "H74",
        "Registration._is_continuous",
        never("before.boot_id == self._live.boot_id"),
        "A broker that lives and lost its lease counts as one that lost what it had not flushed.",
        Test(
            "tests/unit/broker/test_broker_registration.py::test_after_a_lost_lease_a_later_session_resumes_continuously",
            "The machine has not been booted either, which the other two lines see.",
        ),
    ),
    Mutant(
        "adopted-on-another-lease",
        "H75",
        "Registration._take_over",
        always("present.lease_id == lease_id"),
        "A broker takes a key of an earlier lease, which is no longer renewed, for its registration.",
        Test(
            "tests/unit/broker/test_broker_registration.py::test_a_lost_answer_leaves_one_session",
            "It registers anew when that lease ends: the simulator sees a session more.",
        ),
    ),
    Mutant(
        "session-lost-by-the-broker-alone",
        "H76",
        "ReplicaManager.lose_session",
        drop("partition.handle(SessionLost())"),
        "Partitions lead on when the broker's registration is gone.",
        Simulation(60, changes={"faults": ("lease ends early",)}),
    ),
    Mutant(
        "ended-lease-trusted",
        "H76",
        "LeaseKeeper._take_answer",
        never("ttl_ms <= 0"),
        "A broker whose lease etcd has ended continues as if it were alive.",
        Test("tests/unit/common/test_lease_keeper.py::test_a_time_to_live_of_zero_is_loss_and_final", NO_THREADS),
    ),
    Mutant(
        "deadline-from-the-answer",
        "H77",
        "LeaseKeeper._take_answer",
        replace("sent_ms", "self._clock.boottime_ms()"),
        "The time that an answer took is counted as time that the lease has left.",
        Test("tests/unit/common/test_lease_keeper.py::test_the_deadline_counts_from_the_sending", NO_THREADS),
    ),
    Mutant(
        "writes-sent-again",
        "H79",
        "EtcdMetastore._write",
        replace(
            "raise_definite(what, endpoint.address, error)",
            "self._leave(endpoint)\nreturn await self._write(what, method_of, request, timeout_s)",
        ),
        "A write without an answer is sent to another member by the client itself, however late the first one lands.",
        Test(
            "tests/unit/common/test_etcd_calls.py::test_a_write_without_a_good_answer_is_unknown_and_not_sent_again",
            OWN_ETCD,
        ),
    ),
    Mutant(
        "old-events-applied",
        "H80",
        "PrefixView._take_item",
        never("item.revision <= self._revision"),
        "An event that comes twice, or late, undoes a newer one.",
        Test(
            "tests/unit/common/test_prefix_view.py::test_an_event_that_the_list_has_is_not_applied_again",
            "What the simulator's etcd doubles, it doubles at once: the second time changes nothing.",
        ),
    ),
    Mutant(
        "overtaken-history-believed",
        "H81",
        "Registration._check_history",
        never("revision < self._storage.announced"),
        "A broker believes an etcd that was put back once others have raised its revision again.",
        Scenario("test_etcd_put_back.py::test_coordinators_start_first_and_raise_the_revision"),
    ),
    Mutant(
        "restored-etcd-believed",
        "H81",
        "PrefixView._check",
        never("revision < self._revision"),
        "A list of the past replaces what is known.",
        Test(
            "tests/unit/common/test_prefix_view.py::test_a_list_of_the_past_with_a_key_that_was_deleted_is_refused",
            "Who acts on an old view mostly loses the compare: about one seed in a thousand breaks an invariant.",
        ),
    ),
    Mutant(
        "emptied-logs-incomplete",
        "H81 I18",
        "_most_complete",
        always("is_older or emptied.log_end_offset < written.log_end_offset"),
        "After a restore of etcd an old log wins against one whose records were all deleted: they are back.",
        Test(
            "tests/unit/coordinator/test_recover_metadata.py::test_the_most_complete_logs_are_in_sync",
            "A seed in some ten thousand has a disk put back, all records deleted and etcd put back in this order.",
        ),
    ),
    Mutant(
        "reads-of-one-member",
        "H82",
        "EtcdMetastore.get",
        replace(
            "stubs.rpc_pb2.RangeRequest(key=key.encode())",
            "stubs.rpc_pb2.RangeRequest(key=key.encode(), serializable=True)",
        ),
        "A member that is cut off answers with what it knew.",
        Test("tests/unit/common/test_etcd_calls.py::test_reads_are_linearizable", OWN_ETCD),
    ),
    Mutant(
        "etcd-filled-by-public-calls",
        "H83",
        "MetadataLimits.is_reserve",
        never("bool(self._quota_bytes) and self._used_bytes >= RESERVE_FROM * self._quota_bytes"),
        "Clients add groups and topics until etcd takes no write, not even an election's.",
        Test(
            "tests/unit/coordinator/test_metadata_limits.py::test_reserve_of_etcd_begins_at_70_percent_of_what_is_used",
            "The simulator's etcd has no quota; it refuses for lack of room at random.",
        ),
    ),
    Mutant(
        "pages-of-several-revisions",
        "H85",
        "EtcdMetastore.range",
        replace("revision or answer.header.revision", "0"),
        "A long list is put together from several moments.",
        Test("tests/unit/common/test_etcd_calls.py::test_a_list_is_read_in_pages_of_one_revision", OWN_ETCD),
    ),
    Mutant(
        "expired-certificate-taken",
        "H87",
        "read_certificates",
        never("expires_at <= datetime.now(UTC)"),
        "A process starts with, or changes to, a certificate that every peer refuses.",
        Test(
            "tests/unit/common/test_certificate_files.py::test_what_handshakes_would_fail_at_is_refused_with_a_reason",
            "The simulator has no TLS.",
        ),
    ),
    Mutant(
        "hung-process-keeps-its-lease",
        "H89",
        "LeaseKeeper._loop_is_dead",
        never("self._beat_pending"),
        "The lease of a process whose event loop hangs is renewed for ever.",
        Test("tests/unit/common/test_lease_keeper.py::test_a_dead_event_loop_is_not_kept_alive", NO_THREADS),
    ),
)
