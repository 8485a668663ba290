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


def with_a_flag(x: np.ndarray, t: Tensor, flag: bool) -> None:
    """Whether a report is wanted is only known when the program runs."""
    of_array = np.ndarray | tuple[np.ndarray, ProjectionInfo]
    of_tensor = Tensor | tuple[Tensor, ProjectionInfo]
    assert_type(project_cai(x, 3.0, full_output=flag), of_array)
    assert_type(project_hoyer(t, 0.5, full_output=flag), of_tensor)
    assert_type(project_l1_ball(x, out=x, full_output=flag), of_array)
    assert_type(project_simplex(t, 1.0, full_output=flag), of_tensor)


def mistakes(x: np.ndarray) -> None:
    project_cai(x)  # type: ignore[call-overload]
    project_simplex(x, nonneg=True)  # type: ignore[call-overload]
    project_l1_ball(x, method="bisection")  # type: ignore[call-overload]
