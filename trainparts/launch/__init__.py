"""Several processes: how they are started, how they meet, and how rank 0 tells the others a value.

You need it to start the ranks of a script of your own as these scripts do, where joining the group
is yours. Import its modules, as in `from trainparts.launch import rendezvous`: the package itself
imports nothing.
"""
