"""What comes back besides the projection."""

import sys
import warnings
from dataclasses import dataclass

import numpy as np


class ConvergenceWarning(UserWarning):
    """A cap on the number of iterations was hit; the result is the best known.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from conehoyer import ConvergenceWarning, nmf_hals
    >>> x = np.random.default_rng(0).random((20, 10))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", ConvergenceWarning)
    ...     result = nmf_hals(x, 4, max_iter=2)
    >>> caught[0].category.__name__, result.converged
    ('ConvergenceWarning', False)
    """


def warn_not_converged(message: str) -> None:
    """A `ConvergenceWarning` for the line that called this package, directly or by PyTorch."""
    frame, level = sys._getframe(1), 2
    between = "conehoyer", "torch"
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in between:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, ConvergenceWarning, stacklevel=level)


def warn_capped(capped: int, total: int) -> None:
    """Warn where `capped` of `total` projections hit the cap on their iterations."""
    if capped:
        warn_not_converged(
            f"{capped} of {total} projections stopped at the cap on their iterations; "
            "the results are the best known"
        )


@dataclass(frozen=True, eq=False)  # arrays have no one answer to ==
class ProjectionInfo:
    """How a projection went; each field has the slices' shape, a scalar for one vector.

    Attributes
    ----------
    threshold : float or ndarray of float64
        The soft threshold τ: entries with ``|x| <= threshold`` are zero in the result (for the
        simplex, and with `nonneg`, those with ``x <= threshold``).
        0 where the input was feasible; the largest entry at level 1 and where entries tie at the
        top, one or some of which stay then; ``-inf`` where Hoyer's projection is a constant
        vector; NaN where `x` holds NaN or infinity.
    level : float or ndarray of float64
        Value of the constraint reached: the Hoyer score (CAI, Hoyer), or the l1 norm
        (ball, simplex).  NaN where `x` holds NaN or infinity.
    nnz : int or ndarray of int64
        Number of nonzeros of the result.
    passes : int or ndarray of int64
        Evaluations of the sums, or iterations of the iterative methods.
    converged : bool or ndarray of bool
        False where a cap on the passes was hit.
    support : ndarray of int64 or None
        For one vector: number of entries above the trial threshold in each pass.  Empty for
        methods that don't tell; it may also be where nothing has to be searched, as with
        radius 0 or where the input was feasible.

    Examples
    --------
    >>> from conehoyer import project_l1_ball
    >>> x, info = project_l1_ball([[3.0, -2.0, 1.0], [0.5, 0.5, 0.5]], 2.0, full_output=True)
    >>> info.threshold, info.nnz, info.level
    (array([1.5, 0. ]), array([2, 3]), array([2. , 1.5]))
    """

    threshold: float | np.ndarray
    level: float | np.ndarray
    nnz: int | np.ndarray
    passes: int | np.ndarray
    converged: bool | np.ndarray
    support: np.ndarray | None = None
