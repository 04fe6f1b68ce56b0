"""Tables that commit data and source offsets together: Parquet with manifests, and Delta.

Both are directories on a file system that driver and executors share. A job locks the table while it writes
(`table_lock`), lets Spark write an attempt (`Attempt`), and commits it. Then the table has both the attempt's rows and
the positions after them; if the job is killed before, it has neither.
"""
