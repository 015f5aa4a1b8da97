"""Trials that break runs in every way that they must survive, and log what became of them.

    make chaos                           # all trials: hours on two CPU cores
    make chaos K="kills or signals"      # some of them, by pytest's -k
    python -m pytest -n 0 -m chaos -k kills tests/chaos      # the same, which logs nothing

The real scripts are started as users start them, on the CPU, and killed, frozen, starved or given
damaged files. Each row of logs/benchmarks/chaos.json says what was done and whether what was
promised held; make_results.py takes them into RESULTS.md. `make test-all` runs short versions.
"""
