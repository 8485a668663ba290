"""Group sparse projection on the CPU: passes over pieces of the vectors.

A pass takes the sums over the supports {a > τ_i}; `_gsp_math` adds them up and chooses the
next μ.  Entries left of a μ that is not right of the solution are never needed again: the
survivors are collected.
"""

import math

import numpy as np
from numba.extending import register_jitable

from .. import _gsp_math as search
from .. import _math as m
from .._gsp_math import MARGIN, Vectors
from .._jit import kernel
from . import passes

PIECE = 16384
COLLECT_FROM = 256  # entries of a vector below which whole passes are faster

FIRST, WHOLE, COLLECT, KEPT, SHRINK, TIES = 0, 1, 2, 3, 4, 5  # passes


def new_vectors(count):
    """Vectors about which nothing is known."""
    real, flags = np.zeros((12, count)), np.zeros((2, count), np.bool_)
    exponent, first = np.zeros(count, np.int64), np.zeros(count + 1, np.int64)
    return Vectors(
        np.zeros(count), real[0], real[1], real[2], exponent, first, real[3], real[4], flags[0],
        real[5], real[6], real[7], real[8], real[9], real[10], real[11], flags[1],
    )  # fmt: skip


@kernel
def pieces_of(n):
    """Number of pieces of a vector of length n."""
    return max((n + PIECE - 1) // PIECE, 1)


@kernel
def fill_vectors(v, place, count, n, slack):
    """Enter `count` vectors of length n at `place`."""
    beta, beta_low = 0.0, 0.0
    if n >= 2:
        beta, beta_low = m.gsp_weight(float(n))
    for i in range(place, place + count):
        v.size[i], v.slack[i] = n, slack
        v.beta[i], v.beta_low[i] = beta, beta_low
        v.first[i + 1] = v.first[i] + pieces_of(n)


@kernel
def run_pass(kind, z, buffer, kept, v, place, part, first, last):
    """Do a pass on pieces first..last−1 of the block z, whose first vector is `place`.

    A piece stores what it collects at its own place in `buffer`, and the count in `kept`.
    """
    per_row = pieces_of(z.shape[1])
    base = v.first[place]
    for p in range(first, last):
        row, begin = p // per_row, p % per_row * PIECE
        i, to = place + row, part[base + p]
        chunk = z[row, begin : begin + PIECE]
        tau, tau_low = v.tau[i], v.tau_low[i]
        to[:] = 0.0
        if kind == FIRST:
            to[0], to[1], to[2] = passes.sums(chunk, True, 0.0, 0.0)
            to[3] = passes.largest(chunk, True)
            if not math.isfinite(to[1]) and not passes.all_finite(chunk):
                to[3] = math.nan
        elif v.beta[i] == 0.0:  # no part of the group
            continue
        elif kind == TIES:
            if v.ask[i]:  # the gap to the top is exact where it matters
                to[0], _, _ = passes.sums(chunk, True, v.top[i], -5e-324)
        elif tau * MARGIN > v.top[i]:
            if kind != KEPT:
                kept[base + p] = 0
        elif kind == WHOLE:
            to[0], to[1], to[2] = passes.sums(chunk, True, tau, tau_low)
        else:
            room = buffer[row, begin : begin + PIECE]
            found, absolute = room[: kept[base + p]], False
            if kind == COLLECT:
                found, absolute = chunk, True
            if kind != KEPT:
                real = z.dtype.type
                edge = real(tau * MARGIN)
                stored = passes.band(found, absolute, real(0.0), edge, real(math.inf), room)[3]
                found, kept[base + p] = room[:stored], stored
            to[0], to[1], to[2] = passes.sums(found, False, tau, tau_low)


@kernel
def take_tops(v, part):
    """The largest entry of each vector after a FIRST pass; False where one is not finite."""
    finite = True
    for i in range(v.size.size):
        top = 0.0
        for p in range(v.first[i], v.first[i + 1]):
            finite = finite and part[p, 3] == part[p, 3]
            top = max(top, part[p, 3])
        v.top[i] = top
    return finite


@kernel
def out_of_range(tops):
    """`_gsp_math.out_of_range` of some vector."""
    for top in tops:
        if search.out_of_range(top):
            return True
    return False


@kernel
def scale_rows(z, v, place, scaled):
    """Write each row times a power of two that brings its top into [1/2, 1)."""
    for row in range(z.shape[0]):
        exponent = int(math.frexp(v.top[place + row])[1])
        v.exponent[place + row] = exponent
        passes.write_in_unit(z[row], -exponent, scaled[row])


@kernel
def take_sums(v, part):
    """Add up the pieces' sums; returns whether the ties of some vector should be counted."""
    wanted = False
    for i in range(v.size.size):
        nu, s, q = 0.0, 0.0, 0.0
        for p in range(v.first[i], v.first[i + 1]):
            nu, s, q = nu + part[p, 0], s + part[p, 1], q + part[p, 2]
        search.set_sums(v, i, nu, s, q)
        v.ask[i] = nu > 1.0 and v.ties[i] == 0.0 and v.var[i] <= 1e-13 * v.gap[i] * v.gap[i]
        wanted = wanted or v.ask[i]
    return wanted


@kernel
def take_ties(v, part):
    """Add up what a TIES pass has counted."""
    for i in range(v.size.size):
        if v.ask[i]:
            for p in range(v.first[i], v.first[i + 1]):
                v.ties[i] += part[p, 0]


# --- the search, by one thread --------------------------------------------------------------


@register_jitable
def _all(room):
    """Which vectors are this thread's: the first, and the step to the next one."""
    return 0, 1


@register_jitable
def _add(room, a, b, c):
    """Sums over the threads."""
    return a, b, c


@register_jitable
def _add_exactly(room, total, low):
    """The sum over the threads of sums of two floats."""
    return total, low


@register_jitable
def _largest(room, a):
    """The maximum over the threads."""
    return a


@register_jitable
def _some_jump(room, jumps, low, high):
    """A jump strictly between, from the middle of the vectors that have one; else NaN."""
    count = 0
    for jump in jumps:
        count += low < jump < high
    count //= 2
    for jump in jumps:
        if low < jump < high:
            if count == 0:
                return jump
            count -= 1
    return math.nan


_start, _one_each, _advance = search.steps(_all, _add, _add_exactly, _largest, _some_jump)


@register_jitable
def _plain(st):
    """What a `Search` holds.

    To make a named tuple for Python, Numba runs Python: an interrupt there ends the process.
    """
    return (
        st.status, st.mu, st.mu_low, st.lo, st.lo_low, st.hi, st.hi_low, st.unit, st.on_jump,
        st.share, st.mean, st.passes, st.certain,
    )  # fmt: skip


@kernel
def start(v):
    """The fields of the state before the first pass, at μ = 0."""
    return _plain(_start(None, v))


@kernel
def one_each(v, st):
    """The fields of the verdict for sparseness 1: past every jump, unless each has one entry."""
    return _plain(_one_each(None, v, st))


@kernel
def advance(v, st, sparseness):
    """From the sums at μ, the fields of the next state; sets the thresholds of the next pass."""
    return _plain(_advance(None, v, st, sparseness))


@kernel
def write(verdict, x, z, out, v, place, first, last):
    """Write pieces first..last−1 of a block; z is x, or x with its rows scaled.

    `out` may be x; a scaled z is overwritten.
    """
    per_row = pieces_of(x.shape[1])
    real = x.dtype.type
    for p in range(first, last):
        row, begin = p // per_row, p % per_row * PIECE
        i = place + row
        end = min(begin + PIECE, x.shape[1])
        source, target = z[row, begin:end], out[row, begin:end]
        nu, gap, var, tau = v.nu[i], v.gap[i], v.var[i], v.tau[i]
        if verdict.status == m.NONFINITE:
            target[:] = math.nan
            continue
        if verdict.status == m.FEASIBLE or v.top[i] == 0.0 or v.beta[i] == 0.0:
            passes.write_copy(x[row, begin:end], True, target)
            continue
        scaled = v.exponent[i] != 0
        if scaled:
            target = source
        if nu <= 1.0:  # a whole vector at once: the first of its largest entries
            if begin > 0:
                continue
            k, b = m.tied_profile(search.level_of_ties(verdict, v, i), 0.0)
            factor = m.tied_scale(m.CAI, k, b, v.top[i], 0.0)
            target = z[row] if scaled else out[row]
            passes.write_tied(z[row], True, v.top[i], k, b, factor, target)
            end = x.shape[1]
        else:
            anchor = real(tau)
            offset = real((tau - np.float64(anchor)) + v.tau_low[i])
            dust, factor = real(search.write_dust(gap)), real(search.write_factor(tau, gap, var))
            passes.write_soft(source, True, anchor, offset, dust, factor, target)
        if scaled:
            passes.write_in_unit(z[row, begin:end], v.exponent[i], out[row, begin:end])
