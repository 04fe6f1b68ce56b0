"""Rules about users: what belongs to one, and is refused to others."""

from __future__ import annotations

from tests.mutation.mutants import Mutant, Test, always, drop, never, replace

NO_USERS = "The simulator's clients have no identities."
REVOCATION = "tests/property/test_revocation.py::test_what_is_remembered_of_callers_never_outlives_what_is_known"
ADMITTED = "tests/unit/common/identity/test_admitted_calls.py::"
GROUP_USERS = "tests/unit/coordinator/test_group_users.py::"

IDENTITY = (
    Mutant(
        "heartbeats-for-members-of-others",
        "A16",
        "_TransitionBuilder.apply_heartbeat",
        never("not known.belongs_to(said.user)"),
        "A user of the group releases the partitions of another user's member.",
        Test(
            GROUP_USERS + "test_the_transaction_decides_about_a_member_that_the_view_does_not_show_yet",
            NO_USERS,
        ),
    ),
    Mutant(
        "departures-of-members-of-others",
        "A16",
        "_TransitionBuilder.leave",
        always("known.belongs_to(departure.user)"),
        "A user of the group removes another user's member.",
        Test(GROUP_USERS + "test_another_user_cannot_make_a_member_leave", NO_USERS),
    ),
    Mutant(
        "commits-for-members-of-others",
        "A16",
        "_check_owner",
        never("known is not None and not known.belongs_to(attempt.user)"),
        "A user of the group commits offsets for another user's member.",
        Test(GROUP_USERS + "test_a_commit_for_another_users_member_is_that_of_none", NO_USERS),
    ),
    Mutant(
        "producer-ids-of-others",
        "A17",
        "Access.check_producer",
        never("tag != self.producer_tag"),
        "A user with write on a topic fences the producer of another user for ever.",
        Test(
            "tests/unit/broker/test_broker_producer_owners.py::test_batches_of_another_users_producer_are_refused",
            NO_USERS,
        ),
    ),
    Mutant(
        "producer-ids-of-others-in-runs",
        "A17",
        "_small_run",
        drop("check_producer(...)"),
        "The same with many small batches in one request.",
        Test(
            "tests/unit/broker/test_broker_producer_owners.py::test_batches_of_another_users_producer_are_refused",
            NO_USERS,
        ),
    ),
    Mutant(
        "owners-outlive-their-topics",
        "A18",
        "topic_writes:delete",
        replace("[Delete(keyspace.grant(topic.owner, OWNER, owned))]", "[]"),
        "A user may delete the topic that another one has created under a name that it once used.",
        Test(
            "tests/unit/coordinator/test_topic_owners.py::test_a_topic_has_an_owner_from_its_creation_to_its_deletion",
            NO_USERS,
        ),
    ),
    Mutant(
        "owners-without-a-grant-of-create",
        "A18",
        "TopicOwners.new_owner",
        never("not caller.allows(Operation.CREATE, ResourceKind.TOPIC, name)"),
        "While the cluster is open, a caller without rights prepares rights for later.",
        Test(
            "tests/unit/coordinator/test_topic_owners.py::test_who_may_create_and_nothing_more_becomes_the_owner",
            NO_USERS,
        ),
    ),
    Mutant(
        "callers-remembered-for-ever",
        "A19",
        "Caller.refresh",
        always("view.version == self._version"),
        "A deleted grant, key or user counts on connections that were open before.",
        Test(REVOCATION, NO_USERS),
    ),
    Mutant(
        "sessions-outlive-their-signing-key",
        "A19",
        "Caller._look",
        never("identity.signing_key not in view.signing_keys"),
        "A session that was forged with a leaked key is accepted after the key was removed.",
        Test(REVOCATION, NO_USERS),
    ),
    Mutant(
        "ends-of-grants-unnoticed",
        "A19",
        "Caller.refresh",
        replace("min([changes_at_ms, *ends])", "changes_at_ms"),
        "An expired grant counts until something else about identity changes.",
        Test(REVOCATION, NO_USERS),
    ),
    Mutant(
        "waiting-fetches-keep-their-rights",
        "A20",
        "_check_rights",
        drop("current.recheck()"),
        "A consumer whose API key was deleted gets the records that come while it waits.",
        Test("tests/unit/broker/test_broker_fetch_rights.py::test_a_fetch_that_waited_is_checked_again", NO_USERS),
    ),
    Mutant(
        "acts-that-their-caller-leaves",
        "A21",
        "_note_cancelled",
        drop("allowed.note_end(...)"),
        "An administrator that hangs up, or sends a short deadline, deletes a topic without a trace in the audit log.",
        Test(ADMITTED + "test_an_act_whose_caller_leaves_is_in_the_audit_log", NO_USERS),
    ),
    Mutant(
        "streams-keep-their-rights",
        "A20",
        "IdentityGate.admit_further",
        drop("access.recheck()"),
        "A caller whose API key was deleted reads the rest of a dump.",
        Test(ADMITTED + "test_a_stream_ends_with_the_right_of_its_caller", NO_USERS),
    ),
    Mutant(
        "rights-of-any-age",
        "A22",
        "IdentityGate._check_rights_age",
        never("age_ms > self._rights_max_age_ms"),
        "An administrator whose right was taken away deletes records at a broker that etcd does not reach, for ever.",
        Test("tests/unit/common/identity/test_gate.py::test_acts_are_refused_once_rights_are_old", NO_USERS),
    ),
    Mutant(
        "keys-that-end-make-keys-that-stay",
        "A23",
        "AuthServicer.CreateApiKey",
        drop("self._check_own_lifetime(...)"),
        "The holder of a key for a week makes one for good.",
        Test(
            "tests/unit/coordinator/test_auth_service.py::test_a_key_that_ends_makes_none_that_lives_longer", NO_USERS
        ),
    ),
    Mutant(
        "prefixes-reach-the-table-of-mirrors",
        "A24",
        "_least_prefix",
        replace("len(name) if name == MIRRORS_TABLE else 0", "0"),
        "A user that may write all topics has workers of mirrors send their credentials to a server of its own.",
        Test("tests/property/test_identity.py::test_only_grants_that_name_the_table_of_mirrors_reach_it", NO_USERS),
    ),
)
