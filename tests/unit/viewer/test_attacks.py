"""The viewer under attack by generated requests and fields: no data for strangers, no fault, bounded memory."""

import re
from pathlib import Path

import pytest

import webdataset as wds
from support.view_attacks import make_attacks, make_hostile_fields
from support.view_command import RunningViewer

MOST_RESIDENT = 700 << 20


@pytest.mark.parametrize("seed", range(3))
def test_mixtures_of_headers_get_no_data(tmp_path: Path, seed: int) -> None:
    """Data is sent to those requests alone that name this server, come from its page, and show the token or cookie."""
    with wds.TarWriter(str(tmp_path / "secret-of-name.tar")) as sink:
        sink.write({"__key__": "secret-of-key", "txt": b"secret-of-text"})
    answered = 0
    with RunningViewer(tmp_path / "secret-of-name.tar") as viewer:
        body = b'{"token": "%s"}' % viewer.token.encode()
        headers = {"Content-Type": "application/json", "X-WDS-View": "1"}
        given = viewer.ask("/api/session", method="POST", headers=headers, body=body, known=False)
        cookie = given.headers["set-cookie"].partition(";")[0]
        for attack in make_attacks(seed, viewer.port, viewer.token, cookie, 250):
            answer = viewer.ask_raw(attack.encode())
            status = int(answer.split(b" ")[1])
            assert status < 500 or status == 501, (attack, answer, viewer.log())
            if not attack.is_fair:
                assert b"secret-of" not in answer, attack
                assert b"import" not in answer, attack
            answered += attack.is_fair and b"secret-of" in answer
            assert b"access-control-allow" not in answer.lower(), attack
        assert answered > 5
        assert viewer.ask("/api/dataset").status == 200


def _measure_resident(viewer: RunningViewer) -> dict[str, int]:
    """Return the most bytes that the viewer and the processes that it started have held at once."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
        except OSError:
            continue
        parent = re.search(r"PPid:\s+(\d+)", status)
        resident = re.search(r"VmHWM:\s+(\d+)", status)
        own = int(folder.name) == viewer.process.pid
        if resident and (own or (parent and int(parent[1]) == viewer.process.pid)):
            found["viewer" if own else f"decoder {folder.name}"] = int(resident[1]) << 10
    return found


@pytest.mark.slow
def test_hostile_fields_cost_little(tmp_path: Path) -> None:
    """Bombs, deep nesting, code and damage, asked for by every route: no fault, no code, and memory stays bounded."""
    marker = tmp_path / "marker"
    fields = make_hostile_fields(1, str(marker))
    with wds.TarWriter(str(tmp_path / "h.tar"), encoder=False) as sink:
        for number, (name, content) in enumerate(fields.items()):
            sink.write({"__key__": f"{number:04d}", name: content})
    with RunningViewer(tmp_path / "h.tar") as viewer:
        for start in range(0, len(fields), 50):
            assert viewer.ask("/api/samples", shard=0, start=start, count=50).status == 200
        for number, name in enumerate(fields):
            for route in ("sample", "thumbnail", "array", "waveform"):
                answer = viewer.ask(f"/api/{route}", shard=0, ordinal=number, field=name.lower())
                assert answer.status < 500, (route, name, answer, viewer.log())
                kind = answer.headers["content-type"]
                assert kind.partition(";")[0] in ("application/json", "image/webp", "image/png", "image/jpeg"), (
                    route,
                    name,
                )
        assert viewer.ask("/api/search", q="nowhere", count=50).status == 200
        assert viewer.ask("/api/statistics", samples=1000).status == 200
        held = _measure_resident(viewer)
        assert "viewer" in held
        assert {name: size for name, size in held.items() if size > MOST_RESIDENT} == {}
        assert viewer.log() == ""
    assert not marker.exists()
