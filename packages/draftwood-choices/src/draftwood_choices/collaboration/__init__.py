"""Several models write one text: a rule says who writes next, and every token of it is counted.

The text is neither model's own: it trades quality for a large model's tokens. Inside a turn each
writer drafts losslessly, so that its tokens have the distribution that it gives them.
"""
