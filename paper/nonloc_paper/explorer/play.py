"""The panel "Play": the drawn pictures, and the kernels that the page makes of a picture."""

from __future__ import annotations

from typing import Any

from nonloc_paper.explorer.affinity_maps import encode_pictures
from nonloc_paper.explorer.pictures import pictures

PATCH_RADIUS = 1  # patches of 3 × 3 pixels are the features
BANDWIDTH = 0.1  # h of exp(−|patch − patch'|²/h²), as in `nonloc simulate`
REACH = 4  # pixels between neighbours in each direction


def data() -> dict[str, Any]:
    """Return the pictures and the settings."""
    return {
        "pictures": encode_pictures(pictures()),
        "patch_radius": PATCH_RADIUS,
        "bandwidth": BANDWIDTH,
        "reach": REACH,
    }
