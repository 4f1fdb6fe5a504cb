"""Tree decoding inside Transformers' own ``generate``.

A call runs in one of two ways. With drafts: Transformers runs the prompt, its cache is taken over,
and from then on the target runs trees. Without drafts: token by token in Transformers' own loop, if
anything in the call may read more than its own row's tokens, or holds state that drafts would
disturb.
"""

from draftwood_torch.hook.hook import custom_generate

__all__ = ["custom_generate"]
