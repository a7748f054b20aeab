"""What the log of a trainer's actor shows: lines of a step, lines against one, and the rest."""

import pytest

from training import actor_log

# As a trainer of this kind prints it through Ray.
STEP = "(MegatronTrainRayActor pid=7, ip=10.0.0.5) step 3: {'train/loss': 0.0123, 'train/grad_norm': 1.5}"


SHOW_A_STEP = [
    STEP,
    "\x1b[36m(Actor pid=1)\x1b[0m step=12 loss=-0.5",
    "[2026] train step 0 | grad_norm: 2.1e-05",
    "Step: 4, pg_loss: tensor(0.25)",
    " iteration       10/     100 | consumed samples:     320 | elapsed time per iteration (ms): 5123.4 | "
    "learning rate: 1.000000E-06 | lm loss: 1.234567E+00 | loss scale: 1.0 | grad norm: 0.512 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |",
    '{"train/step": 7, "train/loss": 0.01, "train/grad_norm": 1.5}',
    "step:3 - actor/pg_loss:0.012 - actor/grad_norm:0.2 - perf/mfu:0.4",
    "global_step=8 loss=np.float64(0.25)",
    "{'loss': 0.5, 'grad_norm': tensor(1.25, device='cuda:0'), 'learning_rate': 1e-06}",
]
SHOW_NOTHING = [
    "job SUCCEEDED",
    "step 3 of the installation is done",
    "rollout 3: {'rollout/reward': 1.0}",
    "loss 0.5",
    "stepping: loss=0.5",
    "arguments: log_probs_chunk_size=1024 loss_mask=True",
    "iteration 3 took 5 s, loss scale: 1.0, kl_loss_coef=0.0",
    "{'rollout/loss': 0.5, 'eval/loss': 0.25}",
]
SPEAK_AGAINST_ONE = [
    "Traceback (most recent call last):",
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate",
    "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM)",
    "step 4: {'train/loss': nan, 'train/grad_norm': 1.0}",
    "step 4: {'train/loss': 0.1, 'train/grad_norm': inf}",
    " iteration       11/     100 | lm loss: NaN | grad norm: 0.1 |",
]


@pytest.mark.parametrize(
    ("line", "steps", "faults"),
    [
        *((line, [2], []) for line in SHOW_A_STEP),
        *((line, [], []) for line in SHOW_NOTHING),
        *((line, [], [2]) for line in SPEAK_AGAINST_ONE),
    ],
)
def test_what_a_line_shows(tmp_path, line, steps, faults):
    path = tmp_path / "actor.log"
    path.write_text(f"starting\n{line}\n")
    findings = actor_log.read(path)
    assert [number for number, _ in findings.steps] == steps and [number for number, _ in findings.faults] == faults
