"""Wire formats of headrace's processes: ids, record batches, compression, errors; shared with the servers.

Importing a module of this package imports neither grpc nor pyarrow nor a compression library; each is imported on first
use.
"""
