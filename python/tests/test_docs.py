"""Every public name has a docstring, and the examples in docstrings are right."""

from __future__ import annotations

import doctest
import inspect

import numpy as np
import pytest

import sparsimd as ss

PUBLIC = [name for name in ss.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstrings(name):
    found = getattr(ss, name)
    assert inspect.getdoc(found), f"{name} has no docstring"
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for case in finder.find(found, name, module=False, globs={"np": np, "ss": ss}):
        runner.run(case)
    assert runner.summarize(verbose=False).failed == 0
    if not inspect.isclass(found):
        return
    for member, value in vars(found).items():
        if not member.startswith("_") and (callable(value) or inspect.isdatadescriptor(value)):
            assert inspect.getdoc(value), f"{name}.{member} has no docstring"


def test_parameters_are_described():
    for name in PUBLIC:
        found = getattr(ss, name)
        if inspect.isclass(found):
            continue
        text = inspect.getdoc(found) or ""
        for parameter in inspect.signature(found).parameters:
            assert f"{parameter}" in text.split("Returns")[0], f"{name} does not describe {parameter}"
