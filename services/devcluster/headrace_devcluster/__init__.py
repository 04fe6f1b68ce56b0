"""Real headrace cluster on one machine: etcd, coordinators and brokers as processes, for tests and demos.

`LocalCluster` (cluster.py) is for Python in this workspace, `python -m headrace_devcluster` for a shell. Users of the
SDK use `headrace.testing`, which starts that command as a child process.
"""
