"""Demo: log data of the paper's two kinds is sent through a real cluster that loses a broker meanwhile, read
back twice, checked, and loaded into a table.

`sources.py` and `machine.py` make the records, `feeding.py` sends them, `failover.py` kills a broker in the middle,
`following.py` reads them back, `ledger.py` counts them on both sides, `report.py` compares both, `offline.py` loads
them with Spark and queries the table, `command.py` runs it all.
"""
