"""Makes a recording runnable: a list of functions without arguments, on CUDA mostly graphs."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tlrt._binding import together
from tlrt._binding.handles import Device, new, own
from tlrt._binding.library import complete_call, failure
from tlrt._binding.together import Change, set_and_call
from tlrt._capture.memory import drop_constants, plan_memory
from tlrt._capture.recorded import FLOATS, Call, HostWork, Runnable, Storage, Uploader, ffi, lib
from tlrt.errors import CaptureError, TorchleanError, UnavailableError, refusal

_GRAPH = ffi.typeof("torchlean_graph **")
_LIST = ffi.typeof("torchlean_buffer *[]")

#: FFT plans that a device keeps for calls outside graphs; CACHED_PLANS of native/src/cuda/spectral/plan_cache.cuh
PLANS = 24
#: what a graph fetches at most, TL_GRAPH_INPUTS and TL_GRAPH_INPUT_BYTES of native/src/core/backend.h
GRAPH_INPUTS, GRAPH_INPUT_BYTES = 16, 1 << 16


@dataclass
class Replay:
    """What a replay runs, in order, with a name for each; the graphs among it; and the handles that must stay."""

    calls: list[Runnable] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    #: calls that are a part of a graph although their arguments may change
    steady: list[Call] = field(default_factory=list)
    #: inputs that graphs fetch themselves, and how they are given their content
    uploads: list[tuple[Any, Uploader]] = field(default_factory=list)
    #: makes it anew, with calls whose arguments change on their own
    again: Callable[[], "Replay"] | None = None

    def settle(self) -> None:
        """Takes calls whose arguments are no longer what was captured out of the graphs."""
        if self.again is None or not any(call.is_changed for call in self.steady):
            return
        made = self.again()
        changes: list[Change] = [
            (self, name, getattr(made, name)) for name in ("calls", "names", "graphs", "steady", "uploads")
        ]
        old = [(lib.torchlean_cuda_graph_release, graph) for graph in self.graphs]
        set_and_call([*changes, *made.inputs()], old)

    def inputs(self) -> list[Change]:
        """What changes for the inputs that its graphs fetch."""
        return [(known, "_upload", upload) for known, upload in self.uploads]

    def failure(self, status: int, call: Runnable) -> TorchleanError:
        """The error of a call that failed."""
        return failure(status, self.names[self.calls.index(call)])

    def end(self, handles: list[Any]) -> tuple[list[Change], list[together.Call]]:
        """What changes and which calls give graphs and memory back, that of more handles with it."""
        graphs = [(lib.torchlean_cuda_graph_release, graph) for graph in self.graphs]
        memory = [(lib.torchlean_cuda_buffer_release, handle) for handle in (*self.handles, *handles)]
        names = ("calls", "names", "graphs", "handles", "steady", "uploads")
        return [(self, name, []) for name in names], [*graphs, *memory]


def build_replay(
    device: Device, recorded: Sequence[Call | HostWork], inputs: Sequence[tuple[Any, Storage]] = ()
) -> Replay:
    """The replay of recorded items: constants left out, memory shared, and on CUDA each run of calls between two that must
    be made one by one (see :class:`Call`) as one graph, which fetches the inputs that nothing before it uses."""
    items = drop_constants(recorded)
    plan_memory(items)
    made = _assemble(device, items, inputs, True)
    if made.steady:
        made.again = functools.partial(_assemble, device, items, inputs, False)
    made.handles = list({id(s.root): s.root.handle for item in items for s in item.storages}.values())
    return made


def _assemble(
    device: Device, items: Sequence[Call | HostWork], inputs: Sequence[tuple[Any, Storage]], with_steady: bool
) -> Replay:
    made = Replay()
    run: list[Call] = []
    left = list(inputs)

    def end_run() -> None:
        steady = next((call for call in run if call.computed), None)
        if len(run) > 1:
            fetched = _choose_inputs(left, run)
            graph = _build_graph(device, run, [storage for _, storage in fetched])
            made.graphs.append(graph)
            launch: Any = lib.torchlean_cuda_graph_launch
            made.names.append("graph")
            if steady is None:
                made.calls.append(functools.partial(launch, graph))
            else:
                made.steady.append(steady)
                made.calls.append(_launch_steady(steady, launch, graph))
            made.uploads += [(known, _setter(graph, i, s.size)) for i, (known, s) in enumerate(fetched)]
        else:
            made.calls.extend(call.runnable() for call in run)
            made.names.extend(call.name for call in run)
        _leave_out(left, run)
        run.clear()

    for item in items:
        if isinstance(item, Call) and device.is_cuda and _joins(run, item, with_steady):
            run.append(item)
            continue
        end_run()
        _leave_out(left, [item])
        made.names.append(item.name)
        if isinstance(item, Call):
            made.calls.append(item.runnable())
        else:
            made.calls.append(item.prepare([s.buffer(device) for s in item.storages]))
    end_run()
    return made


def _joins(run: Sequence[Call], call: Call, with_steady: bool) -> bool:
    """Whether a call becomes a part of the graph of a run: of those with computed arguments a steady one, once a graph."""
    if call.is_eager or not call.computed:
        return not call.is_eager
    return with_steady and call.is_steady and not any(other.computed for other in run)


def _launch_steady(call: Call, launch: Callable[..., int], graph: Any) -> Runnable:
    """The launch of a graph that has a call with what is to be done around it."""
    counted = launch if call.count is None else call.count(launch)
    run = functools.partial(complete_call, counted, graph)
    return run if call.wrap is None else call.wrap(run)


def _choose_inputs(left: Sequence[tuple[Any, Storage]], run: Sequence[Call]) -> list[tuple[Any, Storage]]:
    """The inputs that a run of calls uses, as many as a graph can fetch."""
    used = {id(s.root) for call in run for s in call.storages}
    found: list[tuple[Any, Storage]] = []
    size = 0
    for known, storage in left:
        taken = (storage.size + 3) // 4 * 16
        if id(storage.root) in used and len(found) < GRAPH_INPUTS and 0 < taken <= GRAPH_INPUT_BYTES - size:
            found.append((known, storage))
            size += taken
    return found


def _leave_out(left: list[tuple[Any, Storage]], items: Sequence[Call | HostWork]) -> None:
    """Removes the inputs that these items use: what comes after them would fetch too late."""
    used = {id(s.root) for item in items for s in item.storages}
    left[:] = [(known, storage) for known, storage in left if id(storage.root) not in used]


def _setter(graph: Any, place: int, size: int) -> Uploader:
    def give(host: Any) -> int:
        return complete_call(lib.torchlean_cuda_graph_set, graph, place, ffi.from_buffer(FLOATS, host), size)

    return give


def _build_graph(device: Device, calls: Sequence[Call], inputs: Sequence[Storage]) -> Any:
    """A run of calls as a graph, which begins with fetching inputs. A call that cannot be captured raises, and there is no
    capture under way then."""
    context = device._handle
    slot, begun = new(_GRAPH), True
    try:
        if status := lib.torchlean_cuda_capture_begin(context):
            begun = False
            raise failure(status, "capture")
        if inputs:
            handles = new(_LIST, [storage.root.handle for storage in inputs])
            if status := lib.torchlean_cuda_capture_inputs(context, handles, len(inputs)):
                raise failure(status, "capture")
        for call in calls:
            if status := call.runnable(captured=True)():
                raise _explain_refusal(failure(status, call.name), call.name)
        if status := lib.torchlean_cuda_capture_end(context, slot):
            raise failure(status, "capture")
        return own(slot[0], lib.torchlean_cuda_graph_release)
    except BaseException:
        if begun and slot[0] == ffi.NULL:
            lib.torchlean_cuda_capture_end(context, ffi.NULL)  # gives it up, if it is not over
        lib.torchlean_cuda_graph_release(slot[0])
        raise


def _explain_refusal(error: TorchleanError, name: str) -> TorchleanError:
    """The error of a call that was not taken into a graph, with what to do about it where the call alone cannot know."""
    if not (isinstance(error, UnavailableError) and "rfft" in name):
        return error
    expected = (
        f"it among the {PLANS} that a device keeps: the step transforms more shapes than that, or another thread made plans on "
        f"the device meanwhile (capture parts with at most {PLANS} shapes of transforms as steps of their own; let other "
        f"threads use devices of their own) [{error}]"
    )
    return refusal(CaptureError, "capture", name, "a transform whose FFT plan is gone", expected)
