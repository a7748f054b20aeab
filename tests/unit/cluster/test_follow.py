"""Following a job: logs through the dashboard's tail, outages, a job that is gone, and stops nobody confirms."""

import asyncio
import threading
import time

import pytest
from aiohttp import web

from cluster import follow, jobs
from cluster.log_tail import LogTail
from support.scripted_dashboard import ScriptedDashboard


class Tail:
    """A dashboard with a job's log and its tail, both of what a test puts into `sent`."""

    def __init__(self):
        self.sent, self.opened, self.whole = [], 0, 0
        self.application = web.Application()
        self.application.router.add_get("/api/jobs/a/logs/tail", self.tail)
        self.application.router.add_get("/api/jobs/a/logs", self.log)

    async def log(self, request):
        self.whole += 1
        return web.json_response({"logs": "".join(self.sent)})

    async def tail(self, request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.ping()
        self.opened += 1
        connection, place = self.opened, 0
        while connection == self.opened:
            if place < len(self.sent):
                await socket.send_str(self.sent[place])
                place += 1
            await asyncio.sleep(0.01)
        return socket

    def drop(self):
        """End the connection that is open."""
        self.opened += 1


@pytest.fixture
def server():
    server, loop = Tail(), asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(10)

    runner = web.AppRunner(server.application, shutdown_timeout=0.1)
    run(runner.setup())
    run(web.TCPSite(runner, "127.0.0.1", 0).start())
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    server.drop()
    run(runner.cleanup())
    loop.call_soon_threadsafe(loop.stop)


@pytest.fixture
def shown():
    return []


@pytest.fixture
def read_until(server, shown):
    reader = follow.LogReader(jobs.Job(jobs.Dashboard(server.url), None, "a"), shown.append)

    def read_until(condition):
        for _ in range(1000):
            reader.read()
            if condition():
                return reader
            time.sleep(0.01)
        raise AssertionError(shown)

    return read_until


def test_a_log_comes_by_the_tail_in_whole_lines_each_once(server, shown, read_until):
    server.sent = ["one\n", "é" * 40_000 + "\n", "thr"]
    read_until(lambda: "".join(shown) == "one\n" + "é" * 40_000 + "\n")
    server.sent += ["ee\n" + "x" * 70_000 + "\n"]
    expected = "one\n" + "é" * 40_000 + "\nthree\n" + "x" * 70_000 + "\n"
    read_until(lambda: "".join(shown) == expected)
    assert (server.opened, server.whole) == (1, 1)
    server.drop()
    server.sent += ["four\n"]
    reader = read_until(lambda: "".join(shown) == expected + "four\n")
    server.sent += ["no end of line"]
    reader.finish()
    assert "".join(shown) == expected + "four\nno end of line"


def test_a_tail_that_says_nothing_is_not_trusted_for_long(server, monkeypatch, shown, read_until):
    monkeypatch.setattr(follow, "QUIET_S", 0.05)
    server.sent = ["one\n"]
    read_until(lambda: shown == ["one\n"])
    read_until(lambda: server.whole > 1)


def test_where_there_is_no_tail_none_is_given(server, monkeypatch):
    assert LogTail.open("http://127.0.0.1:9", "/x") is None
    assert LogTail.open("https://127.0.0.1:9", "/x") is None
    assert LogTail.open(server.url, "/api/jobs/a/logs") is None
    monkeypatch.setattr("cluster.log_tail.aiohttp", None)
    assert LogTail.open(server.url, "/api/jobs/a/logs/tail") is None


@pytest.fixture
def dashboard(monkeypatch):
    monkeypatch.setattr(jobs, "POLL_S", 0.02)
    with ScriptedDashboard() as server:
        yield server


@pytest.fixture
def job(dashboard, tmp_path):
    job = jobs.open_job(tmp_path, jobs.Dashboard(dashboard.url), "train")
    dashboard.jobs[job.id] = {"submission_id": job.id, "status": "RUNNING"}
    return job


def followed(job, then=lambda: None, **options):
    """Follow the job to its last status: all that were told. `then` happens after the first."""
    statuses = []

    def tell(status):
        statuses.append(status)
        if len(statuses) == 1:
            then()

    info = follow.follow(job, 60, 1, lambda text: None, tell, **options)
    assert info["status"] == statuses[-1]
    return statuses


def test_an_outage_of_the_dashboard_is_waited_for(dashboard, job):
    dashboard.down = True

    def back():
        dashboard.jobs[job.id]["status"] = "SUCCEEDED"
        dashboard.down = False

    assert followed(job, back) == ["unknown", "SUCCEEDED"]


def test_a_dashboard_that_stays_silent_is_given_up_and_the_job_stays_on_file(dashboard, job, tmp_path):
    dashboard.down = True
    with pytest.raises(jobs.Failure, match=f"for 0.1 s; job {job.id} may still run: make stop ends it"):
        followed(job, silence_s=0.1)
    job.close()
    assert [again.id for again in jobs.open_jobs(tmp_path)] == [job.id]


def test_a_job_is_gone_only_if_ray_goes_on_not_to_know_it(dashboard, job, monkeypatch):
    back = {job.id: dashboard.jobs.pop(job.id) | {"status": "FAILED"}}
    assert followed(job, lambda: dashboard.jobs.update(back)) == ["gone", "FAILED"]
    monkeypatch.setattr(follow, "GONE_S", 0.1)
    del dashboard.jobs[job.id]
    with pytest.raises(jobs.Failure, match=f"Ray no longer knows job {job.id}; was its cluster restarted?"):
        followed(job)


def test_a_stop_rides_out_a_short_outage_and_names_the_job_after_a_long_one(dashboard, job, monkeypatch, capsys):
    dashboard.down = True
    threading.Timer(0.3, setattr, [dashboard, "down", False]).start()
    job.stop_and_tell()
    assert capsys.readouterr().out == f"interrupted; job {job.id} is STOPPED\n"
    monkeypatch.setattr(jobs, "STOP_SILENCE_S", 0.1)
    dashboard.down = True
    with pytest.raises(jobs.Failure, match=f"interrupted, and job {job.id} may still run: .*; make stop tries again"):
        job.stop_and_tell()
