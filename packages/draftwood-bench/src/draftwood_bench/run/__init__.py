"""Measuring: models at work, every unit of a run, and where a stopped run goes on."""
