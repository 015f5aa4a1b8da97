"""Several processes: how they are started, how they meet, and how rank 0 tells the others a value.

You need it to start the ranks of your own script as these scripts do; your script then joins
the group itself. Import its modules, as in `from trainparts.launch import rendezvous`: the package
itself imports nothing.
"""
