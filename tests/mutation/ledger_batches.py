"""Rules of batches that enter and leave: what a leader takes, how far anything inflates, how readers pass poison."""

from __future__ import annotations

from tests.mutation.mutants import BROKER, Mutant, Test

WIRE = "sdk/headrace/wire"
COLUMNS = f"{WIRE}/columns.py"
COMPRESSION = f"{WIRE}/compression.py"
CHECKS = f"{BROKER}/runtime/batch_checks.py"
INFLATION = f"{BROKER}/runtime/inflation.py"
RECORDS = f"{BROKER}/rpc/records.py"
LEAVING = "tests/security/test_bombs_leaving.py"
ENTERING = "tests/security/test_poison_entering.py"
REFUSED = f"{ENTERING}::test_batch_that_no_reader_decodes_is_refused"
CLIENT = "sdk/headrace/client"
CORRUPT = f"{CLIENT}/fetch/corrupt_batches.py"
PASSING = "tests/unit/client/fetch/test_corrupt_batches.py"
FAKE = "The simulator's readers decode nothing."
SOUND = "The simulator's producers send sound, uncompressed batches."

BATCHES = (
    Mutant(
        "columns-not-checked",
        "H145",
        CHECKS,
        "                    check_columns(batch, header, max_payload_bytes=context.settings.max_payload_bytes)\n",
        "                    pass\n",
        "A leader appends an uncompressed batch that no reader can decode.",
        Test(REFUSED, SOUND),
    ),
    Mutant(
        "compressed-columns-not-checked",
        "H145",
        CHECKS,
        "        raise inflated\n",
        "        pass\n",
        "A leader appends a compressed batch that no reader can decode.",
        Test(REFUSED, SOUND),
    ),
    Mutant(
        "plain-offsets-not-ascending",
        "H145",
        COLUMNS,
        "        and ascend\n",
        "",
        "A batch of plain values whose offsets descend passes for a sound one.",
        Test(REFUSED, SOUND),
    ),
    Mutant(
        "headers-of-a-record-unlimited",
        "H145",
        COLUMNS,
        "        if headers > MAX_RECORD_HEADERS and ",
        "        if False and ",
        "One record may have as many headers as the payload holds.",
        Test(REFUSED, SOUND),
    ),
    Mutant(
        "wild-times-taken",
        "H145",
        CHECKS,
        "    if header.base_timestamp_ms < MIN_TIMESTAMP_MS or header.max_timestamp_ms > MAX_TIMESTAMP_MS:\n",
        "    if False:\n",
        "A leader takes timestamps that no calendar has, and readers cannot show.",
        Test(f"{ENTERING}::test_time_that_no_reader_can_show_is_refused", SOUND),
    ),
    Mutant(
        "ratio-not-looked-at",
        "H146",
        COLUMNS,
        "        if header.payload_bytes > MAX_RATIO * stored_bytes:\n",
        "        if False:\n",
        "A few bytes inflate to any size below max_payload_bytes.",
        Test(REFUSED, SOUND),
    ),
    Mutant(
        "inflated-bytes-not-counted",
        "H146",
        INFLATION,
        "        if not self._line and self.used_bytes + size_bytes <= self._max_bytes:\n",
        "        if True:\n",
        "As many bombs are inflated at once as there are threads.",
        Test(f"{ENTERING}::test_bombs_are_inflated_one_after_the_other", SOUND),
    ),
    Mutant(
        "compressed-batch-overtaken",
        "H50",
        f"{BROKER}/runtime/partition_appender.py",
        "        if self.is_slow or self._appending or self._log_lock.locked()",
        "        if self.is_slow or self._log_lock.locked()",
        "A batch is appended before one that came earlier and is inflated still.",
        Test(
            f"{ENTERING}::test_batches_are_appended_in_the_order_of_their_calls_whatever_their_codec",
            SOUND,
        ),
    ),
    Mutant(
        "poison-asked-for-again",
        "H147",
        f"{CLIENT}/fetch/subscription_state.py",
        "        if error.written_so:  ",
        "        if False:  ",
        "What every replica has is asked for three times, and brokers look for corruption that is not theirs.",
        Test(f"{PASSING}::test_error_says_that_every_replica_has_it_so", FAKE),
    ),
    Mutant(
        "passed-though-it-should-fail",
        "H147",
        CORRUPT,
        'if config.on_corrupt_batch == "fail" or ',
        "if ",
        "A reader loses records without having been told that it may.",
        Test(f"{PASSING}::test_error_says_that_every_replica_has_it_so", FAKE),
    ),
    Mutant(
        "letter-not-awaited",
        "H147",
        f"{CLIENT}/fetch/dead_letter_producer.py",
        "        for future in futures:\n            future.result()\n",
        "",
        "A batch is passed before its dead letter is stored.",
        Test(f"{PASSING}::test_letter_that_is_refused_is_written_again", FAKE),
    ),
    Mutant(
        "passed-and-not-committed",
        "H147",
        f"{CLIENT}/consumer/consumer_core.py",
        "                    self.group.mark_consumed(completed.where, error.next_offset, NO_EPOCH)\n",
        "                    pass\n",
        "Every owner of the partition meets the batch again, until something behind it is committed.",
        Test(f"{PASSING}::test_group_commits_what_is_behind_it", FAKE),
    ),
    Mutant(
        "poll-takes-what-a-fetch-brought",
        "H147",
        f"{CLIENT}/consumer/consumer_core.py",
        "            if decoded_batches and size > self.config.max_poll_bytes:\n",
        "            if False:\n",
        "One poll holds all that one fetch inflates to.",
        Test(f"{PASSING}::test_poll_is_bounded_by_inflated_bytes", FAKE),
    ),
    Mutant(
        "reader-inflates-a-whole-fetch",
        "H147",
        f"{CLIENT}/consumer/reader_core.py",
        "            if decoded_batches and size > self._config.max_poll_bytes:\n",
        "            if False:\n",
        "Iterating a Reader holds all that one fetch inflates to.",
        Test(f"{PASSING}::test_iterating_holds_little_more_than_a_batch", FAKE),
    ),
    Mutant(
        "error-in-the-middle-loses-what-came-before",
        "H147",
        f"{CLIENT}/consumer/consumer_core.py",
        "                    if first:\n                        raise\n                    return None",
        "                    raise\n                    return None",
        "A poll that meets a batch which it cannot decode drops the records before it, whose position has moved.",
        Test(f"{PASSING}::test_codec_without_its_package_loses_nothing", FAKE),
    ),
    Mutant(
        "all-headers-of-a-batch-at-once",
        "H147",
        f"{CLIENT}/base/records.py",
        "    if ends[end] - ends[start] <= HEADERS_AT_ONCE:\n",
        "    if True:\n",
        "The first record of a batch makes objects of all headers of the batch.",
        Test(f"{PASSING}::test_headers_of_a_bomb_are_made_a_few_at_a_time", FAKE),
    ),
    Mutant(
        "any-batch-inflated-for-an-answer",
        "H146",
        RECORDS,
        "    if header.payload_bytes > MAX_PAYLOAD_BYTES:\n",
        "    if False:\n",
        "A fetch in the simple form inflates whatever a batch says.",
        Test(f"{LEAVING}::test_large_batch_is_refused_before_it_is_inflated", SOUND),
        also=(
            (
                RECORDS,
                "        return decode_batch(batch, max_payload_bytes=MAX_PAYLOAD_BYTES)\n",
                "        return decode_batch(batch, max_payload_bytes=2**31)\n",
            ),
        ),
        second_line="The decoder has a limit of its own.",
    ),
    Mutant(
        "headers-not-counted-for-an-answer",
        "H146",
        RECORDS,
        "        counts += np.diff(ends)\n",
        "",
        "A fetch in the simple form makes objects of any number of headers.",
        Test(f"{LEAVING}::test_headers_count_as_records_do", SOUND),
    ),
    Mutant(
        "any-codec-taken",
        "H145",
        CHECKS,
        "    if header.codec not in _codec_numbers(config.allowed_codecs):\n        name",
        "    if False:\n        name",
        "A producer's choice of codec stops the readers that cannot decode it.",
        Test(f"{ENTERING}::test_topic_says_which_codecs_producers_may_use", SOUND),
    ),
)
