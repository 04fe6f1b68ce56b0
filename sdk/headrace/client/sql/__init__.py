"""SQL over topics, by DuckDB in this process."""
