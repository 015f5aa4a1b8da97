"""What the scripts need beside training: errors, files, devices, options, batches, progress.

You need it to run a script, which imports it from the folder beside it, and if your own loop is to
save, resume and end as the scripts do. Import its modules, as in `from trainparts import errors`:
the package itself imports nothing.
"""

# A script needs the same first two numbers: within these, no function that scripts call changes its
# arguments. pyproject.toml has it, too.
VERSION = "0.9.0"
