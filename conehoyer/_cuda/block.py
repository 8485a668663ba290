"""Sums and maxima over the threads of a block, or of runs of them, always in the same order."""

import numpy as np
from numba import int32

from .device import SIMULATED, cuda, function

WARP = 4 if SIMULATED else 32  # threads: as the tests' scheduler has it
_ALL = 0xFFFFFFFF  # of a warp


@function
def sum_lanes(lanes, a, b, c):
    """Sums over each run of `lanes` threads, a power of two within a warp."""
    for half in (16, 8, 4, 2, 1):  # of a whole warp a loop takes a third more instructions
        if half < lanes:
            a += cuda.shfl_xor_sync(_ALL, a, half)
            b += cuda.shfl_xor_sync(_ALL, b, half)
            c += cuda.shfl_xor_sync(_ALL, c, half)
    return a, b, c


@function
def counted_before(count, most):
    """Sums of the counts of the warp's threads before this one, and of all; at most `most` each."""
    earlier = np.uint32((np.uint32(1) << np.uint32(cuda.laneid)) - np.uint32(1))
    before, total, bit = int32(0), int32(0), 0
    while most >> bit > 0:  # a vote on each binary digit
        ballot = cuda.ballot_sync(_ALL, (count >> bit) & 1 != 0)
        before = int32(before + (cuda.popc(ballot & earlier) << bit))
        total = int32(total + (cuda.popc(ballot) << bit))
        bit += 1
    return before, total


@function
def anybody(flag):
    """Whether a thread of the warp has the flag set."""
    return cuda.any_sync(_ALL, flag) != 0


@function
def meet(block):
    """Wait for the threads of the block, or of the warp only."""
    if block:
        cuda.syncthreads()
    else:
        cuda.syncwarp()


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
    a, b, c = sum_lanes(WARP, a, b, c)
    t, warps = cuda.threadIdx.x, cuda.blockDim.x // WARP
    cuda.syncthreads()  # somebody may still read the last ones
    if t % WARP == 0:
        w = t // WARP
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
    half = WARP >> 1
    while half > 0:
        a = max(a, cuda.shfl_xor_sync(_ALL, a, half))
        half >>= 1
    t = cuda.threadIdx.x
    cuda.syncthreads()
    if t % WARP == 0:
        room[t // WARP] = a
    cuda.syncthreads()
    for w in range(cuda.blockDim.x // WARP):
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
