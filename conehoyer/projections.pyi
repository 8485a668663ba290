from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from ._results import ProjectionInfo

@overload
def project_cai(
    x: ArrayLike,
    level: ArrayLike,
    *,
    axis: int | None = ...,
    method: Literal["cfp", "iterative"] = ...,
    nonneg: bool = ...,
    out: np.ndarray | None = ...,
    overwrite_x: bool = ...,
    workers: int | None = ...,
    check_finite: bool = ...,
    full_output: Literal[False] = ...,
) -> np.ndarray: ...
@overload
def project_cai(
    x: ArrayLike,
    level: ArrayLike,
    *,
    axis: int | None = ...,
    method: Literal["cfp", "iterative"] = ...,
    nonneg: bool = ...,
    out: np.ndarray | None = ...,
    overwrite_x: bool = ...,
    workers: int | None = ...,
    check_finite: bool = ...,
    full_output: Literal[True],
) -> tuple[np.ndarray, ProjectionInfo]: ...
@overload
def project_hoyer(
    x: ArrayLike,
    sparseness: ArrayLike | None = ...,
    *,
    l1: ArrayLike | None = ...,
    l2: ArrayLike | None = ...,
    axis: int | None = ...,
    method: Literal["cfp", "alternating"] = ...,
    nonneg: bool = ...,
    out: np.ndarray | None = ...,
    overwrite_x: bool = ...,
    workers: int | None = ...,
    check_finite: bool = ...,
    full_output: Literal[False] = ...,
) -> np.ndarray: ...
@overload
def project_hoyer(
    x: ArrayLike,
    sparseness: ArrayLike | None = ...,
    *,
    l1: ArrayLike | None = ...,
    l2: ArrayLike | None = ...,
    axis: int | None = ...,
    method: Literal["cfp", "alternating"] = ...,
    nonneg: bool = ...,
    out: np.ndarray | None = ...,
    overwrite_x: bool = ...,
    workers: int | None = ...,
    check_finite: bool = ...,
    full_output: Literal[True],
) -> tuple[np.ndarray, ProjectionInfo]: ...
@overload
def project_l1_ball(
    x: ArrayLike,
    radius: ArrayLike = ...,
    *,
    axis: int | None = ...,
    method: Literal["newton", "condat", "sort"] = ...,
    nonneg: bool = ...,
    out: np.ndarray | None = ...,
    overwrite_x: bool = ...,
    workers: int | None = ...,
    check_finite: bool = ...,
    full_output: Literal[False] = ...,
) -> np.ndarray: ...
@overload
def project_l1_ball(
    x: ArrayLike,
    radius: ArrayLike = ...,
    *,
    axis: int | None = ...,
    method: Literal["newton", "condat", "sort"] = ...,
    nonneg: bool = ...,
    out: np.ndarray | None = ...,
    overwrite_x: bool = ...,
    workers: int | None = ...,
    check_finite: bool = ...,
    full_output: Literal[True],
) -> tuple[np.ndarray, ProjectionInfo]: ...
@overload
def project_simplex(
    x: ArrayLike,
    total: ArrayLike = ...,
    *,
    axis: int | None = ...,
    method: Literal["newton", "condat", "sort"] = ...,
    out: np.ndarray | None = ...,
    overwrite_x: bool = ...,
    workers: int | None = ...,
    check_finite: bool = ...,
    full_output: Literal[False] = ...,
) -> np.ndarray: ...
@overload
def project_simplex(
    x: ArrayLike,
    total: ArrayLike = ...,
    *,
    axis: int | None = ...,
    method: Literal["newton", "condat", "sort"] = ...,
    out: np.ndarray | None = ...,
    overwrite_x: bool = ...,
    workers: int | None = ...,
    check_finite: bool = ...,
    full_output: Literal[True],
) -> tuple[np.ndarray, ProjectionInfo]: ...
