"""Jobs on Spark over headrace: `load`, `audit`, `windows`, `access_log`. Each runs by `python -m spark_jobs.NAME`.

A job's module is its command line and what it asks Spark for; decisions that need no Spark are in modules of their
own, and tables in `spark_jobs.tables`. The function of a job declares its options, and may be longer than others for
that.
"""
