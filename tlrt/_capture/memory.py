"""Plans the memory of a recording: what keeps its content, and what takes over memory that is no longer used."""

from collections.abc import Sequence

from tlrt._binding.handles import count_references
from tlrt._capture.recorded import Call, HostWork, Storage


def drop_constants(items: Sequence[Call | HostWork]) -> list[Call | HostWork]:
    """The items without those that write at every replay what is there already; their storage is kept as it is."""
    return [item for item in items if not _keeps_content(item)]


def _keeps_content(item: Call | HostWork) -> bool:
    """Whether a call is the only one that writes its storage, and always writes the same; pins the storage then."""
    if not isinstance(item, Call) or not item.is_constant:
        return False
    storage = item.storages[-1]
    if storage.is_outside or storage.writers > 1:
        return False
    storage.is_pinned = True
    return True


def plan_memory(items: Sequence[Call | HostWork]) -> None:
    """Makes storages share memory, in the order of their calls: one that a call creates takes over the memory of one of the same
    length and type whose last use is over. A storage with another handle keeps its own."""
    for place, item in enumerate(items):
        for storage in item.storages:
            storage.last = place
    idle: dict[tuple[int, bool], list[Storage]] = {}
    for place, item in enumerate(items):
        for storage in item.creates if isinstance(item, Call) else ():
            storage.is_pinned = count_references(storage.handle, "capture") > 1
            if not storage.is_pinned and (free := idle.get((storage.size, storage.is_index))):
                storage.reused = free.pop()
                storage.handle = storage.root.handle  # its own memory goes
        for storage in {id(s): s for s in item.storages}.values():
            if not storage.is_pinned and storage.last == place:
                idle.setdefault((storage.size, storage.is_index), []).append(storage.root)
