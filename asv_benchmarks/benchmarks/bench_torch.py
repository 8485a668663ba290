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

    @sampled("ratio")
    def track_tensor_over_array(self, *params):
        return compare(
            (partial(self.project, self.tensor), partial(self.project, self.array))
        ).samples


CALLS = {
    "project_cai": lambda x: conehoyer.project_cai(x, 0.2 * x.shape[-1]),
    "project_hoyer": lambda x: conehoyer.project_hoyer(x, 0.8),
    "project_l1_ball": lambda x: conehoyer.project_l1_ball(x, 0.05 * x.shape[-1]),
    "project_simplex": lambda x: conehoyer.project_simplex(x),
    "project_gsp": lambda x: conehoyer.project_gsp(x, 0.8),
    "hoyer_score": lambda x: conehoyer.hoyer_score(x),
    "project_cai, axis 0": lambda x: conehoyer.project_cai(x, 0.2 * x.shape[0], axis=0),
    "hoyer_score, axis 0": lambda x: conehoyer.hoyer_score(x, axis=0),
    "columns": lambda x: conehoyer.project_bilevel(x, 0.25 * x.shape[-1]),
    "rows, l2": lambda x: conehoyer.project_bilevel(
        x, 0.25 * x.shape[-2], groups="rows", inner="l2"
    ),
    "blocks of 4, l1": lambda x: conehoyer.project_bilevel(
        x, 0.02 * x.shape[-2] * x.shape[-1], groups=(4, 4), inner="l1"
    ),
    "l1inf": lambda x: conehoyer.project_l1inf_ball(x, 0.1 * x.shape[-1]),
}


class Gradients:
    """A backward pass over the forward pass, and both over those of softmax."""

    params = (tuple(CALLS), DTYPES, ((8, 8), (2048, 512)))
    param_names = ("function", "dtype", "shape")

    def setup(self, function, dtype, shape):
        torch = require("torch")
        torch.set_num_threads(1)
        tensor = torch.from_numpy(data("gaussian", shape, dtype))
        self.passes = []
        for call in CALLS[function], partial(torch.softmax, dim=-1):
            leaf = tensor.clone().requires_grad_()
            result = call(leaf)
            gradient = torch.ones_like(result)
            back = partial(torch.autograd.grad, result, leaf, gradient, retain_graph=True)
            self.passes.append((back, partial(call, tensor)))

    @sampled("ratio")
    def track_backward_over_forward(self, *params):
        return compare(self.passes[0]).samples

    @sampled("ratio")
    def track_over_softmax(self, *params):
        ours, theirs = (lambda p=pair: [one() for one in p] for pair in self.passes)
        return compare((ours, theirs)).samples
