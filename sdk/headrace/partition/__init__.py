"""Rules of one partition that need no other replica: settings, checks of batches, sequences of producers, tables. Pure.

Shared by the brokers and by a directory that one process has open.
"""
