"""Rests from drafting, where it does not pay."""

SHORTEST, LONGEST = 8, 64  # steps of rest
LEAST_TRIAL = 8  # passes after a rest before the next one
SHORT_TRIAL, LONG_REST = 2, 32  # the same in company
FORGETTING = 0.9  # what a pass leaves of the gains of earlier ones


class Rest:
    """A schedule of rests, taken where drafting is not worth its time.

    A rest begins where the mean gain of the newest passes is too low. Each is twice as long as the
    one before, until drafting pays again. Texts do not depend on it where a token's draw does not
    depend on what was drafted.

    Args:
        least: gain per pass, in the caller's measure, below which drafting does not pay.

    Attributes:
        left: steps of the rest that is under way, this one included; 0 where there is none.
    """

    def __init__(self, least: float) -> None:
        self.least = least
        self.left = 0
        self._length = SHORTEST
        self._begin_trial()

    def _begin_trial(self) -> None:
        self._passes, self._mean = 0, 1.0

    def goes_on(self) -> bool:
        """True if the next step is one of rest; counts it."""
        self.left = max(0, self.left - 1)
        return self.left > 0

    def end(self) -> None:
        """End the rest that is under way, if any: there is something new to draft."""
        self.left = 0

    def count(self, gain: float, passes: int = 1, in_company: bool = False) -> None:
        """The gain of some passes with draft tokens, all together.

        Args:
            in_company: whether other texts wait for the drafting: trials are short then, and rests
                long.
        """
        if self.left:  # a rest has begun among steps that were made in a row
            return
        old = FORGETTING**passes
        self._mean = old * self._mean + (1.0 - old) * gain / passes
        self._passes += passes
        if self._passes < (SHORT_TRIAL if in_company else LEAST_TRIAL):
            return
        if self._mean >= self.least:
            self._length = SHORTEST
            return
        length = max(self._length, LONG_REST) if in_company else self._length
        self.left, self._length = length + 1, min(2 * length, LONGEST)
        self._begin_trial()
