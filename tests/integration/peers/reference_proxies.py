# SPDX-License-Identifier: Apache-2.0
"""HAProxy and nginx in front of one worker, as plain as they come: what others do with the same bytes."""

import re
import shutil
import socket
import subprocess

from peers.process import wait_until
from peers.wire import HOST

# No service is wanted, only the program: Debian has them where users' PATH does not look.
PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"

HAPROXY = """
global
    maxconn 100
defaults
    mode http
    timeout client 2s
    timeout server 2s
    timeout connect 2s
frontend clients
    bind {host}:{port}
    default_backend workers
backend workers
    server worker {worker}
"""

NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 100; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    client_body_timeout 2s;
    upstream workers {{ server {worker}; keepalive 4; }}
    server {{
        listen {host}:{port};
        location / {{
            proxy_pass http://workers;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""


def _free_port():
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return sock.getsockname()[1]


class ReferenceProxy:
    """name: "haproxy" or "nginx". None of its class where the program is missing: see find()."""

    @staticmethod
    def find(name):
        return shutil.which(name, path=PATH)

    def __init__(self, name, worker, folder):
        program = self.find(name)
        self.address = (HOST, _free_port())
        config = folder / f"{name}.conf"
        config.write_text({"haproxy": HAPROXY, "nginx": NGINX}[name].format(
            host=HOST, port=self.address[1], worker=worker.authority, folder=folder))
        argv = {"haproxy": [program, "-db", "-f", config],
                "nginx": [program, "-c", config, "-p", folder, "-e", folder / "error.log"]}[name]
        self.version = self._version(program)
        self.log = (folder / f"{name}.log").open("wb")
        self.child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        try:
            wait_until(self._listens, lambda: f"{name}: {(folder / f'{name}.log').read_text()}")
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def _version(program):
        said = subprocess.run([program, "-v"], capture_output=True, text=True, check=True)
        return re.search(r"\d+\.\d+\.\d+", said.stdout + said.stderr)[0]

    def _listens(self):
        assert self.child.poll() is None, f"exit status {self.child.poll()}"
        with socket.socket() as sock:
            return sock.connect_ex(self.address) == 0

    def stop(self):
        self.child.terminate()
        self.child.wait()
        self.log.close()
