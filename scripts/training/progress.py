"""The progress of a training run: figures of its growing dump, its log, and an alarm when nothing stirs.

Guarantees:
- dumps are only read, as rollouts/growth.py reads them
- samples of one prompt have the same `group_id`; where the trainer writes none, their places tell: S samples each
- a log that cannot be written, or a dashboard that falls silent, is said once and does not end the run
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from common import terminal
from rollouts.growth import DumpReader
from training.arguments import Task

REDRAW_S = 1.0
# How long the last samples may take to show here when another node writes them.
LATE_S = 15


class Progress:
    """Counts over the samples of one run; `task` says how many there will be."""

    def __init__(self, task: Task):
        self.task, self.started = task, time.monotonic()
        self.files: dict[str, list[dict[str, Any]]] = {}

    def add(self, items: list[dict[str, Any]], name: str = "", anew: bool = False) -> None:
        """Add samples of the file `name`; one that was written anew loses its earlier samples."""
        if anew:
            self.files[name] = []
        self.files.setdefault(name, []).extend(items)

    @property
    def samples(self) -> list[dict[str, Any]]:
        return [item for items in self.files.values() for item in items]

    def _group(self, item: dict[str, Any]) -> Any:
        if item.get("group_id") is not None:
            return item["group_id"]
        index = item.get("sample_index")
        return index // self.task.samples if isinstance(index, int) else None

    def mixed_share(self) -> float | None:
        """Of the prompts with several rewards, the share whose rewards differ; None without such a prompt."""
        groups: dict[Any, list[float]] = {}
        for item in filter(_scored, self.samples):
            groups.setdefault((item.get("rollout_id", 0), self._group(item)), []).append(item["reward"])
        several = [rewards for rewards in groups.values() if len(rewards) > 1]
        return sum(min(rewards) != max(rewards) for rewards in several) / len(several) if several else None

    def line(self) -> str:
        """All figures in one line."""
        samples = self.samples
        rewards = [item["reward"] for item in samples if _scored(item)]
        failed = sum(not _scored(item) or item.get("status") in ("failed", "aborted") for item in samples)
        mixed, a_rollout = self.mixed_share(), self.task.batch * self.task.samples
        counts = Counter(item.get("rollout_id", 0) for item in samples).values()
        parts = [
            f"rollouts {sum(count >= a_rollout for count in counts)}/{self.task.rollouts}",
            f"samples {len(samples)}/{self.task.total_samples}",
            f"mean reward {f'{sum(rewards) / len(rewards):.3f}' if rewards else 'none'}",
            f"mixed groups {'none' if mixed is None else f'{mixed:.0%}'}",
            f"truncated {sum(item.get('status') == 'truncated' for item in samples)}",
            f"failed {failed}",
            f"tokens {sum(item.get('total_token_count') or 0 for item in samples)}",
        ]
        return ", ".join(parts)

    def left(self) -> float | None:
        """Seconds until the end at the pace so far; None before the first sample."""
        count = len(self.samples)
        if not count:
            return None
        return (time.monotonic() - self.started) / count * max(self.task.total_samples - count, 0)


def _scored(item: dict[str, Any]) -> bool:
    reward = item.get("reward")
    return isinstance(reward, (int, float)) and not isinstance(reward, bool)


class Watch:
    """Follows one run: keeps its log, redraws its progress, and raises an alarm when nothing stirs."""

    def __init__(self, log: Path, reader: DumpReader, task: Task, stall_s: float):
        self.path, self.reader, self.stall_s = log, reader, stall_s
        self.progress = Progress(task)
        self.stirred = self.drawn = time.monotonic()
        self.alarmed, self.log_kept = False, True
        self.status: str | None = None
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log.open("w", encoding="utf-8")

    def show(self, text: str) -> None:
        """Log what the job printed."""
        try:
            self.log.write(text)
            self.log.flush()
        except OSError as error:
            if self.log_kept:
                terminal.say(f"alarm: {self.path}: {error.strerror}; what is missing there, Ray has: make accept")
            self.log_kept = False
        self._stir()

    def _stir(self) -> None:
        self.stirred, self.alarmed = time.monotonic(), False

    def tell(self, status: str) -> None:
        """Read the dump and redraw; `status` is the job's, "unknown" while Ray's dashboard does not answer."""
        now = time.monotonic()
        if status == "unknown" and self.status != status:
            terminal.say("Ray's dashboard does not answer; the job goes on without it, and it is asked again")
        elif self.status == "unknown" and self.status != status:
            terminal.say(f"Ray's dashboard answers again; the job is {status}")
        self.status = status
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

    def look(self) -> None:
        for name, anew, items in self.reader.read():
            self.progress.add(items, name, anew)
            self._stir()

    def wait_all(self) -> None:
        """Wait for the last samples to show, if some are missing."""
        end = time.monotonic() + LATE_S
        self.look()
        while len(self.progress.samples) < self.progress.task.total_samples and time.monotonic() < end:
            time.sleep(REDRAW_S)
            self.look()

    def close(self) -> None:
        self.look()
        with suppress(OSError):
            self.log.close()
