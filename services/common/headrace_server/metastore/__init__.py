"""Metastore: etcd behind a small interface, and an in-memory fake with the same semantics.

`api` is the interface, `etcd` the implementation on `etcd3_stubs`, `memory` the fake; `lease` keeps a lease alive from
a thread; `view` is an in-memory copy of a prefix that follows a watch.
"""
