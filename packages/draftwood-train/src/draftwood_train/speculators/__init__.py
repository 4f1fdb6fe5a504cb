"""EAGLE-3 heads as other programs keep them: speculators, which vLLM reads, and SafeAILab."""
