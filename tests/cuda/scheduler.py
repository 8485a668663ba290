"""Another scheduler for the threads of Numba's CUDA simulator.

Numba's own runs one block of a grid at a time, polls its threads, and lets them race for what
stands for ``cuda`` in a module and for shared arrays.  Here the threads are greenlets, so that one
runs at a time, until it comes to a barrier or to its end; all blocks of a grid are there at once,
so a whole grid can be synchronised.  Which thread is the next is drawn from a fixed seed: an
error that depends on the order is found again.  It is much faster, too.
"""

import contextlib
import math
import random
import sys
from types import SimpleNamespace

import greenlet
import numpy as np
from numba import cuda, types
from numba.cuda.simulator import kernel, kernelapi
from numba.np.numpy_support import as_dtype

BLOCKS = 3  # that a grid that is synchronised has at most
WARP = 4  # threads: short, as blocks are here


class Barrier:
    """Where threads wait until all of a block that have not ended, or all of a grid, are there."""

    def __init__(self):
        self.alive, self.waiting = 0, []

    def open(self):
        """Let the threads that wait go on if it is complete."""
        going = []
        if len(self.waiting) == self.alive:
            going, self.waiting = self.waiting, going
        return going


class Thread(greenlet.greenlet):
    """A thread of a block."""

    def __init__(self, run, block, grid, place):
        super().__init__(run)
        self.block, self.grid = block, grid
        self.blockIdx, self.threadIdx = kernelapi.Dim3(*block.place), kernelapi.Dim3(*place)
        self.place, self.thread_id = place, self.threadIdx.x
        self.warp = block.warps.setdefault(self.thread_id // WARP, Barrier())
        for barrier in (block.barrier, grid, self.warp):
            barrier.alive += 1

    def wait_at(self, barrier):
        """Let others run until all have come here."""
        barrier.waiting.append(self)
        self.parent.switch(barrier)

    def syncthreads(self):
        """Wait for the block."""
        self.wait_at(self.block.barrier)

    def sync_grid(self):
        """Wait for all blocks."""
        self.wait_at(self.grid)

    def _votes(self, value):
        self.block.votes[self.place] = value
        self.syncthreads()
        votes = list(self.block.votes.values())
        self.syncthreads()
        return votes

    def tell_warp(self, value):
        """Show the threads of the warp a value; returns those of all, by their lanes."""
        first = self.thread_id - self.thread_id % WARP
        self.block.told[self.thread_id] = value
        self.wait_at(self.warp)
        told = {lane: self.block.told.get(first + lane) for lane in range(WARP)}
        self.wait_at(self.warp)
        return told

    def syncthreads_count(self, value):
        """Wait for the block; count the threads with a value other than 0."""
        return sum(map(bool, self._votes(value)))

    def syncthreads_and(self, value):
        """Wait for the block; whether all threads have a value other than 0."""
        return int(all(self._votes(value)))

    def syncthreads_or(self, value):
        """Wait for the block; whether a thread has a value other than 0."""
        return int(any(self._votes(value)))


_blocks: list = []


class Block:
    """Stands for the simulator's BlockManager, which runs a block: the last one runs them all."""

    def __init__(self, function, grid_dim, block_dim, debug):
        self.function, self.blocks, self.block_dim = function, math.prod(grid_dim), block_dim
        self.barrier, self.votes = Barrier(), {}
        self.warps, self.told = {}, {}
        self.shared = kernelapi.FakeCUDAShared(kernel._get_kernel_context().dynamic)

    def run(self, place, *args):
        """Wait for the others."""
        self.place, self.args = place, args
        if place == (0,) * len(place):
            _blocks.clear()  # an earlier launch may have been broken off
        _blocks.append(self)
        if len(_blocks) == self.blocks:
            run(_blocks)


def run(blocks):
    """Run the threads of all blocks of a launch."""
    grid, order = Barrier(), random.Random(0)
    ready = [
        Thread(lambda block=block: block.function(*block.args), block, grid, place)
        for block in blocks
        for place in np.ndindex(block.block_dim)
    ]
    while ready:
        k = order.randrange(len(ready))
        ready[k], ready[-1] = ready[-1], ready[k]
        thread = ready.pop()
        stop = thread.switch()
        if thread.dead:  # a grid waits for those too
            thread.block.barrier.alive -= 1
            thread.warp.alive -= 1
            stop = thread.block.barrier
            ready += thread.warp.open()
        ready += stop.open()
    left = sum(block.barrier.alive for block in blocks)
    if left:
        raise RuntimeError(f"{left} threads wait at barriers that others have passed by")


def shared_array(self, shape, dtype, alignment=None):
    """The same array for all threads of a block, told apart by the line that asks for it."""
    kind = as_dtype(dtype) if isinstance(dtype, types.Type) else np.dtype(dtype)
    if shape == 0:
        return np.frombuffer(self._dynshared.data, kind, self._dynshared_size // kind.itemsize)
    frame = sys._getframe(1)
    key = frame.f_code, frame.f_lineno
    if key not in self._allocations:
        self._allocations[key] = np.empty(shape, kind)
    return self._allocations[key]


def shfl_xor_sync(self, mask, value, bits):
    """The value of the thread of the warp whose lane differs in these bits."""
    thread = greenlet.getcurrent()
    return thread.tell_warp(value)[thread.thread_id % WARP ^ bits]


def ballot_sync(self, mask, flag):
    """A bit for each thread of the warp."""
    told = greenlet.getcurrent().tell_warp(flag)
    return np.uint32(sum(1 << lane for lane, flag in told.items() if flag))


def any_sync(self, mask, flag):
    """Whether a thread of the warp has the flag set."""
    return int(ballot_sync(self, mask, flag) != 0)


def syncwarp(self, mask=None):
    """Wait for the warp."""
    thread = greenlet.getcurrent()
    thread.wait_at(thread.warp)


_swapped: list[dict] = []


@contextlib.contextmanager
def swapped_module(function, stand_in):
    """Let what means cuda in a function's module mean `stand_in`, until the launch ends."""
    names, outermost = function.__globals__, not _swapped
    if not any(names is held for held in _swapped):
        _swapped.append(names)
        _replace(names, cuda, stand_in)
    try:
        yield
    finally:
        if outermost:
            for held in _swapped:
                _replace(held, stand_in, cuda)
            _swapped.clear()


def _replace(names, old, new):
    for name in [name for name, value in names.items() if value is old]:
        names[name] = new


def install():
    """Let the simulator work this way."""
    kernel.BlockManager = Block
    kernel.swapped_cuda_module = swapped_module
    kernel.FakeOverload.max_cooperative_grid_blocks = lambda self, *_: BLOCKS
    kernelapi.threading = SimpleNamespace(current_thread=greenlet.getcurrent)
    kernelapi.FakeCUDAShared.array = shared_array
    module = kernelapi.FakeCUDAModule
    module.dynamic = property(lambda self: self._shared._dynshared_size)
    module.shared = property(lambda self: greenlet.getcurrent().block.shared)
    module.shfl_xor_sync, module.ballot_sync, module.any_sync = shfl_xor_sync, ballot_sync, any_sync
    module.syncwarp = syncwarp
    module.laneid = property(lambda self: greenlet.getcurrent().thread_id % WARP)
    kernelapi.GridGroup.sync = lambda self: greenlet.getcurrent().sync_grid()
