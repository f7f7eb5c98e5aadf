"""Where tasks run: in this process, or on a Dask cluster. Both offer `engines.base.Executor`."""

from __future__ import annotations
