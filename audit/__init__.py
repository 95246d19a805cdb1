"""Campaigns: what is tried besides drawn cases, at greater length, from the source tree.

==================  =================================================================================================
``verify``          drawn cases, as ``python -m tlrt verify`` checks them
``exhaustive``      every function of one argument on all 2^32 inputs
``probe``           the order in which every sum adds, found from outside, against the height its bound assumes
``determinism``     the same bits over repetitions, threads, batch sizes, trims of the cache, reused outputs
``hostile``         very many calls of the C ABI with wrong handles, sizes and pointers
``faults``          every allocation of calls fails in turn: a clean exception, nothing lost, the next call right
``interrupts``      an exception at every point of a step, a capture, a checkpoint, an assignment: the state before or after
``contention``      threads that use one session, tape or captured step at once, and forks beside busy threads
==================  =================================================================================================

``python -m audit COMMAND...`` runs them and writes raw documents and their summaries (:mod:`audit.summary`). ``python -m audit
mutate`` draws defects and scores the tests. ``python -m audit judge`` plants defects in kernels and scores the judge. The shipped
packages import nothing of this.
"""
