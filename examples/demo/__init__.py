"""The demo: log data of the two kinds that the paper names, through a real cluster that loses a broker meanwhile, read
back twice, checked, and loaded into a table.

`sources.py` and `machine.py` make the records, `feeding.py` sends them, `failover.py` kills a broker in the middle,
`following.py` reads them back, `ledger.py` keeps the accounts on both sides, `report.py` compares them, `offline.py`
has Spark load and ask, `command.py` puts it together.
"""
