"""Table of the data source's options, from which the guide's page is checked. Pure."""

from typing import NamedTuple

BATCH, STREAM, WRITE = "batch", "stream", "write"
READS = (BATCH, STREAM)


class Option(NamedTuple):
    """Row of the table."""

    name: str
    uses: tuple[str, ...]
    """Subset of `BATCH`, `STREAM`, `WRITE`."""
    default: str
    kafka: str
    """Name in Spark's Kafka source; empty if it has no such option."""
    text: str


OPTIONS = (
    Option("subscribe", READS, "", "subscribe", "Topics to read, separated by commas."),
    Option("subscribePattern", READS, "", "subscribePattern", "Regular expression that must match whole topic names."),
    Option("assign", READS, "", "assign", 'Partitions to read: `{"clicks": [0, 2]}`.'),
    Option(
        "startingOffsets",
        READS,
        "batch: earliest, stream: latest",
        "startingOffsets",
        'Start offsets: `earliest`, `latest` (streams), or `{"clicks": {"0": 23, "1": -2}}`, where -2 is the earliest '
        "and -1 the latest. A stream continues from its checkpoint.",
    ),
    Option(
        "startingTimestamp",
        READS,
        "",
        "startingTimestamp",
        "Start at the first record with this timestamp or a later one, in ms since 1970; at the end if there is none.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        READS,
        "",
        "startingOffsetsByTimestamp",
        'The same for each partition: `{"clicks": {"0": 1700000000000, "1": 0}}`.',
    ),
    Option(
        "endingOffsets", (BATCH,), "latest", "endingOffsets", "End offsets, exclusive; values as for `startingOffsets`."
    ),
    Option(
        "endingTimestamp",
        (BATCH,),
        "",
        "endingTimestamp",
        "End before the first record with this timestamp or a later one.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        (BATCH,),
        "",
        "endingOffsetsByTimestamp",
        "The same for each partition, as in `startingOffsetsByTimestamp`.",
    ),
    Option(
        "minPartitions",
        READS,
        "one task per partition",
        "minPartitions",
        "Minimum number of tasks; large partitions are split by offset.",
    ),
    Option("maxRecordsPerPartition", READS, "", "maxRecordsPerPartition", "Maximum number of records per task."),
    Option(
        "maxOffsetsPerTrigger",
        (STREAM,),
        "no limit",
        "maxOffsetsPerTrigger",
        "Maximum number of records per micro-batch, divided among partitions in proportion to their backlogs.",
    ),
    Option(
        "failOnDataLoss",
        READS,
        "true",
        "failOnDataLoss",
        "Whether the query fails if retention has removed records before they were read. If `false`, it skips them and "
        "logs a warning with their number.",
    ),
    Option(
        "pushFilters",
        (BATCH,),
        "false",
        "",
        "Whether a query's filters restrict the fetched ranges. Only for a frame that is used in one query, see above.",
    ),
    Option(
        "newestPerKey",
        (BATCH,),
        "false",
        "",
        "Whether to give only the newest record of each key below the end, without deleted and expired ones: a table "
        "as of an offset or a time, see above.",
    ),
    Option(
        "typed",
        (*READS, WRITE),
        "false",
        "",
        "Whether to read the columns of the one typed topic that is subscribed, and `_partition`, `_offset`, "
        "`_timestamp` and `_key`. Brokers send the columns of the frame's schema only, see above. For a write: whether "
        "rows have the columns of the typed topic that the option `topic` names.",
    ),
    Option("includeHeaders", READS, "false", "includeHeaders", "Whether to add a column `headers`."),
    Option(
        "commitGroup",
        (STREAM,),
        "",
        "kafka.group.id",
        "Group id under which positions are committed, without membership: `headrace group describe` shows the lag.",
    ),
    Option("topic", (WRITE,), "", "topic", "Topic to write to. By default the column `topic` selects it for each row."),
    Option(
        "idempotentRetries",
        (WRITE,),
        "true",
        "",
        "Whether retries store no duplicates; a retry fails if its rows differ, see above.",
    ),
)
