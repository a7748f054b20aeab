"""What is submitted for a training run: the runtime environment, the plan that is read, and no second plan."""

import pytest

from common.failure import Failure
from training import arguments, plan, submit


def test_the_runtime_environment_is_the_entrypoints_with_python_and_checkout():
    text = '{"env_vars": {"PYTHONPATH": "/megatron:/relax", "A": "1"}, "config": {"x": 1}}'
    assert submit.runtime_env(text, "/usr/bin/python3", "/relax") == {
        "env_vars": {"PYTHONPATH": "/relax:/megatron", "A": "1"},
        "config": {"x": 1},
        "py_executable": "/usr/bin/python3",
    }


@pytest.mark.parametrize("text", ["", "[]", '{"env_vars": []}', '{"env_vars": {"A": 1}}', '{"working_dir": "/x"}'])
def test_a_runtime_environment_that_does_not_fit_is_refused(text):
    with pytest.raises(Failure, match="RUNTIME_ENV_JSON"):
        submit.runtime_env(text, "/usr/bin/python3", "/relax")


def test_a_plan_is_read_as_it_was_written(tmp_path):
    task = arguments.Task(tmp_path / "rows.jsonl", 2, 1, 4, 2, 4)
    written = plan.RunPlan(task, [("colocate", []), ("agent-env", ["A=1", "B=é"])], ['{"input": "\\u2028"}\n', "{}\n"])
    path = written.write(tmp_path)
    assert plan.read(path) == written
    (tmp_path / "prompts.jsonl").unlink()
    for text in (path.read_text(), "{", '{"task": {}}', "[]"):
        path.write_text(text)
        with pytest.raises(Failure, match="plan.json: no plan of a training run"):
            plan.read(path)
