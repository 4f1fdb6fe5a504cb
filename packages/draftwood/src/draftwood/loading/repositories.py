"""Repositories of the Hugging Face hub, asked for without PyTorch and Transformers."""

from pathlib import Path

from draftwood.loading.names import builtin_names

# huggingface_hub asks twice, so an unreachable hub costs at most twice this
FIRST_ANSWER_SECONDS = 2.0


def require_repository(name: str) -> None:
    """Refuse a repository that is neither in the local cache nor on the hub.

    Raises:
        ValueError: where the hub says that there is none.
        FileNotFoundError: where the hub cannot be asked.
        PermissionError: for one that is gated.
    """
    from huggingface_hub import constants

    if Path(constants.HF_HUB_CACHE, f"models--{name.replace('/', '--')}").is_dir():
        return
    if listing(name) is None:
        raise not_there(name)


def not_there(repository: str) -> FileNotFoundError:
    """Error for a repository that is not in the cache, where the hub does not answer."""
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    reason = "HF_HUB_OFFLINE is set" if offline else "the Hugging Face hub cannot be reached"
    cure = "go online, or pass a model folder, a .gguf file or a built-in name"
    return FileNotFoundError(
        f"{repository} is not in the local Hugging Face cache and {reason}; {cure}"
        f" ({', '.join(builtin_names())})"
    )


def listing(repository: str) -> list[str] | None:
    """The files of a repository on the hub.

    None when the hub is switched off or does not answer quickly.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return None
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        siblings = HfApi().model_info(repository, timeout=FIRST_ANSWER_SECONDS).siblings
    except HFValidationError as error:
        raise ValueError(f"{repository!r} is not a Hugging Face id (org/name): {error}") from error
    except GatedRepoError as error:
        cure = "accept its terms on the hub and log in with `hf auth login`"
        raise PermissionError(f"{repository} is gated; {cure}") from error
    except RepositoryNotFoundError as error:
        cure = "check the spelling, or log in with `hf auth login` if it is private"
        raise ValueError(f"the Hugging Face hub has no model {repository}; {cure}") from error
    except (HfHubHTTPError, *network_errors()):
        return None
    return [sibling.rfilename for sibling in siblings or []]


def network_errors() -> tuple[type[Exception], ...]:
    """Errors of a hub that does not answer as it should."""
    # huggingface_hub lets the errors of its HTTP library through; their common base is a base of
    # HfHubHTTPError.
    from huggingface_hub.errors import HfHubHTTPError

    return (
        *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)),
        ConnectionError,
        TimeoutError,
    )
