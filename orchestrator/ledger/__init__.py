"""The usage ledger: one row for each request that has ended, whatever kills the process."""
