"""nonloc-paper requires the nonloc of its own version, which one file tells."""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class SameVersion(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        metadata["dependencies"] = [
            f"nonloc=={metadata['version']}",
            "safetensors>=0.5",
            "jsonargparse>=4.40",
            "tqdm>=4.66",
            "pooch>=1.8",
            "scipy>=1.12",
            "scikit-learn>=1.4",
            "matplotlib>=3.8",
            "pillow>=10",
        ]
