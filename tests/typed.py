"""What a type checker makes of the public functions; it is checked, not run."""

from typing import Any, assert_type

import numpy as np

from conehoyer import ProjectionInfo, project_cai, project_hoyer, project_l1_ball, project_simplex


class Tensor:
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {}


def of_arrays(x: np.ndarray) -> None:
    assert_type(project_cai(x, 3.0, axis=None, nonneg=True), np.ndarray)
    assert_type(project_cai([1.0, 2.0], [1.5], out=x), np.ndarray)
    assert_type(project_hoyer(x, l1=2.0, l2=x, full_output=True), tuple[np.ndarray, ProjectionInfo])
    assert_type(project_l1_ball(x, method="condat", workers=2), np.ndarray)
    assert_type(project_simplex(x, full_output=True), tuple[np.ndarray, ProjectionInfo])


def of_tensors(x: Tensor) -> None:
    assert_type(project_cai(x, x, out=x), Tensor)
    assert_type(project_hoyer(x, 0.5, full_output=True), tuple[Tensor, ProjectionInfo])
    assert_type(project_l1_ball(x), Tensor)
    assert_type(project_simplex(x, 1.0, axis=0), Tensor)


def mistakes(x: np.ndarray) -> None:
    project_cai(x)  # type: ignore[call-overload]
    project_simplex(x, nonneg=True)  # type: ignore[call-overload]
    project_l1_ball(x, method="bisection")  # type: ignore[call-overload]
