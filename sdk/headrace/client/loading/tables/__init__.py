"""Tables that commit data and source offsets together: Parquet with manifests, Delta, Iceberg.

They are in directories, or in an object store (`places`). A job locks the table while it writes (`table_lock`), writes
the files of an attempt (`Attempt`), with Spark in executors that share the file system, and commits it. Then the table
has both the attempt's rows and the positions after them; if the job is killed before, it has neither.
"""
