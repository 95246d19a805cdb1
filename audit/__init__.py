"""Campaigns: what is tried besides drawn cases, at greater length, from the source tree.

==================  =================================================================================================
``verify``          drawn cases, as ``python -m tlrt verify`` checks them, so that a page can hold them as well
``exhaustive``      every function of one argument on all 2^32 inputs, those of two on structured and random pairs
``probe``           the order in which every sum adds, found from outside, against the height its bound assumes
``determinism``     the same bits over repetitions, threads, batch sizes, trims of the cache, reused outputs
``alarms``          false alarms of the bounds over very many correct comparisons, and how close to them results come
``hostile``         very many calls of the C ABI with wrong handles, sizes, pointers; damaged checkpoint files
``faults``          every allocation of a step and of calls fails in turn: a clean exception, nothing lost, the next step right
``interrupts``      an exception at every point of a step, a capture, a checkpoint, an assignment: the state before or after
``contention``      threads that use one session, tape or captured step at once, and forks beside busy threads
``environments``    the caller's floating-point mode changes no bit
``soak``            very many small training steps in flat memory
==================  =================================================================================================

Each gives one JSON dictionary and one table; ``python -m audit COMMAND...`` runs them, ``python -m audit report`` shows files of
them as a page, ``python -m audit mutate`` plants defects and scores the tests, ``python -m audit models`` compares models with
PyTorch's. The shipped packages import nothing of this.
"""
