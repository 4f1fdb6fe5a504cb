"""Files on disk: the home folder, atomic writes, names of machines, progress."""
