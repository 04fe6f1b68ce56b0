"""A real headrace cluster on one machine: etcd, coordinators and brokers as processes, for tests, demos, first looks.

`LocalCluster` (cluster.py) is for Python in this workspace, `python -m headrace_devcluster` for a shell; users of the
SDK get the same through `headrace.testing`, which starts that command as a child.
"""
