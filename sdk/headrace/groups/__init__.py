"""Rules of consumer groups: members, subscriptions, assignors and the next state of a group. Pure.

Shared by the coordinators, which keep the state in etcd, and by a directory that one process has open.
"""
