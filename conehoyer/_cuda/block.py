"""Sums and maxima over the threads of a block, always in the same order."""

import numpy as np

from .device import cuda, function


@function
def sum_three(room, a, b, c):
    """Sums over the block, the same for all threads; `room` holds three numbers a thread."""
    t, count = cuda.threadIdx.x, cuda.blockDim.x
    cuda.syncthreads()  # somebody may still read the last ones
    room[t] = a
    room[count + t] = b
    room[2 * count + t] = c
    cuda.syncthreads()
    half = count >> 1
    while half > 0:
        if t < half:
            room[t] += room[t + half]
            room[count + t] += room[count + t + half]
            room[2 * count + t] += room[2 * count + t + half]
        cuda.syncthreads()
        half >>= 1
    return room[0], room[count], room[2 * count]


@function
def largest(room, a):
    """Maximum over the block, the same for all threads; no NaN comes in."""
    t = cuda.threadIdx.x
    cuda.syncthreads()
    room[t] = a
    cuda.syncthreads()
    half = cuda.blockDim.x >> 1
    while half > 0:
        if t < half:
            room[t] = max(room[t], room[t + half])
        cuda.syncthreads()
        half >>= 1
    return room[0]


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
