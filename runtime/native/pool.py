"""Machine code that shares the blocks of a kernel among threads: the caller of a launch, and helpers that join it.

The caller never waits for a helper that has not begun. It takes blocks itself until none is left, and then waits for those who
still compute theirs. So a launch takes at most the time of one thread, and a helper's last blocks, however busy the processors are.

A launch has a *slot* while it lasts. `grid` blocks are so many `ranges` as threads may take part, each of so many `parts`. Each
thread has a *seat*. Its number is that of the thread's scratch memory, and of the range with which it begins; then it takes what
others have left of theirs. A range's counter says which part is the next.

The state of a slot holds how many helpers are inside, the number of free seats, and whether the caller sleeps. The next helper gets
the free seat of the highest number. A helper reads the rest of a slot only while it is inside. Helpers look for free seats for a
while, let others run after each look, and then sleep. Nothing here needs Python's global lock, or a lock that a fork could leave
locked. Where PyTorch's threads keep the processors, they run the blocks (`team.py`).
"""

from __future__ import annotations

from llvmlite import ir

from tilec.runtime.native import team
from tilec.runtime.native.tables import Helper, Pool, Slot, Team
from tilec.runtime.native.writer import I64, NULL, Writer

RUN, SHARE, HELP, NOTHING = "tilec_run_blocks", "tilec_share_blocks", "tilec_help", "tilec_no_blocks"
NAMES = (RUN, SHARE, HELP, NOTHING, team.JOIN)
SLOTS = 8  # launches at a time that helpers join; more are each their caller's alone
LINE = 128  # bytes that no two threads write to at once
PARTS = 4  # of a range, at most
LOOKS = 1600  # of a helper, or of a caller that waits, before it sleeps: 0.4 ms; to wake it takes 25 to 100 us (an EPYC, virtual)
OFTEN = 3_000_000  # nanoseconds of sleep, below which a helper looks for that long the next time
MORE = 8  # times as many looks
FAN = 2  # sleeping helpers that each one wakes
SEAT, INSIDE, ASLEEP = 1 << 16, (1 << 16) - 1, 1 << 32
FREE = ASLEEP - SEAT


def module() -> ir.Module:
    module = ir.Module("tilec_pool")
    wake, work = _wake(module), _work(module)
    team.write_join(module, work)
    _share(module, wake, work, team.write_chosen(module), team.write_run(module))
    _run(module)
    _help(module, wake, work)
    Writer(module, NOTHING, 4).done()  # the loop of a kernel whose blocks do nothing
    return module


def slot_bytes(threads: int) -> int:
    return LINE * (1 + threads)


def _run(module: ir.Module) -> None:
    """(pool, loop, grid, data, scratch, stride): calls `loop`(first block, end, data, scratch memory) for all blocks of a grid, on
    as many threads as the pool says now. `stride`: bytes from one thread's scratch memory to the next's."""
    f = Writer(module, RUN, 6)
    pool, loop, grid, data, scratch, stride = f.args
    count = f.words(1)
    f.store(grid, count)
    with f.when(f.is_("!=", grid, 1)):
        f.least(f.field(pool, Pool.limit), count)
        f.least(f.load(f.field(pool, Pool.most)), count)
        theirs = f.load(f.field(pool, Pool.theirs))
        with f.when(f.is_("!=", theirs, 0)):
            f.least(f.narrow(f.call(theirs)), count)
        with f.when(f.is_(">", f.load(count), 1)):
            f.call(f.field(pool, Pool.share), pool, loop, grid, f.load(count), data, scratch, stride)
            f.done()
    f.call(loop, 0, grid, data, scratch)
    f.done()


def _share(
    module: ir.Module, wake: ir.Function, work: ir.Function, chosen: ir.Function, run: ir.Function
) -> None:  # fmt: skip
    """(pool, loop, grid, threads, data, scratch, stride): all blocks, on at most so many threads, of which this is one."""
    f = Writer(module, SHARE, 7)
    b, (pool, loop, grid, threads, data, scratch, stride) = f.builder, f.args
    helpers = b.sub(threads, I64(1))
    slots, found, taken = f.field(pool, Pool.slots), f.words(1), f.block()
    with f.times(I64(SLOTS)) as n:
        slot = f.add(slots, f.mul(n, f.field(pool, Pool.slot_bytes)))
        f.store(slot, found)
        f.demand(b.not_(f.swap(f.add(slot, 8 * Slot.taken), 0, 1)), taken)
    f.call(loop, 0, grid, data, scratch)
    f.done()
    b.position_at_end(taken)
    slot = f.load(found)
    most = b.sdiv(f.add(grid, helpers), threads)
    parts = b.select(f.is_("<", most, PARTS), most, I64(PARTS))
    for field, value in (
        (Slot.loop, loop), (Slot.grid, grid), (Slot.ranges, threads), (Slot.parts, parts), (Slot.data, data),
        (Slot.scratch, scratch), (Slot.stride, stride),
    ):  # fmt: skip
        f.store(value, slot, 8 * field)
    with f.times(threads) as n:
        f.store(NULL, f.add(slot, f.mul(f.add(n, 1), LINE)))
    state = f.add(slot, 8 * Slot.state)
    parallel = f.peek(f.field(f.field(pool, Pool.team), Team.parallel))
    with f.when(f.is_("!=", parallel, 0)), f.when(f.is_("!=", f.call(chosen, pool), 0)):
        f.call(run, pool, slot, parallel)
        f.exchange(f.add(slot, 8 * Slot.taken), NULL)
        f.done()
    f.exchange(state, f.mul(helpers, SEAT))
    f.call(wake, pool, helpers)
    started = f.add(pool, 8 * Pool.started)
    with f.repeat() as enough:
        before = f.peek(started)
        f.demand(f.is_("<", before, helpers), enough)
        with f.when(f.swap(started, before, f.add(before, 1))):
            helper = f.add(f.field(pool, Pool.helpers), f.mul(before, LINE))
            f.store(pool, helper, 8 * Helper.pool)
            f.call("PyThread_start_new_thread", f.field(pool, Pool.help), helper)
    f.call(work, slot, 0)
    seats = f.builder.and_(f.change("and", state, ~FREE), I64(FREE))
    with f.when(f.is_("!=", parallel, 0)), f.when(f.is_("==", seats, f.mul(helpers, SEAT))):
        team.want(f, pool)
    looks = f.words(1)
    f.store(I64(LOOKS), looks)
    with f.repeat() as over:
        inside = f.peek(state)
        f.demand(f.is_("!=", inside, 0), over)
        left = b.sub(f.load(looks), I64(1))
        f.store(left, looks)
        with b.if_else(f.is_(">", left, 0)) as (look, sleep):
            with look:
                f.call("sched_yield")
            with sleep, f.when(f.swap(state, inside, b.or_(inside, I64(ASLEEP)))):
                f.call("PyThread_acquire_lock", f.field(slot, Slot.lock), 1)
                f.exchange(state, NULL)
    f.exchange(f.add(slot, 8 * Slot.taken), NULL)
    f.done()


def _work(module: ir.Module) -> ir.Function:
    """(slot, seat): takes parts until all are taken."""
    f = Writer(module, "tilec_work", 2)
    b, (slot, seat) = f.builder, f.args
    loop, grid, ranges, parts, data = (
        f.field(slot, n) for n in (Slot.loop, Slot.grid, Slot.ranges, Slot.parts, Slot.data)
    )
    scratch = f.add(f.field(slot, Slot.scratch), f.mul(seat, f.field(slot, Slot.stride)))
    total = f.mul(ranges, parts)
    with f.times(ranges) as n:
        number = b.urem(f.add(seat, n), ranges)
        counter = f.add(slot, f.mul(f.add(number, 1), LINE))
        with f.repeat() as none:
            f.demand(f.is_("<", f.peek(counter), parts), none)
            part = f.change("add", counter, 1)
            f.demand(f.is_("<", part, parts), none)
            part = f.add(f.mul(number, parts), part)
            first, end = (b.udiv(f.mul(at, grid), total) for at in (part, f.add(part, 1)))
            f.call(loop, first, end, data, scratch)
    f.done()
    return f.function


def _wake(module: ir.Module) -> ir.Function:
    """(pool, most): wakes a few of the first helpers, so many at most, where they sleep. They wake others."""
    f = Writer(module, "tilec_wake", 2)
    b, (pool, most) = f.builder, f.args
    left, count = f.words(1), f.words(1)
    f.store(I64(FAN), left)
    f.store(most, count)
    f.least(f.peek(f.add(pool, 8 * Pool.started)), count)
    enough = f.block()
    with f.times(f.load(count)) as n:
        helper = f.add(f.field(pool, Pool.helpers), f.mul(n, LINE))
        asleep = f.add(helper, 8 * Helper.asleep)
        with f.when(f.is_("!=", f.peek(asleep), 0)), f.when(f.swap(asleep, 1, 0)):
            f.call("PyThread_release_lock", f.field(helper, Helper.lock))
            f.store(b.sub(f.load(left), I64(1)), left)
            f.demand(f.is_("!=", f.load(left), 0), enough)
    b.branch(enough)
    b.position_at_end(enough)
    f.done()
    return f.function


def _help(module: ir.Module, wake: ir.Function, work: ir.Function) -> None:
    """(helper): what a helper does, as long as the process lives. Signals are for others."""
    f = Writer(module, HELP, 1)
    b, helper = f.builder, f.args[0]
    pool = f.field(helper, Helper.pool)
    mask = f.field(pool, Pool.mask)
    with f.when(f.is_("!=", mask, 0)):
        f.call(mask, f.field(pool, Pool.mask_how), f.field(pool, Pool.mask_all), 0)
    lock = f.call("PyThread_allocate_lock")
    with f.when(f.is_("==", lock, 0)):
        f.done()
    f.call("PyThread_acquire_lock", lock, 1)
    f.store(lock, helper, 8 * Helper.lock)
    asleep, looks, most, found = f.add(helper, 8 * Helper.asleep), f.words(1), f.words(1), f.words(1)

    def slot(n: ir.Value) -> ir.Value:
        return f.add(f.field(pool, Pool.slots), f.mul(n, f.field(pool, Pool.slot_bytes)))

    def free(state: ir.Value) -> ir.Value:
        return b.and_(b.lshr(state, I64(16)), I64(INSIDE))

    f.store(NULL, looks)
    f.store(I64(LOOKS), most)
    with f.repeat():
        f.store(f.add(f.load(looks), 1), looks)
        with f.times(I64(SLOTS)) as n:
            each = slot(n)
            state = f.add(each, 8 * Slot.state)
            before = f.peek(state)
            seat = free(before)
            with f.when(f.is_("!=", seat, 0)), f.when(f.swap(state, before, f.add(before, 1 - SEAT))):
                with f.when(f.is_(">", seat, 1)):
                    f.call(wake, pool, b.sub(f.field(each, Slot.ranges), I64(1)))
                f.call(work, each, seat)
                f.change("and", state, ~FREE)
                left = f.change("sub", state, 1)
                with f.when(f.is_("==", left, ASLEEP + 1)):
                    f.call("PyThread_release_lock", f.field(each, Slot.lock))
                f.store(NULL, looks)
        with b.if_else(f.is_("<", f.load(looks), f.load(most))) as (look, sleep):
            with look:
                f.call("sched_yield")
            with sleep:
                f.store(NULL, looks)
                f.exchange(asleep, 1)
                f.store(NULL, found)
                with f.times(I64(SLOTS)) as n:
                    f.store(b.or_(f.load(found), free(f.peek(f.add(slot(n), 8 * Slot.state)))), found)
                mine = f.words(1)
                f.store(NULL, mine)
                with f.when(f.is_("!=", f.load(found), 0)):
                    f.store(b.zext(f.swap(asleep, 1, 0), I64), mine)
                with f.when(f.is_("==", f.load(mine), 0)):
                    begin = team.now(f, pool)
                    f.call("PyThread_acquire_lock", lock, 1)
                    slept = b.sub(team.now(f, pool), begin)
                    often = b.and_(f.is_(">", slept, 0), f.is_("<", slept, OFTEN))
                    f.store(b.select(often, I64(MORE * LOOKS), I64(LOOKS)), most)
    f.done()
