"""The checker of types and shapes: beartype, with whole numbers allowed where a float is asked
for."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
