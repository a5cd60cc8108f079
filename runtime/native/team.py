"""Machine code that runs a launch on PyTorch's threads, those of OpenMP, while they keep processors.

After an operation of PyTorch's, its threads look for the next one for some milliseconds, and let nobody else have their
processors: helpers of `pool.py` would not get any. PyTorch's threads begin a launch at once then. At other times the caller waits
until each of them has begun and ended, however busy the processors are, and helpers are better.

So what counts is the clock of one of PyTorch's threads. If it ran for most of the last 20 ms, in which helpers had all launches,
then operations of PyTorch's come again and again. PyTorch's threads have the launches of a *phase* of as long as that, and twice as
long after every phase, as it still runs. A phase ends at once where the thread does not run, or where the caller waited for half a
millisecond: another process has the processor. Then no other phase begins for thirty times as long as was waited.

OpenMP has a team for each thread that calls it. The team of one caller is known at a time, from a launch that it had since no
helper had begun in the one before.
"""

from __future__ import annotations

from llvmlite import ir

from tilec.runtime.native.tables import Pool, Slot, Team
from tilec.runtime.native.writer import I64, NULL, Writer

JOIN = "tilec_join"
NEWS = 200_000  # nanoseconds for which what was seen is taken to be so
ALONE = 20_000_000  # longer than OpenMP's threads look for work: 7 ms on an EPYC
FIRST, MOST = 20_000_000, 640_000_000  # nanoseconds of a phase
LONG = 500_000  # nanoseconds
PAUSE = 30  # times as long as was waited
MONOTONIC = 1


def now(f: Writer, pool: ir.Value) -> ir.Value:
    """Nanoseconds from some moment on; always the same number where Linux's clocks are not known."""
    return _clock(f, pool, I64(MONOTONIC))


def _clock(f: Writer, pool: ir.Value, clock: ir.Value) -> ir.Value:
    """What a clock says; -1 where there is no such clock any more."""
    time, found, read = f.words(2), f.words(1), f.field(pool, Pool.clock)
    f.store(I64(-1), found)
    with f.when(f.is_("!=", read, 0)), f.when(f.is_("==", f.narrow(f.call(read, clock, time)), 0)):
        f.store(f.add(f.mul(f.load(time), 1_000_000_000), f.load(time, 8)), found)
    return f.load(found)


class _Words:
    """The table of a team, whose words other threads read and write."""

    def __init__(self, f: Writer, team: ir.Value):
        self.f, self.team = f, team

    def get(self, field: Team) -> ir.Value:
        return self.f.peek(self.f.add(self.team, 8 * field))

    def set(self, field: Team, value: ir.Value | int) -> None:
        self.f.exchange(self.f.add(self.team, 8 * field), I64(value) if isinstance(value, int) else value)


def write_chosen(module: ir.Module) -> ir.Function:
    """(pool): whether a launch is for the team of the thread that calls."""
    f = Writer(module, "tilec_team_chosen", 1)
    pool = f.args[0]
    team = f.field(pool, Pool.team)
    words, me, time = _Words(f, team), f.call("PyThread_get_thread_ident"), now(f, pool)
    worker = words.get(Team.worker)
    unknown = f.builder.or_(f.is_("==", worker, 0), f.is_("!=", words.get(Team.caller), me))
    with f.when(unknown):
        wanted = f.builder.and_(f.is_("==", words.get(Team.wanted), me), f.is_(">", time, words.get(Team.since)))
        with f.when(wanted):
            words.set(Team.wanted, 0)
        f.done(f.builder.zext(wanted, I64))
    passed = f.builder.sub(time, words.get(Team.looked))
    with f.when(f.is_(">", passed, NEWS)):
        _look(f, pool, words, worker, time, passed)
    f.done(f.builder.zext(f.is_("<", time, words.get(Team.until)), I64))
    return f.function


def _look(f: Writer, pool: ir.Value, words: _Words, worker: ir.Value, time: ir.Value, passed: ir.Value) -> None:
    ran = _clock(f, pool, worker)
    spent = f.builder.sub(ran, words.get(Team.ran))
    words.set(Team.looked, time)
    words.set(Team.ran, ran)
    with f.when(f.is_("<", ran, 0)):  # it has ended
        words.set(Team.worker, 0)
    since = words.get(Team.since)
    with f.builder.if_else(f.is_(">", f.mul(spent, 2), passed)) as (runs, sleeps):
        with runs:
            over, alone = f.is_(">=", time, words.get(Team.until)), f.is_(">", f.builder.sub(time, since), ALONE)
            with f.when(f.builder.and_(over, alone)):
                span = words.get(Team.span)
                end, double = f.add(time, span), f.mul(span, 2)
                words.set(Team.span, f.builder.select(f.is_("<", double, MOST), double, I64(MOST)))
                words.set(Team.until, end)
                words.set(Team.since, end)
        with sleeps:
            words.set(Team.since, f.builder.select(f.is_(">", since, time), since, time))
            words.set(Team.span, FIRST)
            words.set(Team.until, 0)


def write_run(module: ir.Module) -> ir.Function:
    """(pool, slot, parallel): a launch on OpenMP's threads, as many as an operation of PyTorch's has; `parallel` starts them."""
    f = Writer(module, "tilec_team_run", 3)
    pool, slot, parallel = f.args
    team = f.field(pool, Pool.team)
    words, me = _Words(f, team), f.call("PyThread_get_thread_ident")
    known = f.builder.and_(f.is_("!=", words.get(Team.worker), 0), f.is_("==", words.get(Team.caller), me))
    with f.when(f.builder.not_(known)):
        for field, value in ((Team.worker, 0), (Team.caller, me), (Team.span, FIRST), (Team.until, 0), (Team.looked, 0)):
            words.set(field, value)
    f.store(me, slot, 8 * Slot.caller)
    f.exchange(f.add(slot, 8 * Slot.state), NULL)
    count, theirs = f.words(1), f.load(f.field(pool, Pool.theirs))
    f.store(f.field(slot, Slot.ranges), count)
    with f.when(f.is_("!=", theirs, 0)):
        f.store(f.narrow(f.call(theirs)), count)
    f.call(parallel, f.field(team, Team.join), slot, f.load(count), 0)
    end = now(f, pool)
    waited = f.builder.sub(end, f.field(slot, Slot.done))
    with f.when(f.builder.not_(known)):
        words.set(Team.since, end)
    with f.when(f.is_(">", waited, LONG)):
        words.set(Team.until, 0)
        words.set(Team.since, f.add(end, f.mul(waited, PAUSE)))
    f.done()
    return f.function


def write_join(module: ir.Module, work: ir.Function) -> None:
    """(slot): what each of OpenMP's threads does for a launch. Seats are counted up."""
    f = Writer(module, JOIN, 1)
    slot = f.args[0]
    pool = f.field(slot, Slot.pool)
    words = _Words(f, f.field(pool, Pool.team))
    me = f.call("PyThread_get_thread_ident")
    called = f.is_("==", me, f.field(slot, Slot.caller))
    with f.when(f.builder.not_(called)), f.when(f.is_("==", words.get(Team.worker), 0)):
        clock = f.words(1)
        f.store(NULL, clock)
        f.call(f.field(pool, Pool.clock_of), me, clock)
        words.set(Team.worker, f.load(clock))
    seat = f.change("add", f.add(slot, 8 * Slot.state), 1)
    with f.when(f.is_("<", seat, f.field(slot, Slot.ranges))):
        f.call(work, slot, seat)
    with f.when(called):
        f.store(now(f, pool), slot, 8 * Slot.done)
    f.done()


def want(f: Writer, pool: ir.Value) -> None:
    """The next launch of this thread is to be its team's, if that is not known, so that it is."""
    _Words(f, f.field(pool, Pool.team)).set(Team.wanted, f.call("PyThread_get_thread_ident"))


__all__ = ["JOIN", "now", "want", "write_chosen", "write_join", "write_run"]
