"""Rules about strangers: what a call may carry, whose places it takes, and for how long without a request."""

from __future__ import annotations

from tests.mutation.mutants import Mutant, Test, always, drop, never, replace

NO_STRANGERS = "The simulator has no strangers and no gRPC."

ADMISSION = (
    Mutant(
        "items-unlimited",
        "A1",
        "RequestReader._read",
        never("self._count(message, max_items) > max_items"),
        "A request with any number of empty elements is walked.",
        Test("tests/unit/common/test_methods.py::test_empty_elements_are_counted_and_refused", NO_STRANGERS),
    ),
    Mutant(
        "one-peer-takes-all",
        "A2",
        "_PlacePool.enter",
        never("of_peer >= self._max_peer_calls"),
        "One caller may hold every place.",
        Test("tests/unit/common/test_places.py::test_a_peer_has_its_share_and_another_finds_a_place", NO_STRANGERS),
    ),
    Mutant(
        "half-open-for-ever",
        "A3",
        "Arrivals._sweep",
        never("arrival.rounds >= ARRIVAL_ROUNDS"),
        "A call without a request keeps its place until the deadline that it chose.",
        Test(
            "tests/security/test_admission.py::test_a_half_open_call_loses_its_place_and_an_honest_one_finds_it",
            NO_STRANGERS,
        ),
    ),
    Mutant(
        "silent-heads-keep-their-places",
        "A4",
        "_Server._end_oldest",
        drop("oldest.transport.abort()"),
        "A connection that sends no request keeps its place when others need one.",
        Test("tests/unit/common/test_http_endpoint.py::test_silent_connections_make_room_for_a_probe", NO_STRANGERS),
    ),
    Mutant(
        "one-caller-waits-everywhere",
        "A5",
        "FetchWaiters.try_enter",
        never("of_peer >= share_of(self._max_waiting, peers)"),
        "One caller may take every place in which fetches wait.",
        Test("tests/unit/broker/test_broker_runtime.py::test_waiting_places_are_shared_between_callers", NO_STRANGERS),
    ),
    Mutant(
        "one-client-takes-all-connections",
        "A6",
        "NativeServer.enter",
        never("len(own) >= share"),
        "One address may have all the connections of the native protocol.",
        Test("tests/unit/common/test_native_server.py::test_the_longest_idle_connection_makes_room", NO_STRANGERS),
    ),
    Mutant(
        "frames-unlimited",
        "A13",
        "parse_header",
        never("header.size > MAX_FRAME_BYTES"),
        "A header of the native protocol makes its receiver allocate what it likes.",
        Test("tests/unit/wire/test_wire_frames.py::test_a_header_that_contradicts_itself_is_refused", NO_STRANGERS),
    ),
    Mutant(
        "requests-read-without-end",
        "A14",
        "NativeConnection._has_room",
        replace("len(self._calls) + self._refusals < MAX_REQUESTS", "True"),
        "A connection of the native protocol may have any number of requests unanswered.",
        Test("tests/unit/common/test_native_server.py::test_too_many_unanswered_requests_are_not_read", NO_STRANGERS),
    ),
    Mutant(
        "attachments-of-another-size",
        "A15",
        "splice_produce",
        never("position != end"),
        "Bytes that no batch names are taken with a request.",
        Test(
            "tests/unit/common/test_native_server.py::test_what_is_refused_leaves_the_connection_as_it_was",
            NO_STRANGERS,
        ),
    ),
    Mutant(
        "dear-calls-unlimited",
        "A7",
        "Rates.check",
        never("over_seconds > 0"),
        "One caller may have as many dear answers as it likes.",
        Test("tests/unit/common/test_process_service.py::test_the_level_is_changed_so_often_and_no_more", NO_STRANGERS),
    ),
    Mutant(
        "followers-unproven",
        "A8",
        "Replication.open_stream",
        always("is_proven(...)"),
        "A client that read ids and sessions from the metadata fetches as a replica, and its offsets count.",
        Test("tests/unit/broker/test_broker_open_stream.py::test_a_caller_without_a_proof_is_refused", NO_STRANGERS),
    ),
    Mutant(
        "large-requests-in-one-piece",
        "A9",
        "ProduceHandler._unpack",
        never("partitions > SMALL_PARTITIONS or batches_in_all > SLICE_BATCHES or size_bytes > SLICE_BYTES"),
        "A request of 10,000 partitions keeps the event loop for a third of a second.",
        Test(
            "tests/unit/broker/test_broker_produce_slices.py::test_others_have_the_loop_beside_a_large_request_and_its_own_connection_stays_in_order",
            NO_STRANGERS,
        ),
    ),
    Mutant(
        "full-share-stops-commits",
        "A10",
        "MetadataLimits.check_growth",
        never("before is not None and after <= max(before, REPLACED_BYTES)"),
        "One caller that fills max_group_bytes stops the commits of every group.",
        Test(
            "tests/unit/coordinator/test_metadata_limits.py::test_groups_that_are_known_commit_while_another_caller_has_filled_the_share",
            NO_STRANGERS,
        ),
    ),
    Mutant(
        "fsyncs-first-come-first-served",
        "A11",
        "Flusher._put",
        replace("caller", '""'),
        "An append to one partition waits for the fsyncs of 500 partitions of another caller.",
        Test(
            "tests/unit/broker/test_broker_runtime.py::test_no_caller_waits_for_all_that_another_one_appended_to",
            NO_STRANGERS,
        ),
    ),
    Mutant(
        "wasted-calls-unlimited",
        "A12",
        "Admission._take",
        never("not is_read"),
        "A caller that cancels its calls, or never sends their requests, is not limited.",
        Test(
            "tests/unit/common/test_wasted_calls.py::test_who_wastes_calls_is_shut_out_until_they_are_paid_and_nobody_else_is",
            NO_STRANGERS,
        ),
    ),
)
