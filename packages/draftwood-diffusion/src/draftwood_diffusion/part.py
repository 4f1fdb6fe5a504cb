"""Parts of an unmasking method."""

from draftwood.methods.knobs import PartWithKnobs


class Part(PartWithKnobs):
    """One answer to one of the four questions."""

    @classmethod
    def option(cls) -> str:
        """The part as users type it, with its knobs as they are by themselves."""
        told = [f"{each.name}={each.default}" for each in cls.knobs() if each.default != ""]
        return ",".join((cls.name, *told))
