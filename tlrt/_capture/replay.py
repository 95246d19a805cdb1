"""Makes a recording runnable: a list of functions without arguments, on CUDA mostly graphs."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tlrt._binding import together
from tlrt._binding.handles import Device, new, own
from tlrt._binding.library import failure
from tlrt._binding.together import Change
from tlrt._capture.calls import Call, HostWork, Runnable, ffi, lib
from tlrt._capture.memory import drop_constants, plan_memory
from tlrt.errors import CaptureError, TorchleanError, UnavailableError, refusal

_GRAPH = ffi.typeof("torchlean_graph **")

#: FFT plans that a device keeps for calls outside graphs; CACHED_PLANS of native/src/cuda/spectral/plan.cu
PLANS = 24


@dataclass
class Replay:
    """What a replay runs, in order, with a name for each; the graphs among it; and the handles that must stay."""

    calls: list[Runnable] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    graphs: list[Any] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)

    def failure(self, status: int, call: Runnable) -> TorchleanError:
        """The error of a call that failed."""
        return failure(status, self.names[self.calls.index(call)])

    def end(self, handles: list[Any]) -> tuple[list[Change], list[together.Call]]:
        """What changes and which calls give graphs and memory back, that of more handles with it."""
        graphs = [(lib.torchlean_cuda_graph_release, graph) for graph in self.graphs]
        memory = [(lib.torchlean_cuda_buffer_release, handle) for handle in (*self.handles, *handles)]
        return [(self, name, []) for name in ("calls", "names", "graphs", "handles")], [*graphs, *memory]


def build_replay(device: Device, recorded: Sequence[Call | HostWork]) -> Replay:
    """The replay of recorded items: constants left out, memory shared, and on CUDA each run of calls between two that must
    be made one by one (see :class:`Call`) as one graph."""
    items = drop_constants(recorded)
    plan_memory(items)
    made = Replay()
    run: list[Call] = []

    def end_run() -> None:
        if len(run) > 1:
            made.graphs.append(_build_graph(device, run))
            made.calls.append(functools.partial(lib.torchlean_cuda_graph_launch, made.graphs[-1]))
            made.names.append("graph")
        else:
            made.calls.extend(call.runnable() for call in run)
            made.names.extend(call.name for call in run)
        run.clear()

    for item in items:
        if isinstance(item, Call) and device.is_cuda and not item.is_eager and not item.computed:
            run.append(item)
            continue
        end_run()
        made.names.append(item.name)
        if isinstance(item, Call):
            made.calls.append(item.runnable())
        else:
            made.calls.append(item.prepare([s.buffer(device) for s in item.storages]))
    end_run()
    made.handles = list({id(s.root): s.root.handle for item in items for s in item.storages}.values())
    return made


def _build_graph(device: Device, calls: Sequence[Call]) -> Any:
    """A run of calls as a graph. A call that cannot be captured raises, and there is no capture under way then."""
    context = device._handle
    slot, begun = new(_GRAPH), True
    try:
        if status := lib.torchlean_cuda_capture_begin(context):
            begun = False
            raise failure(status, "capture")
        for call in calls:
            if status := call.runnable()():
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
