"""The list of defences is one of this code: each can still be taken out, and each check that has to notice exists."""

import sys
from pathlib import Path

import pytest

from proofs.fault_matrix import FAULTS

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import mutants  # noqa: E402 - it lies beside the folders of tests


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_defence_is_there_to_be_taken_out_and_its_check_too(mutant):
    for name, old, new in mutant.edits:
        assert (mutants.ROOT / name).read_text().count(old) == 1 and old != new
    if mutant.tests:
        assert (TESTS / mutant.tests.split()[0]).exists()
    assert set(filter(None, mutant.faults.split(","))) <= set(FAULTS)
    assert bool(mutant.tests) != bool(mutant.faults)
