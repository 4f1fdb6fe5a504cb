"""The door to PyTorch: everything that draftwood asks of the package that runs models in it.

``draftwood.optional.backend`` finds the package by an entry point of the group
``draftwood.backends``, called ``torch``. It names one object of this protocol.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from draftwood.arrays import FloatType

if TYPE_CHECKING:
    from gguf import ReaderTensor

    from draftwood.drafters.ctc_drafter import CtcDrafter
    from draftwood.drafters.drafter import DraftRequest, DraftSession
    from draftwood.drafters.head_drafts import BranchingText, HeadText
    from draftwood.drafters.medusa import Medusa
    from draftwood.engine.method import Method
    from draftwood.heads.kinds import HeadConfig
    from draftwood.heads.trained import TrainedHead
    from draftwood.loading.gguf_reader import Content
    from draftwood.loading.hub import Pretrained
    from draftwood.methods import MethodSpec
    from draftwood.models.decoder_model import DescribedModel
    from draftwood.models.model import Device, EmbeddingsAndHead, Model
    from draftwood.stats import Stats
    from draftwood.tokenizer import AnyTokenizer


OutputHead = Callable[[Any], Any]
"""Logits [rows draft_vocab] after normed states [rows dim], both as tensors."""


class HeadOnDevice(Protocol):
    """A trained head on its target's device.

    Attributes:
        network: runs there.
        dtype: of its weights.
        logits: output head of the draft vocabulary.
    """

    @property
    def network(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...

    @property
    def logits(self) -> OutputHead: ...


class FileParts(Protocol):
    """A GGUF file as a model of Transformers has it.

    Attributes:
        settings: the content of its config.json.
        matrices: of each that stays in the file the module, the number of the part, and the stored
            tensor.
        small: all other tensors in float32, by the model's names.
    """

    @property
    def settings(self) -> dict[str, Any]: ...

    @property
    def matrices(self) -> "Sequence[tuple[str, int, ReaderTensor]]": ...

    @property
    def small(self) -> Mapping[str, np.ndarray]: ...


class CustomGenerate(Protocol):
    """The signature of ``draftwood.custom_generate``."""

    def __call__(
        self,
        method: "str | MethodSpec | Method | None" = None,
        draft_model: "str | Path | TrainedHead | Any" = None,
        report: "Callable[[Stats], None] | None" = None,
        streamer: Any = None,
        stateless: Sequence[type] = (),
        drafter: "str | Path | TrainedHead | None" = None,
    ) -> Callable[..., Any]: ...


class Backend(Protocol):
    """Models of Transformers, networks of trained heads, and tensors."""

    # Folders of models that the library does not read by itself

    def device(self, device: Any) -> "Device":
        """Resolve a device, CUDA or the CPU for None; ValueError for one that cannot be had."""
        ...

    def quantisations(self) -> frozenset[str]:
        """Ways to quantise weights that can be read, by their names in a config.json."""
        ...

    def tokenizer(self, folder: Path) -> "AnyTokenizer":
        """Read a tokenizer; ValueError for files that nobody understands."""
        ...

    def read(
        self,
        folder: Path,
        dtype: str,
        place: Any,
        split: Mapping[str, Any] | None,
        unpacked: bool,
    ) -> tuple[Any, "AnyTokenizer"]:
        """Read a model of floats and its tokenizer.

        Args:
            dtype: a type of floats, or ``auto``.
            place: the device.
            split: what makes each of several processes read a part.
            unpacked: whether experts in MXFP4 become floats.

        Raises:
            ValueError: for weights that do not fit the configuration.
        """
        ...

    def adapt(self, hf_model: Any, changes_of: Callable[[Mapping[str, Any]], Any]) -> None:
        """Add an adapter to the weights of a model.

        Args:
            changes_of: gives the changes by module, as ``LoraAdapter.placed`` does.

        Raises:
            ValueError: for an adapter of another model, and for weights that are no floats.
        """
        ...

    def skeleton(self, folder: Path) -> Any:
        """Make the model of a folder without weights.

        Raises:
            ValueError: for a configuration that Transformers does not understand.
        """
        ...

    def why_not_native(self, folder: Path) -> str | None:
        """Say why the library does not run a model, whose weights are not read; raises as
        ``skeleton``.
        """
        ...

    def gguf_saver(self, content: "Content", dtype: FloatType) -> Callable[[Path], None]:
        """Read the model of a GGUF file; gives what writes it into a folder."""
        ...

    def gguf_parts(self, content: "Content") -> "FileParts":
        """Tell the matrices of a GGUF file that can stay there from all else; raises as
        ``gguf_saver``.
        """
        ...

    def read_blocks(
        self,
        folder: Path,
        tensors: Mapping[str, Any],
        products: str,
        changes_of: Callable[[Mapping[str, Any]], Any] | None,
    ) -> Any:
        """Make the model of a GGUF file around its matrices.

        Args:
            folder: that describes it.
            tensors: by name; those of linear layers and the embedding are ``Blocks``, or floats to
                be packed.
            products: with which they are multiplied.
            changes_of: of an adapter, as in ``adapt``.

        Raises:
            ValueError: for an adapter of another model.
        """
        ...

    def pack(self, hf_model: Any, products: str) -> None:
        """Put the linear layers of a model of floats into blocks, and all else into float32."""
        ...

    def require_split(self, name: str, processes: int, dtype: Any, device: Any) -> object:
        """Raise ValueError for a model that so many processes cannot hold in equal parts."""
        ...

    def load_parallel(
        self, name: str, processes: int, dtype: Any, device: Any
    ) -> tuple["Model", "Pretrained"]:
        """Load this process's part of a model; returns in the first process alone."""
        ...

    # Models of Transformers in memory

    def why_not_lean(self, hf_model: Any) -> str | None:
        """Say why ``describe`` cannot read a model; None if it can."""
        ...

    def describe(self, hf_model: Any) -> "DescribedModel":
        """Describe a model of one of the ``FAMILIES``; ValueError for another one."""
        ...

    def arrays(self, hf_model: Any) -> Callable[[str], Any]:
        """Give its tensors by name, as ``models.description.describe`` asks for them."""
        ...

    def lean_model(self, hf_model: Any) -> "Model":
        """Run a model that ``describe`` can read in few, large operations; in its own code where
        layers of it keep running states.
        """
        ...

    def general_model(self, hf_model: Any) -> "Model":
        """Run any model in its own code; ValueError for one that cannot run trees."""
        ...

    # Trained heads that the library does not run

    def network(self, config: "HeadConfig", weights: Mapping[str, np.ndarray]) -> Any:
        """Make a head's network around weights, in whose memory its parameters lie."""
        ...

    def random_network(self, config: "HeadConfig", seed: int, noise: float) -> Any:
        """Make a head's network that learnt nothing, with noise of this spread on its weights."""
        ...

    def placed(self, trained: "TrainedHead", target: "Model") -> HeadOnDevice:
        """Bring a head to its target's device."""
        ...

    def eagle_text(
        self, network: Any, embeddings: "EmbeddingsAndHead", logits: OutputHead
    ) -> "HeadText":
        """Begin a text of an EAGLE head that was placed."""
        ...

    def lm_text(
        self, network: Any, embeddings: "EmbeddingsAndHead", logits: OutputHead
    ) -> "BranchingText":
        """Begin a text of a draft LM that was placed."""
        ...

    def ctc_session(self, drafter: "CtcDrafter", request: "DraftRequest") -> "DraftSession":
        """Draft one text with a CTC head."""
        ...

    def medusa_session(self, drafter: "Medusa", request: "DraftRequest") -> "DraftSession":
        """Draft one text with Medusa's or Hydra's heads."""
        ...

    # Arrays across the seam, and names that packages export

    def as_tensor(self, array: Any) -> Any:
        """An array as a tensor that shares its memory; a tensor as it is."""
        ...

    @property
    def custom_generate(self) -> CustomGenerate:
        """The decoding loop for Transformers' ``generate``."""
        ...

    @property
    def tiny_llama(self) -> Callable[..., Any]:
        """Makes a random Llama for tests."""
        ...
