"""SharedData: the data sets of several runs, each read once and once on the device."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

from nonloc_paper.data.dataset import Dataset
from nonloc_paper.data.load import load


class SharedData:
    """Data sets by name, on one device; a data set is loaded when a run first asks for it."""

    def __init__(
        self,
        device: torch.device,
        data: Mapping[str, Dataset] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self._device, self._data_dir = device, data_dir
        self._given = dict(data or {})
        self._found: dict[str, Dataset] = {}

    def found(self, name: str) -> Dataset | None:
        """The data set `name` if a run has asked for it."""
        return self._found.get(name)

    def find(self, name: str) -> Dataset:
        """The data set `name`, the same object every time."""
        if name not in self._found:
            dataset = self._given[name] if name in self._given else load(name, self._data_dir)
            if dataset.name != name:
                raise ValueError(
                    f"data[{name!r}] is {dataset.name!r}; give every data set under its own name"
                )
            self._found[name] = dataset.to(self._device)
            if self._device.type == "cuda":
                # The streams of the runs know nothing of the copy.
                torch.cuda.current_stream(self._device).synchronize()
        return self._found[name]
