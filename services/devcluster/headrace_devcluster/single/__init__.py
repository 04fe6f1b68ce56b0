"""Cluster in one process: a broker, a coordinator, and the metastore of both in a SQLite file.

`python -m headrace_devcluster.single` runs it. Nothing here is imported by the commands that start it.
"""
