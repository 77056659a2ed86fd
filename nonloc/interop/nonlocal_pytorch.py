"""Non-local_pytorch by AlexHex7, the most copied implementation: the weights of its NONLocalBlock1D, 2D and 3D."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from nonloc.interop.blocks import LinearMap, Norm, as_map, make_block
from nonloc.nn.stage import OriginalBlock


def from_nonlocal(source: nn.Module | Mapping[str, Tensor], mode: str | None = None) -> OriginalBlock:
    """Return an OriginalBlock with the weights and the output of a NONLocalBlock.

    source  the block, or its state dict: a part of a checkpoint without the prefix of the block
    mode    "embedded_gaussian" or "dot_product", whose weights look alike; the other modes show by their weights

    Batch normalisation and sub-sampling are found by their weights, too. From a state dict the block is in evaluation
    mode.

    >>> from nonloc.interop.nonlocal_pytorch import from_nonlocal
    >>> state = {"g.weight": torch.ones(2, 4, 1, 1), "W.weight": torch.zeros(4, 2, 1, 1)}
    >>> block, x = from_nonlocal(state), torch.ones(1, 4, 3, 3)  # no θ and φ: mode "gaussian"
    >>> torch.equal(block(x), x)
    True
    """
    state = dict(source.state_dict() if isinstance(source, nn.Module) else source)
    if not any(key.startswith("g.") for key in state) or not any(key.startswith("W.") for key in state):
        names = ", ".join(sorted(state)[:4]) or "nothing"
        raise ValueError(
            "source must have the weights g.… and W.… of a NONLocalBlock; take the prefix of the block away first. "
            f"It has {names}"
        )

    def part(name: str) -> LinearMap:
        name = {"w_z": "W", "project": "concat_project"}.get(name, name)
        # A pooling or a normalisation after the convolution makes it the first of a sequence.
        first = f"{name}.0." if f"{name}.0.weight" in state else f"{name}."
        return as_map(name, state[f"{first}weight"], state.get(f"{first}bias"))

    prefix = "W.1."
    norm = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    if "concat_project.0.weight" in state:
        possible = ["concatenation"]
    elif "theta.weight" in state:
        possible = ["embedded_gaussian", "dot_product"]
    else:
        possible = ["gaussian"]
    if mode is None and len(possible) > 1:
        raise ValueError(
            'the weights of "embedded_gaussian" and "dot_product" look alike; say mode=, as the file that the block '
            "came from"
        )
    mode = possible[0] if mode is None else mode
    if mode not in possible:
        raise ValueError(
            f"mode={mode!r}, and the weights are those of {' or '.join(map(repr, possible))}; give that mode"
        )
    subsample = 2 if "g.0.weight" in state else None
    block = make_block(part, mode, norm=Norm(norm) if norm else None, subsample=subsample)
    return block.train(source.training if isinstance(source, nn.Module) else False)
