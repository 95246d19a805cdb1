"""One element alone that is not 0, far into a buffer: at both ends of the pieces that kernels cut their work into, beyond 2^16
and 2^20, and beyond 2^24, from where float32 does not hold every place. It counts once, and where it stands."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tlrt import kernels
from tlrt.verify.run import Runtime
from tlspec.draw.data import generator
from tlspec.ops.random import mix, unmix

#: elements of a long row: more than 2^24, no multiple of any piece
LONG = 2**24 + 70
#: of the element: next to the ends of pieces of 2^14, 2^15 and 2^16, of 64 of them, and beyond 2^24 where float32 rounds
PLACES = (0, 2**14 - 1, 2**15, 2**16 - 1, 2**17, 2**20, 2**20 + 2**14, 2**22 - 1, 2**24 + 1, 2**24 + 3, LONG - 1)


def alone(length: int, places: tuple[int, ...]) -> Iterator[tuple[int, np.ndarray]]:
    """Each place, and an array that is 1 there and 0 elsewhere."""
    x = np.zeros(length, np.float32)
    for place in places:
        x[place] = 1
        yield place, x
        x[place] = 0


@pytest.mark.operations("argmax", "argmin", "topk")
def test_the_best_stands_where_it_is(runtime: Runtime) -> None:
    for place, x in alone(LONG, PLACES):
        buffer = runtime.upload(x)
        assert kernels.argmax(buffer, 1, LONG, 1).numpy() == place
        assert kernels.argmin(runtime.upload(-x), 1, LONG, 1).numpy() == place
        assert kernels.topk(buffer, 1, LONG, 1, 2).numpy().tolist() == [place, int(place == 0)]
        assert kernels.argmax(buffer, 1, LONG // 2, 2).numpy()[place % 2] == place // 2  # two columns


@pytest.mark.operations("argmax", "argmin", "topk")
@pytest.mark.parametrize("length", [63, 64, 65, 200, 4097, 70001])
def test_the_first_of_equal_elements_is_chosen(runtime: Runtime, length: int) -> None:
    """In rows of zeros alone, and where two largest ones, or two NaN, stand far apart."""
    for places, best in itertools.product(((), (length // 2, length - 1), (0, length - 1)), (1, np.inf, np.nan)):
        x = np.zeros(length, np.float32)
        x[list(places)] = best
        order = np.argsort(-np.nan_to_num(x, nan=2), kind="stable")
        buffer = runtime.upload(x)
        assert kernels.argmax(buffer, 1, length, 1).numpy() == order[0]
        assert kernels.argmin(runtime.upload(-x), 1, length, 1).numpy() == order[0]
        for k in (1, 2, 5, 40):
            assert kernels.topk(buffer, 1, length, 1, k).numpy().tolist() == order[:k].tolist()


@pytest.mark.operations("argmax", "argmin", "topk")
@pytest.mark.parametrize("length", [63, 64, 200, 1024, 4096, 4097, 70001])
def test_rows_that_rise_or_fall(runtime: Runtime, length: int) -> None:
    """Nothing, or everything, after the first element takes the lead."""
    for step in (1, -1):
        x = step * np.arange(length, dtype=np.float32)
        buffer, rising = runtime.upload(x), np.argsort(x)
        assert kernels.argmax(buffer, 1, length, 1).numpy() == rising[-1]
        assert kernels.argmin(buffer, 1, length, 1).numpy() == rising[0]
        for k in (1, 2, 5, 40):
            for largest, order in ((1, rising[::-1]), (0, rising)):
                assert kernels.topk(buffer, 1, length, 1, k, largest).numpy().tolist() == order[:k].tolist()


@pytest.mark.operations("reduce_sum", "reduce_max_axis1", "global_norm")
def test_each_element_of_a_sum_counts_once(runtime: Runtime) -> None:
    for _, x in alone(LONG, PLACES):
        buffer = runtime.upload(x)
        assert kernels.reduce_sum(buffer, LONG).numpy() == 1
        assert kernels.reduce_max_axis1(buffer, 1, LONG).numpy() == 1
        assert kernels.global_norm([buffer]).numpy() == 1


@pytest.mark.operations("reduce_sum_axis1", "reduce_max_axis1")
def test_each_piece_of_a_few_long_rows_counts(runtime: Runtime) -> None:
    """Five rows of 15 leaves of the sums' tree: more pieces than rows that are not cut."""
    rows, leaf = 5, 2**14
    cols = 14 * leaf + 3
    for place, x in alone(rows * cols, tuple(r * cols + c for r in (0, 4) for c in (0, leaf - 1, 7 * leaf, cols - 1))):
        wanted = (np.arange(rows) == place // cols).astype(np.float32)
        buffer = runtime.upload(x)
        for sum_up in (kernels.reduce_sum_axis1, kernels.reduce_max_axis1):
            assert sum_up(buffer, rows, cols).numpy().tolist() == wanted.tolist()


@pytest.mark.parametrize("name", ["reduce_sum_axis1", "softmax", "log_softmax"])
def test_a_long_row_alone_and_among_many(name: str, runtime: Runtime) -> None:
    """Few rows are cut into leaves, many are summed as they are: the same tree, and so the same bits."""
    cols = 44 * 2**14 + 5  # leaves that meet at several levels
    half = generator("a long row", name).standard_normal(cols // 2).astype(np.float32)
    row = np.append(np.concatenate([half, -half]), np.ones(cols % 2, np.float32))  # what rounds on the way is left
    call = getattr(kernels, name)
    one = call(runtime.upload(row), 1, cols).numpy()
    many = call(runtime.upload(np.tile(row, 64)), 64, cols).numpy().reshape(64, -1)
    assert all(got.tobytes() == one.tobytes() for got in (many[0], many[63]))


@pytest.mark.operations("cumsum")
@pytest.mark.parametrize("reverse", [0, 1])
def test_a_running_sum_holds_what_came_before(reverse: int, runtime: Runtime) -> None:
    for place, x in alone(LONG, PLACES[::3]):
        got = kernels.cumsum(runtime.upload(x), [LONG], 0, reverse).numpy()
        before, after = (got[place + 1 :], got[: place + 1]) if reverse else (got[:place], got[place:])
        assert not before.any() and (after == 1).all(), place


@pytest.mark.operations("gather_vec", "scatter_add")
def test_indices_beyond_float32(runtime: Runtime) -> None:
    places = np.array(PLACES, np.uint32)
    rising = np.arange(1, len(places) + 1, dtype=np.float32)
    zeros, values = runtime.upload(np.zeros(LONG, np.float32)), runtime.upload(rising)
    filled = kernels.scatter_add(zeros, values, places, LONG)
    got = filled.numpy()
    assert got[places].tolist() == rising.tolist() and np.count_nonzero(got) == len(places)
    assert kernels.gather_vec(filled, places, LONG).numpy().tolist() == rising.tolist()


@pytest.mark.operations("scatter_add")
def test_a_list_of_more_indices_than_chunks_hold(runtime: Runtime) -> None:
    """64 chunks of 2^15 indices, and five more; each adds 1, exactly."""
    rng, n, k = generator("many indices"), 1000, 2**21 + 5
    places = rng.integers(0, n + 1, k).astype(np.uint32)  # some out of range
    wanted = np.bincount(places, minlength=n)[:n].astype(np.float32)
    zeros, ones = runtime.upload(np.zeros(n, np.float32)), runtime.upload(np.ones(k, np.float32))
    assert np.array_equal(kernels.scatter_add(zeros, ones, places, n).numpy(), wanted)


@pytest.mark.operations("scatter_add_row")
@pytest.mark.parametrize("at", [2**16 - 1, 2**16, 2**17 + 2])
def test_a_row_far_down(at: int, runtime: Runtime) -> None:
    rows, cols = 2**17 + 3, 2
    mat = runtime.upload(np.zeros(rows * cols, np.float32))
    got = kernels.scatter_add_row(mat, runtime.upload(np.ones(cols, np.float32)), rows, cols, at).numpy()
    assert np.flatnonzero(got).tolist() == [at * cols, at * cols + 1]


@pytest.mark.operations("fingerprint")
def test_places_far_apart_have_other_fingerprints(runtime: Runtime) -> None:
    far = (3, 2**14 + 3, 2**16 + 3, 2**20 + 3, 2**22 + 3, 2**23 + 3, 2**24 + 3)
    found = [kernels.fingerprint([runtime.upload(x)]).numpy().tobytes() for _, x in alone(LONG, far)]
    assert len(set(found)) == len(far)


@pytest.mark.operations("rand_uniform", "rand_normal", "bernoulli_mask")
@pytest.mark.parametrize("shift", [2**14, 2**16 + 2, 2**24 - 30])
def test_a_draw_goes_on_as_one_of_another_key(shift: int, runtime: Runtime) -> None:
    """Element i has word i of the stream that begins at mix(key), a normal one words 2i and 2i + 1."""
    key, device = 2**63 + 11, runtime.device
    later, twice = (unmix((mix(key) + words) % 2**64) for words in (shift, 2 * shift))
    for draw, other in (
        (lambda n, k: kernels.rand_uniform(device, n, k), later),
        (lambda n, k: kernels.bernoulli_mask(device, n, k, 0.5), later),
        (lambda n, k: kernels.rand_normal(device, n, k), twice),
    ):
        assert np.array_equal(draw(shift + 60, key).numpy()[shift:], draw(60, other).numpy())


def starts(x: np.ndarray) -> np.ndarray:
    """Where the running sum stands before each element: within 32 in order, from where the chunk of 32 stands, and so on."""
    rows = np.append(x, np.zeros(-len(x) % 32)).reshape(-1, 32)
    before = starts(np.cumsum(rows, 1)[:, -1]) if len(rows) > 1 else np.zeros(1)
    return np.cumsum(np.column_stack([before, rows[:, :-1]]), 1).reshape(-1)[: len(x)]


@pytest.mark.operations("cumsum")
def test_a_running_sum_adds_in_its_order_on_every_level(runtime: Runtime) -> None:
    """More than two of 32^4: a large number that goes again leaves what the float64 additions before rounded, in their order."""
    n = 2**21 + 2**11
    x = np.abs(generator("order").standard_normal(n)).astype(np.float32)
    x[0], x[2**21 + 7] = 2.0**70, -(2.0**70)  # beside which 32^3 elements vanish, and 32^4 do not
    got = kernels.cumsum(runtime.upload(x), [n], 0, 0).numpy()
    wide = x.astype(np.float64)
    assert got.tobytes() == (starts(wide) + wide).astype(np.float32).tobytes()
