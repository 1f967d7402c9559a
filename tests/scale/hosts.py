"""Hosts with an address, a name, processes and temporary files of their own, joined by a switch, all on this machine.

Each host is a set of Linux namespaces. Everything in it ends with its first process, and nothing is left behind.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PORT = 6379
_PRIVATE = ("/run", "/dev/shm")  # Ray's session files and its object store, which real hosts do not share


def missing_requirement() -> str | None:
    """Why there can be no such hosts here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    lacking = [program for program in ("ip", "nsenter", "unshare") if shutil.which(program) is None]
    if lacking:
        return f"needs the program {lacking[0]}"
    tried = subprocess.run(
        ["unshare", "-n", "ip", "link", "add", "name", "probe", "type", "bridge"], check=False, capture_output=True
    )
    return None if tried.returncode == 0 else f"needs network namespaces: {tried.stderr.decode().strip()}"


class Host:
    """One set of namespaces, with its first process."""

    def __init__(self, name: str) -> None:
        self.name = name
        space = ["unshare", "-n", "-m", "-u", "-i", "-p", "--fork", "--kill-child", "--mount-proc"]
        self._process = subprocess.Popen(
            [*space, "cat"], stdin=subprocess.PIPE
        )  # ends with the test, however that ends
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        while not (pids := children.read_text().split()):
            time.sleep(0.01)
        self.pid = int(pids[0])
        while not self.run("cat", "/proc/1/comm").startswith("cat"):  # the namespaces are complete
            time.sleep(0.01)
        self.run("hostname", name)
        self.run("ip", "link", "set", "lo", "up")
        for folder in _PRIVATE:
            self.run("mount", "-t", "tmpfs", "tmpfs", folder)

    def command(self, *words: object) -> list[str]:
        """``words`` as a command that runs on this host."""
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "-u", "-i", "-p", f"--wd={Path.cwd()}", *map(str, words)]

    def run(self, *words: object, env: dict[str, str] | None = None) -> str:
        """Run a command on this host: what it printed."""
        done = subprocess.run(self.command(*words), check=False, capture_output=True, text=True, env=env)
        assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}"
        return done.stdout

    def list_titles(self) -> list[str]:
        """The titles of the processes of this host; Ray puts the name of a task there while it runs."""
        space, titles = Path(f"/proc/{self.pid}/ns/pid").readlink(), []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "ns/pid").readlink() == space:
                    titles.append((folder / "cmdline").read_text().strip("\0 "))
            except OSError:  # it has ended
                continue
        return titles

    def freeze(self) -> None:
        """Stop all its processes, as a hard network mount does that has lost its server."""
        self.run("sh", "-c", "kill -STOP -1")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Network:
    """A head and workers at 10.77.0.1 and up, each with one cable to a switch."""

    def __init__(self, workers: int) -> None:
        self.switch = Host("switch")
        self.switch.run("ip", "link", "add", "bridge", "type", "bridge")
        self.switch.run("ip", "link", "set", "bridge", "up")
        self.hosts = [Host("head"), *(Host(f"worker{number}") for number in range(1, workers + 1))]
        self.head, self.workers = self.hosts[0], self.hosts[1:]
        for number, host in enumerate(self.hosts, 1):
            cable = ["name", host.name, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid)]
            subprocess.run(["nsenter", "-t", str(self.switch.pid), "-n", "ip", "link", "add", *cable], check=True)
            self.switch.run("ip", "link", "set", host.name, "master", "bridge", "up")
            host.run("ip", "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
            host.run("ip", "link", "set", "eth0", "up")
            host.run("ip", "route", "add", "default", "dev", "eth0")

    def pull_cable(self, host: Host) -> None:
        """Take ``host`` off the network: its processes live on, and no packet reaches or leaves it."""
        self.switch.run("ip", "link", "set", host.name, "down")
        self.workers.remove(host)

    def start_ray(self, env: dict[str, str]) -> None:
        """A head without cores, so that units run elsewhere, and workers with one core each."""
        common = ["--disable-usage-stats", "--object-store-memory", 80 * 2**20]
        for number, host in enumerate(self.hosts, 1):
            place = ["--address", f"10.77.0.1:{PORT}", "--num-cpus", 1]
            if host is self.head:
                place = ["--head", "--port", PORT, "--num-cpus", 0, "--include-dashboard=false", "--temp-dir=/run/ray"]
            ray = Path(sys.executable).with_name("ray")
            host.run(ray, "start", *place, "--node-ip-address", f"10.77.0.{number}", *common, env=env)

    def stop(self) -> None:
        for host in (*self.hosts, self.switch):
            host.stop()
