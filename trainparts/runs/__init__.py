"""A run as a folder: its checkpoints, its log, and the lines that say whether it begins or resumes.

You need it if a run is to survive being killed. Import its modules, as in `from trainparts.runs
import checkpointing`: the package itself imports nothing.
"""
