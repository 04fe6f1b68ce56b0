"""Typed batches: the columns of a topic as text, and the part of a batch that has them.

Without pyarrow, except for `arrow_columns`, which clients import on first use.
"""
