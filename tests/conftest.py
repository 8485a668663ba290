import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# oracle.py and distributions.py are plain modules beside the tests; this keeps
# them importable under every import mode of pytest.
sys.path.insert(0, str(Path(__file__).parent))

_common = {
    "deadline": None,  # the first call of a kind compiles
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("default", max_examples=60, **_common)
settings.register_profile("ci", max_examples=60, derandomize=True, **_common)
settings.register_profile("thorough", max_examples=2000, **_common)


# What Numba compiles leaves many objects behind: the collector would look through them each time.
gc.set_threshold(100_000, 20, 100)


@pytest.fixture(scope="session", autouse=True)
def largest_kernels(request):
    """Of several processes that begin at once, each compiles its own, and finds the others'."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or len(request.session.items) < 1000:  # a few files may not need them
        return
    import numpy as np

    import conehoyer
    from conehoyer._cpu import short

    x = np.arange(6.0).reshape(2, 3).astype("f8" if int(worker[2:]) % 2 == 0 else "f4")
    short.address_of_engine(x.dtype)
    conehoyer.project_cai(x, 1.5)
    conehoyer.project_cai(x, 1.5, axis=0)
    conehoyer.project_bilevel(x, level=1.5)


@pytest.fixture
def every_array_is_large(monkeypatch):
    """As many threads as are asked for, however small the data."""
    from conehoyer import _groups, _threads, gsp, optim, projections, scores
    from conehoyer._cpu import short

    for module, name in (
        (_groups, "PARALLEL_FROM"),
        (_threads, "DEALT_FROM"),
        (gsp, "_PARALLEL_FROM"),
        (optim, "_PARALLEL_FROM"),
        (projections, "SHARED_FROM"),
        (projections, "WOKEN_FROM"),
        (scores, "_PARALLEL_FROM"),
    ):
        # Slices that `short` takes are never shared: by the engine they have other bits.
        least = short.LONGEST + 1 if name in ("SHARED_FROM", "WOKEN_FROM") else 0
        assert getattr(module, name) > least
        monkeypatch.setattr(module, name, least)


@pytest.fixture
def record_workers(monkeypatch):
    """Of a module: the list of the workers that it will ask for, however small the data."""

    def record(module):
        asked = []

        def run_split(task, count, workers):
            asked.append(workers)
            task(0, count)

        monkeypatch.setattr(module, "run_split", run_split)
        monkeypatch.setattr(module, "_PARALLEL_FROM", 0)
        return asked

    return record


def pytest_addoption(parser):
    parser.addoption(
        "--thorough",
        action="store_true",
        help="more hypothesis examples, and the tests marked 'thorough' (large arrays)",
    )


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error")
    config.addinivalue_line("markers", "thorough: minutes or gigabytes; only with --thorough")
    if config.getoption("--thorough"):
        settings.load_profile("thorough")
    else:
        settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--thorough"):
        return
    skip = pytest.mark.skip(reason="needs --thorough")
    for item in items:
        if "thorough" in item.keywords:
            item.add_marker(skip)
