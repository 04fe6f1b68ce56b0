"""Jobs on Spark over headrace: `load`, `audit`, `windows`, `access_log`. Each runs by `python -m spark_jobs.NAME`.

A job's module has its command line and its Spark queries; logic without Spark is in separate modules, and tables are
in `headrace.client.loading.tables`. The function of a job may be longer than others because it declares the options.
"""
