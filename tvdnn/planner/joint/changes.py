"""Single changes of a choice: one decision that is taken otherwise."""

from collections.abc import Iterator
from dataclasses import replace

from .lp import JointLP, Solution
from .orders import JointChoice


def single_changes(
    program: JointLP, solution: Solution, choice: JointChoice
) -> Iterator[JointChoice]:
    """Choices that differ in one decision: columns left out, the dearest first, and others taken.

    Of these the cheapest come first.
    """
    prices = abs(solution.prices[program.first_absent :])
    for column in sorted(choice.absent, key=lambda each: (-prices[each], each)):
        yield replace(choice, absent=choice.absent - {column})
    for number in range(len(program.columns.blocks)):
        yield replace(choice, blocks=choice.blocks ^ {number})
    coded = dict(choice.coded)
    coded_prices = abs(solution.coded_prices)
    numbers = range(len(coded_prices) if program.with_codes else 0)
    for number in sorted(numbers, key=lambda each: (coded_prices[each], each)):
        kept = choice.coded - {(number, coded.get(number, -1))}
        yield replace(choice, coded=kept if number in coded else kept | {(number, 0)})
    others = (each for each in range(len(prices)) if each not in choice.absent)
    for column in sorted(others, key=lambda each: (prices[each], each)):
        yield replace(choice, absent=choice.absent - program.conflicts[column] | {column})
