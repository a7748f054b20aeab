"""Our own Rays: their ports, their temporary folder. What needs a running Ray is the chain's."""

import tempfile
from pathlib import Path

from servers.private_ray import PrivateRay


def test_both_rays_and_the_graph_share_no_port_of_one_block(run):
    gym, rehearsal = PrivateRay(run, "gym"), PrivateRay(run, "rehearsal")
    assert gym.address == "127.0.0.1:6382" and rehearsal.address == "127.0.0.1:29100"
    assert rehearsal.dashboard_url == "http://127.0.0.1:29101"
    assert len({*gym.ports(), *rehearsal.ports()}) == len(gym.ports()) + len(rehearsal.ports())
    assert set(gym.ports()) - {6382} <= set(range(29040, 29100))
    assert set(rehearsal.ports()) <= set(range(29100, 29200))


def test_a_ray_keeps_its_temporary_folder_until_it_is_cleared(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ray = PrivateRay(run, "gym")
    command = ray.command()
    assert command == ray.command()
    [folder] = [Path(option.removeprefix("--temp-dir=")) for option in command if option.startswith("--temp-dir=")]
    assert folder.is_dir() and folder.parent == tmp_path
    ray.clear()
    ray.clear()
    assert not folder.exists()


def test_stopping_what_does_not_run_is_no_fault(run):
    assert PrivateRay(run, "gym").stop() == 0
