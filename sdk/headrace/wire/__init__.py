"""What crosses between headrace's processes: ids, record batches, compression, errors; shared with the servers.

Importing a module of this package imports neither grpc nor pyarrow nor a compression library; each is imported when
it is first needed.
"""
