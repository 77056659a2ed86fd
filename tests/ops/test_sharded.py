"""Positions in several processes: the values and gradients of one process that has them all, in linear memory."""

import pickle
from itertools import pairwise, product

import pytest
import torch

from nonloc.ops import (
    Affinity,
    SparseAffinity,
    aggregate,
    diffuse,
    dirichlet_energy,
    prepare_sharded,
    propagate,
)
from problems import JOINING, features, generator, peak_bytes, relative
from ranks import in_threads

POSITIONS = (5, 1, 4, 2)  # of each rank
QUICK = [("gaussian", "row"), ("heat", "row"), ("dot", "count"), ("concat", "none")]
PAIRS = [("factored", 2), ("reference", 4)]
CASES = [
    pytest.param(*case, marks=[] if case[:2] in QUICK and case[2:] in PAIRS else pytest.mark.slow)
    for case in product(JOINING, ("row", "count", "none"), ("reference", "factored"), (2, 4))
]


def parts(ranks):
    """The positions of each rank: the last has all that are left."""
    cuts = [0, *torch.tensor(POSITIONS[: ranks - 1]).cumsum(0).tolist(), sum(POSITIONS)]
    return [slice(first, last) for first, last in pairwise(cuts)]


def stage(affinity, z, weights):
    """Everything that an affinity, or a prepared one, can do here; z is [B, M, C]."""
    return propagate(affinity, z, weights) + aggregate(affinity, z) * diffuse(affinity, z)


@pytest.mark.parametrize(("kind", "normalize", "backend", "ranks"), CASES)
def test_values_and_gradients_are_those_of_one_process(kind, normalize, backend, ranks):
    total = sum(POSITIONS)
    left, right = (features(kind, normalize, positions=total, seed=seed) for seed in (2, 3))
    z, slopes = torch.randn(2, len(left), total, 3, dtype=torch.float64, generator=generator(4))
    w = torch.randn(2, 3, 3, dtype=torch.float64, generator=generator(5))
    measure = torch.rand(total, dtype=torch.float64, generator=generator(6))

    def work(part, prepare):
        here = [
            one.clone().requires_grad_()
            for one in (left[:, part], right[:, part], z[:, part], w, measure[part])
        ]
        affinity = prepare(Affinity(here[0], here[1], kind, normalize, measure=here[4]))
        out = stage(affinity, here[2], here[3])
        (out * slopes[:, part]).sum().backward()
        return out.detach(), [one.grad for one in here]

    truth, gradients = work(slice(None), lambda affinity: affinity)
    found = in_threads(
        ranks,
        lambda rank, group: work(
            parts(ranks)[rank], lambda affinity: prepare_sharded(affinity, group=group, backend=backend)
        ),
    )
    outs, grads = zip(*found, strict=True)
    assert relative(torch.cat(outs, 1), truth) <= 1e-12
    for name, dim, pieces, whole in zip(
        ("left", "right", "z", "w", "measure"),
        (1, 1, 1, None, 0),
        zip(*grads, strict=True),
        gradients,
        strict=True,
    ):
        together = sum(pieces) if dim is None else torch.cat(pieces, dim)
        assert relative(together, whole) <= 1e-12, name


def test_givers_may_be_sub_sampled():
    left, right, z = (torch.randn(2, m, 3, dtype=torch.float64, generator=generator(m)) for m in (8, 6, 6))

    def work(rank, group):
        receivers, givers = (slice(0, 5), slice(0, 4)) if rank == 0 else (slice(5, 8), slice(4, 6))
        affinity = Affinity(left[:, receivers], right[:, givers], "gaussian")
        return aggregate(prepare_sharded(affinity, group=group), z[:, givers])

    truth = aggregate(Affinity(left, right, "gaussian"), z)
    assert relative(torch.cat(in_threads(2, work), 1), truth) <= 1e-12


def peak(kind, positions):
    """The most bytes that one of two processes has at a time, forward and backward."""

    def work(rank, group):
        width = 1 if kind == "concat" else 8
        left, right, z = (torch.randn(1, positions // 2, c, requires_grad=True) for c in (width, width, 8))

        def once():
            kernel = prepare_sharded(Affinity(left, right, kind), group=group, backend="factored")
            propagate(kernel, z, [0.1 * torch.eye(8)] * 2).sum().backward()

        return peak_bytes(once) if rank == 0 else once()

    return in_threads(2, work)[0]


def test_no_process_has_its_rows_of_the_matrix():
    assert peak("gaussian", 2048) < 0.3 * 4 * 1024 * 2048


@pytest.mark.slow
@pytest.mark.parametrize("kind", JOINING)
def test_the_memory_of_a_process_doubles_when_the_positions_do(kind):
    # A matrix gives 4. Above 2, because a thread of gloo frees some of it, at any time.
    assert peak(kind, 8192) / peak(kind, 4096) < 2.5


def refused(make, message, ranks=1):
    def work(rank, group):
        with pytest.raises(ValueError, match=message):
            make(rank, group)

    in_threads(ranks, work)


def test_what_needs_other_rows_is_refused():
    x = torch.rand(2, 4, 3)
    for normalize in ("symmetric", "sinkhorn"):
        affinity = Affinity(x, x, "heat", normalize)
        refused(lambda rank, group, a=affinity: prepare_sharded(a, group=group), "take row, count, none")
    refused(lambda rank, group: prepare_sharded(Affinity(x, x, "delta"), group=group), "joins no positions")
    masked = Affinity(x, x, "heat", mask=torch.ones(2, 4, dtype=torch.bool))
    refused(lambda rank, group: prepare_sharded(masked, group=group), "take no mask")
    graph = SparseAffinity(torch.eye(4).to_sparse_csr())
    refused(lambda rank, group: prepare_sharded(graph, group=group), "not a SparseAffinity")
    heat = Affinity(x, x, "heat")
    refused(
        lambda rank, group: dirichlet_energy(prepare_sharded(heat, group=group), x),
        "all positions in one process",
    )
    refused(
        lambda rank, group: pickle.dumps(prepare_sharded(heat, group=group)),
        "prepare_sharded.* in every process",
    )
    refused(lambda rank, group: prepare_sharded(heat), "init_process_group")
    refused(
        lambda rank, group: prepare_sharded(Affinity(x[rank:], x[rank:], "heat"), group=group),
        r"same batch.*\[2, 1\]",
        ranks=2,
    )
