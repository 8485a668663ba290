from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike

from ._results import ProjectionInfo

class _Tensor(Protocol):
    """Arrays on a GPU, and tensors of PyTorch wherever they are."""

    @property
    def __cuda_array_interface__(self) -> Any: ...

_T = TypeVar("_T", bound=_Tensor)
_Numbers = ArrayLike | _Tensor

class _Options(TypedDict, total=False):
    axis: int | None
    overwrite_x: bool
    workers: int | None
    check_finite: bool

class _SignedOptions(_Options, total=False):
    nonneg: bool

@overload
def project_cai(
    x: _T,
    level: _Numbers,
    *,
    method: Literal["cfp", "iterative"] = ...,
    out: _T | None = ...,
    full_output: Literal[False] = ...,
    **options: Unpack[_SignedOptions],
) -> _T: ...
@overload
def project_cai(
    x: _T,
    level: _Numbers,
    *,
    method: Literal["cfp", "iterative"] = ...,
    out: _T | None = ...,
    full_output: Literal[True],
    **options: Unpack[_SignedOptions],
) -> tuple[_T, ProjectionInfo]: ...
@overload
def project_cai(
    x: _T,
    level: _Numbers,
    *,
    method: Literal["cfp", "iterative"] = ...,
    out: _T | None = ...,
    full_output: bool,
    **options: Unpack[_SignedOptions],
) -> _T | tuple[_T, ProjectionInfo]: ...
@overload
def project_cai(
    x: ArrayLike,
    level: _Numbers,
    *,
    method: Literal["cfp", "iterative"] = ...,
    out: np.ndarray | None = ...,
    full_output: Literal[False] = ...,
    **options: Unpack[_SignedOptions],
) -> np.ndarray: ...
@overload
def project_cai(
    x: ArrayLike,
    level: _Numbers,
    *,
    method: Literal["cfp", "iterative"] = ...,
    out: np.ndarray | None = ...,
    full_output: Literal[True],
    **options: Unpack[_SignedOptions],
) -> tuple[np.ndarray, ProjectionInfo]: ...
@overload
def project_cai(
    x: ArrayLike,
    level: _Numbers,
    *,
    method: Literal["cfp", "iterative"] = ...,
    out: np.ndarray | None = ...,
    full_output: bool,
    **options: Unpack[_SignedOptions],
) -> np.ndarray | tuple[np.ndarray, ProjectionInfo]: ...
@overload
def project_hoyer(
    x: _T,
    sparseness: _Numbers | None = ...,
    *,
    l1: _Numbers | None = ...,
    l2: _Numbers | None = ...,
    method: Literal["cfp", "alternating"] = ...,
    out: _T | None = ...,
    full_output: Literal[False] = ...,
    **options: Unpack[_SignedOptions],
) -> _T: ...
@overload
def project_hoyer(
    x: _T,
    sparseness: _Numbers | None = ...,
    *,
    l1: _Numbers | None = ...,
    l2: _Numbers | None = ...,
    method: Literal["cfp", "alternating"] = ...,
    out: _T | None = ...,
    full_output: Literal[True],
    **options: Unpack[_SignedOptions],
) -> tuple[_T, ProjectionInfo]: ...
@overload
def project_hoyer(
    x: _T,
    sparseness: _Numbers | None = ...,
    *,
    l1: _Numbers | None = ...,
    l2: _Numbers | None = ...,
    method: Literal["cfp", "alternating"] = ...,
    out: _T | None = ...,
    full_output: bool,
    **options: Unpack[_SignedOptions],
) -> _T | tuple[_T, ProjectionInfo]: ...
@overload
def project_hoyer(
    x: ArrayLike,
    sparseness: _Numbers | None = ...,
    *,
    l1: _Numbers | None = ...,
    l2: _Numbers | None = ...,
    method: Literal["cfp", "alternating"] = ...,
    out: np.ndarray | None = ...,
    full_output: Literal[False] = ...,
    **options: Unpack[_SignedOptions],
) -> np.ndarray: ...
@overload
def project_hoyer(
    x: ArrayLike,
    sparseness: _Numbers | None = ...,
    *,
    l1: _Numbers | None = ...,
    l2: _Numbers | None = ...,
    method: Literal["cfp", "alternating"] = ...,
    out: np.ndarray | None = ...,
    full_output: Literal[True],
    **options: Unpack[_SignedOptions],
) -> tuple[np.ndarray, ProjectionInfo]: ...
@overload
def project_hoyer(
    x: ArrayLike,
    sparseness: _Numbers | None = ...,
    *,
    l1: _Numbers | None = ...,
    l2: _Numbers | None = ...,
    method: Literal["cfp", "alternating"] = ...,
    out: np.ndarray | None = ...,
    full_output: bool,
    **options: Unpack[_SignedOptions],
) -> np.ndarray | tuple[np.ndarray, ProjectionInfo]: ...
@overload
def project_l1_ball(
    x: _T,
    radius: _Numbers = ...,
    *,
    method: Literal["newton", "condat", "sort"] = ...,
    out: _T | None = ...,
    full_output: Literal[False] = ...,
    **options: Unpack[_SignedOptions],
) -> _T: ...
@overload
def project_l1_ball(
    x: _T,
    radius: _Numbers = ...,
    *,
    method: Literal["newton", "condat", "sort"] = ...,
    out: _T | None = ...,
    full_output: Literal[True],
    **options: Unpack[_SignedOptions],
) -> tuple[_T, ProjectionInfo]: ...
@overload
def project_l1_ball(
    x: _T,
    radius: _Numbers = ...,
    *,
    method: Literal["newton", "condat", "sort"] = ...,
    out: _T | None = ...,
    full_output: bool,
    **options: Unpack[_SignedOptions],
) -> _T | tuple[_T, ProjectionInfo]: ...
@overload
def project_l1_ball(
    x: ArrayLike,
    radius: _Numbers = ...,
    *,
    method: Literal["newton", "condat", "sort"] = ...,
    out: np.ndarray | None = ...,
    full_output: Literal[False] = ...,
    **options: Unpack[_SignedOptions],
) -> np.ndarray: ...
@overload
def project_l1_ball(
    x: ArrayLike,
    radius: _Numbers = ...,
    *,
    method: Literal["newton", "condat", "sort"] = ...,
    out: np.ndarray | None = ...,
    full_output: Literal[True],
    **options: Unpack[_SignedOptions],
) -> tuple[np.ndarray, ProjectionInfo]: ...
@overload
def project_l1_ball(
    x: ArrayLike,
    radius: _Numbers = ...,
    *,
    method: Literal["newton", "condat", "sort"] = ...,
    out: np.ndarray | None = ...,
    full_output: bool,
    **options: Unpack[_SignedOptions],
) -> np.ndarray | tuple[np.ndarray, ProjectionInfo]: ...
@overload
def project_simplex(
    x: _T,
    total: _Numbers = ...,
    *,
    method: Literal["newton", "condat", "sort"] = ...,
    out: _T | None = ...,
    full_output: Literal[False] = ...,
    **options: Unpack[_Options],
) -> _T: ...
@overload
def project_simplex(
    x: _T,
    total: _Numbers = ...,
    *,
    method: Literal["newton", "condat", "sort"] = ...,
    out: _T | None = ...,
    full_output: Literal[True],
    **options: Unpack[_Options],
) -> tuple[_T, ProjectionInfo]: ...
@overload
def project_simplex(
    x: _T,
    total: _Numbers = ...,
    *,
    method: Literal["newton", "condat", "sort"] = ...,
    out: _T | None = ...,
    full_output: bool,
    **options: Unpack[_Options],
) -> _T | tuple[_T, ProjectionInfo]: ...
@overload
def project_simplex(
    x: ArrayLike,
    total: _Numbers = ...,
    *,
    method: Literal["newton", "condat", "sort"] = ...,
    out: np.ndarray | None = ...,
    full_output: Literal[False] = ...,
    **options: Unpack[_Options],
) -> np.ndarray: ...
@overload
def project_simplex(
    x: ArrayLike,
    total: _Numbers = ...,
    *,
    method: Literal["newton", "condat", "sort"] = ...,
    out: np.ndarray | None = ...,
    full_output: Literal[True],
    **options: Unpack[_Options],
) -> tuple[np.ndarray, ProjectionInfo]: ...
@overload
def project_simplex(
    x: ArrayLike,
    total: _Numbers = ...,
    *,
    method: Literal["newton", "condat", "sort"] = ...,
    out: np.ndarray | None = ...,
    full_output: bool,
    **options: Unpack[_Options],
) -> np.ndarray | tuple[np.ndarray, ProjectionInfo]: ...
