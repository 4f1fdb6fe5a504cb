"""Records of measurements, on disk and in figures."""
