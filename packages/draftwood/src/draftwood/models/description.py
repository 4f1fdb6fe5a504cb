"""Read a decoder from a configuration and arrays, without PyTorch and Transformers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from draftwood.arrays import FloatType, Int, as_floats, rounded
from draftwood.models.configuration import ModelConfiguration, rotary_parameters
from draftwood.models.decoder import (
    Around,
    Decoder,
    Expert,
    Experts,
    Layer,
    LayerInputs,
    Norm,
    Projection,
    Rotary,
    RunningState,
    Sizes,
)
from draftwood.models.family import ACTIVATIONS, Family, Scales
from draftwood.models.rotary import rotary_of
from draftwood.models.shapes import Shape, gate_up, require_shape, tensor_shapes
from draftwood.native.matrix import Blocks, Weights

PARTS = ("gate", "up", "down")
"""Matrices of an expert."""
FLOAT_TYPES: dict[str, FloatType] = {
    **{"uint16": "bfloat16", "float16": "float16"},
    **{"torch.bfloat16": "bfloat16", "torch.float16": "float16"},
}
"""By the types of arrays and tensors; all others are float32."""


def describe(config: Mapping[str, Any], tensor: Callable[[str], Any]) -> Decoder:
    """Read the parts of a model.

    Args:
        config: the content of its config.json.
        tensor: gives a tensor by Transformers' name: an array, whose uint16 are the bits of
            bfloat16, or ``Blocks``; None where there is none. Experts are asked for part by part,
            as ``model.layers.0.mlp.experts.gate.weight``: [experts outputs inputs], or all below
            each other, or a list of one for each.

    Raises:
        UnknownConfigurationError: for a configuration that asks for something not known here.
        ValueError: for tensors that are missing, or of other shapes than the configuration asks
            for.
    """
    read = ModelConfiguration(config)
    longest, rotary = read.get("max_position_embeddings"), read.family.rotary
    sizes = {rotary(read, layer): dim for layer, (_, dim) in enumerate(read.heads)}
    tables = {name: rotary_parameters(read, name) for name in read.rotary_names}
    rotaries = tuple(
        rotary_of(table, sizes.get(name, read.head_size), longest) for name, table in tables.items()
    )
    return decoder_of(read, tensor, tensor_shapes(read), rotaries)


def decoder_of(
    config: ModelConfiguration,
    tensor: Callable[[str], Any],
    shapes: Mapping[str, Shape],
    rotaries: tuple[Rotary, ...],
    floats: Callable[[Any], Any] = as_floats,
) -> Decoder:
    """Read the parts of a model whose configuration and rotary tables are known.

    Args:
        tensor: as for ``describe``; also of PyTorch.
        shapes: of all tensors, by name.
        rotaries: one for each of the configuration's ``rotary_names``.
        floats: brings one of these tensors to float32.
    """
    return _Description(config, tensor, shapes, rotaries, floats).decoder()


def float_type(numbers: Any) -> FloatType:
    """The type of an array's numbers; float32 for blocks."""
    return (
        "float32" if isinstance(numbers, Blocks) else FLOAT_TYPES.get(str(numbers.dtype), "float32")
    )


@dataclass(frozen=True)
class _Description:
    """Reads the parts of one model as its family has them."""

    config: ModelConfiguration
    tensor: Callable[[str], Any]
    shapes: Mapping[str, Shape]
    rotaries: tuple[Rotary, ...]
    floats: Callable[[Any], Any]

    @property
    def family(self) -> Family:
        return self.config.family

    def decoder(self) -> Decoder:
        names, prefix = self.config.rotary_names, self.family.prefix
        embedding = self._read(f"{prefix}embed_tokens.weight")
        pairs = [len(rotary.frequencies) for rotary in self.rotaries]
        sizes = self._sizes(2 * max(pairs, default=0))
        count = self.config.get("num_hidden_layers")
        norm = self._norm(f"{prefix}{self.family.modules.last_norm}")
        may_be_tied = self.config.get("tie_word_embeddings")
        is_tied = may_be_tied and "lm_head.weight" not in self.shapes
        return Decoder(
            sizes=sizes,
            scales=self._scales(norm.saved if isinstance(embedding, Blocks) else embedding),
            embedding=embedding,
            layers=tuple(self._layer(index, sizes, names) for index in range(count)),
            norm=norm,
            lm_head=Projection(embedding, None) if is_tied else self._projection("lm_head"),
            rotaries=self.rotaries,
            inputs=self._inputs(),
        )

    def _inputs(self) -> LayerInputs | None:
        if not self.family.is_unlike:
            return None
        from draftwood.models.unlike_layers import inputs_of

        return inputs_of(self.config, self._read, self._norm, self._projection)

    def _sizes(self, rotary_dim: int) -> Sizes:
        config = self.config
        return Sizes(
            hidden=config.get("hidden_size"),
            intermediate_size=config.inner_size,
            heads=config.get("num_attention_heads"),
            num_kv_heads=config.get("num_key_value_heads"),
            head_dim=config.head_size,
            rotary_dim=rotary_dim,
            is_layer_norm=self.family.is_layer_norm,
            norms_whole_vectors=config.family.tensors.normed_heads == "all",
            is_parallel=bool(self.family.is_parallel(config)),
            activation=ACTIVATIONS[config.activation],
            epsilon=float(config.epsilon),
        )

    def _scales(self, numbers: Any) -> Scales:
        """The family's, of which one is rounded to the type of the model's numbers."""
        scales = self.family.scales(self.config)
        scale = rounded(np.array([scales.embedding], np.float32), float_type(numbers))
        return replace(scales, embedding=float(scale[0]))

    def _layer(self, index: int, sizes: Sizes, rotaries: list[str]) -> Layer:
        at, names = f"{self.family.prefix}layers.{index}.", self.family.norms
        states, modules = self.family.states, self.family.modules
        if states is not None and self.config.has_state(index):
            recurrence, around = self._recurrence(f"{at}{states.module}.")
        else:
            recurrence, around = None, self._attention(f"{at}self_attn.", sizes)
        query, key, value, output = around
        experts = self._experts(f"{at}{modules.mixture}") if self._has_experts(at) else None
        has_network = f"{at}{modules.network}.{modules.down}.weight" in self.shapes
        network = self._network(f"{at}{modules.network}.") if has_network else None
        if experts is not None and network is not None and modules.shares_network:
            experts, network = replace(experts, shared=Expert(*network)), None
        gate, up, down = network or (None, None, None)
        mlp_norm = names.attention if sizes.is_parallel else names.mlp
        name = self.family.rotary(self.config, index)
        rotary = None if name is None else rotaries.index(name)
        return Layer(
            attention_norm=self._norm_of(at, names.attention),
            query=query,
            key=key,
            value=value,
            query_norm=self._norm_if_any(f"{at}self_attn.{modules.query_norm}"),
            key_norm=self._norm_if_any(f"{at}self_attn.{modules.key_norm}"),
            output=output,
            after_attention_norm=self._norm_of(at, names.after_attention),
            mlp_norm=self._norm_of(at, mlp_norm),
            gate=gate,
            up=up,
            down=down,
            experts=experts,
            after_mlp_norm=self._norm_of(at, names.after_mlp),
            sinks=self._floats(f"{at}self_attn.sinks"),
            window=self.config.windows[index],
            rotary=rotary,
            recurrence=recurrence,
            **self._unlike(at, index, rotary),
        )

    def _unlike(self, at: str, index: int, rotary: int | None) -> dict[str, Any]:
        """Read what layers have that are not all alike."""
        if not self.family.is_unlike or rotary is None:
            return {}
        from draftwood.models.unlike_layers import parts_of_layer

        table = self.rotaries[rotary]
        return parts_of_layer(
            self.config, at, index, self._floats, self._norm, self._projection, table
        )

    def _has_experts(self, at: str) -> bool:
        return f"{at}{self.family.modules.mixture}experts.gate.weight" in self.shapes

    def _read(self, name: str) -> Any:
        """A tensor that the configuration asks for."""
        found, wanted = self.tensor(name), self.shapes.get(name)
        if found is None or wanted is None:
            raise ValueError(f"1 tensors are missing, the first is {name}")
        shape = (len(found), *found[0].shape) if isinstance(found, list) else tuple(found.shape)
        if shape != wanted and shape != _flat(wanted):
            require_shape(name, shape, wanted)
        return found

    def _floats(self, name: str) -> Any:
        return self.floats(self._read(name)) if name in self.shapes else None

    def _norm_of(self, at: str, name: str | None) -> Norm | None:
        return None if name is None else self._norm(at + name)

    def _norm_if_any(self, name: str) -> Norm | None:
        return self._norm(name) if f"{name}.weight" in self.shapes else None

    def _norm(self, name: str) -> Norm:
        saved = self._read(f"{name}.weight")
        weight = self.floats(saved) + self.family.norm_shift
        return Norm(weight, self._floats(f"{name}.bias"), saved)

    def _projection(self, name: str) -> Projection:
        return Projection(self._read(f"{name}.weight"), self._floats(f"{name}.bias"))

    def _attention(self, at: str, sizes: Sizes) -> Around:
        """Projections to queries, keys and values, and the one behind attention."""
        query, key, value = self._query_key_value(at, sizes)
        states = self.family.states
        if states is not None and states.gates_queries:  # each head's gate is behind its query
            heads = np.arange(query.weight.shape[0]).reshape(sizes.heads, 2, -1)
            query = query.reordered(heads.swapaxes(0, 1).flatten())
        return query, key, value, self._projection(at + self.family.modules.output)

    def _recurrence(self, at: str) -> tuple[RunningState, Around]:
        from draftwood.models.recurrent_layers import recurrence_of

        return recurrence_of(self.config, at, self.shapes, self._floats, self._projection)

    def _query_key_value(
        self, at: str, sizes: Sizes
    ) -> tuple[Projection, Projection | None, Projection | None]:
        """All three, also where one tensor holds them below each other; keys and values alone are
        missing where others are read.
        """
        names = [at + name for name in self.family.query_key_value]
        first = self._projection(names[0])
        if len(names) == 1:
            shared = sizes.num_kv_heads * sizes.head_dim
            query, key, value = first.split([sizes.heads * sizes.head_dim, shared, shared])
            return query, key, value
        key, value = (
            self._projection(name) if f"{name}.weight" in self.shapes else None
            for name in names[1:]
        )
        if self.family.is_interleaved and key is not None:
            first, key = (part.reordered(halves(part.weight, sizes)) for part in (first, key))
        return first, key, value

    def _network(self, at: str) -> tuple[Projection, Projection | None, Projection]:
        """The gate and what it gates, also where one tensor holds both below each other; the gate
        alone where nothing is gated.
        """
        parts = [self._projection(at + name) for name in gate_up(self.config)]
        if self.family.is_gated and len(parts) == 1:
            half = parts[0].weight.shape[0] // 2
            parts = parts[0].split([half, half])
        gate, up = parts if self.family.is_gated else (parts[0], None)
        return gate, up, self._projection(at + self.family.modules.down)

    def _experts(self, at: str) -> Experts:
        routing = self.family.routing(self.config)
        assert routing is not None  # or the table lacks an entry
        router = self._projection(f"{at}{self.family.router}")
        weights = [self._read(f"{at}experts.{part}.weight") for part in PARTS]
        biases = [self._floats(f"{at}experts.{part}.bias") for part in PARTS]
        count = len(router.weight)
        return Experts(
            router=self.floats(router.weight),
            router_bias=router.bias,
            networks=tuple(
                Expert(
                    *(
                        Projection(_of_expert(weight, expert, count), _at(bias, expert))
                        for weight, bias in zip(weights, biases, strict=True)
                    )
                )
                for expert in range(count)
            ),
            routing=routing,
            shared=self._shared_expert(at),
            shared_gate=self._vector(f"{at}shared_expert_gate.weight"),
            choice_bias=self._vector(f"{at}{self.family.modules.choice_bias}"),
            **self._routed(at),
        )

    def _routed(self, at: str) -> dict[str, Any]:
        """Read what the router has besides its weights; nothing where layers are alike."""
        if not self.family.is_unlike:
            return {}
        from draftwood.models.unlike_layers import router_of

        return router_of(self.config, at, self._floats)

    def _shared_expert(self, at: str) -> Expert | None:
        """The expert that all rows go to; of no width it is none."""
        module = f"{at}{self.family.modules.shared}."
        if not self.shapes.get(f"{module}gate_proj.weight", (0,))[0]:
            return None
        return Expert(*(self._projection(f"{module}{part}_proj") for part in PARTS))

    def _vector(self, name: str) -> Any:
        """Numbers in float32, one behind the other; None where there are none."""
        found = self._floats(name)
        return None if found is None else found.reshape(-1)


def halves(weights: Weights, sizes: Sizes) -> Int[np.ndarray, " outputs"]:
    """The outputs of queries or keys as rotary positions turn them here.

    Where those turn neighbours, these become the two halves of a head, in queries and keys alike;
    products of the two stay what they were.
    """
    heads = np.arange(weights.shape[0]).reshape(-1, sizes.head_dim)
    turned = sizes.rotary_dim
    pairs = heads[:, :turned].reshape(len(heads), -1, 2).swapaxes(1, 2)
    return np.concatenate([pairs.reshape(len(heads), -1), heads[:, turned:]], 1).flatten()


def _of_expert(weights: Any, expert: int, count: int) -> Weights:
    """One of several in a list, behind each other, or below each other."""
    if isinstance(weights, list) or len(weights.shape) == 3:
        return weights[expert]
    outputs = weights.shape[0] // count
    return weights[expert * outputs : (expert + 1) * outputs]


def _at(biases: Any, expert: int) -> Any:
    return None if biases is None else biases[expert]


def _flat(shape: Shape) -> Shape:
    """Shape of several matrices below each other."""
    return (shape[0] * shape[1], shape[2]) if len(shape) == 3 else shape
