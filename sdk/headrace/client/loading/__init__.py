"""Topics as tables of files: rows and positions are committed together. `spark_jobs.load` writes the same tables."""
