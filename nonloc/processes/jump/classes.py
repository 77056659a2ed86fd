"""Closed classes: the sets of positions that a walker can never leave. Each has one stationary law of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from nonloc._checks import is_whole
from nonloc.processes.jump.stationary import by_elimination, valid_positions
from nonloc.processes.jump.transitions import Transitions

LARGEST = 2048  # positions whose ways to one another are told from a matrix


def joined_positions(rates: Tensor) -> Tensor:
    """Which positions can be reached from which [M, M], in any number of jumps along rates > 0."""
    reach = (rates > 0) | torch.eye(len(rates), dtype=torch.bool, device=rates.device)
    while True:
        counts = reach.float()
        further = counts @ counts > 0
        if torch.equal(further, reach):
            return reach
        reach = further


def closed_classes(matrix: Tensor, valid: Tensor) -> Tensor:
    """The number 0, 1, … of the closed class of each position [M], for P [M, M]; −1 where a walker leaves for good, and
    at positions that are not valid [M]."""
    reach = joined_positions(matrix)
    # Closed: from wherever one can get to, one can get back.
    closed = (reach <= reach.T).all(1) & valid
    first = (reach & reach.T).int().argmax(1)
    numbers = torch.unique(first[closed], return_inverse=True)[1]
    return torch.full_like(first, -1).masked_scatter(closed, numbers)


def class_laws(transitions: Transitions, sample: int) -> Tensor:
    """[K, M] in float64: one law for each closed class."""
    if transitions.batch == 0:
        raise ValueError("the batch is empty (B = 0), so it has no sample to tell classes of")
    if not is_whole(sample) or not 0 <= sample < transitions.batch:
        raise ValueError(f"sample must be one of 0 … {transitions.batch - 1}, got {sample!r}")
    if transitions.positions > LARGEST:
        raise ValueError(
            f"classes are told from the matrix, and M = {transitions.positions} is more than {LARGEST} positions; "
            "stationary_law() gives one law, and scipy.sparse.csgraph.connected_components the parts of a graph"
        )
    matrix = transitions.matrix()[sample]
    numbers = closed_classes(matrix, valid_positions(transitions)[sample] > 0)
    laws = torch.zeros(int(numbers.max()) + 1, len(numbers), dtype=matrix.dtype, device=matrix.device)
    for number, law in enumerate(laws):
        members = (numbers == number).nonzero().squeeze(1)
        found = by_elimination(matrix[members][:, members].unsqueeze(0))
        assert found is not None, "in a closed class every position can be left for every other"
        law[members] = found[0]
    return laws
