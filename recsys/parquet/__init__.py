"""What a Parquet file would do to memory, from its own account, before polars reads it.

`size` gives the verdict; `pages` adds up what the footer and the headers of the pages say, in
`thrift`; `deltas` and `arrow_schema` look into what polars would take at its word.
"""
