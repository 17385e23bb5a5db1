"""Sampling against worked numbers, against transformers, and as draws."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcli.errors import BadInput, CannotRunHere
from kvcli.runtime.sampling import MAX_SEED, Sampler, SamplingOptions, distribution

FOUR = [0.40, 0.30, 0.18, 0.12]


def probs_of(probs: list[float], previous: list[int] | None = None, **options: Any) -> list[float]:
    """The distribution drawn from, for logits whose softmax is `probs`."""
    options.setdefault("temperature", 1.0)
    result: list[float] = distribution(torch.tensor([probs]).log(), SamplingOptions(**options), [previous or []])[0].tolist()
    return result


@pytest.mark.parametrize(
    ("probs", "options", "expected"),
    [
        (FOUR, {}, FOUR),
        (FOUR, {"top_k": 3}, [0.4545, 0.3409, 0.2045, 0]),
        (FOUR, {"top_k": 1}, [1, 0, 0, 0]),
        (FOUR, {"top_k": 99}, FOUR),
        # .40 + .30 + .18 = .88 < .9, so the fourth is needed to reach .9
        (FOUR, {"top_p": 0.9}, FOUR),
        (FOUR, {"top_p": 0.87}, [0.4545, 0.3409, 0.2045, 0]),
        ([0.97, 0.015, 0.01, 0.005], {"top_p": 0.9}, [1, 0, 0, 0]),
        (FOUR, {"top_p": 1e-9}, [1, 0, 0, 0]),
        # .3 >= .5 * .5 stays, .15 does not
        ([0.5, 0.3, 0.15, 0.05], {"min_p": 0.5}, [0.625, 0.375, 0, 0]),
        (FOUR, {"min_p": 1.0}, [1, 0, 0, 0]),
        # squares of the probabilities: .16 .09 .0324 .0144 over .2968
        (FOUR, {"temperature": 0.5}, [0.5391, 0.3032, 0.1092, 0.0485]),
        # unsorted input keeps its places
        ([0.12, 0.40, 0.18, 0.30], {"top_k": 2}, [0, 0.5714, 0, 0.4286]),
    ],
)
def test_worked_distributions(probs: list[float], options: dict[str, Any], expected: list[float]) -> None:
    assert probs_of(probs, **options) == pytest.approx(expected, abs=1e-4)


def test_top_p_stops_where_the_mass_is_reached_exactly() -> None:
    assert probs_of([0.5, 0.5], top_p=0.5) == [1, 0]


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    # After top-k .5714 + .4286: the first alone reaches .5. On the whole distribution .40 would not.
    assert probs_of(FOUR, top_k=2, top_p=0.5) == pytest.approx([1, 0, 0, 0])
    assert probs_of(FOUR, top_p=0.5) == pytest.approx([0.5714, 0.4286, 0, 0], abs=1e-4)


def test_truncation_sees_the_distribution_after_temperature() -> None:
    # At temperature .5 the first two hold .8423 of the mass, at 1 only .70.
    assert probs_of(FOUR, top_p=0.8, temperature=0.5) == pytest.approx([0.64, 0.36, 0, 0], abs=1e-4)
    assert probs_of(FOUR, top_p=0.8) == pytest.approx([0.4545, 0.3409, 0.2045, 0], abs=1e-4)


def test_penalty_acts_before_temperature_and_truncation() -> None:
    # 2.0 / 2 = 1.0 and -1.0 * 2 = -2.0, each once though token 0 was seen three times
    logits = torch.tensor([[2.0, 1.5, -1.0, 0.0]])
    options = SamplingOptions(temperature=1.0, repetition_penalty=2.0)
    expected = torch.tensor([[1.0, 1.5, -2.0, 0.0]]).softmax(-1)
    torch.testing.assert_close(distribution(logits, options, [[0, 2, 0, 0]]), expected)
    assert logits.tolist() == [[2.0, 1.5, -1.0, 0.0]], "the caller's logits stay as they were"

    # The penalty takes token 0 out of first place before top-k looks.
    assert distribution(logits, SamplingOptions(temperature=1.0, repetition_penalty=2.0, top_k=1), [[0]])[0].tolist() == [0, 1, 0, 0]
    assert Sampler(SamplingOptions(repetition_penalty=2.0)).choose(logits, [[0]]).tolist() == [1]
    assert Sampler(SamplingOptions()).choose(logits, [[0]]).tolist() == [0]


def test_each_row_has_its_own_penalty() -> None:
    logits = torch.tensor([[2.0, 1.5], [2.0, 1.5]])
    assert Sampler(SamplingOptions(repetition_penalty=2.0)).choose(logits, [[], [0]]).tolist() == [0, 1]


def test_temperature_to_zero_approaches_greedy() -> None:
    logits = torch.randn(8, 500, generator=torch.Generator().manual_seed(1))
    greedy = distribution(logits, SamplingOptions(), [[]] * 8)
    assert greedy.argmax(-1).equal(logits.argmax(-1)) and greedy.sum(-1).tolist() == [1.0] * 8
    for temperature in (1e-6, 1e-30, 5e-324):
        torch.testing.assert_close(distribution(logits, SamplingOptions(temperature=temperature), [[]] * 8), greedy)


def test_extreme_temperatures_stay_finite() -> None:
    logits = torch.tensor([[3e38, -3e38, -math.inf, 1e5]])
    assert distribution(logits, SamplingOptions(temperature=1e-300), [[]])[0].tolist() == [1, 0, 0, 0]
    assert probs_of(FOUR, temperature=1e308) == pytest.approx([0.25] * 4, abs=1e-4)
    assert distribution(torch.tensor([[1.0, -math.inf]]), SamplingOptions(temperature=1e308), [[]])[0].tolist() == [1, 0]


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.25}])
def test_ties_go_to_the_lower_id(options: dict[str, Any]) -> None:
    kept = torch.tensor(probs_of([0.1] * 10, **options)) > 0
    assert kept.tolist() == [True] * 3 + [False] * 7
    assert Sampler(SamplingOptions()).choose(torch.zeros(2, 10), [[], []]).tolist() == [0, 0]


def test_half_precision_logits_are_lifted_to_float32() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16)
    assert distribution(logits, SamplingOptions(temperature=1.0), [[]]).dtype == torch.float32


def test_the_same_seed_gives_the_same_tokens_whatever_else_draws() -> None:
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(2))

    def draws(seed: int | None) -> list[list[int]]:
        sampler = Sampler(SamplingOptions(temperature=1.0, seed=seed))
        torch.rand(7)  # the global generator has no part in it
        return [sampler.choose(logits, [[]] * 3).tolist() for _ in range(20)]

    assert draws(7) == draws(7) != draws(8)
    unseeded = Sampler(SamplingOptions(temperature=1.0))
    assert draws(unseeded.seed) == [unseeded.choose(logits, [[]] * 3).tolist() for _ in range(20)]
    assert Sampler(SamplingOptions()).seed != Sampler(SamplingOptions()).seed  # equal by chance once in 2**32


def test_draws_have_the_frequencies_of_the_distribution() -> None:
    # Hoeffding: one frequency of n = 20,000 draws is off by .02 with probability at most 2 exp(-2 n .02^2) = 2.3e-7,
    # one of the four with less than 1e-6. The seed is fixed, so the test cannot flicker; the bound is for whoever changes it.
    draws = 20_000
    sampler = Sampler(SamplingOptions(temperature=1.0, seed=123))
    drawn = sampler.choose(torch.tensor(FOUR).log().expand(draws, 4), [[]] * draws)
    frequencies = (drawn.bincount(minlength=4) / draws).tolist()
    assert frequencies == pytest.approx(FOUR, abs=0.02)
    assert len(set(frequencies)) == 4


def test_a_token_that_was_cut_is_never_drawn() -> None:
    sampler = Sampler(SamplingOptions(temperature=1.0, top_k=2, seed=5))
    assert set(sampler.choose(torch.tensor(FOUR).log().expand(5000, 4), [[]] * 5000).tolist()) == {0, 1}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(CannotRunHere, match="not finite"):
        Sampler(SamplingOptions(temperature=1.0)).choose(torch.tensor([[1.0, bad]]), [[]])


@pytest.mark.parametrize(
    ("option", "name", "values"),
    [
        ("temperature", "--temperature", [-0.1, math.nan, math.inf]),
        ("top_k", "--top-k", [-1]),
        ("top_p", "--top-p", [0.0, -1.0, 1.01, math.nan, math.inf]),
        ("min_p", "--min-p", [-0.01, 1.01, math.nan]),
        ("repetition_penalty", "--repetition-penalty", [0.0, -1.0, math.nan, math.inf]),
        ("seed", "--seed", [-1, MAX_SEED]),
    ],
)
def test_options_out_of_range_are_named(option: str, name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(BadInput, match=f"^{name} "):
            SamplingOptions(**{option: value})


@given(
    seed=st.integers(0, 2**32),
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 60),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    penalty=st.floats(0.5, 2),
)
def test_a_distribution_sums_to_one_and_keeps_the_first(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, penalty: float
) -> None:
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(seed)) * 4
    options = SamplingOptions(temperature, top_k, top_p, min_p, penalty)
    probs = distribution(logits, options, [[1, 2, 3], []])
    assert probs.sum(-1).tolist() == pytest.approx([1, 1], abs=1e-4)
    assert probs[1].argmax() == logits[1].argmax() and bool((probs >= 0).all())
    assert not top_k or bool(((probs > 0).sum(-1) <= top_k).all())


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_transformers(seed: int) -> None:
    theirs = pytest.importorskip("transformers.generation.logits_process", reason="transformers is not installed: nothing to compare with")
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 300, generator=generator) * 3
    previous = torch.randint(300, (4, 25), generator=generator)
    # away from values at which one rounding more moves a token over the edge
    top_p, min_p, temperature, penalty = 0.613, 0.0217, 0.83, 1.31
    cases: list[tuple[dict[str, Any], list[Any]]] = [
        ({"top_k": 40}, [theirs.TopKLogitsWarper(40)]),
        ({"top_p": top_p}, [theirs.TopPLogitsWarper(top_p)]),
        ({"min_p": min_p}, [theirs.MinPLogitsWarper(min_p)]),
        ({"temperature": temperature}, [theirs.TemperatureLogitsWarper(temperature)]),
        ({"repetition_penalty": penalty}, [theirs.RepetitionPenaltyLogitsProcessor(penalty)]),
    ]
    everything = {name: value for options, _ in cases for name, value in options.items()}
    in_order = [cases[4][1], cases[3][1], cases[0][1], cases[1][1], cases[2][1]]
    for options, processors in [*cases, (everything, [one for many in in_order for one in many])]:
        expected = logits
        for processor in processors:
            expected = processor(previous, expected)
        ours = distribution(logits, SamplingOptions(**{"temperature": 1.0, **options}), previous.tolist())
        torch.testing.assert_close(ours, expected.softmax(-1), atol=1e-6, rtol=1e-4)
