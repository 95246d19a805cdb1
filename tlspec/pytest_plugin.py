"""The pytest plugin: ``@tlspec.cases("matmul", dtype="bfloat16")`` runs a test on drawn cases of an operation.

    @tlspec.cases("softmax", dtype="bfloat16", array="torch:cuda")
    def test_softmax(case):
        case.check(my_softmax(case.x))

Options: ``--tlspec-seed N`` draws other cases, ``--tlspec-repro CASE`` runs one case, as a failure names it. The cases follow
from the seed alone, so that the workers of pytest-xdist agree on them.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])
#: the mark that carries the arguments, and the name of the test's argument
MARK, ARGUMENT = "tlspec_cases", "case"


def cases(
    op: str, *, backward: bool = False, count: int = 16, data: Any = None, empty: bool = True, **options: Any
) -> Callable[[Test], Test]:  # fmt: skip
    """Runs the decorated test, which takes an argument ``case`` (:class:`tlspec.judge.example.Example`), on `count` cases of an
    operation, or with `backward` of its gradient. `data` are data classes, ``empty=False`` leaves sizes of 0 out; `options` are
    those of :func:`tlspec.check`: dtype, out_dtype, array, accumulate, height, ulp, products, intermediate, flush."""

    def decorate(test: Test) -> Test:
        given = {"op": op, "backward": backward, "count": count, "data": data, "empty": empty, "options": options}
        return pytest.mark.tlspec_cases(given)(test)

    return decorate


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tlspec", "kernels against the specification")
    group.addoption("--tlspec-seed", type=int, default=0, metavar="N", help="draw other cases (0)")
    group.addoption("--tlspec-repro", metavar="CASE", help="run one case, as a failure names it")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(arguments): runs a test on drawn cases of an operation")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    from tlspec import registry
    from tlspec.judge.checking import address_of
    from tlspec.judge.choice import drawn_cases
    from tlspec.judge.example import Example

    given = mark.args[0]
    row, which = registry.get(given["op"]), "vjp" if given["backward"] else "forward"
    repeat = metafunc.config.getoption("--tlspec-repro")
    if repeat:
        addresses = [repeat]
    else:
        counts = {"small": given["count"] * 3 // 4, "edges": given["count"] - given["count"] * 3 // 4}
        seed = metafunc.config.getoption("--tlspec-seed")
        addresses = [address_of(c) for c in drawn_cases(row, which, counts, given["data"], given["empty"], seed)]

    class Later:
        """An example that is made when its test runs."""

        def __init__(self, address: str):
            self.address = address

        def __call__(self) -> Example:
            return Example(row, self.address, **given["options"])

    metafunc.parametrize(ARGUMENT, [Later(a) for a in addresses], ids=addresses, indirect=True)


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Any:
    """The case of a test that :func:`cases` decorates."""
    return request.param()
