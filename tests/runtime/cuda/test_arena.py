"""Memory that the programs of a stream share: who shares it, how it grows, and what never moves."""

import gc
from operator import itemgetter
from threading import Thread

import pytest

pytest.importorskip("numba_cuda_mlir")

from tools.cuda_driver_fake import stand_in

from tilec.runtime.cuda import arena
from tilec.runtime.cuda import driver as cuda_driver
from tilec.runtime.cuda.program import DeviceProgram, Loaded
from tilec.runtime.program import Cubin, Emitted, KernelSource, Step, Temporary

GRANULE = 1 << 16


@pytest.fixture(params=[True, False], ids=["reserved", "allocated"])
def driver(monkeypatch, request):
    fake = stand_in(monkeypatch)
    fake.reserves = request.param
    return fake


@pytest.fixture
def reserved(monkeypatch):
    fake = stand_in(monkeypatch)
    fake.reserves = True
    return fake


def program(size: int, clear: int = 0, loaded: Loaded | None = None) -> DeviceProgram:
    """A kernel on an input and a temporary of this size; and one that stays clear, if it has a size."""
    temporaries = [Temporary(size, 0)] + ([Temporary(clear, 256, stays_clear=True)] if clear else [])
    kernel = KernelSource("only", "", 3, 1 + len(temporaries), threads=64)
    cubin = Cubin(b"image", "", "only", "sm_90a", 32, 0, 0, 0)
    pick = itemgetter(0, *range(2, 2 + len(temporaries)))
    return DeviceProgram(
        Emitted("p", "", (kernel,), (), tuple(temporaries)), {"only": cubin}, [(Step("only", ()), pick)], 0,
        loaded=loaded,
    )  # fmt: skip


def used(driver, made: DeviceProgram, stream: int = 7, capture: int = 0) -> int:
    """The address of the first temporary in a launch."""
    driver.capturing = capture
    made.launch([16], [32], stream)
    driver.capturing = 0
    return driver.launches[-1].words[1]


def test_programs_of_a_stream_share_what_the_largest_takes(driver):
    large, *small = (program(n * GRANULE) for n in (5, 3, 5, 1))
    first = used(driver, large)
    assert all(used(driver, p) == first for p in (*small, large))
    assert arena.workspaces == {0: 5 * GRANULE}
    assert used(driver, small[0], stream=8) != first
    assert arena.workspaces == {0: 8 * GRANULE}


def test_growing_takes_what_is_missing_and_moves_nothing(reserved):
    """Programs that come in increasing sizes hold what the largest takes, at one address, also those that were launched before."""
    programs = [program(n * GRANULE - 100) for n in (1, 2, 4, 7)]
    (first,) = {used(reserved, p) for p in (*programs, *programs)}
    assert reserved.mapped == {first + n * GRANULE: size * GRANULE for n, size in ((0, 1), (1, 1), (2, 2), (4, 3))}
    assert arena.workspaces == {0: 7 * GRANULE - 100} and not reserved._created
    assert not {"cuMemFree", "cuMemAlloc", "cuCtxSynchronize"} & set(reserved.names())


def test_without_reserved_addresses_those_before_keep_their_memory(driver):
    driver.codes["cuMemAddressReserve"] = [2]
    small, large = program(GRANULE), program(3 * GRANULE)
    first, second = used(driver, small), used(driver, large)
    assert first != second
    assert (used(driver, small), used(driver, large), used(driver, program(GRANULE))) == (first, second, second)
    assert arena.workspaces == {0: 4 * GRANULE}


@pytest.mark.parametrize("failing", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_memory_that_cannot_be_had_leaves_what_there_was(reserved, failing):
    small, large = program(GRANULE), program(3 * GRANULE)
    first = used(reserved, small)
    reserved.codes[failing] = [2]
    with pytest.raises(cuda_driver.OutOfMemory):
        large.launch([16], [32], 7)
    assert reserved.mapped == {first: GRANULE} and not reserved._created and arena.workspaces == {0: GRANULE}
    assert used(reserved, large) == used(reserved, small) == first


@pytest.mark.parametrize("failing", ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_what_a_device_refuses_is_allocated(reserved, failing):
    """Some say that they can map memory, and cannot."""
    reserved.codes[failing] = [801] * 9
    places = [used(reserved, program(n * GRANULE)) for n in (2, 1, 3, 2)]
    assert places == [0x1000_0000, 0x1000_0000, 0x2000_0000, 0x2000_0000]
    assert not reserved.mapped and not reserved._created and arena.workspaces == {0: 5 * GRANULE}


def test_memory_that_was_missing_at_first(reserved):
    reserved.codes["cuMemCreate"] = [2]
    with pytest.raises(cuda_driver.OutOfMemory):
        program(GRANULE).launch([16], [32], 7)
    used(reserved, program(GRANULE))
    assert len(reserved._reserved) == 1


def test_more_than_the_device_has(reserved):
    with pytest.raises(cuda_driver.OutOfMemory):
        reserved.codes["cuMemAlloc"] = [2]
        program(2 * reserved.memory).launch([16], [32], 7)
    assert not arena.workspaces.total()


def test_what_stays_clear_is_no_other_programs(driver):
    made = [program(100, clear=64) for _ in range(3)]
    for p in made:
        used(driver, p)
    temporaries, clear = zip(*(launch.words[1:3] for launch in driver.launches))
    assert len(set(temporaries)) == 1 and len(set(clear)) == 3
    whole = range(temporaries[0], temporaries[0] + arena.arena_of(0, 7, 0).held)
    assert not any(address in whole for address in clear)


def test_a_capture_shares_nothing_with_its_stream_or_another_capture(driver):
    first, second = program(GRANULE), program(GRANULE)
    alone = used(driver, first)
    places = [[used(driver, p, 7, capture) for p in (first, second, first)] for capture in (1, 2)]
    assert [len(set(place)) for place in places] == [1, 1]
    assert len({alone, places[0][0], places[1][0]}) == 3
    assert used(driver, first, 8, 1) not in (alone, *places[0], *places[1])  # a branch of the capture
    assert used(driver, second) == alone


def test_captures_that_are_replayed_in_order_share(driver):
    class Owner:
        pass

    owners, first, second = [Owner(), Owner()], program(GRANULE), program(2 * GRANULE)
    places = []
    for owner in owners:
        with arena.replayed_in_order(owner):
            alone = used(driver, second)
            places.append([used(driver, p, 7, capture) for capture, p in ((1, second), (2, first), (3, second))])
    assert [len(set(place)) for place in places] == [1, 1]
    assert len({alone, *places[0], *places[1], used(driver, first, 7, 4)}) == 4
    del owner
    owners.clear()
    gc.collect()
    with arena.replayed_in_order(Owner()):  # which may have the other's place in memory, not its arena
        assert used(driver, first, 7, 5) not in (*places[0], *places[1])


def test_no_owner_is_no_order(driver):
    made = program(GRANULE)
    with arena.replayed_in_order(None):
        assert used(driver, made, 7, 1) != used(driver, made, 7, 2)


def test_each_thread_has_its_own_stream_of_one_handle(driver):
    """CU_STREAM_PER_THREAD."""
    made, found = program(GRANULE), []
    found.append(used(driver, made, 2))
    thread = Thread(target=lambda: found.append(used(driver, made, 2)))
    thread.start()
    thread.join()
    found.append(used(driver, made, 2))
    assert found[0] == found[2] != found[1]


def test_a_program_at_several_sizes_is_loaded_once(driver):
    """And what it finds clear is one memory of each stream, as large as the largest of them needs."""
    loaded = Loaded()
    one, large, small = (program(GRANULE, clear, loaded) for clear in (64, 4096, 100))
    first = [used(driver, p) and driver.launches[-1].words[2] for p in (one, large, small, one)]
    assert len({first[1], first[2]}) == 1 and first[0] == first[3] != first[1]
    used(driver, large, stream=8)
    assert driver.launches[-1].words[2] not in first
    assert driver.names().count("cuLibraryLoadData") == 1
