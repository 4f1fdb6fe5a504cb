"""The lock of a cache that a fork has lost."""


class LostLock:
    """Lock of a pool in a forked process, where the thread that held it does not go on."""

    def acquire(self, blocking: bool = True) -> bool:
        if not blocking:
            return False
        raise RuntimeError(
            "this process was forked while another thread used the model, whose cache is lost here;"
            " load the model once more in this process, or fork while no text is written"
        )

    def release(self) -> None:
        """Nobody holds it."""

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()
