"""Rankings weigh as little as they can, and have the order that weighing everything gives."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.machines import CARDS, H200

from tilec.cost import contraction
from tilec.cost.block_tile import Contraction
from tilec.cost.contraction import contraction_candidates, contraction_cost, families
from tilec.cost.model import Choice
from tilec.cost.ranking import Ranking

bunches = st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=4)), max_size=9)


def ranking_of(given, weighed):
    """Of bunches of ranks above a bound; `weighed` gets the numbers of those that are weighed."""
    ranking = Ranking()
    for n, (bound, more) in enumerate(given):

        def weigh(n=n, bound=bound, more=more):
            weighed.append(n)
            return (((bound + m, n, k), (bound + m, n, k)) for k, m in enumerate(more))

        ranking.add(bound, weigh)
    return ranking


@given(bunches, st.integers(0, 12))
def test_a_ranking_is_in_order(given, which):
    every = sorted((bound + m, n, k) for n, (bound, more) in enumerate(given) for k, m in enumerate(more))
    assert [*ranking_of(given, [])] == every == ranking_of(given, [])[:]
    assert ranking_of(given, []).least == (every[0][0] if every else inf)
    assert bool(ranking_of(given, [])) == bool(every) and len(ranking_of(given, [])) == len(every)
    assert ranking_of(given, [])[:which] == every[:which] and ranking_of(given, [])[-which:] == every[-which:]
    if which < len(every):
        assert ranking_of(given, [])[which] == every[which]
    else:
        with pytest.raises(IndexError):
            ranking_of(given, [])[which]


@given(bunches)
def test_only_what_may_be_the_first_is_weighed_for_it(given):
    weighed = []
    ranking = ranking_of(given, weighed)
    if ranking:
        assert all(given[n][0] <= ranking[0][0] for n in weighed) and len({*weighed}) == len(weighed)


sizes = st.one_of(st.integers(1, 300), st.integers(1, 20000))
sides = st.sampled_from([(0, 0), (13, 0), (2.8, 40)])
problems = st.builds(
    Contraction, m=sizes, n=sizes, k=sizes, batch=st.sampled_from([1, 1, 3, 64]),
    dtype=st.sampled_from(["bf16", "f16", "f32", "f64", "f8e4m3", "i8", "i32"]), tf32=st.booleans(),
    two_level=st.sampled_from([0, 0, 128]), unaligned=st.tuples(st.booleans(), st.booleans()),
    copied=st.sampled_from([(1, 1), (64, 1)]), widths=st.sampled_from([(1, 1), (1, 0.5)]), staged=sides,
    reads=st.sampled_from([0, 2, 9]), epilogue=st.sampled_from([{}, {"fma.f32": 3.0}, {"special": 9.0}]),
    sources=st.tuples(*[st.sampled_from([0, 1 << 20, 1 << 28])] * 2), recurring=st.booleans(),
    parts=st.sampled_from([1, 1, 3]), products=st.sampled_from([1, 1, 6]), overhang=st.sampled_from([1.0, 1.3]),
    stored=st.sampled_from([1.0, 0.5]), neighbours=st.sampled_from([0.0, 1e12]),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(problems, st.sampled_from(CARDS), st.integers(0, 2), st.integers(0, 2))
def test_no_tile_is_better_than_its_family(problem, card, more_rows, more_columns):
    """Nor for more rows and columns than the problem has, that take more blocks."""
    for instruction in (*contraction._instructions(card, problem, None), "fma"):
        for family in families(card, problem, instruction):
            for _, choice in family.choices:
                assert family.least_us <= choice.prediction.time_us and family.least_rank <= choice.rank
                tile = choice.tile
                rows, columns = ceil(problem.m / tile.bm) + more_rows, ceil(problem.n / tile.bn) + more_columns
                larger = replace(problem, m=rows * tile.bm, n=columns * tile.bn)
                if more_rows or more_columns:
                    found = Choice(tile, contraction_cost(card, larger, tile))
                    assert family.least_us <= found.prediction.time_us and family.least_rank <= found.rank


@settings(max_examples=60, deadline=None)
@given(problems, st.sampled_from(CARDS))
def test_choices_are_those_of_all_candidates(problem, card):
    """In the order of their ranks, of equals the simpler tile, and of these the first."""
    tiles = [*contraction_candidates(card, problem)]
    every = [Choice(t, contraction_cost(card, problem, t)) for t in tiles]
    every.sort(key=lambda c: (round(c.rank, 4), *contraction._effort(c.tile)))
    assert [c.tile for c in contraction.choose(card, problem)] == [c.tile for c in every]


def test_few_tiles_are_predicted_for_the_best(monkeypatch):
    """To predict them all took most of the time of planning models of many products."""
    predicted = []
    monkeypatch.setattr(contraction, "contraction_cost", lambda *a: predicted.append(a) or contraction_cost(*a))
    for problem in (Contraction(8191, 512, 1024), Contraction(12544, 255, 1151), Contraction(65, 4097, 4096)):
        predicted.clear()
        assert contraction.choose(H200, problem)[0]
        assert 0 < 5 * len(predicted) < len([*contraction_candidates(H200, problem)])
