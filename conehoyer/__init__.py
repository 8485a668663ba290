"""Sparse projections for NumPy arrays, of vectors and of groups of a matrix, and NMF.

Names are loaded on first use: ``import conehoyer`` imports nothing else, not even NumPy.
"""

from importlib import import_module as _load

_HOME = {
    "cai_score": "scores",
    "gsp_score": "scores",
    "hoyer_score": "scores",
    "hoyer_sparseness": "scores",
    "level_for_groups": "bilevel",
    "level_for_nnz": "levels",
    "level_for_sparseness": "levels",
    "nmf_hals": "nmf",
    "project_bilevel": "bilevel",
    "project_cai": "projections",
    "project_gsp": "gsp",
    "project_hoyer": "projections",
    "project_l1_ball": "projections",
    "project_l1inf_ball": "bilevel",
    "project_simplex": "projections",
    "BilevelInfo": "bilevel",
    "ConvergenceWarning": "_results",
    "GSPInfo": "gsp",
    "NMFResult": "nmf",
    "ProjectionInfo": "_results",
    "get_workers": "_threads",
    "set_workers": "_threads",
}

_MODULES = ["blocksparse", "optim", "torch"]  # with names of their own

__version__ = "0.1.0.dev0"
__all__ = sorted(_HOME)


def __getattr__(name):
    if name in _MODULES:
        return _load(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_load(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    import sys
    from importlib.util import find_spec

    names = {*globals(), *__all__, *_MODULES}
    if sys.modules.get("torch") is None and find_spec("torch") is None:
        names.discard("torch")  # `help` and completion ask for every name listed: it would raise
    return sorted(names)
