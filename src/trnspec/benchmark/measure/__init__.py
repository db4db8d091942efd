"""From a plan to raw records: one line on disk for each request, before anything is computed from it."""
