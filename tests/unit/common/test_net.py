"""Questions to servers: no proxy hears them, and whatever comes back is an answer."""

import socket
import threading

from common import net


def test_a_question_goes_past_all_proxies_and_says_why_nobody_answered(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    answer = net.ask(url)
    assert answer.status == 0 and "refused" in answer.text


def test_what_speaks_no_http_gives_no_answer():
    with socket.create_server(("127.0.0.1", 0)) as odd:
        threading.Thread(target=lambda: odd.accept()[0].sendall(b"garbage\r\n\r\n"), daemon=True).start()
        assert net.ask(f"http://127.0.0.1:{odd.getsockname()[1]}/").status == 0
