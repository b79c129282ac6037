"""A real web server on this machine: nginx, over http and https, with uploads, passwords, redirects and slow answers.

What is put into ``files`` is served:

* ``/x`` the file, with ranges, ETags and conditions; ``PUT`` and ``DELETE`` are allowed;
* ``/slow/x`` the same, 256 KiB a second and connection;
* ``/private/x`` the same, for the user ``me`` with the password :data:`PASSWORD` only;
* ``/moved/x`` a redirect to ``http://localhost`` (another host), ``/moved-private/x`` to a private file there;
* ``/to-file/x`` and ``/to-ftp/x`` redirects that no client should follow;
* ``/packed/x.txt`` compressed on the way (gzip), for who wants it; ``/stored/x`` the file, called compressed.
"""

import contextlib
import os
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support import services
from support.services import Launch

PASSWORD = "the-password-of-me"  # noqa: S105  of a server on the loopback

_CONFIGURATION = """
daemon off; {user} worker_processes 1; pid {folder}/nginx.pid; error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off; default_type application/octet-stream; types {{ text/plain txt; }}
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi; client_max_body_size 0;
    server {{
        listen 127.0.0.1:{plain};
        listen 127.0.0.1:{secure} ssl;
        ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.pem;
        root {folder}/files;
        dav_methods PUT DELETE; create_full_put_path on;
        location /slow/ {{ alias {folder}/files/; limit_rate 256k; }}
        location /private/ {{
            alias {folder}/files/; dav_methods PUT; auth_basic "shards"; auth_basic_user_file {folder}/users;
        }}
        location /moved/ {{ rewrite ^/moved/(.*)$ http://localhost:{plain}/$1 redirect; }}
        location /moved-private/ {{ rewrite ^/moved-private/(.*)$ http://localhost:{plain}/private/$1 redirect; }}
        location /to-file/ {{ return 302 file:///etc/hostname; }}
        location /to-ftp/ {{ return 302 ftp://127.0.0.1/x; }}
        location /stored/ {{ alias {folder}/files/; add_header Content-Encoding gzip; }}
        location /packed/ {{ alias {folder}/files/; gzip on; gzip_min_length 1; gzip_types *; }}
    }}
}}
"""


class WebServer(NamedTuple):
    """A running server.

    Args:
        plain: ``http://127.0.0.1:port``.
        secure: ``https://127.0.0.1:port``, with the certificate that was given.
        files: what it serves.
        pid: the process that leads its group.
    """

    plain: str
    secure: str
    files: Path
    pid: int


def nginx() -> str:
    """Return the program.

    Raises:
        NotFound: it is not installed.
    """
    return services.program("nginx", "apt-get install nginx-light")


@contextlib.contextmanager
def shared_web(folder: Path, certificate: bytes) -> Iterator[WebServer]:
    """Run a server, or share the one that another process of this test run started in the same folder.

    Args:
        folder: where it keeps its files.
        certificate: chain and private key in PEM, for https; only the first process that starts it is heard.

    Yields:
        The server.

    Raises:
        NotFound: nginx is not installed.
        SourceError: it does not start.
    """
    with services.shared(folder, lambda place: _launch(place, certificate)) as running:
        plain, secure = running.endpoint.split()
        yield WebServer(plain, secure, folder / "files", running.pid)


def _launch(folder: Path, certificate: bytes) -> Launch:
    plain, secure = services.free_port(), services.free_port()
    shutil.rmtree(folder / "files", ignore_errors=True)
    (folder / "files").mkdir(parents=True)
    (folder / "server.pem").write_bytes(certificate)
    (folder / "server.pem").chmod(0o600)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(folder / "server.pem")  # or say what is wrong
    (folder / "users").write_text(f"me:{{PLAIN}}{PASSWORD}\n")
    user = "user root;" if os.geteuid() == 0 else ""
    configuration = folder / "nginx.conf"
    configuration.write_text(_CONFIGURATION.format(folder=folder, plain=plain, secure=secure, user=user))
    words = [nginx(), "-e", "stderr", "-p", str(folder), "-c", str(configuration)]
    endpoint = f"http://127.0.0.1:{plain} https://127.0.0.1:{secure}"
    return Launch(words, endpoint, lambda: services.answers(plain))
