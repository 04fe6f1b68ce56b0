"""A Kubernetes cluster of the tests' own: a control plane and three nodes, each node a machine as far as it can see.

    outside     the tests' own network namespace: etcd, API server, controllers, scheduler, DNS, and clients
    node-1..3   namespaces for network, mounts and host name: containerd, kubelet, kube-proxy

    10.20.0.0/24   the nodes' network, a bridge: outside is 10.20.0.1, node N is 10.20.0.1N
    10.30.N.0/24   pods of node N, routed
    10.40.0.0/16   Services

Lives in the namespaces that `tests.kubernetes.inside` made: with the first process of those everything ends. Nodes have
the machine's processors and memory, each of them, and control groups below CONTROL_GROUP.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from headrace_devcluster.certificates import Authority
from headrace_devcluster.etcd_program import find_etcd

from tests.kubernetes.api import Api, ApiError

CONTROL_GROUP = "headrace-kubernetes"
PAUSE = "headrace.test/pause:1"
NODES = ("node-1", "node-2", "node-3")
OUTSIDE = "10.20.0.1"
PODS, SERVICES, API_SERVICE = "10.30.0.0/16", "10.40.0.0/16", "10.40.0.1"
DOMAIN = "cluster.local"
START_SECONDS = 120.0
# What kubelet insists on, and what belongs to the whole machine: it is shown these, and changes nothing.
KERNEL = {
    "vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}  # fmt: skip
CONTROLLERS = ("cpuset", "cpu", "cpuacct", "blkio", "memory", "devices", "freezer", "pids", "systemd")


def address_of(node: str) -> str:
    """A node's address."""
    return f"10.20.0.1{NODES.index(node) + 1}"


class Machines:
    """Starts and stops all of it. One thread."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._logs = state / "logs"
        self._authority = Authority(state / "certificates", "kubernetes")
        self._tokens: dict[str, str] = {}
        self._nodes: dict[str, int] = {}
        self.kubeconfig = self._kubeconfig("admin", "system:masters")
        self.api = Api(f"https://{OUTSIDE}:6443", self._tokens["admin"], self._authority.ca_file)

    @contextmanager
    def running(self) -> Iterator[Machines]:
        """Start the cluster, wait until all nodes are ready, end all processes in the end."""
        self._logs.mkdir()
        begun: list[subprocess.Popen[bytes]] = []
        try:
            _run("ip", "link", "add", "nodes", "type", "bridge")
            _run("ip", "address", "add", f"{OUTSIDE}/24", "dev", "nodes")
            _run("ip", "link", "set", "nodes", "up")
            begun += self._start_control_plane()
            for node in NODES:
                begun += self._start_node(node)
            begun.append(self._start_dns())
            self._until(self._nodes_are_ready, "nodes are ready", begun)
            yield self
        finally:
            for process in reversed(begun):
                process.send_signal(signal.SIGTERM)
            for process in begun:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def load(self, archives: Path) -> None:
        """Load the images into every node."""
        for archive in sorted(archives.glob("*.tar")):
            for node in NODES:
                self.images(node, "import", str(archive))

    def images(self, node: str, *arguments: str) -> str:
        """`ctr images` on a node."""
        socket = self.state / node / "containerd.sock"
        return self.within(node, "ctr", f"--address={socket}", "--namespace=k8s.io", "images", *arguments)

    def within(self, node: str, *command: str) -> str:
        """Run a command on a node; AssertionError with its complaint where it fails."""
        return _run("nsenter", f"--target={self._nodes[node]}", "--mount", "--net", "--uts", *command)

    def _start_control_plane(self) -> list[subprocess.Popen[bytes]]:
        server = self._authority.issue(
            "kube-apiserver",
            hosts=["127.0.0.1", OUTSIDE, API_SERVICE, "kubernetes.default.svc", f"kubernetes.default.svc.{DOMAIN}"],
        )
        client = self._authority.issue("kube-apiserver-client")
        accounts = self._authority.issue("service-accounts")
        controllers = self._kubeconfig("system:kube-controller-manager", "system:masters")
        scheduler = self._kubeconfig("system:kube-scheduler", "system:masters")
        for node in NODES:
            self._kubeconfig(f"system:node:{node}", "system:nodes")
            self._kubeconfig(f"proxy:{node}", "system:masters")
        self._kubeconfig("dns", "system:masters")
        tokens = self.state / "tokens.csv"
        begun = [
            self._start(
                "etcd", str(find_etcd()), f"--data-dir={self.state / 'etcd'}", "--unsafe-no-fsync",
                "--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
                "--listen-peer-urls=http://127.0.0.1:2380", "--log-level=warn",
            ),
            self._start(
                "kube-apiserver", "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
                "--bind-address=0.0.0.0", f"--advertise-address={OUTSIDE}", "--secure-port=6443",
                f"--tls-cert-file={server.cert_file}", f"--tls-private-key-file={server.key_file}",
                f"--client-ca-file={server.ca_file}", f"--token-auth-file={tokens}",
                f"--kubelet-client-certificate={client.cert_file}", f"--kubelet-client-key={client.key_file}",
                f"--kubelet-certificate-authority={server.ca_file}", "--kubelet-preferred-address-types=InternalIP",
                f"--service-account-key-file={accounts.cert_file}",
                f"--service-account-signing-key-file={accounts.key_file}",
                f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
                f"--service-cluster-ip-range={SERVICES}", "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
            ),
        ]  # fmt: skip
        self._until(lambda: self.api.text("/readyz") == "ok", "the API server answers", begun)
        begun += [
            self._start(
                "kube-controller-manager", "kube-controller-manager", f"--kubeconfig={controllers}",
                f"--service-account-private-key-file={accounts.key_file}", f"--root-ca-file={server.ca_file}",
                "--leader-elect=false", "--bind-address=127.0.0.1",
            ),
            self._start(
                "kube-scheduler", "kube-scheduler", f"--kubeconfig={scheduler}",
                "--leader-elect=false", "--bind-address=127.0.0.1",
            ),
        ]  # fmt: skip
        return begun

    def _start_dns(self) -> subprocess.Popen[bytes]:
        """What kubeadm would set up, as a process outside the cluster."""
        file = self._write(
            "Corefile",
            f"""\
            .:53 {{
                bind {OUTSIDE}
                errors
                ready 127.0.0.1:8181
                kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
                    kubeconfig {self.state / "dns.kubeconfig"}
                    pods insecure
                    fallthrough in-addr.arpa ip6.arpa
                    ttl 30
                }}
                cache 30 {{
                    disable success {DOMAIN}
                    disable denial {DOMAIN}
                }}
            }}
            """,
        )
        return self._start("coredns", "coredns", f"-conf={file}")

    def _start_node(self, node: str) -> list[subprocess.Popen[bytes]]:
        number = NODES.index(node) + 1
        home = self.state / node
        for folder in ("kubelet", "containerd", "kernel", "log"):
            (home / folder).mkdir(parents=True)
        for group in CONTROLLERS:
            _make_control_group(Path("/sys/fs/cgroup", group, CONTROL_GROUP, node))
        binds = [(home / "kubelet", Path("/var/lib/kubelet")), (home / "log", Path("/var/log"))]
        Path("/var/lib/kubelet").mkdir(exist_ok=True)
        for name, value in KERNEL.items():
            shown = home / "kernel" / name.replace("/", ".")
            shown.write_text(f"{value}\n", "ascii")
            binds.append((shown, Path("/proc/sys", name)))
        script = [
            "set -e",
            f"hostname {node}",
            "mount -t tmpfs tmpfs /run",
            *(f"mount --bind {source} {target}" for source, target in binds),
            "mount --make-rshared /",
            "ip link set lo up",
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
            "exec sleep infinity",
        ]
        holder = self._start(node, "unshare", "--mount", "--net", "--uts", "sh", "-c", "\n".join(script))
        self._nodes[node] = holder.pid
        self._until(
            lambda: Path(f"/proc/{holder.pid}/comm").read_text("ascii") == "sleep\n", f"{node} is there", [holder]
        )
        _run("ip", "link", "add", f"to-{node}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _run("ip", "link", "set", f"to-{node}", "master", "nodes", "up")
        self.within(node, "ip", "address", "add", f"{address_of(node)}/24", "dev", "eth0")
        self.within(node, "ip", "link", "set", "eth0", "up")
        self.within(node, "ip", "route", "add", "default", "via", OUTSIDE)
        _run("ip", "route", "add", f"10.30.{number}.0/24", "via", address_of(node))
        for other in NODES:
            if other != node:
                there = f"10.30.{NODES.index(other) + 1}.0/24"
                self.within(node, "ip", "route", "add", there, "via", address_of(other))
        return [holder, *self._start_kubelet(node, home, number)]

    def _start_kubelet(self, node: str, home: Path, number: int) -> list[subprocess.Popen[bytes]]:
        enter = ("nsenter", f"--target={self._nodes[node]}", "--mount", "--net", "--uts")
        self._write_network(node, number)
        containerd = self._start(f"{node}-containerd", *enter, "containerd", f"--config={self._containerd(node, home)}")
        socket = home / "containerd.sock"
        self._until(socket.exists, f"containerd of {node} answers", [containerd])
        serving = self._authority.issue(node, hosts=[address_of(node), node])
        kubelet = self._write_json(
            f"{node}.kubelet.json",
            {
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "authentication": {
                    "anonymous": {"enabled": False},
                    "webhook": {"enabled": False},
                    "x509": {"clientCAFile": str(serving.ca_file)},
                },
                "authorization": {"mode": "AlwaysAllow"},
                "tlsCertFile": str(serving.cert_file),
                "tlsPrivateKeyFile": str(serving.key_file),
                "cgroupDriver": "cgroupfs",
                "cgroupRoot": f"/{CONTROL_GROUP}/{node}",
                "failCgroupV1": False,
                "failSwapOn": False,
                "clusterDNS": [OUTSIDE],
                "clusterDomain": DOMAIN,
                "containerRuntimeEndpoint": f"unix://{socket}",
                "resolvConf": "",
                "volumePluginDir": str(home / "kubelet" / "plugins"),
                "oomScoreAdj": 0,
                "maxOpenFiles": 16384,
                "evictionHard": {"memory.available": "100Mi"},
                "imageGCHighThresholdPercent": 100,
                "imageGCLowThresholdPercent": 99,
            },
        )
        proxy = self._write_json(
            f"{node}.proxy.json",
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": "iptables",
                "clusterCIDR": PODS,
                "hostnameOverride": node,
                "clientConnection": {"kubeconfig": str(self.state / f"proxy-{node}.kubeconfig")},
                "conntrack": {
                    "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
                },
                "oomScoreAdj": 0,
            },
        )  # fmt: skip
        return [
            containerd,
            self._start(
                f"{node}-kubelet", *enter, "kubelet", f"--config={kubelet}", f"--hostname-override={node}",
                f"--kubeconfig={self.state / f'system-node-{node}.kubeconfig'}", f"--node-ip={address_of(node)}",
                f"--node-labels=topology.kubernetes.io/zone=zone-{number}",
            ),
            self._start(f"{node}-proxy", *enter, "kube-proxy", f"--config={proxy}"),
        ]  # fmt: skip

    def _containerd(self, node: str, home: Path) -> Path:
        return self._write(
            f"{node}.containerd.toml",
            f"""\
            version = 2
            root = "{home / "containerd"}"
            state = "/run/containerd"
            disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs"]
            [grpc]
            address = "{home / "containerd.sock"}"
            [plugins."io.containerd.grpc.v1.cri"]
            sandbox_image = "{PAUSE}"
            restrict_oom_score_adj = true
            disable_apparmor = true
            [plugins."io.containerd.grpc.v1.cri".containerd]
            snapshotter = "overlayfs"
            [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
            runtime_type = "io.containerd.runc.v2"
            [plugins."io.containerd.grpc.v1.cri".cni]
            bin_dir = "/usr/lib/cni"
            conf_dir = "{home / "network"}"
            """,
        )

    def _write_network(self, node: str, number: int) -> None:
        """Pods are routed, not bridged: a Service's answer then always comes by the node's own tables."""
        (self.state / node / "network").mkdir()
        addresses = {
            "type": "host-local",
            "dataDir": str(self.state / node / "addresses"),
            "ranges": [[{"subnet": f"10.30.{number}.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        plugins = [
            {"type": "ptp", "ipMasq": False, "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ]
        self._write_json(
            f"{node}/network/10-pods.conflist", {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}
        )

    def _kubeconfig(self, user: str, group: str) -> Path:
        """A file by which `user` of `group` asks the API server."""
        token = self._tokens[user] = secrets.token_hex(16)
        with (self.state / "tokens.csv").open("a") as tokens:
            tokens.write(f'{token},{user},{user},"{group}"\n')
        cluster = {"server": f"https://{OUTSIDE}:6443", "certificate-authority": str(self._authority.ca_file)}
        return self._write_json(
            f"{user.replace(':', '-')}.kubeconfig",
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "tests", "cluster": cluster}],
                "users": [{"name": user, "user": {"token": token}}],
                "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": user}}],
                "current-context": "tests",
            },
        )

    def _nodes_are_ready(self) -> bool:
        ready = {
            node["metadata"]["name"]
            for node in self.api.get("/api/v1/nodes")["items"]
            for condition in node["status"].get("conditions", [])
            if (condition["type"], condition["status"]) == ("Ready", "True")
        }
        return ready == set(NODES)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self._logs / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def _until(self, condition: Callable[[], bool], what: str, processes: list[subprocess.Popen[bytes]]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not _is(condition):
            ended = [process.args for process in processes if process.poll() is not None]
            assert not ended, f"while waiting until {what}: ended: {ended}\n{self.log_ends()}"
            assert time.monotonic() < deadline, f"not within {START_SECONDS} s: {what}\n{self.log_ends()}"
            time.sleep(0.2)

    def log_ends(self) -> str:
        """The last lines of each log."""
        return "\n".join(
            f"== {log.name}\n" + "\n".join(log.read_text("utf-8", "replace").splitlines()[-8:])
            for log in sorted(self._logs.glob("*.log"))
        )

    def _write(self, name: str, text: str) -> Path:
        path = self.state / name
        path.write_text(dedent(text), "utf-8")
        return path

    def _write_json(self, name: str, content: object) -> Path:
        return self._write(name, json.dumps(content, indent=1))


def _is(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except (ApiError, OSError):
        return False


def _make_control_group(group: Path) -> None:
    """With all processors and memory of its parent, which the kernel does not grant by default."""
    for each in (group.parent, group):
        each.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (each / name).exists():
                (each / name).write_text((each.parent / name).read_text("ascii"), "ascii")


def _run(*command: str) -> str:
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{' '.join(command)} failed ({run.returncode}):\n{run.stdout}{run.stderr}"
    return run.stdout
