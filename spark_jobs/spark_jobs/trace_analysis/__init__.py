"""Analysis of a request trace: composition, sizes, load, misses, popularity, reuse, cache sizes, fits. No Spark.

The questions are those of "Workload Analysis of a Large-Scale Key-Value Store" (Atikoglu et al., SIGMETRICS 2012).
Requests are columns of numpy throughout. `spark_jobs.workload` runs the same functions on Spark.

    requests   requests of trace blocks, of a topic or of Parquet files
    histogram  counts by size with a bounded number of bins
    history    the requests of each key, and what distances are computed with
    curves     reuse distances of gets
    summary    everything that is counted, of a set of keys; summaries of disjoint sets of keys can be merged
    fits       distributions that fit a summary, with confidence and goodness of fit
    model      the model that `headrace bench` replays
    charts    results as plots, and as rows of a table; cache: those of cache sizes
    report     the page for people
    analysis   all of it, from requests to files
"""
