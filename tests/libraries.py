"""The array libraries that kernels are tested over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat.numpy as numpy_xp
import array_api_strict
import numpy as np

from dagsel import backend


@dataclass(frozen=True)
class Library:
    """An array library, and where on it arrays are put."""

    name: str
    xp: Any
    device: Any = None
    read_only: bool = False

    def asarray(self, array):
        if self.read_only:
            array = np.array(array)
            array.flags.writeable = False
            return array
        return self.xp.asarray(np.array(array), device=self.device)


def libraries():
    """Yield the array libraries that there are."""
    yield Library("numpy", numpy_xp)
    yield Library("numpy-read-only", numpy_xp, read_only=True)
    yield Library("strict", array_api_strict, array_api_strict.Device("device1"))
    if backend.gpu_available():
        import array_api_compat.cupy as cupy_xp

        yield Library("cupy", cupy_xp)


def on_host(array):
    if isinstance(array, array_api_strict._array_object.Array):
        assert array.device == array_api_strict.Device("device1")
    return backend.to_host(array)


NUMPY = Library("numpy", numpy_xp)
