"""EAGLE-3 heads as other programs keep them: speculators, which vLLM reads, and SafeAILab."""

from draftwood_train.speculators.exporting import export as export
from draftwood_train.speculators.importing import read as read
