"""What a training run's dump says while it grows, and what has shown no sign of life for too long.

Guarantees: it only reads; samples that lay in the folder before the run are never counted as
the run's; a line that is still being written is read once it is whole. Samples of one prompt are
told by `group_id` where the trainer writes it, else by their place: S samples a prompt.
"""

import json
import time
from pathlib import Path

import terminal

BUDGETS_REACHED = "truncated"
REDRAW_S = 1.0


def sizes(folder):
    """{file name: bytes} of the dumps in a folder."""
    return {path.name: path.stat().st_size for path in Path(folder).glob("*.jsonl")}


class DumpReader:
    """Gives what a folder of dumps has gained since `before` ({file name: bytes})."""

    def __init__(self, folder, before):
        self.folder, self.offsets = Path(folder), dict(before)

    def read(self):
        """The new samples; what is no JSON object is passed over."""
        found = []
        for path in sorted(self.folder.glob("*.jsonl")):
            start = self.offsets.get(path.name, 0)
            with path.open("rb") as file:
                # A file written anew is shorter than it was.
                file.seek(start if start <= path.stat().st_size else 0)
                lines = file.read()
                whole = lines[: lines.rfind(b"\n") + 1]
                self.offsets[path.name] = file.tell() - len(lines) + len(whole)
            found += [item for line in whole.splitlines() if isinstance(item := _parsed(line), dict)]
        return found


def _parsed(line):
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


class Progress:
    """Counts over the samples of one run: `task` says how many there will be."""

    def __init__(self, task):
        self.task = task
        self.samples = self.failed = self.truncated = self.tokens = 0
        self.rewards, self.groups, self.rollouts = [], {}, {}
        self.started = time.monotonic()

    def add(self, items):
        for item in items:
            self.samples += 1
            reward = item.get("reward")
            scored = isinstance(reward, (int, float)) and not isinstance(reward, bool)
            self.failed += not scored or item.get("status") in ("failed", "aborted")
            self.truncated += item.get("status") == BUDGETS_REACHED
            self.tokens += item.get("total_token_count") or 0
            rollout = item.get("rollout_id", 0)
            self.rollouts[rollout] = self.rollouts.get(rollout, 0) + 1
            if scored:
                self.rewards.append(reward)
                self.groups.setdefault((rollout, self._group(item)), []).append(reward)

    def _group(self, item):
        if item.get("group_id") is not None:
            return item["group_id"]
        index = item.get("sample_index")
        return index // self.task.samples if isinstance(index, int) else None

    def done_rollouts(self):
        return sum(count >= self.task.batch * self.task.samples for count in self.rollouts.values())

    def mixed_share(self):
        """Share of the prompts with several rewards whose rewards differ; None without one."""
        several = [rewards for rewards in self.groups.values() if len(rewards) > 1]
        return sum(min(each) != max(each) for each in several) / len(several) if several else None

    def line(self):
        """All of it in one line."""
        mean = f"{sum(self.rewards) / len(self.rewards):.3f}" if self.rewards else "none"
        mixed = self.mixed_share()
        parts = [
            f"rollouts {self.done_rollouts()}/{self.task.rollouts}",
            f"samples {self.samples}/{self.task.total_samples}",
            f"mean reward {mean}",
            f"mixed groups {'none' if mixed is None else f'{mixed:.0%}'}",
            f"truncated {self.truncated}",
            f"failed {self.failed}",
            f"tokens {self.tokens}",
        ]
        return ", ".join(parts)

    def left(self):
        """Seconds until the end at the pace so far; None before the first sample."""
        if not self.samples:
            return None
        return (time.monotonic() - self.started) / self.samples * max(self.task.total_samples - self.samples, 0)


class Watch:
    """Follows one run: keeps its log, redraws its progress, and raises an alarm when nothing stirs."""

    def __init__(self, log, reader, task, stall_s):
        self.path, self.reader, self.stall_s = log, reader, stall_s
        self.progress = Progress(task)
        self.stirred = self.drawn = time.monotonic()
        self.alarmed = False
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log.open("w", encoding="utf-8")

    def show(self, text):
        """Take what the job printed."""
        self.log.write(text)
        self.log.flush()
        self._stir()

    def _stir(self):
        self.stirred, self.alarmed = time.monotonic(), False

    def tell(self, status):
        """Take a look at the dump; `status` is the job's."""
        now = time.monotonic()
        if now - self.drawn < REDRAW_S:
            return
        self.drawn = now
        self.look()
        left = self.progress.left()
        terminal.redraw(f"  {status} {self.progress.line()}" + (f", {left:.0f} s left" if left is not None else ""))
        if now - self.stirred > self.stall_s and not self.alarmed:
            self.alarmed = True
            terminal.say(
                f"alarm: no output and no sample for {now - self.stirred:.0f} s (TRAIN_STALL_S); the job is {status}, "
                f"{self.progress.line()}; log {self.path}"
            )

    def look(self):
        if items := self.reader.read():
            self.progress.add(items)
            self._stir()

    def close(self):
        self.look()
        self.log.close()
