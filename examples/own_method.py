"""Combine a drafter, a shape and a verifier that no paper combined."""

import draftwood
from draftwood.shapes import StochasticBeam
from draftwood.verifiers import Traversal
from draftwood_methods.drafters import LayerSkip

lm = draftwood.load("smollm2-135m", method="plain")
method = draftwood.Method(
    LayerSkip(frozenset(range(8, 22, 2)), StochasticBeam(3, 2)), Traversal(), "my method"
)
for name, model in (("plain", lm), ("mine", lm.with_method(method))):
    result = model.generate("Name three colours.", max_new_tokens=24)
    print(f"{name}: {result.text!r}, {result.stats.block_efficiency:.2f} tokens per forward pass")
