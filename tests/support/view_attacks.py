"""Makes requests and fields that attack the viewer, by a seed: mixtures of headers, and real fields with damage.

Each request says whether it is to be answered; the rule is written here anew, and not taken from the viewer.
"""

import random
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from support import hostile_fields, media_fields
from support.hostile_bombs import growing


class Attack(NamedTuple):
    """A request.

    Args:
        method: of HTTP.
        path: with its query.
        headers: in order; a name may stand twice.
        body: its bytes.
        is_fair: whether a viewer may answer it with data.
    """

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    is_fair: bool

    def encode(self) -> bytes:
        """Return the bytes that are sent."""
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {text}" for name, text in self.headers)]
        head = [*lines, f"Content-Length: {len(self.body)}", "Connection: close", "", ""]
        return "\r\n".join(head).encode("latin-1") + self.body


_PATHS = (
    "/api/dataset", "/api/shards", "/api/samples", "/api/sample?ordinal=0", "/api/payload?ordinal=0&field=txt",
    "/api/bytes?offset=0", "/api/search?q=a", "/api/statistics", "/api/tags", "//api/dataset", "/API/dataset",
    "/api/../api/dataset", "/static/../api/dataset", "/api/%64ataset", "/api/dataset/", "/api;x/dataset",
    "/static/..%2f..%2fserver.py", "/static/%2e%2e/security.py", "/static//etc/passwd", "/static/..%5c..%5cserver.py",
)  # fmt: skip


def make_attacks(seed: int, port: int, token: str, cookie: str, count: int) -> Iterator[Attack]:
    """Yield requests.

    Args:
        seed: of the mixture.
        port: of the viewer.
        token: that is right.
        cookie: that is right, as ``name=value``.
        count: how many.
    """
    rng = random.Random(seed)  # noqa: S311  a mixture that can be repeated
    good_hosts = [f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"]
    bad_hosts = [
        "evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}",
        f"127.0.0.1:{port}.evil.example", f"127.0.0.2:{port}", f"evil.example@127.0.0.1:{port}", f"0.0.0.0:{port}",
        f"127.0.0.1:{port},evil.example", f"[::ffff:127.0.0.1]:{port}", f"2130706433:{port}", "",
    ]  # fmt: skip
    for _ in range(count):
        hosts = [rng.choice(good_hosts)] if rng.random() < 0.7 else [rng.choice(bad_hosts)]
        if rng.random() < 0.05:
            hosts.append(rng.choice(good_hosts + bad_hosts))
        fair = len(hosts) == 1 and hosts[0] in good_hosts
        headers = [("Host", host) for host in hosts]
        if rng.random() < 0.3:
            origin = rng.choice(
                [f"http://{hosts[0].lower()}", "http://evil.example", "null", f"https://{hosts[0]}", ""]
            )
            headers.append(("Origin", origin))
            fair = fair and origin == f"http://{hosts[0].lower()}"
        if rng.random() < 0.3:
            site = rng.choice(["same-origin", "none", "cross-site", "same-site", "Same-Origin ", "x"])
            headers.append(("Sec-Fetch-Site", site))
            fair = fair and site in ("same-origin", "none")
        wrong = ["none", "wrong token", "wrong cookie", "cut", "query"]
        proof = rng.choice(["token", "cookie", "lower"] * 4 + wrong)
        path = rng.choice(_PATHS)
        right = {
            "token": f"Bearer {token}",
            "lower": f"bearer {token}",
            "wrong token": "Bearer x",
            "cut": f"Bearer {token[:-1]}",
        }
        if proof in right:
            headers.append(("Authorization", right[proof]))
        elif proof in {"cookie", "wrong cookie"}:
            headers.append(("Cookie", cookie if proof == "cookie" else f"{cookie[:-2]}xx"))
        elif proof == "query":
            path += f"{'&' if '?' in path else '?'}token={token}"
        fair = fair and proof in ("token", "lower", "cookie")
        method = rng.choice(["GET", "GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "TRACE"])
        rng.shuffle(headers)
        yield Attack(method, path, headers, b"{}" if method == "POST" else b"", fair and method == "GET")


def make_hostile_fields(seed: int, marker: str) -> Mapping[str, bytes]:
    """Return fields that ask for much memory or time, hold code, or are damaged.

    Args:
        seed: of the damage.
        marker: a file that code in them would write.
    """
    rng = random.Random(seed)  # noqa: S311
    found = {
        "huge.png": media_fields.huge_png(), "endless.gif": media_fields.endless_gif(),
        "bomb.npz": media_fields.npz_bomb(), "lying.npz": media_fields.lying_npz(),
        "zeros.txt.gz": zlib.compress(bytes(1 << 28), wbits=31), "deep.json": b"[" * 300_000 + b"]" * 300_000,
    }  # fmt: skip
    kinds = (
        hostile_fields.text_fields,
        hostile_fields.binary_fields,
        hostile_fields.array_fields,
        hostile_fields.image_fields,
    )
    for make in kinds:
        for number, (_, name, content) in enumerate(make(marker)):
            found[f"{make.__name__}{number}.{name}"] = content[: 8 << 20]
    found |= {
        f"growing{number}.{name.rpartition('.')[2]}": content
        for number, (name, content) in enumerate(growing().items())
    }
    for name, make_field in media_fields.FIELDS.items():
        damaged = bytearray(make_field())
        for _ in range(rng.randrange(1, 12)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        kept = rng.randrange(1, len(damaged) + 1) if rng.random() < 0.3 else len(damaged)
        found[f"damaged.{name}"] = bytes(damaged[:kept])
    return found
