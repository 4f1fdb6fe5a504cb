"""The ground of everything kept on disk: the home folder, atomic writes, names of machines,
progress.
"""
