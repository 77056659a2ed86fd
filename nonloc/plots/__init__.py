"""Pictures of affinities, spectra, simulations, features and stability, and ways to save them. Needs matplotlib.

Every `plot_` function draws on the `ax` it is given, or on axes of a new figure, and returns the axes. None shows
anything, and none changes matplotlib's settings: save a picture with `ax.figure.savefig("picture.png")`.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from nonloc._lazy import lazy, modules_by_name

if find_spec("matplotlib") is None:
    raise ModuleNotFoundError("nonloc.plots needs matplotlib; pip install 'nonloc[plots]'", name="matplotlib")

_WHERE = modules_by_name(
    {
        "nonloc.plots.affinity": "plot_affinity",
        "nonloc.plots.spectrum": "plot_spectrum",
        "nonloc.plots.trajectory": "plot_trajectory",
        "nonloc.plots.animation": "animate_trajectory",
        "nonloc.plots.features": "plot_features",
        "nonloc.plots.stability": "plot_stability",
        "nonloc.plots.look": "CHANCE COLORS INK NEGATIVE POSITIVE WIDTH png save_figure style svg",
    }
)

__all__ = list(_WHERE)
if TYPE_CHECKING:  # types for mypy and editors, of the names in _WHERE
    from nonloc.plots.affinity import plot_affinity as plot_affinity
    from nonloc.plots.animation import animate_trajectory as animate_trajectory
    from nonloc.plots.features import plot_features as plot_features
    from nonloc.plots.look import CHANCE as CHANCE
    from nonloc.plots.look import COLORS as COLORS
    from nonloc.plots.look import INK as INK
    from nonloc.plots.look import NEGATIVE as NEGATIVE
    from nonloc.plots.look import POSITIVE as POSITIVE
    from nonloc.plots.look import WIDTH as WIDTH
    from nonloc.plots.look import png as png
    from nonloc.plots.look import save_figure as save_figure
    from nonloc.plots.look import style as style
    from nonloc.plots.look import svg as svg
    from nonloc.plots.spectrum import plot_spectrum as plot_spectrum
    from nonloc.plots.stability import plot_stability as plot_stability
    from nonloc.plots.trajectory import plot_trajectory as plot_trajectory
else:
    __getattr__, __dir__ = lazy(__name__, _WHERE)
