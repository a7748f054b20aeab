"""What a training run's dump says while it grows, and what has shown no sign of life for too long.

Guarantees: it only reads; samples that lay in the folder before the run are never counted as
the run's, also where a file is written anew under an old name; a line that is still being written is
read once it is whole; a file that cannot be read now (a shared file system) is read later. Samples of
one prompt are told by `group_id` where the trainer writes it, else by their place: S samples a prompt.
"""

import time
from collections import Counter
from contextlib import suppress

from common import terminal

BUDGETS_REACHED = "truncated"
REDRAW_S = 1.0
# How long the last samples of another node may take to show here.
LATE_S = 15


class Progress:
    """Counts over the samples of one run: `task` says how many there will be."""

    def __init__(self, task):
        self.task, self.files = task, {}
        self.started = time.monotonic()

    def add(self, items, name="", anew=False):
        """Take samples of the file `name`; those it had before go where it was written anew."""
        if anew:
            self.files[name] = []
        self.files.setdefault(name, []).extend(items)

    @property
    def samples(self):
        return [item for items in self.files.values() for item in items]

    def _group(self, item):
        if item.get("group_id") is not None:
            return item["group_id"]
        index = item.get("sample_index")
        return index // self.task.samples if isinstance(index, int) else None

    def done_rollouts(self):
        counts = Counter(item.get("rollout_id", 0) for item in self.samples)
        return sum(count >= self.task.batch * self.task.samples for count in counts.values())

    def mixed_share(self):
        """Share of the prompts with several rewards whose rewards differ; None without one."""
        groups = {}
        for item in filter(_scored, self.samples):
            groups.setdefault((item.get("rollout_id", 0), self._group(item)), []).append(item["reward"])
        several = [rewards for rewards in groups.values() if len(rewards) > 1]
        return sum(min(each) != max(each) for each in several) / len(several) if several else None

    def line(self):
        """All of it in one line."""
        samples = self.samples
        rewards = [item["reward"] for item in samples if _scored(item)]
        failed = sum(not _scored(item) or item.get("status") in ("failed", "aborted") for item in samples)
        mixed = self.mixed_share()
        parts = [
            f"rollouts {self.done_rollouts()}/{self.task.rollouts}",
            f"samples {len(samples)}/{self.task.total_samples}",
            f"mean reward {f'{sum(rewards) / len(rewards):.3f}' if rewards else 'none'}",
            f"mixed groups {'none' if mixed is None else f'{mixed:.0%}'}",
            f"truncated {sum(item.get('status') == BUDGETS_REACHED for item in samples)}",
            f"failed {failed}",
            f"tokens {sum(item.get('total_token_count') or 0 for item in samples)}",
        ]
        return ", ".join(parts)

    def left(self):
        """Seconds until the end at the pace so far; None before the first sample."""
        count = len(self.samples)
        if not count:
            return None
        return (time.monotonic() - self.started) / count * max(self.task.total_samples - count, 0)


def _scored(item):
    reward = item.get("reward")
    return isinstance(reward, (int, float)) and not isinstance(reward, bool)


class Watch:
    """Follows one run: keeps its log, redraws its progress, and raises an alarm when nothing stirs."""

    def __init__(self, log, reader, task, stall_s):
        self.path, self.reader, self.stall_s = log, reader, stall_s
        self.progress = Progress(task)
        self.stirred = self.drawn = time.monotonic()
        self.alarmed, self.status, self.kept = False, None, True
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log.open("w", encoding="utf-8")

    def show(self, text):
        """Take what the job printed."""
        try:
            self.log.write(text)
            self.log.flush()
        except OSError as error:
            if self.kept:
                terminal.say(f"alarm: {self.path}: {error.strerror}; what is missing there, Ray has: make accept")
            self.kept = False
        self._stir()

    def _stir(self):
        self.stirred, self.alarmed = time.monotonic(), False

    def tell(self, status):
        """Take a look at the dump; `status` is the job's, "unknown" while Ray's dashboard does not answer."""
        now = time.monotonic()
        self._tell_of_dashboard(status)
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

    def _tell_of_dashboard(self, status):
        if status == "unknown" and self.status != status:
            terminal.say("Ray's dashboard does not answer; the job goes on without it, and it is asked again")
        elif self.status == "unknown" and self.status != status:
            terminal.say(f"Ray's dashboard answers again; the job is {status}")
        self.status = status

    def look(self):
        for name, anew, items in self.reader.read():
            self.progress.add(items, name, anew)
            self._stir()

    def wait_all(self):
        """Give the last samples time to show, where some are missing."""
        end = time.monotonic() + LATE_S
        self.look()
        while len(self.progress.samples) < self.progress.task.total_samples and time.monotonic() < end:
            time.sleep(REDRAW_S)
            self.look()

    def close(self):
        self.look()
        with suppress(OSError):
            self.log.close()
