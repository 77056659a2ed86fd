"""insert: it changes the network, or raises and changes nothing."""

import copy
import pickle
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from nonloc.nn.affinity import Heat
from nonloc.nn.insert import After, Inserted, insert
from nonloc.nn.stage import DiffusiveStage, OriginalBlock, stages


class Residual(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.convolution = nn.Conv2d(channels, out, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x):
        return self.norm(self.convolution(x)).relu()


class Network(nn.Module):
    """Two groups of residual blocks, as anyone might write them, and a part that never runs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer1 = nn.Sequential(Residual(3, 8), Residual(8, 8))
        self.layer2 = nn.Sequential(Residual(8, 12))
        self.unused = nn.Linear(12, 12)
        self.branches = nn.ModuleList([nn.Identity()])
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = self.branches[0](self.layer2(self.layer1(x)))
        return self.head(x.mean((2, 3)))


@pytest.fixture
def model():
    return Network()


@pytest.fixture
def x():
    return torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(0))


def stage(channels=8, num_blocks=2):
    return DiffusiveStage(channels, num_blocks, init="torch")


def test_report_says_what_was_done(model, x):
    where = {"layer1.1": stage(8, 4), "layer2": {"form": "original", "num_blocks": 3, "init": "zero"}}
    assert insert(model, where, example=x) == [
        Inserted("layer1.1", "layer1.1.stage", 8, 4, 30),
        Inserted("layer2", "layer2.stage", 12, 3, 30),
    ]
    assert [name for name, _ in stages(model)] == ["layer1.1.stage", "layer2.stage"]


def test_state_dict_names_are_as_documented(model):
    before = {name.replace("layer1.1.", "layer1.1.base."): v for name, v in model.state_dict().items()}
    insert(model, {"layer1.1": stage()})
    after = model.state_dict()
    new = [name for name in after if name not in before]
    assert new
    assert all(name.startswith("layer1.1.stage.") for name in new)
    torch.testing.assert_close({name: after[name] for name in before}, before, rtol=0, atol=0)


@pytest.mark.parametrize("example", [None, torch.zeros(1, 3, 4, 4)])
@pytest.mark.parametrize("value", [lambda channels: stage(channels), OriginalBlock, {"form": "diffusive"}])
def test_channels_are_those_of_the_submodule(model, value, example):
    done = insert(model, {"layer1.0": value, "layer2.0": value}, example=example)
    assert [entry.channels for entry in done] == [8, 12]


def test_example_may_be_arguments_or_keywords(model, x):
    assert insert(copy.deepcopy(model), {"layer1": OriginalBlock}, example=(x,))[0].positions == 30
    assert insert(copy.deepcopy(model), {"layer1": OriginalBlock}, example={"x": x})[0].positions == 30


def test_example_leaves_modes_and_statistics_alone(model, x):
    model.layer2.eval()
    before = {name.replace("head.", "head.base."): v.clone() for name, v in model.state_dict().items()}
    insert(model, {"head": nn.Identity()}, example=x)
    assert (model.layer1[0].norm.training, model.layer2[0].norm.training) == (True, False)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_stage_follows_device_dtype_and_mode(model):
    model.double().eval()
    insert(model, {"layer1.1": stage()})
    inserted = model.layer1[1].stage
    assert {parameter.dtype for parameter in inserted.parameters()} == {torch.float64}
    assert not inserted.training
    meta = Network().to("meta")
    insert(meta, {"layer1.1": stage()})
    assert next(meta.layer1[1].stage.parameters()).is_meta


def test_a_second_stage_in_one_place_is_refused_and_the_fixes_in_the_message_work(model, x):
    plain = repr(model)
    insert(model, {"layer1.1": stage()})
    before = repr(model)
    with pytest.raises(ValueError, match=r"'layer1.1' has a stage already.*name 'layer1.1.stage'"):
        insert(model, {"layer1.1": stage()})
    assert repr(model) == before
    insert(model, {"layer1.1.stage": stage()}, example=x)
    assert [name for name, _ in stages(model)] == ["layer1.1.stage.base", "layer1.1.stage.stage"]
    model.set_submodule("layer1.1", model.get_submodule("layer1.1.base"))
    assert repr(model) == plain


@pytest.mark.parametrize("where", [["layer1.1"], ["layer1.1", "layer2"], ["layer1.1", "layer1"]])
def test_weights_of_the_plain_model_go_to_the_bases(x, where):
    plain, model = Network().eval(), Network().eval()
    for value in plain.parameters():
        nn.init.normal_(value)
    for name in where:
        insert(model, {name: {"form": "diffusive", "num_blocks": 2, "init": "zero"}}, example=x)
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert all(".stage." in name for name in missing)
    torch.testing.assert_close(model(x), plain(x))


def test_a_base_may_have_children_called_base_and_stage():
    class Body(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.stage = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            return self.stage(self.base(x))

    plain, model, again = (nn.Sequential(Body()) for _ in range(3))
    for one in (model, again):
        insert(one, {"0": {"form": "diffusive"}}, example=torch.randn(1, 3, 8, 8))
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert (bool(missing), unexpected) == (True, [])
    assert all(name.startswith(("0.stage.maps", "0.stage.embeddings")) for name in missing)
    again.load_state_dict(model.state_dict())
    for one in (model, again):
        torch.testing.assert_close(one[0].base.state_dict(), plain[0].state_dict())


def test_a_checkpoint_of_another_model_is_still_refused(model, x):
    insert(model, {"layer1.1": {"form": "diffusive", "num_blocks": 2}}, example=x)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*layer1\.1\.bread"):
        model.load_state_dict(model.state_dict() | {"layer1.1.bread": torch.zeros(1)})


@pytest.mark.parametrize(
    ("where", "example", "message"),
    [
        ({"layer1.2": stage()}, None, r"no submodule 'layer1.2'; the nearest are .*layer1.1"),
        ({"": stage()}, None, "is the model itself"),
        ({"branches": stage()}, None, "'branches' is a ModuleList, which is never called itself"),
        ({"layer1.1": stage(12)}, None, "has 12 channels, 'layer1.1' puts out 8"),
        ({"layer1.1": stage(12)}, torch.zeros(1, 3, 4, 4), r"puts out 8 \(in \[1, 8, 4, 4\]\)"),
        ({"branches.0": OriginalBlock}, None, "pass example="),
        ({"unused": stage(12)}, torch.zeros(1, 3, 4, 4), "unused never ran on .*name its last one"),
        ({"layer1.1": stage()}, torch.zeros(3, 4, 4), r"\[3, 4, 4\], has no batch dimension; give x\[None\]"),
        ({"layer1.1": {"num_blocks": 2}}, None, "form=None is unknown; choose one of original, diffusive"),
        ({"layer1.1": 3}, None, "give a module, a factory channels -> module, or a dict; got int"),
        ({"layer1.1": lambda channels: channels}, None, "the factory must return a torch module, got int"),
    ],
)
def test_a_wrong_entry_is_refused_and_a_right_one_with_it(model, x, where, example, message):
    before, output = repr(model), model.eval()(x)
    with pytest.raises(ValueError, match=message):
        insert(model, {"layer1.0": stage(), **where}, example=example)
    assert repr(model) == before
    assert torch.equal(model(x), output)


@pytest.mark.parametrize(("where", "message"), [({}, "where is empty"), (["layer1.1"], "where .*got a list")])
def test_where_says_what_goes_after_which_submodule(model, where, message):
    with pytest.raises(ValueError, match=message):
        insert(model, where)


def test_layers_that_disagree_about_the_channels_need_an_example():
    """Declared in another order than they run: the last normalisation is not the last thing to happen."""

    class PreActivation(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(4, 6, 1)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x):
            return self.convolution(self.norm(x))

    model = nn.Sequential(PreActivation())
    with pytest.raises(ValueError, match="pass example="):
        insert(model, {"0": OriginalBlock})
    assert insert(model, {"0": OriginalBlock}, example=torch.zeros(1, 4, 3, 3))[0].channels == 6


class Asking(nn.Module):
    """A model that asks its first layer for more than its output, as nn.TransformerEncoder does."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Residual(3, 8), Residual(8, 8)])

    def forward(self, x):
        assert self.layers[0].convolution.kernel_size == (3, 3)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize(
    "passed_on",
    [
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),
        lambda model: torch.compile(model, fullgraph=True, backend="eager"),
        pytest.param(
            lambda model: torch.export.export(model, (torch.zeros(2, 3, 6, 5),), strict=True).module(),
            marks=pytest.mark.skipif(torch.__version__ < (2, 7), reason="it takes an Affinity for a tuple"),
        ),
    ],
    ids=["as a copy", "pickled", "compiled", "exported strictly"],
)
def test_a_model_may_ask_for_attributes_of_the_base(passed_on, x):
    model = Asking().eval()
    inserted = stage()
    expected = model.layers[1](inserted(model.layers[0](x)))
    insert(model, {"layers.0": inserted}, example=x)
    torch.testing.assert_close(passed_on(model)(x), expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused_with_a_fix_that_works():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    padding = torch.tensor([[False] * 3 + [True] * 2] * 2)
    example = {"src": torch.zeros(2, 5, 8), "src_key_padding_mask": padding}
    with pytest.raises(ValueError, match="puts out a nested tensor.*enable_nested_tensor=False"):
        insert(nn.TransformerEncoder(layer, 2), {"layers.1": on_tokens}, example=example)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    assert insert(model, {"layers.1": on_tokens}, example=example)[0].positions == 5


def test_tensors_of_the_base_are_not_passed_on():
    both = After(nn.Linear(3, 3), nn.Identity())
    assert both.in_features == 3
    with pytest.raises(AttributeError, match=r"'After' object has no attribute 'weight'.*take .base.weight"):
        _ = both.weight
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'nothing'"):
        _ = both.nothing


@pytest.mark.parametrize("depth", [1, 2])
def test_what_is_written_to_an_attribute_of_the_base_reaches_it(depth):
    convolution, x = nn.Conv2d(3, 3, 1), torch.randn(1, 3, 4, 4)
    both = After(convolution, nn.Identity())
    for _ in range(depth - 1):
        both = After(both, nn.Identity())
    both.stride, both.bias, both.mark = (2, 2), None, "new"
    del both.mark
    both.train(False).mark = "its own"
    assert (convolution.stride, convolution.bias, convolution.training) == ((2, 2), None, False)
    assert (both.mark, hasattr(convolution, "mark")) == ("its own", False)
    assert both(x).shape == (1, 3, 2, 2)
    both.stage, both.forward = nn.ReLU(), both.stage.forward
    assert torch.equal(both(x), x)
    del both.forward, both.padding_mode
    assert torch.equal(both.stage(x), x.relu())
    assert not hasattr(convolution, "padding_mode")


@pytest.mark.parametrize("prepared", [lambda f: f, partial(torch.compile, fullgraph=True, backend="eager")])
@pytest.mark.parametrize("names", [["layer1"], ["layer1", "layer1.stage"], ["layer1", "layer1.base.1"]])
def test_members_of_a_sequential_called_one_after_another_are_what_it_computes(model, x, names, prepared):
    for name in names:
        insert(model.eval(), {name: stage()})

    def loop(x):
        for block in model.layer1 if model.layer1 else ():
            x = block(x)
        return x

    expected = model.layer1(x)
    torch.testing.assert_close(prepared(loop)(x), expected)
    torch.testing.assert_close(checkpoint_sequential(model.layer1, 2, x, use_reentrant=False), expected)
    assert model.layer1[0] is model.layer1.base[0]


def test_a_base_without_members_has_none_after_inserting():
    both = After(nn.Conv2d(3, 3, 1), nn.Identity())
    assert both
    for ask in (iter, len, lambda one: one[0]):
        with pytest.raises(TypeError, match="'Conv2d'"):
            ask(both)


class Aliased(nn.Module):
    """Reaches its convolution through a list of its own."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.order = [self.convolution]

    def forward(self, x):
        return self.order[0](x)


class Pair(NamedTuple):
    features: torch.Tensor
    extra: object


class Several(nn.Module):
    """Puts out several things, as `make` says, of which x is one."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


@pytest.mark.parametrize(
    ("make", "first"),
    [
        (lambda x: (x, "extra"), 0),
        (lambda x: [x, "extra"], 0),
        (lambda x: Pair(x, "extra"), 0),
        (lambda x: {"features": x, "extra": "extra"}, "features"),
    ],
)
def test_a_stage_follows_the_first_of_several_outputs(make, first):
    model, x = nn.Sequential(Several(make)), torch.randn(2, 8, 3, 3)
    one = stage()
    assert insert(model, {"0": one}, example=x)[0].channels == 8
    output = model(x)
    assert type(output) is type(make(x))
    assert torch.equal(output[first], one(x))
    assert "extra" in (output.values() if isinstance(output, dict) else output)


def on_tokens(channels):
    return DiffusiveStage(channels, 1, layout="positions")


ONE, RELU, TWICE = stage(), nn.ReLU(), nn.Sequential(Residual(8, 8))
HEAT = {"form": "diffusive", "affinity": Heat(8)}


@pytest.mark.parametrize(
    ("model", "where", "x", "message"),
    [
        (nn.Sequential(nn.Conv2d(3, 8, 1), RELU), {"0": ONE, "1": ONE}, None, "'0' and '1' got one module"),
        (nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 8)), {"0": HEAT, "1": HEAT}, None, "got one module"),
        (
            nn.Sequential(nn.LSTM(3, 4, batch_first=True)),
            {"0": OriginalBlock},
            torch.zeros(2, 5, 3),
            "channels are last",
        ),
        (
            nn.Sequential(Several(lambda x: (None, x))),
            {"0": OriginalBlock},
            torch.zeros(2, 5, 3),
            "'0' puts out a tuple, and first in it a NoneType; a stage can follow only a tensor",
        ),
        (
            nn.Sequential(RELU, nn.Conv2d(3, 4, 1), RELU),
            {"0": OriginalBlock},
            torch.zeros(1, 3, 2, 2),
            "'0' runs more than once",
        ),
        (
            nn.Sequential(TWICE, TWICE),
            {"0.0": stage(), "1.0": stage()},
            None,
            "'0.0' and '1.0' are one place",
        ),
        (Aliased(), {"convolution": OriginalBlock}, torch.zeros(1, 3, 5, 5), "'convolution' by another way"),
        # In evaluation, without gradients and hooks, the layer computes with the weights of its parts.
        (
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            {"linear2": on_tokens},
            torch.zeros(2, 5, 8),
            "no more with a stage after 'linear2'.*'weight'",
        ),
    ],
    ids=["module", "affinity", "channels last", "tuple", "shapes", "one place", "an alias", "weights read"],
)
def test_a_place_that_cannot_take_its_stage_is_refused(model, where, x, message):
    before = repr(model)
    with pytest.raises(ValueError, match=message):
        insert(model, where, example=x)
    assert repr(model) == before
    assert model.training


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_model_is_refused():
    model = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    with pytest.raises(ValueError, match="insert first, and trace it afterwards"):
        insert(model, {"0": OriginalBlock}, example=torch.randn(1, 3, 8, 8))


def test_a_container_with_a_forward_of_its_own_takes_a_stage():
    class Dense(nn.ModuleDict):
        def forward(self, x):
            return torch.cat([x, *(layer(x) for layer in self.values())], 1)

    model = nn.Sequential(Dense({"a": nn.Conv2d(3, 4, 1)}))
    x = torch.randn(1, 3, 5, 5)
    expected = model(x)
    insert(model, {"0": {"form": "diffusive", "init": "zero"}}, example=x)
    assert torch.equal(model(x), expected)


def test_the_path_of_an_entry_inside_another_is_where_it_is_now():
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 1)))
    done = insert(model, {"0": OriginalBlock, "0.0": OriginalBlock}, example=torch.randn(1, 3, 5, 5))
    assert [one.path for one in done] == ["0.stage", "0.base.0.stage"]
    assert all(isinstance(model.get_submodule(one.path), OriginalBlock) for one in done)


class Widened(nn.Module):
    """Weights in another dtype than the output: float16 or eight bits before float32."""

    def __init__(self, dtype):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1).to(dtype), requires_grad=False)

    def forward(self, x):
        return x * self.scale.float()


@pytest.mark.parametrize(
    ("base", "dtype"),
    [
        (Widened(torch.float16), torch.float32),
        (Widened(torch.float8_e4m3fn), torch.float32),
        (nn.ReLU(), torch.float64),
        (nn.Conv2d(3, 3, 1, dtype=torch.float64), torch.float64),
    ],
    ids=["float16", "float8", "no weights", "float64"],
)
def test_a_stage_has_the_wider_dtype_of_weights_and_output(base, dtype):
    model = nn.Sequential(base)
    insert(model, {"0": {"form": "diffusive"}}, example=torch.randn(1, 3, 5, 5, dtype=dtype))
    assert {parameter.dtype for parameter in model[0].stage.parameters()} == {dtype}
