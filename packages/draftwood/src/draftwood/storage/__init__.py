"""The ground of everything kept on disk.

The home folder, atomic writes, names of machines, progress.
"""
