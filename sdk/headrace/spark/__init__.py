"""Spark data source for headrace: `spark.read.format("headrace")`, and `readStream`, `write`, `writeStream`.

Spark finds the source by itself (`pyspark_headrace`); nothing needs to be imported or registered. Importing this
package imports nothing.
"""
