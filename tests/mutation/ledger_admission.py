"""Rules about strangers: what a call may carry, whose places it takes, and for how long without a request."""

from __future__ import annotations

from tests.mutation.mutants import BROKER, SERVER, Mutant, Test

REQUESTS = f"{SERVER}/requests.py"
CONNECTIONS = f"{SERVER}/connections.py"
PLACES = f"{SERVER}/places.py"
ARRIVALS = f"{SERVER}/arrivals.py"
ZERO_COPY = "sdk/headrace/wire/zero_copy.py"
HTTP = f"{SERVER}/http_endpoint.py"
WAITERS = f"{BROKER}/runtime/waiters.py"
TRANSFER = f"{BROKER}/rpc/transfer.py"
FETCHES = "sdk/headrace/client/fetch/fetch_planner.py"
VIEW = f"{SERVER}/metadata_view.py"
PROCESS = f"{SERVER}/process_service.py"
REPLICA_FETCHER = f"{BROKER}/runtime/replica_fetcher.py"
WASTERS = (
    "tests/unit/common/test_wasted_calls.py::test_who_wastes_calls_is_shut_out_until_they_are_paid_and_nobody_else_is"
)
NO_STRANGER = "The simulator has no strangers and no gRPC."

REPLICATION = f"{BROKER}/runtime/replication.py"
FOLLOWERS = "tests/unit/broker/test_broker_open_stream.py"

ADMISSION = (
    Mutant(
        "followers-unproven",
        "A8",
        REPLICATION,
        "        if not is_proven(self._view.identity, follower, ",
        "        if False and not is_proven(self._view.identity, follower, ",
        "A stranger who read ids and sessions from the metadata fetches as a replica, and its word counts.",
        Test(f"{FOLLOWERS}::test_a_caller_without_a_proof_is_refused", NO_STRANGER),
    ),
    Mutant(
        "followers-of-any-session",
        "A8",
        REPLICATION,
        "        if registered is None or registered.broker_epoch != identity.broker_epoch:\n",
        "        if registered is not None and registered.broker_epoch > identity.broker_epoch:\n",
        "A session that nobody registered keeps the registered one out.",
        Test(f"{FOLLOWERS}::test_a_session_that_is_not_registered_is_refused", NO_STRANGER),
    ),
    Mutant(
        "bytes-unlimited",
        "A1",
        REQUESTS,
        "        if len(data) > method.max_bytes:\n",
        "        if False:\n",
        "A request of any size is parsed.",
        Test(
            "tests/unit/common/test_methods.py::test_a_request_over_its_bytes_is_refused_unparsed",
            NO_STRANGER,
        ),
    ),
    Mutant(
        "items-unlimited",
        "A1",
        REQUESTS,
        "        if self._count(message, max_items) > max_items:\n",
        "        if False:\n",
        "A request with any number of empty elements is walked.",
        Test("tests/unit/common/test_methods.py::test_empty_elements_are_counted_and_refused", NO_STRANGER),
    ),
    Mutant(
        "refused-requests-unlimited",
        "A7",
        REQUESTS,
        "            self._refused.charge(peer, refused, len(data))\n",
        "",
        "A caller has requests of a mebibyte of empty elements parsed, one after the other.",
        Test("tests/security/test_admission.py::test_a_flood_of_empty_elements_costs_next_to_nothing", NO_STRANGER),
    ),
    Mutant(
        "connections-unshared",
        "A6",
        CONNECTIONS,
        "                connection.shutdown(socket.SHUT_RDWR)\n",
        "                pass\n",
        "One caller may keep every connection of a listener.",
        Test(
            "tests/unit/common/test_descriptors.py::test_a_caller_with_all_connections_leaves_others_their_share",
            NO_STRANGER,
        ),
    ),
    Mutant(
        "wasted-calls-unlimited",
        "A12",
        f"{SERVER}/admission.py",
        "            if not is_read:\n",
        "            if False:\n",
        "Who takes its calls back, or never sends their requests, goes on doing so.",
        Test(WASTERS, NO_STRANGER),
    ),
    Mutant(
        "wasters-come-again",
        "A12",
        CONNECTIONS,
        "OURS = 0, 1\n",
        "OURS = 0, 0\n",
        "Who wastes calls has its connections ended, and opens others with as many.",
        Test(WASTERS, NO_STRANGER),
    ),
    Mutant(
        "topic-named-twice",
        "A1",
        REQUESTS,
        "        if name and name in seen:\n",
        "        if False:\n",
        "What a topic costs is paid for each time a request names it.",
        Test("tests/unit/common/test_methods.py::test_a_topic_named_twice_is_refused", NO_STRANGER),
    ),
    Mutant(
        "produce-fields-unlimited",
        "A1",
        ZERO_COPY,
        "        if fields.left < 0:\n            raise ValueError",
        "        if False:\n            raise ValueError",
        "A large produce request is looked through in Python, field by field, however many it has.",
        Test("tests/property/test_wire_zero_copy.py::test_a_flood_of_fields_is_given_up", NO_STRANGER),
    ),
    Mutant(
        "one-peer-takes-all",
        "A2",
        PLACES,
        "        if of_peer >= self._max_peer_calls:\n",
        "        if False:\n",
        "One caller may hold every place.",
        Test(
            "tests/unit/common/test_places.py::test_a_peer_has_its_share_and_another_finds_a_place",
            NO_STRANGER,
        ),
    ),
    Mutant(
        "health-behind-clients",
        "A2",
        PLACES,
        '            Pool.HEALTH: _PlacePool("health", limits.health),\n        }\n',
        '            Pool.HEALTH: _PlacePool("health", limits.health),\n        }\n'
        "        self._pools[Pool.HEALTH] = self._pools[Pool.CLIENTS]\n",
        "Health has the places that clients have.",
        Test("tests/security/test_admission.py::test_health_is_answered_while_clients_hold_every_place", NO_STRANGER),
    ),
    Mutant(
        "half-open-for-ever",
        "A3",
        ARRIVALS,
        "            elif arrival.rounds >= ARRIVAL_ROUNDS:\n",
        "            elif False:\n",
        "A call without a request keeps its place until the deadline that it chose.",
        Test(
            "tests/security/test_admission.py::test_a_half_open_call_loses_its_place_and_an_honest_one_finds_it",
            NO_STRANGER,
        ),
    ),
    Mutant(
        "late-holds-a-place",
        "A3",
        ARRIVALS,
        "                arrival.place.release()\n",
        "                pass\n",
        "A large request that is late keeps its place.",
        Test(
            "tests/security/test_admission.py::test_a_large_request_may_be_late_without_a_place_and_only_a_few_are",
            NO_STRANGER,
        ),
    ),
    Mutant(
        "silent-heads-keep-their-places",
        "A4",
        HTTP,
        "        oldest.transport.abort()\n",
        "        pass\n",
        "A connection that sends no request keeps its place beside whoever comes.",
        Test("tests/unit/common/test_http_endpoint.py::test_silent_connections_make_room_for_a_probe", NO_STRANGER),
    ),
    Mutant(
        "a-byte-extends-the-head",
        "A4",
        HTTP,
        "            async with asyncio.timeout(HEAD_SECONDS):\n",
        "            async with asyncio.timeout(None):\n",
        "A request's head may take for ever.",
        Test("tests/unit/common/test_http_endpoint.py::test_a_head_that_trickles_is_cut_off", NO_STRANGER),
    ),
    Mutant(
        "one-caller-waits-everywhere",
        "A5",
        WAITERS,
        "        if of_peer >= share_of(self._max_waiting, peers):\n",
        "        if False:\n",
        "One caller may take every place in which fetches wait.",
        Test("tests/unit/broker/test_broker_runtime.py::test_waiting_places_are_shared_between_callers", NO_STRANGER),
    ),
    Mutant(
        "throttle-ignored",
        "A5",
        FETCHES,
        "                    if answer.message.throttle_ms > 0 and not data:\n",
        "                    if False:\n",
        "A reader whose fetch found no place to wait asks again at once, and again.",
        Test("tests/unit/client/fetch/test_fetch_planner.py::test_a_reader_that_is_told_to_wait_waits", NO_STRANGER),
    ),
    Mutant(
        "silent-readers-keep-their-places",
        "A6",
        TRANSFER,
        "        if not idle:\n            return False\n",
        "        return False\n",
        "Connections without a request hold the transfer port's places.",
        Test(
            "tests/unit/broker/test_broker_transfer.py::test_a_silent_connection_makes_room_for_one_that_comes",
            NO_STRANGER,
        ),
    ),
    Mutant(
        "one-reader-takes-all",
        "A6",
        TRANSFER,
        "        if len(own) >= share:\n",
        "        if False:\n",
        "One address may have all the connections of the transfer port.",
        Test("tests/unit/broker/test_broker_transfer.py::test_an_address_has_its_share_of_the_places", NO_STRANGER),
    ),
    Mutant(
        "metadata-described-once",
        "A7",
        VIEW,
        "                self._described.pop(topic_id, None)\n                states",
        "                states",
        "Clients are told of the leaders that a topic had when somebody first asked.",
        Test("tests/unit/common/test_metadata_view.py::test_what_is_kept_follows_every_change", NO_STRANGER),
    ),
    Mutant(
        "every-measurement-an-fsync",
        "A7",
        PROCESS,
        "now_ms - self._measured_ms >= MEASURE_MS",
        "True",
        "Whoever asks has the data disk do an fsync for him each time.",
        Test("tests/unit/common/test_process_service.py::test_a_measurement_serves_all_who_ask", NO_STRANGER),
    ),
    Mutant(
        "dear-calls-unlimited",
        "A7",
        PLACES,
        "        if over_seconds > 0:\n",
        "        if False:\n",
        "One caller may have as many dear answers as it likes.",
        Test("tests/unit/common/test_process_service.py::test_the_level_is_changed_so_often_and_no_more", NO_STRANGER),
    ),
    Mutant(
        "a-message-of-all-partitions",
        "A1",
        REPLICA_FETCHER,
        "islice(self._due.items(), MAX_FETCHES)",
        "self._due.items()",
        "A follower of many partitions sends a message that its leader refuses.",
        Test("tests/unit/broker/test_broker_fetch_ahead.py::test_a_message_of_a_follower_is_bounded", NO_STRANGER),
    ),
    Mutant(
        "late-without-end",
        "A3",
        ARRIVALS,
        "        return of_peer <= LATE_BYTES_OF_PEER and ",
        "        return of_peer >= 0 or ",
        "Requests that are late fill gRPC's memory, outside of the broker's budget.",
        Test(
            "tests/security/test_admission.py::test_what_is_late_is_bounded_in_bytes_of_a_peer_and_of_all", NO_STRANGER
        ),
    ),
    Mutant(
        "large-requests-in-one-piece",
        "A9",
        f"{BROKER}/rpc/produce.py",
        "        is_large = partitions > SMALL_PARTITIONS or",
        "        is_large = False and",
        "A request of 10,000 partitions keeps the event loop for a third of a second.",
        Test(
            "tests/unit/broker/test_broker_produce_slices.py::"
            "test_others_have_the_loop_beside_a_large_request_and_its_own_connection_stays_in_order",
            NO_STRANGER,
        ),
    ),
    Mutant(
        "a-connection-overtakes-itself",
        "A9",
        f"{BROKER}/runtime/turns.py",
        "        return connection in self._locks\n",
        "        return False\n",
        "A batch that was sent behind a large request is appended before the request's own.",
        Test(
            "tests/unit/broker/test_broker_produce_slices.py::"
            "test_others_have_the_loop_beside_a_large_request_and_its_own_connection_stays_in_order",
            "The simulator's producers send no request that is appended in slices.",
        ),
    ),
    Mutant(
        "slices-of-all-large-calls-in-one-turn",
        "A11",
        f"{SERVER}/caller_turns.py",
        "        if not self._is_given:\n            self._is_given = True\n    ",
        "",
        "Each turn of the event loop has a slice of every large call, and small calls need ten turns.",
        Test(
            "tests/unit/common/test_caller_turns.py::"
            "test_a_turn_of_the_loop_has_one_slice_however_many_calls_are_large",
            NO_STRANGER,
        ),
    ),
    Mutant(
        "slices-without-a-pause",
        "A11",
        f"{SERVER}/caller_turns.py",
        "            loop.call_later(self._owed_seconds, self._give, loop)\n",
        "            loop.call_soon(self._give, loop)\n",
        "The loop goes from slice to slice, and the threads that other calls wait for hardly run.",
        Test(
            "tests/unit/common/test_caller_turns.py::"
            "test_beside_small_calls_the_loop_is_left_to_them_after_a_slice_for_as_long_as_it_lasted",
            NO_STRANGER,
        ),
    ),
    Mutant(
        "slices-pause-for-their-own-caller",
        "A11",
        f"{SERVER}/caller_turns.py",
        "        if now - self._large.get(caller, -math.inf) > LARGE_SECONDS:\n            self",
        "        self",
        "A client of wide requests has half of an idle broker.",
        Test(
            "tests/unit/common/test_caller_turns.py::"
            "test_slices_wait_neither_for_their_own_caller_nor_for_one_of_large_calls",
            NO_STRANGER,
        ),
    ),
    Mutant(
        "eight-fsyncs-at-once-whatever-the-disk",
        "A11",
        f"{BROKER}/runtime/flusher.py",
        "        if len(self._lasted) == ROUNDS_LOOKED_AT:\n",
        "        if False:\n",
        "Eight threads wait for the interpreter in place of the disk, and the event loop with them.",
        Test(
            "tests/unit/broker/test_broker_runtime.py::test_fsyncs_at_once_are_as_many_as_wait_for_the_disk",
            NO_STRANGER,
        ),
    ),
    Mutant(
        "fsyncs-first-come-first-served",
        "A11",
        f"{BROKER}/runtime/flusher.py",
        "        self._queue.put(caller, partition)\n",
        '        self._queue.put("", partition)\n',
        "Whoever appends to one partition waits for the fsyncs of 500 of another caller.",
        Test(
            "tests/unit/broker/test_broker_runtime.py::test_no_caller_waits_for_all_that_another_one_appended_to",
            NO_STRANGER,
        ),
    ),
    Mutant(
        "a-full-share-stops-commits",
        "A10",
        "services/coordinator/headrace_coordinator/runtime/metadata_limits.py",
        "        if before is not None and after <= max(before, REPLACED_BYTES):\n            return\n",
        "",
        "Who fills max_group_bytes stops the commits of every group.",
        Test(
            "tests/unit/coordinator/test_metadata_limits.py::"
            "test_groups_that_are_known_commit_while_another_caller_has_filled_the_share",
            NO_STRANGER,
        ),
    ),
)
