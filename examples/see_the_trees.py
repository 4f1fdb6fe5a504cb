"""Follow a text step by step: what was drafted, what was kept."""

import draftwood

lm = draftwood.load("smollm2-135m", method="lookup")
stream = lm.stream(
    "Repeat after me: the cat sat on the mat, the cat sat on the mat.", max_new_tokens=32
)
text = "".join(stream)
for number, step in enumerate(stream.steps):
    print(
        f"{number:3d}  {step.drafted:2d} drafted  {step.accepted:2d} kept "
        f" {lm.tokenizer.decode(step.tokens)!r}"
    )
print(text)
