"""Data parallel training whose result does not depend on the number of processes.

    with distributed.join() as group, tlrt.Session(group.device("cpu"), math="reproducible", seed=1) as s:
        model = build(s)
        training = distributed.DataParallel(s, lambda parameters: optim.AdamW(parameters, lr=1e-3), group, shards=8)
        for step in range(200):
            loss = training.step(lambda shard: model.loss(batch(step, shard)))

A batch is made of a fixed number of shards. Each process (rank) computes the gradients of its shards, and one balanced binary
tree over all shards adds them, whatever the number of ranks: 1, 2, 4 or 8 of them give the same weights, bit for bit. With
``math="fast"`` that holds between equal devices, with ``math="reproducible"`` between any. ``python -m tlrt launch -n 2
PROGRAM``, torchrun, mpirun and srun start the processes.
"""

from tlrt.distributed.environment import join
from tlrt.distributed.group import Group, GroupError
from tlrt.distributed.parallel import DataParallel

__all__ = ["DataParallel", "Group", "GroupError", "join"]
