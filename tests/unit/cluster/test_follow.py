"""Following a job: logs through the dashboard's tail, outages, a job that is gone, and stops nobody confirms."""

import asyncio
import threading

import pytest
from aiohttp import web

from cluster import follow, jobs
from cluster.log_tail import LogTail
from support.scripted_dashboard import ScriptedDashboard


class TailServer:
    """A dashboard's tail, served by a WebSocket server of another make: sends what a test puts, from its start."""

    def __init__(self):
        self.sent, self.opened, self.whole, self.running = [], 0, 0, True
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.url = asyncio.run_coroutine_threadsafe(self.begin(), self.loop).result(10)

    async def begin(self):
        app = web.Application()
        app.router.add_get("/api/jobs/a/logs/tail", self.tail)
        app.router.add_get("/api/jobs/a/logs", self.log)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def log(self, request):
        self.whole += 1
        return web.json_response({"logs": "".join(self.sent)})

    async def tail(self, request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.ping()
        self.opened += 1
        connection, place = self.opened, 0
        while self.running and connection == self.opened:
            if place < len(self.sent):
                await socket.send_str(self.sent[place])
                place += 1
            await asyncio.sleep(0.01)
        return socket

    def drop(self):
        """End the connection that is open."""
        self.opened += 1

    def stop(self):
        self.running = False
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)


@pytest.fixture
def server():
    server = TailServer()
    yield server
    server.stop()


def reader_of(server, shown):
    return follow.LogReader(jobs.Job(jobs.Dashboard(server.url), None, "a"), shown.append)


def read_until(reader, shown, text, tries=500):
    for _ in range(tries):
        reader.read()
        if "".join(shown) == text:
            return
        threading.Event().wait(0.01)
    raise AssertionError(shown)


def test_a_log_comes_by_the_tail_in_whole_lines_each_once(server):
    shown = []
    reader = reader_of(server, shown)
    server.sent = ["one\n", "é" * 40_000 + "\n", "thr"]
    read_until(reader, shown, "one\n" + "é" * 40_000 + "\n")
    server.sent += ["ee\n" + "x" * 70_000 + "\n"]
    expected = "one\n" + "é" * 40_000 + "\nthree\n" + "x" * 70_000 + "\n"
    read_until(reader, shown, expected)
    assert (server.opened, server.whole) == (1, 1)
    server.drop()
    server.sent += ["four\n"]
    read_until(reader, shown, expected + "four\n")
    server.sent += ["no end of line"]
    reader.finish()
    assert "".join(shown) == expected + "four\nno end of line"


def test_a_tail_that_says_nothing_is_not_trusted_for_long(server, monkeypatch):
    monkeypatch.setattr(follow, "QUIET_S", 0.05)
    shown = []
    reader = reader_of(server, shown)
    server.sent = ["one\n"]
    read_until(reader, shown, "one\n")
    server.tail = None
    for _ in range(1000):
        reader.read()
        if server.whole > 1:
            return
        threading.Event().wait(0.02)
    raise AssertionError("the whole log was never asked for again")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "https://127.0.0.1:9"])
def test_where_there_is_no_tail_none_is_given(url, server):
    assert LogTail.open(url, "/x") is None
    assert LogTail.open(server.url, "/api/jobs/a/logs") is None


# --- outages -------------------------------------------------------------------------------


@pytest.fixture
def dashboard(monkeypatch):
    monkeypatch.setattr(jobs, "POLL_S", 0.02)
    with ScriptedDashboard() as server:
        yield server


def opened(dashboard, tmp_path, status="RUNNING"):
    job = jobs.open_job(tmp_path, jobs.Dashboard(dashboard.url), "train")
    job.submitted = True
    dashboard.jobs[job.id] = {"submission_id": job.id, "status": status}
    return job


def followed(job, told, then=lambda: None, **options):
    """Follow the job; `then` happens once its first status was told."""

    def tell(status):
        told.append(status)
        if len(told) == 1:
            then()

    return follow.follow(job, 60, 1, lambda text: None, tell, **options)


def test_an_outage_of_the_dashboard_is_waited_for(dashboard, tmp_path):
    job, told = opened(dashboard, tmp_path), []
    dashboard.down = True

    def back():
        dashboard.jobs[job.id]["status"] = "SUCCEEDED"
        dashboard.down = False

    assert followed(job, told, back)["status"] == "SUCCEEDED"
    assert told == ["unknown", "SUCCEEDED"]


def test_a_dashboard_that_stays_silent_is_given_up_and_the_job_stays_on_file(dashboard, tmp_path):
    job = opened(dashboard, tmp_path)
    dashboard.down = True
    with pytest.raises(jobs.Failure, match=f"for 0.1 s; job {job.id} may still run: make stop ends it"):
        followed(job, [], silence_s=0.1)
    job.close()
    assert [each.id for each in jobs.open_jobs(tmp_path)] == [job.id]


def test_a_job_is_gone_only_if_ray_goes_on_not_to_know_it(dashboard, tmp_path, monkeypatch):
    job, told = opened(dashboard, tmp_path), []
    back = {job.id: dashboard.jobs.pop(job.id) | {"status": "FAILED"}}
    assert followed(job, told, lambda: dashboard.jobs.update(back))["status"] == "FAILED"
    assert told == ["gone", "FAILED"]
    monkeypatch.setattr(follow, "GONE_S", 0.1)
    del dashboard.jobs[job.id]
    with pytest.raises(jobs.Failure, match=f"Ray no longer knows job {job.id}; was its cluster restarted?"):
        followed(job, told)


def test_a_stop_rides_out_a_short_outage_and_names_the_job_after_a_long_one(dashboard, tmp_path, monkeypatch, capsys):
    job = opened(dashboard, tmp_path)
    dashboard.down = True
    threading.Timer(0.3, setattr, [dashboard, "down", False]).start()
    job.stop_and_tell()
    assert capsys.readouterr().out == f"interrupted; job {job.id} is STOPPED\n"
    monkeypatch.setattr(jobs, "STOP_SILENCE_S", 0.1)
    dashboard.down = True
    with pytest.raises(jobs.Failure, match=f"interrupted, and job {job.id} may still run: .*; make stop tries again"):
        job.stop_and_tell()
