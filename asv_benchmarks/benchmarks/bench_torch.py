"""Torch tensors on the CPU: the backward pass over the forward, tensors over arrays."""

from functools import partial

import conehoyer

from .common import DTYPES, compare, data, require, sampled

KEPT = 0.1


def call_of(function, n, dtype):
    """The data, of about n entries, and a projection that keeps a tenth of it."""
    if function == "project_cai":
        y = data("gaussian", n, dtype)
        level = float(conehoyer.level_for_nnz(y, max(round(KEPT * n), 1)))
    else:
        side = round(n**0.5)
        y = data("gaussian", (side, side), dtype)
        level = float(conehoyer.level_for_groups(y, max(round(KEPT * side), 1)))
    return y, lambda x: getattr(conehoyer, function)(x, level)


class Torch:
    params = (("project_cai", "project_bilevel"), DTYPES, (1_000, 100_000, 1_000_000))
    param_names = ("function", "dtype", "n")

    def setup(self, function, dtype, n):
        torch = require("torch")
        torch.set_num_threads(1)
        self.array, self.project = call_of(function, n, dtype)
        self.tensor = torch.from_numpy(self.array)
        self.leaf = self.tensor.clone().requires_grad_()
        self.result = self.project(self.leaf)
        gradient = torch.ones_like(self.result)
        self.backward = partial(
            torch.autograd.grad, self.result, self.leaf, gradient, retain_graph=True
        )

    @sampled("ratio")
    def track_backward_over_forward(self, *params):
        return compare((self.backward, partial(self.project, self.tensor))).samples

    @sampled("ratio")
    def track_tensor_over_array(self, *params):
        return compare(
            (partial(self.project, self.tensor), partial(self.project, self.array))
        ).samples
