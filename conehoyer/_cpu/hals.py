"""The kernel of the nonnegative matrix factorisation: coordinate sweeps.

A factor is stored with one component a row, so that the loops run over contiguous
columns.  Each block of columns is a problem of its own: what happens to it does not
depend on which thread takes it.
"""

import numpy as np

from .. import _math as m
from .._jit import kernel

BLOCK = 64  # columns taken through all sweeps while they are in the cache


@kernel
def blocks_of(count):
    """Number of blocks of `count` columns."""
    return (count + BLOCK - 1) // BLOCK


@kernel(fastmath={"contract"})
def sweep_blocks(gram, product, factor, most, epsilon, gains, steps, first, last):
    """Take blocks first..last−1 of the columns of `factor` through up to `most` sweeps.

    A sweep minimises ½·tr(FᵀGF) − tr(PᵀF) over each row of F >= 0 in turn.  A block ends
    when a sweep moves it by at most `epsilon` times what the first one did.  For each
    block, `gains` takes twice the decrease of that objective, and `steps` the squared
    length of the first sweep's step; lengths are weighted by the diagonal of G.
    """
    rank, count = factor.shape
    real = factor.dtype.type
    zero, two = real(0.0), real(2.0)
    f = np.zeros((rank, BLOCK), factor.dtype)
    p = np.zeros((rank, BLOCK), factor.dtype)
    slope = np.zeros(BLOCK, factor.dtype)
    gain = np.zeros(BLOCK)
    step = np.zeros(BLOCK)
    whole = rank // 4 * 4
    for block in range(first, last):
        begin = block * BLOCK
        width = min(BLOCK, count - begin)
        if width < BLOCK:  # zeros stay zero where there is no column
            f[:] = zero
            p[:] = zero
        for k in range(rank):
            f[k, :width] = factor[k, begin : begin + width]
            p[k, :width] = product[k, begin : begin + width]
        for i in range(BLOCK):
            gain[i] = 0.0
        longest = 0.0
        for sweep in range(most):
            for i in range(BLOCK):
                step[i] = 0.0
            for k in range(rank):
                diagonal = gram[k, k]
                if not diagonal > zero:  # a component without a partner: nothing to gain
                    continue
                row = p[k]
                for i in range(BLOCK):
                    slope[i] = row[i]
                for j in range(0, whole, 4):
                    g0, g1, g2, g3 = gram[k, j], gram[k, j + 1], gram[k, j + 2], gram[k, j + 3]
                    f0, f1, f2, f3 = f[j], f[j + 1], f[j + 2], f[j + 3]
                    for i in range(BLOCK):
                        slope[i] -= (g0 * f0[i] + g1 * f1[i]) + (g2 * f2[i] + g3 * f3[i])
                for j in range(whole, rank):
                    g0, f0 = gram[k, j], f[j]
                    for i in range(BLOCK):
                        slope[i] -= g0 * f0[i]
                inverse = real(1.0) / diagonal
                row = f[k]
                for i in range(BLOCK):
                    old = row[i]
                    new, better, weighted = m.coordinate_step(
                        old, slope[i], inverse, diagonal, zero, two
                    )
                    row[i] = new
                    gain[i] += np.float64(better)
                    step[i] += np.float64(weighted)
            length = 0.0
            for i in range(BLOCK):
                length += step[i]
            if sweep == 0:
                longest = length
            if not length > epsilon * epsilon * longest:
                break
        total = 0.0
        for i in range(BLOCK):
            total += gain[i]
        gains[block], steps[block] = total, longest
        for k in range(rank):
            factor[k, begin : begin + width] = f[k, :width]
