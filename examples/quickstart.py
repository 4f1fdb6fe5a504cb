"""The shortest useful program: load, generate, look at what it took."""

import draftwood

lm = draftwood.load("smollm2-135m")
result = lm.generate("What are the months of the year?", max_new_tokens=40)
print(result.text)
print(f"{result.stats.block_efficiency:.2f} tokens per forward pass")
