"""An optimizer that trains to sparsity: AdamW, then the proximal step of a block penalty."""

import bisect
import contextlib
import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from . import _checks
from . import _math as m
from ._cpu import optim as kernels
from ._threads import resolve_workers, run_split

__all__ = ["SparseAdamW"]

_PARALLEL_FROM = 1 << 19  # entries of a parameter below which one thread is faster
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_SAVED = (
    "lr", "betas", "eps", "weight_decay", "l1", "groups", "reweight_every", "reweight_eps",
    "constraint_every",
)  # fmt: skip
_OPTIONS = (*_SAVED, "mask", "constraint")


class SparseAdamW:
    """AdamW that sets weights, or whole blocks of weights, to exact zeros.

    Each step is one of AdamW [1]_ on the gradient that it is given, and then, for each
    block B of a parameter, ::

        w_B = (1 − lr·l1·γ_B/‖a_B‖)₊ · a_B

    where a is what AdamW made of the weights.  The gradient never sees the penalty.  The
    parameters are updated in place.

    Parameters
    ----------
    params : list of ndarray, dict of str to ndarray, or list of dict
        The parameters: float32 or float64, writeable, without NaN or inf.  A list of
        dictionaries gives parameter groups: each has "params", a list or a dictionary of
        arrays, and may override every option below but for `workers` and `check_finite`.
    lr : float, default 1e-3
        Length of the steps, at least 0.
    betas : tuple of two floats, default (0.9, 0.999)
        Decay of the running means of the gradient and of its square, each in [0, 1).
    eps : float, default 1e-8
        Added to the root of the mean square; at least 2⁻¹²⁶, the smallest normal float32.
    weight_decay : float, default 1e-2
        Weights are multiplied by ``1 − lr·weight_decay`` in each step.
    l1 : float, default 0.0
        Strength of the penalty, at least 0.  0 makes it AdamW.
    groups : tuple of two ints, default (1, 1)
        Rows and columns of a block, in the last two axes.  (1, 1) is the elementwise soft
        threshold.  Blocks at the edges may be smaller.  Where l1 > 0, parameters with less
        than two dimensions take (1, 1) only.
    reweight_every : int or None, default None
        After every so many steps of a parameter, if l1 > 0 then,
        ``γ_B = 1/(‖w_B‖ + reweight_eps)``.  Until then, and with None, γ_B = 1; a number greater
        than the steps to come keeps the weights that there are.
    reweight_eps : float, default 1e-3
        At least 2⁻¹²⁶; a zero block gets the weight 1/reweight_eps.
    mask : list or dict of ndarray of bool or None, optional
        One for each parameter, of its shape.  Where it is False, weights and moments are
        zero: they are set to zero here, and again in each step.
    constraint : callable, optional
        Instead of a penalty: ``constraint(w)`` returns an array of w's shape, which
        replaces the weights after the step.  It may write into w.
    constraint_every : int, default 1
        The constraint is applied after every so many steps of a parameter.
    workers : int or None, default None
        Number of threads, -1 for all processors, None for `conehoyer.get_workers`.  The
        result is the same bits for every number.
    check_finite : bool, default True
        Raise on gradients that are not finite, before anything is changed.

    Attributes
    ----------
    param_groups : list of dict
        The parameters and their options, which may be changed between steps, as for a
        schedule of the learning rate: ``optimizer.param_groups[0]["lr"] = 1e-4``.
    workers, check_finite : int or None, and bool
        As given; they may be changed too.

    Raises
    ------
    ValueError
        If there is no parameter, or one shares memory with another, is read-only or not
        finite; if an option is out of range or unknown; if `groups` does not fit a parameter
        or `mask` has another shape; if both ``l1 > 0`` and a constraint are given.
    TypeError
        If a parameter is no float32 or float64 ndarray in native byte order, or an option
        has the wrong type.

    See Also
    --------
    conehoyer.project_bilevel : A projection that can serve as the constraint.

    Notes
    -----
    The step after AdamW is the minimiser of ``lr·l1·Σ_B γ_B·‖w_B‖ + ½‖w − a‖²``.  The
    threshold is ``lr·l1·γ_B`` for every block, whatever AdamW's scaling of the gradient:
    an entry moves by up to about lr in a step (after a long time without any gradient by up to
    ``lr·(1 − β₁)/√(1 − β₂)``), so with blocks of one entry an ``l1·γ`` near
    1 holds nearly all zeros, and with r × c entries one near √(r·c).  A zero block returns when
    AdamW moves it by more than its threshold.

    A step is three parts: a pass over the gradients that looks for NaN and inf; one pass
    over weights, gradients and moments in which blocks are shrunk while they are in the
    cache; and the weights γ where they are due, a pass over the parameter.  Norms are
    computed in float64, in the unit of the block's largest entry where squares would over- or
    underflow.

    Parameters that are not C-contiguous are updated through a copy.  A gradient counts as
    not finite if its square overflows: the entry would never move again.  An exception in the
    constraint is passed on; the parameters before it have taken their step then.

    The mapping to the symbols of the paper [2]_ is in the user guide, and what follows from
    its objective, under "The thresholds of the SparseOptimizer".  Renewing the weights is
    due to [3]_.

    References
    ----------
    .. [1] I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", ICLR (2019),
       :doi:`10.48550/arXiv.1711.05101`.
    .. [2] F.-M. Guo, "SparseOptimizer: sparsify language models through Moreau–Yosida
       regularization and accelerate via compiler co-design" (2023),
       :doi:`10.48550/arXiv.2306.15656`.
    .. [3] E. J. Candès, M. B. Wakin and S. P. Boyd, "Enhancing sparsity by reweighted ℓ1
       minimization", J. Fourier Anal. Appl. 14, 877-905 (2008),
       :doi:`10.1007/s00041-008-9045-x`.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer.optim import SparseAdamW
    >>> rng = np.random.default_rng(0)
    >>> target = np.tile([2.0, 0.0, 1.0, 0.0], (8, 1))
    >>> w = np.zeros((8, 4))
    >>> optimizer = SparseAdamW([w], lr=0.01, weight_decay=0.0, l1=1.5, groups=(8, 1))
    >>> for _ in range(500):
    ...     optimizer.step([w - target + rng.standard_normal(w.shape)])
    >>> print(optimizer.zero_blocks()[0])
    [[False  True False  True]]

    Weights and biases, the second without a penalty:

    >>> w, b = np.ones((3, 2)), np.ones(3)
    >>> optimizer = SparseAdamW(
    ...     [{"params": {"w": w}, "groups": (3, 1)}, {"params": {"b": b}, "l1": 0.0}], l1=0.1
    ... )
    >>> optimizer.step({"w": np.ones((3, 2)), "b": None})
    >>> print(b)
    [1. 1. 1.]
    """

    param_groups: list[dict[str, Any]]

    def __init__(
        self,
        params: Iterable[Any] | Mapping[str, Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        l1: float = 0.0,
        groups: tuple[int, int] = (1, 1),
        reweight_every: int | None = None,
        reweight_eps: float = 1e-3,
        mask: Any = None,
        constraint: Callable[[np.ndarray], Any] | None = None,
        constraint_every: int = 1,
        workers: int | None = None,
        check_finite: bool = True,
    ) -> None:
        resolve_workers(workers)
        self.workers, self.check_finite = workers, check_finite
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "l1": l1,
            "groups": groups, "reweight_every": reweight_every, "reweight_eps": reweight_eps,
            "constraint": constraint, "constraint_every": constraint_every,
        }  # fmt: skip
        self.param_groups = [defaults | group for group in _as_groups(params)]
        everything = [p for group in self.param_groups for p in group["params"]]
        self._names = [n for group in self.param_groups for n in group.get("param_names", ())]
        _check_params(everything, self._names)
        masks = _masks(mask, everything, self._names)
        for group in self.param_groups:
            given, masks = masks[: len(group["params"])], masks[len(group["params"]) :]
            if "mask" in group:
                given = _masks(group["mask"], group["params"], group.get("param_names", ()))
            group["mask"] = given
            _checked(group)
        self._state: list[_State | None] = [None] * len(everything)
        for p, kept in self._each("mask"):
            if kept is not None:
                p[~kept] = 0

    def step(self, grads: Any) -> None:
        """Take a step.

        Parameters
        ----------
        grads : list of array_like, or dict of str to array_like
            The gradients, in the order of the parameters, of their shapes, or by their
            names.  They are converted to the parameters' dtypes.  None, or a missing name,
            skips a parameter; its step count and moments stay as they are.

        Raises
        ------
        ValueError
            If a gradient holds NaN or inf, or is so large that its square overflows; if
            one has another shape than its parameter; if there are too many or too few, or
            one has an unknown name; if an option has become invalid.  Nothing has been
            changed then.
        TypeError
            If a gradient is not real, or an option has the wrong type.

        Examples
        --------
        >>> import numpy as np
        >>> from conehoyer.optim import SparseAdamW
        >>> w = np.array([1.0, 0.05])
        >>> SparseAdamW([w], lr=0.1, weight_decay=0.0, l1=1.0).step([np.array([1.0, 0.0])])
        >>> print(w.round(6))
        [0.8 0. ]
        """
        workers = resolve_workers(self.workers)
        given = self._in_order(grads)
        jobs = []
        place = 0
        taken = _Memory(_span(p) for group in self.param_groups for p in group["params"])
        for group in self.param_groups:
            options = _checked(group)
            names = group.get("param_names", ())
            masks = _masks(group["mask"], group["params"], names, np.asarray)  # perhaps new
            for p, mask in zip(group["params"], masks, strict=True):
                if given[place] is not None:
                    g = self._gradient(given[place], place, p, taken, workers)
                    state = self._state[place] or _State(0, np.zeros_like(g), np.zeros_like(g))
                    jobs.append((place, state, p, g, mask, options))
                place += 1
        for place, state, p, g, mask, options in jobs:
            self._state[place] = state
            _update(state, p, g, mask, options, workers)

    def zero_blocks(self) -> Any:
        """Say which blocks are zero.

        Returns
        -------
        list of ndarray of bool, or dict of str to ndarray of bool
            For each parameter, one entry a block: shape (..., ⌈M/r⌉, ⌈N/c⌉) for a parameter
            of shape (..., M, N) and blocks of shape (r, c), else the parameter's.  By name
            if the parameters have names.

        Examples
        --------
        >>> import numpy as np
        >>> from conehoyer.optim import SparseAdamW
        >>> w = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 2.0]])
        >>> print(SparseAdamW([w], l1=0.1, groups=(2, 2)).zero_blocks()[0])
        [[ True False]]
        """
        result = [_zero_blocks(p, shape) for p, shape in self._each("groups")]
        return dict(zip(self._names, result, strict=True)) if self._names else result

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on later, as copies.

        Returns
        -------
        dict
            "state" has, for the index of each parameter that has taken a step, its number
            of steps "step", the moments "exp_avg" and "exp_avg_sq", and the weights "gamma"
            of its blocks or None.  "param_groups" has the options, and the indices under
            "params".  The parameters themselves, masks and constraints are not part of it.

        See Also
        --------
        load_state_dict : The way back.

        Examples
        --------
        >>> import numpy as np
        >>> from conehoyer.optim import SparseAdamW
        >>> w = np.ones(3)
        >>> optimizer = SparseAdamW([w])
        >>> optimizer.step([w])
        >>> optimizer.state_dict()["state"][0]["exp_avg"].round(6)
        array([0.1, 0.1, 0.1])
        """
        saved = []
        first = 0
        for group in self.param_groups:
            last = first + len(group["params"])
            options = copy.deepcopy({name: group[name] for name in _SAVED})  # pairs may be lists
            options["params"] = list(range(first, last))
            if "param_names" in group:
                options["param_names"] = list(group["param_names"])
            saved.append(options)
            first = last
        blocks = [_block_of(p.shape, groups) for p, groups in self._each("groups")]
        state = {i: s.to_dict(blocks[i]) for i, s in enumerate(self._state) if s is not None}
        return {"state": state, "param_groups": saved}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state that `state_dict` returned; its arrays are copied.

        Parameters
        ----------
        state_dict : dict
            Of an optimizer of the same parameters in the same groups.  Its options replace
            those of this optimizer; masks and constraints stay.

        Raises
        ------
        ValueError
            If the number of parameter groups or of the parameters in one, names, shapes or
            dtypes differ, or an option is out of range.  Nothing has been changed then.
        TypeError
            If it is not such a dictionary.

        See Also
        --------
        state_dict : What is loaded here.

        Examples
        --------
        >>> import numpy as np
        >>> from conehoyer.optim import SparseAdamW
        >>> w = np.ones(3)
        >>> first, second = SparseAdamW([w], lr=0.1), SparseAdamW([w.copy()])
        >>> first.step([w])
        >>> second.load_state_dict(first.state_dict())
        >>> second.param_groups[0]["lr"]
        0.1
        """
        try:
            saved, states = list(state_dict["param_groups"]), dict(state_dict["state"])
        except (TypeError, ValueError, KeyError, IndexError):
            raise TypeError(
                'state_dict must be a dictionary with "state" and "param_groups", as state_dict() '
                f"returns it, got {type(state_dict).__name__}"
            ) from None
        if len(saved) != len(self.param_groups):
            raise ValueError(
                f"state_dict has {len(saved)} parameter groups, "
                f"this optimizer has {len(self.param_groups)}"
            )
        merged = []
        for k, (group, options) in enumerate(zip(self.param_groups, saved, strict=True)):
            merged.append(group | _loaded_options(options, group, k))
            _checked(merged[-1])
        fresh: list[_State | None] = [None] * len(self._state)
        place = 0
        for group in merged:
            for p in group["params"]:
                if place in states:
                    fresh[place] = _loaded_state(states.pop(place), p, group["groups"], place)
                place += 1
        if states:
            raise ValueError(
                f"state_dict has a state of parameter {next(iter(states))!r}, "
                f"this optimizer has {place} parameters"
            )
        for group, new in zip(self.param_groups, merged, strict=True):
            group.update(new)
        self._state = fresh

    def _each(self, option):
        """Each parameter with its mask, or with an option of its group."""
        for group in self.param_groups:
            values = group[option]
            if option != "mask":
                values = [values] * len(group["params"])
            yield from zip(group["params"], values, strict=True)

    def _in_order(self, grads):
        """The gradients as a list."""
        count = len(self._state)
        if isinstance(grads, Mapping):
            if not self._names:
                raise TypeError("grads must be a list: the parameters have no names")
            unknown = [name for name in grads if name not in self._names]
            if unknown:
                raise ValueError(
                    f"grads has the unknown name {unknown[0]!r}; the parameters are {self._names}"
                )
            return [grads.get(name) for name in self._names]
        if not isinstance(grads, list | tuple):
            raise TypeError(
                "grads must be a list with one array or None for each parameter, "
                f"got {type(grads).__name__}"
            )
        if len(grads) != count:
            raise ValueError(
                f"grads must have one entry for each of the {count} parameters, got {len(grads)}"
            )
        return list(grads)

    def _gradient(self, grad, place, p, taken, workers):
        """A gradient as the kernels take it, checked."""
        label = _label(self._names, place)
        state = self._state[place]
        if not p.flags.writeable or (state is not None and state.first.shape != p.shape):
            raise ValueError(f"{label} has become read-only or changed its shape")
        array = _checks.as_array(grad, f"the gradient of {label}")
        if not (_checks.is_real(array.dtype) or array.dtype.kind == "b"):
            raise TypeError(f"the gradient of {label} must be real, got dtype {array.dtype}")
        if array.shape != p.shape:
            raise ValueError(
                f"the gradient of {label} must have its shape {p.shape}, got {array.shape}"
            )
        with np.errstate(over="ignore", under="ignore"):
            if array.dtype == p.dtype and not array.flags.c_contiguous:
                array = _checks.in_order(np.asarray(array), p.dtype)
            g = np.asarray(array, p.dtype, order="C")
        if not g.flags.aligned or taken.meets(*_span(g)):  # it may change before it is read
            g = g.copy()
        g = _checks.borrowed(g)
        if self.check_finite and not _gradient_is_bounded(g, workers):
            raise ValueError(
                f"the gradient of {label} must be finite, and its squares too; nothing was "
                "changed; check_finite=False lets it through"
            )
        return g


# --- what conehoyer.torch calls as well ----------------------------------------------------


def _step_in_place(
    p, g, m1, m2, step, *, lr, betas, eps, weight_decay, l1, groups, gamma, mask, workers
):
    """AdamW, the mask and the shrinkage of one parameter, in place.

    `p`, `g` and the moments `m1`, `m2` are C-contiguous writeable ndarrays of one shape and
    dtype, float32 or float64; p, m1 and m2 are written.  `step` counts from 1.  `gamma` is None
    for γ = 1, or C-contiguous in p's dtype with shape ``_blocks_shape(p.shape, groups)``; `mask`
    is None or a C-contiguous boolean array of p's shape.  `workers` is a number of threads.
    Nothing is checked.
    """
    length, root = m.bias_corrections(lr, *betas, step)
    beta1, beta2 = betas
    scalars = (
        beta1, 1.0 - beta1, beta2, 1.0 - beta2, 1.0 - lr * weight_decay, length, root, eps,
    )  # fmt: skip
    scalars = tuple(map(float, scalars))
    threshold = float(lr * l1)
    weights = np.empty(0, p.dtype) if gamma is None or threshold == 0.0 else gamma.reshape(-1)
    kept = np.empty(0, np.bool_) if mask is None else mask.reshape(-1)
    arrays = p.reshape(-1), g.reshape(-1), m1.reshape(-1), m2.reshape(-1)
    if threshold == 0.0 or groups == (1, 1):
        task = partial(kernels.step_entries, *arrays, scalars, threshold, weights, kept)
        _split(task, _chunks(p.size), p.size, workers)
    elif p.size:
        layout, tiles = _layout(p.shape, groups)
        step = kernels.step_narrow if layout[1] < kernels.WHOLE else kernels.step_blocks
        task = partial(step, *arrays, scalars, threshold, weights, kept, layout)
        _split(task, tiles, p.size, workers)


def _renewed_weights(p, groups, eps, gamma, workers):
    """The weights γ = 1/(norm + eps) of the blocks of a C-contiguous p.

    They are written to `gamma` unless that is None, and returned.
    """
    if gamma is None:
        gamma = np.empty(_blocks_shape(p.shape, groups), p.dtype)
    args = p.reshape(-1), float(eps), gamma.reshape(-1)
    if groups == (1, 1):
        _split(partial(kernels.weigh_entries, *args), _chunks(p.size), p.size, workers)
    elif p.size:
        layout, tiles = _layout(p.shape, groups)
        weigh = kernels.weigh_narrow if layout[1] < kernels.WHOLE else kernels.weigh_blocks
        _split(partial(weigh, *args, layout), tiles, p.size, workers)
    return gamma


def _gradient_is_bounded(g, workers):
    """Whether no entry of a C-contiguous g is NaN or inf, or has a square that overflows."""
    found = np.zeros(1, np.bool_)
    bound = math.sqrt(float(np.finfo(g.dtype).max)) * (1.0 - 1e-6)
    task = partial(kernels.find_unbounded, g.reshape(-1), bound, found)
    _split(task, _chunks(g.size), g.size, workers)
    return not found[0]


def _blocks_shape(shape, groups):
    """Shape of an array with one entry a block."""
    if len(shape) < 2:
        return tuple(shape)
    return (*shape[:-2], -(-shape[-2] // groups[0]), -(-shape[-1] // groups[1]))


def _block_of(shape, groups):
    """Shape of a whole block of an array; () where the blocks are its entries."""
    return tuple(map(min, groups, shape[-2:])) if len(shape) > 1 else ()


def _split(task, count, size, workers):
    run_split(task, count, workers if size >= _PARALLEL_FROM else 1)


def _chunks(size):
    return -(-size // kernels.CHUNK)


def _layout(shape, groups):
    """Rows, columns, height and width for the kernels, and the number of tiles.

    Where blocks lie one behind the other in memory, the array is one long row of them: its
    rows may be as short as those of a 3 × 3 filter.
    """
    rows, columns = shape[-2:]
    height, width = min(groups[0], rows), min(groups[1], columns)
    size = math.prod(shape)
    whole = rows % height == 0  # then a batch is one tall matrix
    if width == columns and (whole or size == rows * columns):
        rows, columns, height, width = 1, size, 1, height * width
    elif height == 1 and columns % width == 0:
        rows, columns = 1, size
    elif whole:
        rows = size // columns
    layout = rows, columns, height, width
    return layout, kernels.tiles_of(*layout) * (size // (rows * columns))


# --- arguments -----------------------------------------------------------------------------


class _State:
    """Steps taken, moments and weights of a parameter."""

    def __init__(self, step, first, second, gamma=None, block=()):
        self.step, self.first, self.second = step, first, second
        self.gamma, self.block = gamma, block

    def weights(self, block):
        """The weights, unless the blocks have changed since, perhaps to as many others."""
        return self.gamma if self.block == block else None

    def to_dict(self, block):
        gamma = self.weights(block)
        return {
            "step": self.step,
            "exp_avg": self.first.copy(),
            "exp_avg_sq": self.second.copy(),
            "gamma": None if gamma is None else gamma.copy(),
        }


class _Checked(NamedTuple):
    """The options of a parameter group."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    l1: float
    groups: tuple[int, int]
    reweight_every: int | None
    reweight_eps: float
    constraint: Callable | None
    constraint_every: int


def _as_groups(params):
    """Parameter groups with lists of arrays, from what `params` may be."""
    if isinstance(params, np.ndarray) or not np.iterable(params) or isinstance(params, str):
        raise TypeError(
            "params must be a list or a dictionary of arrays, or a list of parameter groups, "
            f"got {type(params).__name__}"
        )
    if isinstance(params, Mapping):
        given = [{"params": params}]
    else:
        given = list(params)
        if not any(isinstance(group, Mapping) for group in given):
            given = [{"params": given}]
    groups = []
    for k, group in enumerate(given):
        if not isinstance(group, Mapping) or "params" not in group:
            raise TypeError(
                'params: a parameter group must be a dictionary with "params", '
                f"got {type(group).__name__} at {k}"
            )
        unknown = [name for name in group if name not in ("params", *_OPTIONS)]
        if unknown:
            raise ValueError(f"params: parameter group {k} has the unknown option {unknown[0]!r}")
        group = dict(group)
        arrays = group["params"]
        if isinstance(arrays, Mapping):
            group["param_names"], group["params"] = list(arrays), list(arrays.values())
        elif isinstance(arrays, list | tuple):
            group["params"] = list(arrays)
        else:
            raise TypeError(
                f'params: "params" of parameter group {k} must be a list or a dictionary of '
                f"arrays, got {type(arrays).__name__}"
            )
        groups.append(group)
    return groups


def _check_params(arrays, names):
    """Raise unless these arrays can be updated."""
    if not arrays:
        raise ValueError("params must not be empty")
    if names and len(names) != len(arrays):
        raise ValueError("params: either all parameters have names, or none has one")
    if len(set(names)) != len(names):
        raise ValueError(f"params: a name appears twice in {names}")
    labels = [_label(names, k) for k in range(len(arrays))]
    for label, p in zip(labels, arrays, strict=True):
        if not isinstance(p, np.ndarray) or isinstance(p, np.ma.MaskedArray):
            raise TypeError(f"params: {label} must be an ndarray, got {type(p).__name__}")
        if p.dtype not in _DTYPES:
            raise TypeError(f"params: {label} must have dtype float32 or float64, got {p.dtype}")
        if not p.flags.writeable:
            raise ValueError(f"params: {label} is read-only, and it is to be updated in place")
        if _checks.shares_memory(p.shape, p.strides, p.itemsize):
            raise ValueError(
                f"params: {label} must have memory for each entry, got strides {p.strides}"
            )
        if not np.isfinite(p).all():
            raise ValueError(f"params: {label} must be finite, got NaN or inf")
    placed = sorted((*_span(p), k) for k, p in enumerate(arrays))
    for i, (_, last, k) in enumerate(placed):
        for first, _, j in placed[i + 1 :]:
            if first >= last:
                break
            with contextlib.suppress(np.exceptions.TooHardError):  # views woven into one another
                if np.shares_memory(arrays[j], arrays[k], max_work=10_000):
                    one, other = labels[max(j, k)], labels[min(j, k)]
                    raise ValueError(f"params: {one} shares memory with {other}")


def _label(names, k):
    """What errors call a parameter: by its name if it has one."""
    return f"parameter {names[k]!r}" if names else f"parameter {k}"


def _masks(mask, arrays, names, make=np.array):
    """One mask or None for each parameter, as copies unless `make` is another."""
    if mask is None:
        return [None] * len(arrays)
    if isinstance(mask, Mapping):
        unknown = [name for name in mask if name not in names]
        if unknown:
            raise ValueError(f"mask has the unknown name {unknown[0]!r}")
        mask = [mask.get(name) for name in names]
    if not isinstance(mask, list | tuple):
        raise TypeError(
            "mask must be a list with one boolean array or None for each parameter, "
            f"got {type(mask).__name__}"
        )
    if len(mask) != len(arrays):
        raise ValueError(
            f"mask must have one entry for each of the {len(arrays)} parameters, got {len(mask)}"
        )
    result = []
    for k, (one, p) in enumerate(zip(mask, arrays, strict=True)):
        if one is not None:
            label = _label(names, k)
            one = make(one, order="C")
            if one.dtype != np.bool_:
                raise TypeError(f"mask of {label} must be boolean, got dtype {one.dtype}")
            if one.shape != p.shape:
                raise ValueError(f"mask of {label} must have its shape {p.shape}, got {one.shape}")
        result.append(one)
    return result


def _pair(value, name):
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{name} must be a pair, got {value!r}")
    return value


def _checked(group) -> _Checked:
    """The options of a group, or the error that names the wrong one."""
    lr, l1 = _checks.real_in(group["lr"], "lr"), _checks.real_in(group["l1"], "l1")
    beta1, beta2 = (
        _checks.real_in(beta, "betas", 0.0, 1.0, "in [0, 1)")
        for beta in _pair(group["betas"], "betas")
    )
    # The least eps that is a normal number in float32: 0/0 would be NaN.
    eps = _checks.real_in(group["eps"], "eps", 2.0**-126, what=f"finite and >= {2.0**-126:.3g}")
    weight_decay = _checks.real_in(group["weight_decay"], "weight_decay")
    height, width = (
        _checks.integer(side, "groups", 1) for side in _pair(group["groups"], "groups")
    )
    every = group["reweight_every"]
    if every is not None:
        every = _checks.integer(every, "reweight_every", 1)
    reweight_eps = _checks.real_in(
        group["reweight_eps"], "reweight_eps", 2.0**-126, what=f"finite and >= {2.0**-126:.3g}"
    )
    constraint = group["constraint"]
    if constraint is not None:
        if not callable(constraint):
            raise TypeError(f"constraint must be callable or None, got {constraint!r}")
        if l1 > 0.0:
            raise ValueError(f"constraint takes the place of the penalty: l1 must be 0, got {l1}")
    if l1 > 0.0 and (height, width) != (1, 1):
        for p in group["params"]:
            if p.ndim < 2:
                raise ValueError(
                    f"groups={(height, width)} needs parameters of two or more dimensions, got "
                    f"one of shape {p.shape}: put biases into a parameter group with l1=0"
                )
    return _Checked(
        lr, (beta1, beta2), eps, weight_decay, l1, (height, width), every, reweight_eps,
        constraint, _checks.integer(group["constraint_every"], "constraint_every", 1),
    )  # fmt: skip


def _loaded_options(options, group, k):
    """The options of a saved parameter group."""
    if not isinstance(options, Mapping) or "params" not in options:
        raise TypeError(f'state_dict: parameter group {k} must be a dictionary with "params"')
    if not isinstance(options["params"], Sized):
        raise TypeError(
            f'state_dict: "params" of parameter group {k} must be a list, got {options["params"]!r}'
        )
    count, wanted = len(options["params"]), len(group["params"])
    if count != wanted:
        raise ValueError(
            f"state_dict: parameter group {k} has {count} parameters, this optimizer's has {wanted}"
        )
    names = options.get("param_names"), group.get("param_names")
    if None not in names and names[0] != names[1]:
        raise ValueError(
            f"state_dict: parameter group {k} has the parameters {names[0]}, "
            f"this optimizer's {names[1]}"
        )
    unknown = [name for name in options if name not in (*_SAVED, "params", "param_names")]
    if unknown:
        raise ValueError(f"state_dict: parameter group {k} has the unknown option {unknown[0]!r}")
    return {name: copy.deepcopy(options[name]) for name in _SAVED if name in options}


def _loaded_state(saved, p, groups, place):
    """The state of a parameter, copied."""
    try:
        step, arrays = saved["step"], (saved["exp_avg"], saved["exp_avg_sq"], saved["gamma"])
    except (TypeError, KeyError):
        raise TypeError(
            f'state_dict: the state of parameter {place} must have "step", "exp_avg", '
            '"exp_avg_sq" and "gamma"'
        ) from None
    result = []
    for name, array in zip(("exp_avg", "exp_avg_sq", "gamma"), arrays, strict=True):
        if name == "gamma" and array is None:
            result.append(None)
            continue
        shape = _blocks_shape(p.shape, groups) if name == "gamma" else p.shape
        if not isinstance(array, np.ndarray) or array.dtype != p.dtype or array.shape != shape:
            got = f"{getattr(array, 'dtype', type(array).__name__)} {np.shape(array)}"
            raise ValueError(
                f"state_dict: {name} of parameter {place} must have dtype {p.dtype} and shape "
                f"{shape}, got {got}"
            )
        result.append(np.array(array, order="C"))
    step = _checks.integer(step, f"state_dict: step of parameter {place}", 1)
    return _State(step, *result, _block_of(p.shape, groups))


# --- the rest --------------------------------------------------------------------------------


def _span(array):
    """Addresses of the first byte of an array and of the one behind its last."""
    first = last = array.__array_interface__["data"][0]
    if not array.size:
        return first, first
    for side, stride in zip(array.shape, array.strides, strict=True):
        reach = (side - 1) * stride
        first, last = first + min(reach, 0), last + max(reach, 0)
    return first, last + array.itemsize


class _Memory:
    """What spans of addresses cover, joined where they overlap."""

    def __init__(self, spans):
        self.first, self.last = [], []
        for first, last in sorted(spans):
            if self.last and first < self.last[-1]:
                self.last[-1] = max(self.last[-1], last)
            elif first < last:
                self.first.append(first)
                self.last.append(last)

    def meets(self, first, last):
        """Whether any of it lies between these addresses."""
        before = bisect.bisect_left(self.first, last)
        return before > 0 and self.last[before - 1] > first


def _update(state, p, g, mask, options, workers):
    """The step of one parameter."""
    direct = p.flags.carray
    w = np.asarray(p)
    if not direct:
        w = w.copy() if w.flags.c_contiguous else _checks.in_order(w, w.dtype)
    shape = options.groups
    state.step += 1
    every, block = options.reweight_every, _block_of(p.shape, shape)
    state.gamma, state.block = None if every is None else state.weights(block), block
    _step_in_place(
        w, g, state.first, state.second, state.step, lr=options.lr, betas=options.betas,
        eps=options.eps, weight_decay=options.weight_decay, l1=options.l1, groups=shape,
        gamma=state.gamma, mask=mask, workers=workers,
    )  # fmt: skip
    if every is not None and options.l1 > 0.0 and state.step % every == 0:
        state.gamma = _renewed_weights(w, shape, options.reweight_eps, state.gamma, workers)
    if not direct:
        _checks.fill(p, w)
    if options.constraint is not None and state.step % options.constraint_every == 0:
        _apply(options.constraint, p, mask)


def _apply(constraint, p, mask):
    """Replace the weights by what the constraint makes of them."""
    result = constraint(p)
    if result is None:
        raise TypeError("constraint must return an array, got None")
    result = _checks.as_array(result, "what the constraint returns")
    if result.shape != p.shape or result.dtype.kind not in "fiub":
        raise ValueError(
            f"constraint must return a real array of shape {p.shape}, "
            f"got {result.dtype} {result.shape}"
        )
    if mask is not None:
        result = np.where(mask, result, 0)
    with np.errstate(under="ignore"):  # of float64 for float32
        p[...] = result


def _zero_blocks(p, groups):
    """For each block of p whether it is zero."""
    nonzero = np.asarray(p != 0)
    if p.ndim >= 2 and p.size:
        for axis, side in zip((-2, -1), groups, strict=True):
            starts = np.arange(0, p.shape[axis], min(side, p.shape[axis]))
            nonzero = np.logical_or.reduceat(nonzero, starts, axis=axis)
    elif p.ndim >= 2:
        nonzero = np.zeros(_blocks_shape(p.shape, groups), np.bool_)
    return ~nonzero
