"""Sums and maxima over the threads of a block, or of runs of them, always in the same order."""

import numpy as np

from .device import SIMULATED, cuda, function


@function
def sum_runs(room, lanes, a, b, c):
    """Sums over each run of `lanes` threads, a power of two, the same for all of the run.

    `room` holds three numbers a thread.
    """
    t, count = cuda.threadIdx.x, cuda.blockDim.x
    own = t % lanes
    cuda.syncthreads()  # somebody may still read the last ones
    room[t] = a
    room[count + t] = b
    room[2 * count + t] = c
    cuda.syncthreads()
    half = lanes >> 1
    while half > 0:
        if own < half:
            room[t] += room[t + half]
            room[count + t] += room[count + t + half]
            room[2 * count + t] += room[2 * count + t + half]
        cuda.syncthreads()
        half >>= 1
    first = t - own
    return room[first], room[count + first], room[2 * count + first]


@function
def largest_of_runs(room, lanes, a):
    """The maximum over each run of threads, the same for all of the run; no NaN comes in."""
    t = cuda.threadIdx.x
    own = t % lanes
    cuda.syncthreads()
    room[t] = a
    cuda.syncthreads()
    half = lanes >> 1
    while half > 0:
        if own < half:
            room[t] = max(room[t], room[t + half])
        cuda.syncthreads()
        half >>= 1
    return room[t - own]


@function
def sum_three(room, a, b, c):
    """Sums over the block, of whole warps."""
    if SIMULATED:
        return sum_runs(room, cuda.blockDim.x, a, b, c)
    half = 16
    while half > 0:
        a += cuda.shfl_xor_sync(0xFFFFFFFF, a, half)
        b += cuda.shfl_xor_sync(0xFFFFFFFF, b, half)
        c += cuda.shfl_xor_sync(0xFFFFFFFF, c, half)
        half >>= 1
    t, warps = cuda.threadIdx.x, cuda.blockDim.x >> 5
    cuda.syncthreads()  # somebody may still read the last ones
    if t & 31 == 0:
        w = t >> 5
        room[w], room[warps + w], room[2 * warps + w] = a, b, c
    cuda.syncthreads()
    a, b, c = 0.0, 0.0, 0.0
    for w in range(warps):
        a += room[w]
        b += room[warps + w]
        c += room[2 * warps + w]
    return a, b, c


@function
def largest(room, a):
    """The maximum over the block, of whole warps; no NaN comes in."""
    if SIMULATED:
        return largest_of_runs(room, cuda.blockDim.x, a)
    half = 16
    while half > 0:
        a = max(a, cuda.shfl_xor_sync(0xFFFFFFFF, a, half))
        half >>= 1
    t = cuda.threadIdx.x
    cuda.syncthreads()
    if t & 31 == 0:
        room[t >> 5] = a
    cuda.syncthreads()
    for w in range(cuda.blockDim.x >> 5):
        a = max(a, room[w])
    return a


@function
def rank(room, flag):
    """How many threads before this one have the flag set, and how many have it at all."""
    t = cuda.threadIdx.x
    cuda.syncthreads()
    room[t] = np.float64(1.0) if flag else np.float64(0.0)
    cuda.syncthreads()
    before, total = 0.0, 0.0
    for u in range(cuda.blockDim.x):
        if u == t:
            before = total
        total += room[u]
    return before, total
