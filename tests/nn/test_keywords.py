"""What the public modules say of their keywords is what they take."""

import inspect

import pytest

from nonloc.nn import options as choices
from nonloc.nn.nonlocal_module import NonlocalModule
from nonloc.nn.stage import DiffusiveBlock, DiffusiveStage, OriginalBlock, OriginalStage
from nonloc.ops import BACKENDS

MODULES = [OriginalBlock, OriginalStage, DiffusiveBlock, DiffusiveStage]
OTHERS = {
    "embed": 2,
    "init_std": 0.5,
    "hidden": 2,
    "subsample": None,
    "share_affinity": True,
    "num_blocks": 2,
}


def of_the_base():
    parameters = inspect.signature(NonlocalModule).parameters.values()
    return {one.name: one for one in parameters if one.kind is one.KEYWORD_ONLY}


@pytest.mark.parametrize("kind", MODULES)
def test_signature_lists_every_keyword_with_its_default(kind):
    expected = of_the_base()
    if kind.form == "diffusive":
        del expected["subsample"]
    found = dict(inspect.signature(kind).parameters)
    own = {"channels", "num_blocks", "share_affinity"} if "Stage" in kind.__name__ else {"channels"}
    assert {name: found.pop(name).name for name in own} == {name: name for name in own}
    assert {name: one.default for name, one in found.items()} == {
        n: one.default for n, one in expected.items()
    }


@pytest.mark.parametrize("kind", MODULES)
def test_keywords_of_the_signature_are_taken(kind):
    names = set(inspect.signature(kind).parameters)
    values = {name: OTHERS[name] for name in names if name in OTHERS}
    module = kind(4, **values)
    assert module.init_std == 0.5


@pytest.mark.parametrize("kind", MODULES)
def test_docstring_tells_of_every_keyword_once(kind):
    lines = [line for line in inspect.getdoc(kind).splitlines()[1:] if line[:1].strip()]
    told = [name for line in lines for name in line.partition("  ")[0].split(", ")]
    assert sorted(told) == sorted(inspect.signature(kind).parameters)


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize(
    "known",
    [
        choices.WEIGHTS,
        choices.AFFINITY_NAMES,
        choices.NORMALIZATIONS,
        choices.INITS,
        choices.LAYOUTS,
        tuple(BACKENDS),
    ],
)
def test_docstring_tells_of_every_choice(kind, known):
    assert [name for name in known if f'"{name}"' not in kind.__doc__] == []


def test_class_of_ones_own_has_its_own_signature():
    class Four(DiffusiveStage):
        def __init__(self, width):
            super().__init__(width, 4)

    assert list(inspect.signature(Four).parameters) == ["width"]


@pytest.mark.parametrize("kind", MODULES)
def test_unknown_keyword_names_the_class_the_nearest_and_all(kind):
    sizes = {"num_blocks": 2} if "Stage" in kind.__name__ else {}
    message = (
        rf"^{kind.__name__} has no keyword 'initstd'; the nearest is init_std; it takes channels, .*backend"
    )
    with pytest.raises(TypeError, match=message):
        kind(4, **sizes, initstd=0.1)


def test_keyword_that_is_near_to_none_is_refused_without_a_guess():
    with pytest.raises(
        TypeError, match="DiffusiveBlock has no keyword 'num_blocks'; it takes channels, hidden"
    ):
        DiffusiveBlock(4, num_blocks=2)
