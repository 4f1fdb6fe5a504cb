"""Tree decoding inside Transformers' own ``generate``.

A call goes through here in one of two ways. With drafts: the prompt's pass is Transformers' own,
its cache is taken over, and from then on the target runs trees. Without, token by token in
Transformers' own loop: wherever something in the call may look at more than its own row's tokens,
or holds a state that drafts would disturb.
"""

from draftwood.text.hooks.hook import custom_generate

__all__ = ["custom_generate"]
