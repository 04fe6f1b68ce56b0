"""Run by test_spark_memory.py: one reading task as an executor runs it, with a consumer that is slower than the broker.

Arguments: the options as JSON, partition, offset of a first short read, end offset. Prints a JSON object: the rows that
came, and by how many bytes the process was larger while the whole partition was read, at most, than after the short
read, which has loaded all there is to load.
"""

import json
import sys
import zlib

import psutil
from headrace.spark.option_table import BATCH
from headrace.spark.options import read_options
from headrace.spark.ranges import OffsetRange
from headrace.spark.reader import RangePartition, read_partition
from headrace.spark.schema import full_schema
from headrace.wire.ids import TopicPartition

given, number, short, end = json.loads(sys.argv[1]), *map(int, sys.argv[2:])
options = read_options(given, BATCH)
where = TopicPartition(given["subscribe"], number)
for _ in read_partition(options, full_schema(False), RangePartition(OffsetRange(where, 0, short))):
    pass
process = psutil.Process()
before = largest = process.memory_info().rss
rows = 0
for batch in read_partition(options, full_schema(False), RangePartition(OffsetRange(where, 0, end))):
    rows += batch.num_rows
    # Fetching continues meanwhile, within its limits: this takes ten times as long as the bytes take to come.
    zlib.compress(batch.column("value").buffers()[2], 1)
    largest = max(largest, process.memory_info().rss)
print(json.dumps({"rows": rows, "growth": largest - before}))
