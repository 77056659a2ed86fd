"""Pictures of affinities, spectra, simulations, features and stability, and ways to save them. Needs matplotlib.

Every `plot_` function draws on the `ax` it is given, or on axes of a new figure, and returns the axes. None shows
anything, and none changes matplotlib's settings: save a picture with `ax.figure.savefig("picture.png")`.
"""

from importlib.util import find_spec

from nonloc._lazy import lazy

if find_spec("matplotlib") is None:
    raise ModuleNotFoundError("nonloc.plots needs matplotlib; pip install 'nonloc[plots]'", name="matplotlib")

_WHERE = {
    "plot_affinity": "nonloc.plots.affinity",
    "plot_spectrum": "nonloc.plots.spectrum",
    "plot_trajectory": "nonloc.plots.trajectory",
    "animate_trajectory": "nonloc.plots.animation",
    "plot_features": "nonloc.plots.features",
    "plot_stability": "nonloc.plots.stability",
    "CHANCE": "nonloc.plots.look",
    "COLORS": "nonloc.plots.look",
    "INK": "nonloc.plots.look",
    "NEGATIVE": "nonloc.plots.look",
    "POSITIVE": "nonloc.plots.look",
    "WIDTH": "nonloc.plots.look",
    "png": "nonloc.plots.look",
    "save_figure": "nonloc.plots.look",
    "style": "nonloc.plots.look",
    "svg": "nonloc.plots.look",
}

__all__ = list(_WHERE)
__getattr__, __dir__ = lazy(__name__, _WHERE)
