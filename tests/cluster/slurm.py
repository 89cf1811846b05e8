#!/usr/bin/python3
"""A real Slurm of several nodes on one machine, for tests; by hand:
    tests/cluster/slurm.py NODES COMMAND...

A node is a set of namespaces (processes, network, mounts, host name) with its own slurmd, joined to
the controller by a bridge. The controller and all nodes live inside namespaces of the test's
process, which enter() makes: when that process ends, however it ends, the kernel ends all of it."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

SKIPPED = 77  # the exit code that ctest takes for a skipped test
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged", "unshare", "ip", "hostname", "mount")
NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child",
              "--mount-proc")
NETWORK = "10.77.0"
CONTROLLER = f"{NETWORK}.254"
# Seconds for anything that Slurm does within a few, with the slower programs of sanitizers too.
PATIENCE = 60 * int(os.environ.get("TESSERA_TIMES_SLOWER", 1))


def why_not():
    """What keeps this machine from running a Slurm of namespaces, or None."""
    missing = [p for p in PROGRAMS if not shutil.which(p)]
    if missing:
        return f"not installed: {', '.join(missing)} (tools/install_packages installs them)"
    if os.geteuid() != 0:
        return "not root, and slurmd wants to be"
    bridge = ["ip", "link", "add", "probe", "type", "bridge"]
    probe = subprocess.run(["unshare", *NAMESPACES, *bridge], capture_output=True, text=True)
    if probe.returncode != 0:
        return f"no namespaces here: {probe.stderr.strip()}"
    return None


def enter():
    """Goes on in namespaces of its own, which hold its temporary files too, or exits as skipped
    where they cannot be. Forgets a Slurm job that it may be part of. Call first."""
    for name in [n for n in os.environ if n.startswith(("SLURM_", "SBATCH_"))]:
        del os.environ[name]
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if os.getpid() == 1:
        run("mount", "-t", "tmpfs", "tmpfs", "/run")
        tempfile.tempdir = "/run"
        return
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    os.execvp("unshare", ["unshare", *NAMESPACES, sys.executable, *sys.argv])


def run(*command, **options):
    """Runs to the end; returns stdout. Fails with what the command said."""
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=PATIENCE,
                            **options)
    if result.returncode != 0:
        raise AssertionError(f"{command} gave {result.returncode}:\n{result.stdout}{result.stderr}")
    return result.stdout


def wait_until(condition, what, patience=PATIENCE):
    """Returns the first true value of condition(); what: text, or a function that makes it."""
    end = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {patience} s: {what() if callable(what) else what}")
        time.sleep(0.1)
    return value


def children(pid):
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid):
    found = children(pid)
    for p in found:
        found += children(p)
    return found


def command(pid):
    """The words of a process's command line."""
    return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]


class Slurm:
    """Controller and nodes node1, node2, ...; each has one socket of CPUS cores and GPUs that are
    empty files. Sets SLURM_CONF for this process and those it starts."""

    CPUS = min(2, os.cpu_count())
    GPUS = 2
    # Of TCP between nodes. Every kernel has it; BBR, which some take by default, leaves half of a busy
    # link unused for 200 ms every 10 s.
    CONGESTION = "reno"
    GRACE = 30  # seconds that a job of partition batch has when one of partition urgent wants its nodes

    def __init__(self, directory, nodes):
        self.dir = pathlib.Path(directory)
        self.nodes = {f"node{i}": f"{NETWORK}.{i}" for i in range(1, nodes + 1)}
        self.scratch = self.dir / "scratch"  # where each node sees a directory of its own
        self.processes = {}
        self.scratch.mkdir(parents=True)
        self.dir.chmod(0o755)
        (self.dir / "state").mkdir()
        self._configure()
        os.environ["SLURM_CONF"] = str(self.dir / "slurm.conf")
        run("hostname", "controller")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge", "type", "bridge")
        run("ip", "addr", "add", f"{CONTROLLER}/24", "dev", "bridge")
        run("ip", "link", "set", "bridge", "up")
        self._start("munged", "munged", "--foreground", "--force", *(
            f"--{what}={self.dir}/munge.{what.split('-')[0]}"
            for what in ("socket", "key-file", "pid-file", "log-file", "seed-file")))
        wait_until((self.dir / "munge.socket").exists, "munged is up")
        self._start("slurmctld", "slurmctld", "-D")
        for node in self.nodes:
            self.start_node(node)
        wait_until(lambda: self.states() == {"idle": nodes}, self.report)

    def _configure(self):
        key = self.dir / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        settings = {
            "ClusterName": "test", "SlurmctldHost": f"controller({CONTROLLER})",
            "SlurmUser": "root", "SlurmdUser": "root",
            # A requeued job starts no sooner than its credentials expire; 5 s is the least.
            "AuthType": "auth/munge", "AuthInfo": f"socket={self.dir}/munge.socket,cred_expire=5",
            "ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/affinity",
            "SwitchType": "switch/none", "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core", "GresTypes": "gpu",
            "SlurmctldPidFile": self.dir / "slurmctld.pid",
            "SlurmdPidFile": self.dir / "slurmd.%n.pid", "SlurmdSpoolDir": self.dir / "spool.%n",
            "StateSaveLocation": self.dir / "state", "SlurmctldLogFile": self.dir / "slurmctld.log",
            "SlurmdLogFile": self.dir / "slurmd.%n.log", "TmpFS": self.scratch,
            "SlurmdParameters": "config_overrides", "ReturnToService": 2, "KillWait": 10,
            "SlurmdTimeout": 6, "MessageTimeout": 5,
            "PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE",
            "SchedulerType": "sched/builtin", "SchedulerParameters": "sched_interval=1",
        }
        for i in range(self.GPUS):
            (self.dir / f"gpu{i}").touch()
        lines = [f"{key}={value}" for key, value in settings.items()]
        lines += [f"NodeName={name} NodeAddr={address} Sockets=1 CoresPerSocket={self.CPUS} "
                  f"RealMemory=1000 Gres=gpu:{self.GPUS}" for name, address in self.nodes.items()]
        lines.append("PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE "
                     f"PriorityTier=1 GraceTime={self.GRACE}")
        lines.append("PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2\n")
        (self.dir / "slurm.conf").write_text("\n".join(lines))
        (self.dir / "gres.conf").write_text("".join(
            f"NodeName={name} Name=gpu File={self.dir}/gpu[0-{self.GPUS - 1}]\n"
            for name in self.nodes))

    def _start(self, name, *command):
        with open(self.dir / f"{name}.out", "ab") as out:
            self.processes[name] = subprocess.Popen(
                [*map(str, command)], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        return self.processes[name].pid

    def start_node(self, node):
        for mine in ("spool", "scratch"):
            shutil.rmtree(self.dir / f"{mine}.{node}", ignore_errors=True)
            (self.dir / f"{mine}.{node}").mkdir()
        # The shell is the node's first process: it waits for those that lose their parents. Two
        # nodes with one TmpFS would collide in the PMIx plug-in.
        pid = self._start(node, "unshare", *NAMESPACES, "bash", "-ec", f"""
            hostname {node}
            mount -t tmpfs tmpfs /dev/shm
            mount --bind {self.dir}/scratch.{node} {self.scratch}
            ip link set lo up
            until ip addr add {self.nodes[node]}/24 dev eth0; do sleep 0.1; done 2>/dev/null
            ip link set eth0 up
            echo {self.CONGESTION} >/proc/sys/net/ipv4/tcp_congestion_control
            slurmd -D -N {node} & sleep infinity""")
        mine = os.readlink("/proc/self/ns/net")
        wait_until(lambda: os.readlink(f"/proc/{pid}/ns/net") != mine, f"{node} has a network")
        run("ip", "link", "add", f"to_{node}", "type", "veth", "peer", "name", "eth0", "netns", pid)
        run("ip", "link", "set", f"to_{node}", "master", "bridge", "up")

    def limit(self, gbit):
        """What any node sends to others. The queue is short, for TCP is uneven over long ones, and
        on the sender's side, where it holds the sender back and loses nothing. What an idle link
        may send at once is 2 ms' worth, within what tbf works well with."""
        burst = min(max(64, round(gbit * 250)), 256)
        for node in self.nodes:
            run("nsenter", f"--net=/proc/{self.processes[node].pid}/ns/net",
                "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf",
                "rate", f"{round(gbit * 1000)}mbit", "burst", f"{burst}kb", "limit", "1mb")

    def kill_node(self, node):
        """As when its power fails: everything on it ends at once, and nobody is told."""
        run("ip", "link", "del", f"to_{node}")
        self.processes[node].kill()
        self.processes[node].wait()

    def kill_slurmd(self, node):
        """The daemon alone: what it has started works on."""
        init = children(self.processes[node].pid)[0]
        daemon, = [p for p in children(init) if command(p)[0] == "slurmd"]
        os.kill(daemon, 9)

    def down(self):
        for process in reversed(self.processes.values()):
            process.kill()
            process.wait()
        run("ip", "link", "del", "bridge")

    def states(self):
        """{state: number of nodes}; {} while the controller does not answer."""
        result = subprocess.run(["sinfo", "-h", "-o", "%T %D"], capture_output=True, text=True)
        return {state: int(count) for state, count in map(str.split, result.stdout.splitlines())}

    def sent_bytes(self, node):
        """Since the node came up, all protocols' headers included."""
        for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == f"to_{node}":
                return int(counters.split()[0])  # what the bridge received
        raise KeyError(node)

    def job(self, number):
        """What scontrol shows of a job, as {key: value}."""
        text = run("scontrol", "show", "job", "--oneliner", number)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def report(self):
        """The states of the nodes and the last words of all daemons."""
        texts = [f"nodes: {self.states()}"]
        for path in sorted([*self.dir.glob("*.log"), *self.dir.glob("*.out")]):
            texts.append(f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}")
        return "\n".join(texts)


if __name__ == "__main__":
    enter()
    with tempfile.TemporaryDirectory(prefix="tessera_slurm_") as directory:
        cluster = Slurm(pathlib.Path(directory) / "cluster", int(sys.argv[1]))
        status = subprocess.run(sys.argv[2:]).returncode
        cluster.down()
    sys.exit(status)
