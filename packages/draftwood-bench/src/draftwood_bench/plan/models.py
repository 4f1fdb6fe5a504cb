"""Weights that a run is made on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Models:
    """Target, draft model, head and datastore of a run, and the way they are run.

    Attributes:
        model: as ``draftwood.load`` takes it.
        draft_model: likewise; None without one.
        dtype: None takes the default of ``draftwood.load``.
        device: likewise.
        threads: that PyTorch uses; None leaves it its own choice.
        cache: as ``draftwood.load`` takes it.
        drafter: folder of a trained drafter; None without one.
        datastore: file of texts for the methods that copy from one; None without one.
    """

    model: str
    draft_model: str | None = None
    dtype: str | None = None
    device: str | None = None
    threads: int | None = None
    cache: str | None = None
    drafter: str | None = None
    datastore: str | None = None
