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
    Option("subscribePattern", READS, "", "subscribePattern", "A regular expression that whole topic names match."),
    Option("assign", READS, "", "assign", 'Partitions to read: `{"clicks": [0, 2]}`.'),
    Option(
        "startingOffsets",
        READS,
        "batch: earliest, stream: latest",
        "startingOffsets",
        'Where to start: `earliest`, `latest` (streams), or `{"clicks": {"0": 23, "1": -2}}`, where -2 is the earliest '
        "and -1 the latest. A stream continues from its checkpoint.",
    ),
    Option(
        "startingTimestamp",
        READS,
        "",
        "startingTimestamp",
        "Start at the first record that is not older, in ms since 1970; where all are older, at the end.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        READS,
        "",
        "startingOffsetsByTimestamp",
        'The same a partition: `{"clicks": {"0": 1700000000000, "1": 0}}`.',
    ),
    Option("endingOffsets", (BATCH,), "latest", "endingOffsets", "Where to end, exclusive, as `startingOffsets`."),
    Option("endingTimestamp", (BATCH,), "", "endingTimestamp", "End before the first record that is not older."),
    Option(
        "endingOffsetsByTimestamp", (BATCH,), "", "endingOffsetsByTimestamp", "The same a partition, as for starting."
    ),
    Option(
        "minPartitions",
        READS,
        "one task a partition",
        "minPartitions",
        "The least number of tasks: large partitions are split by offset.",
    ),
    Option("maxRecordsPerPartition", READS, "", "maxRecordsPerPartition", "The most records of a task."),
    Option(
        "maxOffsetsPerTrigger",
        (STREAM,),
        "all there are",
        "maxOffsetsPerTrigger",
        "The most records of a micro-batch, shared among partitions by how much waits in each.",
    ),
    Option(
        "failOnDataLoss",
        READS,
        "true",
        "failOnDataLoss",
        "Whether records that retention has removed before they were read end the query; else they are skipped, and a "
        "warning says how many.",
    ),
    Option(
        "pushFilters",
        (BATCH,),
        "false",
        "",
        "Whether a query's filters restrict the fetched ranges; for a frame that is used in one query, see above.",
    ),
    Option("includeHeaders", READS, "false", "includeHeaders", "Whether there is a column `headers`."),
    Option(
        "commitGroup",
        (STREAM,),
        "",
        "kafka.group.id",
        "Group id under which positions are committed, without membership: `headrace group describe` shows the lag.",
    ),
    Option("topic", (WRITE,), "", "topic", "Where to write; without it the column `topic` sets it per row."),
    Option(
        "idempotentRetries",
        (WRITE,),
        "true",
        "",
        "Whether retries store no duplicates; fails if the rows differ, see above.",
    ),
)
