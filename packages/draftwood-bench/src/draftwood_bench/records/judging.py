"""Judge what the records of a configuration prove.

Texts have to be plain decoding's, or the distributions of the next token have to agree.
"""

from collections.abc import Sequence

from draftwood_bench.records.files import Record
from draftwood_bench.records.significance import LEAST_SAMPLES, joint


def compared_texts(group: Sequence[Record], plain: Sequence[Record]) -> list[tuple[Record, bool]]:
    """Records whose text has to be plain decoding's, and whether it is."""
    first = group[0]
    if not first.temperature:
        return [(record, record.identical_to_plain is True) for record in group]
    if first.verifier != "match" or first.method == "plain":
        return []
    texts = {(*each.key[1:], each.seed): each.token_ids for each in plain}
    own = [(record, texts.get((*record.key[1:], record.seed))) for record in group]
    return [
        (record, record.token_ids == text)
        for record, text in own
        if None not in (record.token_ids, text)
    ]


def joint_p_value(group: Sequence[Record]) -> float | None:
    """The joint p-value of the tests that can tell something, None without any."""
    if group[0].verifier == "match":
        # the token is plain decoding's own draw, whatever was drafted: its texts are compared
        # instead
        return None
    values = [
        record.law["p_value"]
        for record in group
        if record.law and record.law["samples"] >= LEAST_SAMPLES
    ]
    return joint(values) if values else None
