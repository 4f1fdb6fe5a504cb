"""A model in 8-bit integers for OpenVINO.

It is the graph of OpenVINO's GGUF reader with matrices of a model folder's own values.

The reader rounds the minimum of every Q4_1 block to a whole zero point, an error as large as that
of the four bits. Integers with one scale per row keep the values to a 254th of the row's greatest,
and run faster than exact fractional zero points, which are the other way to mend it.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino  # pyright: ignore[reportMissingImports]
from openvino import opset13 as operations  # pyright: ignore[reportMissingImports]

STORED = {"BF16": np.uint16, "F32": np.float32}


def convert(read: Path, folder: Path, destination: Path) -> None:
    """Write the graph `read` with matrices from the model `folder` to `destination`.

    Both graphs are .xml files.

    Raises ValueError when a matrix of the graph is none of the folder's.
    """
    graph = openvino.Core().read_model(read)
    known = matrices(folder / "model.safetensors")
    for node in graph.get_ops():
        if node.get_type_name() == "MatMul" and (found := grouped_weights(node)) is not None:
            rough, step = found
            exact = recognised(rough, step, known)
            scales = (np.abs(exact).max(axis=1, keepdims=True) / 127).astype(np.float16)
            rows = (
                np.round(exact / np.maximum(scales.astype(np.float32), 1e-8))
                .clip(-127, 127)
                .astype(np.int8)
            )
            converted = operations.convert(operations.constant(rows), np.float16)
            scaled = operations.convert(
                operations.multiply(converted, operations.constant(scales)), np.float32
            )
            node.input(1).replace_source_output(scaled.output(0))
    openvino.save_model(graph, destination, compress_to_fp16=False)


def matrix_bytes(file: Path) -> int:
    """Bytes of all matrices that a graph multiplies with, scales and zero points included."""
    constants = {}
    for node in openvino.Core().read_model(file).get_ops():
        if node.get_type_name() == "MatMul":
            constants |= {
                each.get_name(): each for each in _constants(node.input_value(1).get_node())
            }
    outputs = [node.output(0) for node in constants.values()]
    return (
        sum(
            output.get_element_type().bitwidth * int(np.prod(output.get_shape()))
            for output in outputs
        )
        // 8
    )


def matrices(file: Path) -> dict[str, np.ndarray]:
    """All matrices of a safetensors file, those in bfloat16 still as 16-bit integers."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(size))
    whole = np.memmap(file, np.uint8, "r", offset=8 + size)
    found = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] in STORED and len(entry["shape"]) == 2:
            first, last = entry["data_offsets"]
            found[name] = whole[first:last].view(STORED[entry["dtype"]]).reshape(entry["shape"])
    return found


def grouped_weights(product: openvino.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """A product's matrix as the reader rounded it, and the greatest error of every row.

    None for other products.

    The reader writes (integers - zero point) x scale in groups of 32, then a reshape.
    """
    chain = list(_sources(product.input_value(1).get_node()))
    kinds = [node.get_type_name() for node in chain]
    if kinds[:4] != ["Convert", "Reshape", "Multiply", "Subtract"]:
        return None
    scaled, shifted = chain[2], chain[3]
    integers, zero_points = (_constant(shifted.input_value(place).get_node()) for place in (0, 1))
    scales = _constant(scaled.input_value(1).get_node())
    rough = (integers - zero_points) * scales
    return rough.reshape(len(rough), -1), np.abs(scales).max(axis=(1, 2))


def recognised(rough: np.ndarray, step: np.ndarray, known: dict[str, np.ndarray]) -> np.ndarray:
    """The one matrix among the known that `rough` rounds. Raises ValueError without one."""
    for stored in known.values():
        if stored.shape != rough.shape:
            continue
        few = slice(0, 8)  # no two matrices of a model agree so nearly on eight rows
        if np.all(np.abs(_float(stored[few]) - rough[few]) <= 0.6 * step[few, None]):
            return _float(stored)
    raise ValueError(f"a matrix of shape {rough.shape} in the graph is none of the model folder's")


def _float(stored: np.ndarray) -> np.ndarray:
    return (
        stored if stored.dtype == np.float32 else (stored.astype(np.uint32) << 16).view(np.float32)
    )


def _constants(node: openvino.Node) -> list[openvino.Node]:
    """The constants that a product's input comes from; none where it is computed from the text."""
    if node.get_type_name() == "Constant":
        return [node]
    if node.get_type_name() not in ("Convert", "Reshape", "Multiply", "Subtract"):
        return []
    return [constant for value in node.input_values() for constant in _constants(value.get_node())]


def _sources(node: openvino.Node) -> Iterator[openvino.Node]:
    while node.get_input_size():
        yield node
        node = node.input_value(0).get_node()


def _constant(node: openvino.Node) -> np.ndarray:
    """The values of a constant before its conversions.

    4-bit ones are stored two to a byte, the low one first.
    """
    while node.get_type_name() != "Constant":
        node = node.input_value(0).get_node()
    values = node.data
    if node.get_element_type() == openvino.Type.u4:
        packed = values.reshape(-1)
        values = np.stack([packed & 15, packed >> 4], axis=1)
    return values.astype(np.float32).reshape(node.get_output_shape(0))
