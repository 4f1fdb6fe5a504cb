"""llama2.c checkpoints against a plain NumPy version of llama2.c's own forward pass."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from draftwood.loading.llama2c import HEADER, convert_llama2c, read_llama2c

DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, LENGTH = 24, 40, 2, 6, 3, 17, 12
HEAD = DIM // HEADS
ORDER = (
    "embedding",
    "rms_att",
    "wq",
    "wk",
    "wv",
    "wo",
    "rms_ffn",
    "w1",
    "w2",
    "w3",
    "rms_final",
    "cos",
    "sin",
    "wcls",
)


def make_weights(tied: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    kv = KV_HEADS * HEAD
    shapes = {
        "embedding": (VOCAB, DIM),
        "rms_att": (LAYERS, DIM),
        "wq": (LAYERS, DIM, DIM),
        "wk": (LAYERS, kv, DIM),
        "wv": (LAYERS, kv, DIM),
        "wo": (LAYERS, DIM, DIM),
        "rms_ffn": (LAYERS, DIM),
        "w1": (LAYERS, HIDDEN, DIM),
        "w2": (LAYERS, DIM, HIDDEN),
        "w3": (LAYERS, HIDDEN, DIM),
        "rms_final": (DIM,),
        "wcls": (VOCAB, DIM),
    }
    weights = {name: rng.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}
    angles = np.arange(LENGTH)[:, None] * 10000.0 ** (-np.arange(0, HEAD, 2) / HEAD)
    weights |= {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    if tied:
        weights["wcls"] = weights["embedding"]
    return weights


def write(path: Path, weights: dict[str, np.ndarray], tied: bool) -> None:
    header = HEADER.pack(DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB if tied else -VOCAB, LENGTH)
    path.write_bytes(
        header + b"".join(weights[name].tobytes() for name in ORDER[: 13 if tied else 14])
    )


def normalise(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return weight * x / np.sqrt((x * x).mean() + 1e-5)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotate the neighbours (0, 1), (2, 3), ... of every head."""
    pairs = x.reshape(-1, HEAD // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(-1, HEAD)


def forward(w: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """One token after the other, as run.c does it."""
    keys: list[list[np.ndarray]] = [[] for _ in range(LAYERS)]
    values: list[list[np.ndarray]] = [[] for _ in range(LAYERS)]
    logits = []
    for position, token in enumerate(tokens):
        x = w["embedding"][token]
        cos, sin = w["cos"][position], w["sin"][position]
        for layer in range(LAYERS):
            h = normalise(x, w["rms_att"][layer])
            query = rotate(w["wq"][layer] @ h, cos, sin)
            keys[layer].append(rotate(w["wk"][layer] @ h, cos, sin))
            values[layer].append((w["wv"][layer] @ h).reshape(KV_HEADS, HEAD))
            mixed = []
            for head in range(HEADS):
                shared = head // (HEADS // KV_HEADS)
                scores = np.array([key[shared] @ query[head] for key in keys[layer]]) / np.sqrt(
                    HEAD
                )
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                mixed.append(
                    sum(
                        share * value[shared]
                        for share, value in zip(shares, values[layer], strict=True)
                    )
                )
            x = x + w["wo"][layer] @ np.concatenate(mixed)
            h = normalise(x, w["rms_ffn"][layer])
            gate = w["w1"][layer] @ h
            x = x + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ h))
        logits.append(w["wcls"] @ normalise(x, w["rms_final"]))
    return np.stack(logits).astype(np.float32)


@pytest.mark.parametrize("tied", [True, False])
def test_converted_model_computes_what_llama2c_computes(tmp_path: Path, tied: bool) -> None:
    weights = make_weights(tied)
    write(tmp_path / "tiny.bin", weights, tied)
    convert_llama2c(tmp_path / "tiny.bin", tmp_path / "folder")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "folder").eval()
    tokens = [1, 5, 3, 16, 0, 7, 7, 2, 11, 4]
    assert model.dtype is torch.float32
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(
        logits, torch.from_numpy(forward(weights, tokens)), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes, too few"),
        (HEADER.pack(0, 1, 1, 1, 1, 1, 1), "does not begin with the header"),
        (HEADER.pack(24, 40, 2, 5, 3, 17, 12), "does not begin with the header"),
        (HEADER.pack(24, 40, 2, 6, 3, 17, 12) + bytes(50), "has 78 bytes, its header promises"),
    ],
)
def test_damaged_checkpoint_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "damaged.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} {message}.* fetch it again"):
        read_llama2c(path)
