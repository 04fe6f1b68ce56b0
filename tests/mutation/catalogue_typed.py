"""Rules of typed topics: what is appended, and what a reader of some columns and rows gets."""

from __future__ import annotations

from tests.mutation.mutants import Mutant, Simulation, Test, never, replace

UNIT = "tests/unit/wire/test_wire_typed_payload.py::"
COLUMNS = "tests/unit/wire/test_wire_topic_columns.py::"
SOUND_ROWS = "The clients of the simulator write rows that fit, and read all of them."

TYPED = (
    Mutant(
        "blocks-not-verified",
        "I32",
        "block_of",
        never("crc32c(stored) != entry.block_crc"),
        "A part of a batch has no other checksum: damaged values are returned.",
        Test(UNIT + "test_each_flipped_bit_of_a_part_is_found", SOUND_ROWS),
    ),
    Mutant(
        "block-checksums-not-checked-by-the-leader",
        "I32",
        "check_blocks",
        never("crc32c(payload[start:end]) != entry.block_crc"),
        "A batch is appended of which no reader of single columns can read one.",
        Test(UNIT + "test_wrong_checksums_of_blocks_are_not_appended", SOUND_ROWS),
    ),
    Mutant(
        "range-excludes-its-ends",
        "I32",
        "ColumnRange.excludes",
        replace("unpack(entry.maximum) < unpack(self.minimum)", "unpack(entry.maximum) <= unpack(self.minimum)"),
        "A batch whose greatest value is the range's minimum is skipped.",
        Test(UNIT + "test_ranges_skip_batches", SOUND_ROWS),
    ),
    Mutant(
        "unlike-bounds-compared",
        "I32",
        "ColumnRange.excludes",
        replace("entry.bounds == NO_BOUNDS or entry.bounds != self.bounds", "entry.bounds == NO_BOUNDS"),
        "The bounds of a column that was widened since are compared as if they were of the new type.",
        Test(UNIT + "test_ranges_skip_batches", SOUND_ROWS),
    ),
    Mutant(
        "required-column-missing",
        "I32",
        "writable",
        never("not now.can_be_absent and written.by_id(now.id) is None"),
        "Rows without a required column are appended.",
        Test(COLUMNS + "test_what_may_be_appended", SOUND_ROWS),
    ),
    Mutant(
        "newer-columns-refused-for-good",
        "I32",
        "_unwritable",
        never('wrong and not may_be_newer and compatibility != "none"'),
        "Records of a producer that knows a change of the columns before the leader does are lost to their caller.",
        Test(
            "tests/unit/partition/test_partition_rules.py::test_rows_of_newer_columns_than_the_leader_knows_are_sent_again",
            "The simulator's leaders mostly learn of a change before its producers use it.",
        ),
    ),
    Mutant(
        "narrowed-column",
        "I32",
        "_check_change",
        never('mode in {"backward", "full"} and not widens(was.type, column.type)'),
        "A column becomes narrower than the values that old records have.",
        Test(COLUMNS + "test_modes", SOUND_ROWS),
    ),
    Mutant(
        "open-rows-take-later-columns",
        "H160",
        "OpenBatches.change_columns",
        replace("late = self._seal(buffer)", "late = None"),
        "Rows in an open batch are stored without the values of a column that is renamed meanwhile.",
        Simulation(
            200,
            changes={
                "typed": True,
                "compacts": False,
                "is_table": False,
                "mirrors": False,
                "faults": ("columns change", "columns change", "isolate", "pause"),
                "fault_period_ms": 300,
            },
        ),
    ),
)
