"""From logs to RESULTS.md and figures/: read, scaling, draw, report, in this order."""
