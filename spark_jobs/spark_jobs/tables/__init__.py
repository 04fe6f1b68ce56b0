"""Tables that keep data and the offsets it came from together: Parquet with manifests, and Delta.

Both are directories on a file system that driver and executors share. A job holds the table's lock for as long as it
writes (`TableLock`), lets Spark write an attempt (`Attempt`), and commits it: afterwards the table has the attempt's
rows and the positions behind them, or, whatever was killed in between, neither.
"""
