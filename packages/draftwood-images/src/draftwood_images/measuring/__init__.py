"""Measure methods on pictures: records, figures and a report."""
