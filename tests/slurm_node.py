"""A Slurm of one node on this machine for tests: munged, slurmctld and slurmd, as processes."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
# Without cgroups, which a container may not have.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# A job in `high` preempts those in `low`, which are queued again.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=5
MinJobAge=10
ReturnToService=2
SchedulerParameters=sched_interval=2,requeue_delay=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=INFINITE PriorityTier=1
PartitionName=high Nodes={host} MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""
PROGRAMS = ("munged", "slurmctld", "slurmd")


def installed() -> bool:
    """Whether there is a Slurm to be started."""
    return all(shutil.which(name) for name in PROGRAMS)


class Slurm:
    """Two CPUs, and partitions `low` and `high`."""

    def __enter__(self) -> Slurm:
        # The names of sockets are short: not below pytest's folders.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.processes: list[subprocess.Popen[bytes]] = []
        with socket.create_server(("", 0)) as first, socket.create_server(("", 0)) as second:
            ports = [x.getsockname()[1] for x in (first, second)]
        config = self.folder / "slurm.conf"
        host, user = platform.node().split(".")[0], getpass.getuser()
        config.write_text(CONFIG.format(host=host, user=user, folder=self.folder, ports=ports))
        self.environment = {**os.environ, "SLURM_CONF": str(config)}
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        files = {"socket": "munge.socket", "key-file": key.name, "log-file": "munge.log"}
        files |= {"pid-file": "munge.pid", "seed-file": "munge.seed"}
        words = [f"--{flag}={self.folder / name}" for flag, name in files.items()]
        self.start("munged", "--foreground", "--force", *words)
        self.start("slurmctld", "-D")
        self.start("slurmd", "-D")
        deadline = time.monotonic() + 120
        while "idle" not in self.call("sinfo", "--noheader", "--format", "%T"):
            if time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise TimeoutError("Slurm has not started")
            time.sleep(0.5)
        return self

    def start(self, *words: str) -> None:
        """Start a daemon."""
        with (self.folder / f"{words[0]}.out").open("wb") as output:
            self.processes.append(
                subprocess.Popen(words, stdout=output, stderr=output, env=self.environment)
            )

    def call(self, *words: str) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(words, capture_output=True, text=True, env=self.environment)
        return done.stdout

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.call("scancel", "--me")
        deadline = time.monotonic() + 20
        while self.call("squeue", "--noheader") and time.monotonic() < deadline:
            time.sleep(0.5)
        for process in reversed(self.processes):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
