"""The metastore: etcd behind a small interface, and an in-memory fake with the same semantics.

`api` is the interface, `etcd` the real thing on `etcd3_stubs`, `memory` the fake; `lease` keeps a lease alive from a
plain thread; `view` is a copy of a prefix that follows a watch.
"""
