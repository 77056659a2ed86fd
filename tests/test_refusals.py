"""What no public function takes: each says which argument is wrong, as a ValueError, before anything loops."""

import pytest
import torch
from torch import nn

from nonloc.nn import DiffusiveBlock, DiffusiveStage, Heat, insert, logit_spreads, stage_inputs
from nonloc.ops import (
    Affinity,
    SparseAffinity,
    adjoint,
    aggregate,
    apply_adjoint,
    choose_backend,
    diffuse,
    dirichlet_energy,
    estimate,
    kernel_matrix,
    prepare,
    propagate,
    row_sums,
    self_adjoint_weights,
)
from nonloc.processes import Diffusion, JumpProcess, certify, cfl_limit, horizon, neighbors
from nonloc.spectrum import Spectrum, random_band, weight_spectrum

HUGE = 10**400
X = torch.randn(2, 5, 3, dtype=torch.float64)
A = Affinity(X, X, "heat")
W = torch.eye(3, dtype=torch.float64)
META = torch.empty(2, 5, 3, device="meta", dtype=torch.float64)
NOTHING = Affinity(META, META, "heat")
GRAPH = torch.eye(5, dtype=torch.float64).to_sparse_csr()
STAGE = DiffusiveStage(4, 2)
IMAGE = torch.randn(1, 4, 3, 3)
NO_AFFINITY = "affinity must be an Affinity or a SparseAffinity, got NoneType"


def network():
    return nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1))


class Aliased(nn.Module):
    """Has one convolution by two names, and calls it by the second."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.second(x)


def put(example):
    return lambda: insert(network(), {"0": DiffusiveBlock}, example=example)


OPERATIONS = [
    (lambda: aggregate(None, X), NO_AFFINITY),
    (lambda: diffuse(None, X), NO_AFFINITY),
    (lambda: propagate(None, X, [W]), NO_AFFINITY),
    (lambda: dirichlet_energy(None, X), NO_AFFINITY),
    (lambda: kernel_matrix(None), NO_AFFINITY),
    (lambda: kernel_matrix(STAGE), r"got DiffusiveStage.*stage\.affinity\(x\)"),
    (lambda: apply_adjoint(None, X), NO_AFFINITY),
    (lambda: adjoint(None), NO_AFFINITY),
    (lambda: prepare(None, torch.float64), NO_AFFINITY),
    (lambda: choose_backend(None), NO_AFFINITY),
    (lambda: row_sums(None), NO_AFFINITY),
    (lambda: self_adjoint_weights(None), NO_AFFINITY),
    (lambda: SparseAffinity(GRAPH, measure=torch.tensor([1, 1, 1, 1, torch.nan])), "NaN or infinite"),
    (lambda: adjoint(A, torch.int64), "dtype must be a floating dtype"),
    (lambda: prepare(A, torch.int64), "dtype must be a floating dtype"),
    (lambda: aggregate(A, X, backend=["reference"]), "backend=.* is unknown"),
    (lambda: propagate(A, X, [W], backend=["reference"]), "backend=.* is unknown"),
    (lambda: aggregate(A, X.to_sparse()), "z must be a dense tensor"),
    (lambda: apply_adjoint(A, None), "p must be a tensor"),
    (lambda: apply_adjoint(A, X.to(torch.complex64)), "p must be floating point.*p.real"),
    (lambda: propagate(A, X, [(W, W.to(torch.complex64))]), r"weights\[0\] must be floating point and real"),
    (lambda: propagate(A, X, [W, W.bool()]), r"weights\[1\] must be floating point"),
    (lambda: propagate(A, X, [W.to("meta")]), r"weights\[0\] is on meta"),
    (lambda: propagate(A, X, [W], differences="x"), "differences must be True or False"),
    (lambda: estimate(["dot"], batch=1, positions=2, channels=3), "kind=.* is unknown"),
    (lambda: estimate("heat", batch=1, positions=10**20, channels=3), "positions must be at most"),
    (lambda: estimate("heat", batch=2**40, positions=2**40, channels=3), "more than a tensor has"),
    (lambda: estimate("heat", batch=1, positions=2, channels=3, dtype="float32"), "dtype must be"),
    (lambda: estimate(STAGE, shape=(1, 4, 10**20, 3)), "shape must be that of an input"),
    (lambda: estimate(STAGE, shape=IMAGE), "shape must be that of an input.{0,200}$"),
    (lambda: weight_spectrum(W.to("meta")), "w is on the meta device"),
    (lambda: weight_spectrum(W.to_sparse()), "w must be dense"),
    (lambda: Spectrum(None), "eigenvalues must be finite real numbers"),
    (lambda: Spectrum([1j]), "eigenvalues must be finite real numbers"),
    (lambda: Spectrum.from_dict({}), "a spectrum is a dict"),
    (lambda: random_band(4, 2, HUGE), "norm=1000.* must be a finite number"),
    (lambda: random_band(4, 2, 1.0, quantile=None), "quantile=None must lie"),
    (lambda: random_band(4, 2, 1.0, seed=2.5), "seed=2.5 must be a whole number"),
    (lambda: random_band(10**9, 2, 1.0), "need .* GiB"),
]
MODULES = [
    (lambda: DiffusiveStage(4, 10**20), "num_blocks must be at most 10,000, got 1"),
    (lambda: DiffusiveStage(10**20, 1), "channels must be at most"),
    (lambda: DiffusiveStage(10**12, 1), "does not fit into memory; use smaller channels, hidden or embed"),
    (lambda: DiffusiveStage(4, 1, hidden=10**15, weight="stable"), "does not fit into memory"),
    (lambda: DiffusiveStage(4, 1, embed=10**15), "does not fit into memory"),
    (lambda: DiffusiveStage(4, 1, init_std=HUGE), "init_std must be a finite number > 0, got 1000"),
    (lambda: DiffusiveStage(4, 1, shared_embedding="x"), "shared_embedding must be True or False, got 'x'"),
    (lambda: DiffusiveStage(4, 1, affinity=nn.Linear), "affinity: Linear cannot be called with the channels"),
    (lambda: Heat(4, shared="x"), "shared must be True or False"),
    (lambda: Heat(4, scaled="x"), "scaled must be True or False"),
    (lambda: Heat(4)(None), r"x must be a tensor \[B, M, 4\], got NoneType"),
    (lambda: Heat(4)(torch.ones(2, 3, 5)), r"x must be a tensor \[B, M, 4\], got \[2, 3, 5\]"),
    (lambda: Heat(4)(torch.ones(2, 3, 4), torch.ones(2, 3, 5)), r"keys must be a tensor \[B, M, 4\]"),
    (lambda: insert(None, {"0": DiffusiveBlock}), "model must be a torch module, got NoneType"),
    (lambda: insert(network(), {3: DiffusiveBlock}), "where names submodules by strings.*got 3"),
    (lambda: insert(network(), {"0": {"form": "original", 3: 4}}), "has no keyword 3"),
    (
        lambda: insert(Aliased(), {"first": DiffusiveBlock}),
        "'first' and 'second' are one module.*pass example=",
    ),
    (
        put(torch.ones(1, 7, 3, 3)),
        r"the model does not run on example \(RuntimeError: .*; give what it takes",
    ),
    (put("abc"), r"the model does not run on example \(TypeError.{0,400}$"),
    (lambda: stage_inputs(3, IMAGE), "model must be a torch module, got int"),
    (lambda: logit_spreads(STAGE, None), "takes a tensor, got NoneType"),
    (lambda: logit_spreads(nn.Sequential(STAGE), {"y": IMAGE}), "the model does not run on inputs"),
]
PROCESSES = [
    (lambda: Diffusion(nn.Linear(2, 2)), "affinity is Linear, which returns no affinity"),
    (lambda: Diffusion(Affinity), "affinity is Affinity, which returns no affinity"),
    (lambda: Diffusion(STAGE), r"lambda z: stage\.affinity\(z\)"),
    (lambda: Diffusion(lambda: A), "cannot be called with a state z alone"),
    (lambda: Diffusion(A, weight=HUGE), "weight must be finite"),
    (lambda: Diffusion(A, weight=torch.tensor(1j)), "weight must be real numbers"),
    (lambda: Diffusion(A, weight=W.to("meta")), "weight must be real numbers"),
    (lambda: Diffusion(A, backwards="x"), "backwards must be True or False"),
    (lambda: Diffusion(A).rate(None), "z must be a tensor"),
    (lambda: JumpProcess(A).rate(None), "z must be a tensor"),
    (lambda: JumpProcess(A).evolve(X, step_size=HUGE), "step_size must be.{0,300}$"),
    (lambda: JumpProcess(A).sample_paths(10**12, 3), "more positions than memory holds"),
    (lambda: JumpProcess(A).sample_paths(3, 10**20), "num_steps must be at most"),
    (lambda: JumpProcess(A).sample_paths(3, 3, until=HUGE), "until must be a finite time"),
    (lambda: JumpProcess(A).sample_paths(3, 3, generator=3), "generator must be a torch.Generator"),
    (lambda: JumpProcess(A).sample_paths(3, 3, only_final=3), "only_final must be True or False"),
    (lambda: JumpProcess(A).spectral_gap(absolute="x"), "absolute must be True or False"),
    (lambda: cfl_limit(NOTHING), "affinity is on the meta device"),
    (lambda: certify(NOTHING, W), "affinity is on the meta device"),
    (lambda: certify(A, HUGE), r"weights\[0\] is 1000.*, not finite"),
    (lambda: certify(A, [W.to("meta")]), r"weights\[0\] must be numbers in a dense tensor"),
    (lambda: certify(A, [W.to_sparse()]), r"weights\[0\] must be numbers in a dense tensor"),
    (lambda: certify(A, [(W, W.to(torch.complex64))]), r"weights\[0\] must be floating point and real"),
    (lambda: certify(A, [()]), r"weights\[0\] must be W \[C, C\].*got \[\]"),
    (lambda: neighbors(X[0], HUGE), "k must be at most"),
    (lambda: neighbors(X[0], 2, scale=HUGE), "scale must be a number > 0"),
    (lambda: neighbors(X[0], 2, include_self="x"), "include_self must be True or False"),
    (lambda: horizon(X[0], 1.0, kernel=lambda: 3), "kernel: .* cannot be called with the distances alone"),
    (lambda: horizon(META[0], 1.0), "points must be numbers in a dense tensor"),
]


@pytest.mark.parametrize(("call", "message"), [*OPERATIONS, *MODULES, *PROCESSES])
def test_an_argument_that_cannot_be_meant_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_module_by_two_names_takes_a_stage_where_a_run_or_its_parent_shows_the_name():
    model = Aliased()
    insert(model, {"second": DiffusiveBlock}, example=IMAGE)
    assert isinstance(model.second.stage, DiffusiveBlock)
    one = nn.Conv2d(4, 4, 1)
    row = nn.Sequential(one, one)
    insert(row, {"1": DiffusiveBlock})
    assert isinstance(row[1].stage, DiffusiveBlock)
