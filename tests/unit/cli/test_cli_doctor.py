"""`headrace doctor` and `headrace cluster log-level`: what is found in the facts, and how it is told."""

import json
from dataclasses import replace

import pytest
from headrace.cli.common.exit_codes import ExitCode
from headrace.cli.common.findings import Status
from headrace.cli.doctor import host as doctor_host
from headrace.cli.doctor.checks import check_processes
from headrace.cli.doctor.host_checks import HostFacts, UnreadableCertificate, check_host
from headrace.cli.doctor.identity_checks import check_credential, check_open_access, check_postures
from headrace.client.admin.identity import CallerDescription
from headrace.client.admin.processes import (
    CertificateDescription,
    DiskDescription,
    EtcdMemberDescription,
    HealthCauseDescription,
    ProcessDescription,
)
from headrace.client.base.errors import ConfigError, NoBrokersAvailableError
from headrace.wire.errors import NotAuthorizedError, StorageFullError, UnauthenticatedError
from headrace_devcluster.certificates import Authority

from tests.fakes.identity import API_KEY

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
GIB = 1 << 30
DISK = DiskDescription("/data", "ext4", 100 * GIB, 50 * GIB, 128 << 20, 256 << 20, 2_000, 0, 0, ())
ETCD = EtcdMemberDescription("e1:2379", "", "3.5.29", 1_000, 50 << 20, 40 << 20, 2 * GIB, True, False, ())
HOST = HostFacts("here", 100_000, True, 8 * GIB, disk=DISK)


def process(name, **fields):
    """One that is well."""
    etcd = tuple(replace(ETCD, endpoint=f"e{number}:2379") for number in (1, 2, 3))
    defaults = {"version": "0.1.0", "open_files": 100, "max_open_files": 100_000, "etcd": etcd}
    disk = {"disk": DISK} if name.startswith("broker") else {}
    return ProcessDescription(name, f"{name}:7181", **(defaults | disk | fields))


def certificate(days):
    """One that ends in `days` days."""
    return CertificateDescription("tls_cert_file", f"/{days}.pem", "CN=broker-1", NOW_MS + days * DAY_MS)


def cluster(**fields):
    """Three brokers and two coordinators; `fields` are the first broker's."""
    return [
        process("coordinator-a"),
        process("coordinator-b"),
        process("broker-1", **fields),
        process("broker-2"),
        process("broker-3"),
    ]


def wrong(findings):
    """What is not well: check to status."""
    for finding in findings:
        assert bool(finding.action) == (finding.status is not Status.OK), finding
    return {finding.check: finding.status for finding in findings if finding.status is not Status.OK}


def test_a_cluster_that_is_well_has_no_findings_but_good_ones():
    """Each check says that it looked."""
    found = check_processes(cluster(), NOW_MS)
    assert wrong(found) == {}
    assert {"reachable", "open_files", "disk_space", "fsync", "clock", "versions", "etcd_quota"} <= {
        finding.check for finding in found
    }
    assert wrong(check_host(HOST, NOW_MS)) == {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"error": "UNAVAILABLE"}, {"reachable": Status.FAILURE}),
        ({"error": "broker-2 answers", "answered_by": "broker-2"}, {"reachable": Status.WARNING}),
        ({"clock_ahead_ms": 700}, {"clock": Status.WARNING}),
        ({"clock_ahead_ms": -6_000}, {"clock": Status.FAILURE}),
        ({"max_open_files": 1_024}, {"open_files": Status.WARNING}),
        ({"open_files": 90_000}, {"open_files": Status.FAILURE}),
        ({"version": "0.2.0"}, {"versions": Status.WARNING}),
        ({"version": "0.3.0"}, {"versions": Status.FAILURE}),
        ({"health_causes": (HealthCauseDescription("liveness", "it hangs", "Look."),)}, {"liveness": Status.FAILURE}),
        ({"health_causes": (HealthCauseDescription("readiness", "it stops", "Wait."),)}, {"readiness": Status.WARNING}),
        ({"disk": replace(DISK, free_bytes=10 * GIB)}, {"disk_space": Status.WARNING}),
        ({"disk": replace(DISK, free_bytes=64 << 20)}, {"disk_space": Status.FAILURE}),
        ({"disk": replace(DISK, fsync_us=30_000)}, {"fsync": Status.WARNING}),
        ({"disk": replace(DISK, fsync_us=300_000)}, {"fsync": Status.FAILURE}),
        ({"disk": replace(DISK, filesystem="nfs4")}, {"filesystem": Status.FAILURE}),
        ({"disk": replace(DISK, filesystem="tmpfs")}, {"filesystem": Status.WARNING}),
        ({"disk": replace(DISK, offline_logs=2)}, {"offline_logs": Status.FAILURE}),
        (
            {"disk": replace(DISK, unclaimed_logs=9, unclaimed_topic_ids=(bytes(16),) * 5)},
            {"unclaimed_logs": Status.FAILURE},
        ),
        ({"certificates": (certificate(29),)}, {"certificate": Status.WARNING}),
        ({"certificates": (certificate(0),)}, {"certificate": Status.FAILURE}),
        ({"certificates": (certificate(30), certificate(-3))}, {"certificate": Status.FAILURE}),
        ({"certificates": (certificate(30),)}, {}),
    ],
)
def test_what_is_wrong_with_a_process_is_found(fields, expected):
    """One thing is wrong, and one is found."""
    assert wrong(check_processes(cluster(**fields), NOW_MS)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"error": "UNAVAILABLE"}, {"etcd_reachable": Status.FAILURE}),
        ({"has_leader": False}, {"etcd_leader": Status.FAILURE}),
        ({"is_learner": True}, {"etcd_learner": Status.WARNING}),
        ({"alarms": ("NOSPACE",)}, {"etcd_alarm": Status.FAILURE}),
        ({"database_bytes": round(0.9 * GIB), "database_used_bytes": GIB}, {}),
        ({"database_bytes": round(1.1 * GIB), "database_used_bytes": GIB}, {"etcd_quota": Status.WARNING}),
        (
            {"database_bytes": round(1.1 * GIB), "database_used_bytes": GIB, "quota_bytes": 0},
            {"etcd_quota": Status.WARNING},
        ),
        ({"database_bytes": round(1.5 * GIB), "database_used_bytes": GIB}, {"etcd_quota": Status.FAILURE}),
        ({"database_bytes": GIB // 2, "database_used_bytes": 1 << 20}, {"etcd_fragmented": Status.WARNING}),
        ({"version": "", "database_bytes": 0, "quota_bytes": 0}, {"etcd_quota": Status.WARNING}),
        ({"answered_us": 200_000}, {"etcd_latency": Status.WARNING}),
        ({"version": "3.4.20"}, {"etcd_version": Status.FAILURE}),
        ({"version": "3.5.1"}, {"etcd_version": Status.WARNING}),
        ({"version": "3.6.2"}, {"etcd_version": Status.WARNING}),
        ({"version": "3.7.0"}, {}),
    ],
)
def test_what_is_wrong_with_etcd_is_found_once(fields, expected):
    """However many processes tell of the same member."""
    members = (replace(ETCD, **fields), replace(ETCD, endpoint="e2:2379"), replace(ETCD, endpoint="e3:2379"))
    found = check_processes([process("coordinator-a", etcd=members), *cluster()[1:]], NOW_MS)
    assert wrong(found) == expected
    told = [finding.where for finding in found if finding.check == "etcd_latency"]
    assert sorted(told) == ["etcd e1:2379", "etcd e2:2379", "etcd e3:2379"]


def test_a_cluster_in_one_process_is_one_warning():
    """Its broker and its coordinator have one address and no etcd: that is said once, and is no fault of any part."""
    store = (replace(ETCD, endpoint="/data/metastore.sqlite", version="SQLite 3.40.1"),)
    broker = process("broker-1", etcd=store)
    coordinator = process("coordinator-a", etcd=(), error="it is another one", answered_by="broker-1")
    assert wrong(check_processes([coordinator, broker], NOW_MS)) == {"one_process": Status.WARNING}
    full = replace(broker, etcd=(replace(store[0], alarms=("NOSPACE",)),))
    assert wrong(check_processes([coordinator, full], NOW_MS))["etcd_alarm"] is Status.FAILURE


def test_too_little_of_anything_is_a_warning():
    """One coordinator, two brokers, an even number of etcd members."""
    members = (ETCD, replace(ETCD, endpoint="e2:2379"))
    few = [process(name, etcd=members) for name in ("coordinator-a", "broker-1", "broker-2")]
    assert wrong(check_processes(few, NOW_MS)) == dict.fromkeys(
        ("coordinators", "brokers", "etcd_members"), Status.WARNING
    )


def test_this_machines_clock_is_one_of_many():
    """All servers agree, so it is this machine that is wrong."""
    servers = [replace(each, clock_ahead_ms=9_000) for each in cluster()]
    found = [finding for finding in check_processes(servers, NOW_MS) if finding.status is not Status.OK]
    assert [(finding.check, finding.where) for finding in found] == [("clock", "this machine")]
    assert "9s behind" in found[0].found


def test_a_host_is_looked_at_before_there_is_a_cluster():
    """Limits, clock, memory, disk."""
    poor = HostFacts(
        "here",
        1_024,
        False,
        100 << 20,
        max_threads=512,
        max_file_bytes=GIB,
        disk=replace(DISK, filesystem="fuse.sshfs"),
        free_files=10_000,
    )
    assert wrong(check_host(poor, NOW_MS)) == {
        "open_files": Status.WARNING,
        "threads": Status.WARNING,
        "file_size": Status.FAILURE,
        "clock_synchronised": Status.WARNING,
        "memory": Status.WARNING,
        "filesystem": Status.FAILURE,
        "free_files": Status.WARNING,
    }
    assert wrong(check_host(HostFacts("here", -1, None, -1), NOW_MS)) == {}


@pytest.mark.parametrize(
    ("posture", "address", "status"),
    [
        ("open", "10.0.0.1:7181", Status.WARNING),
        ("open", "broker-1.example:7181", Status.WARNING),
        ("observe", "10.0.0.1:7181", Status.WARNING),
        ("required", "10.0.0.1:7181", Status.OK),
        ("open", "127.0.0.1:7181", Status.OK),
        ("observe", "[::1]:7181", Status.OK),
    ],
)
def test_a_process_that_serves_strangers_beyond_loopback_is_a_warning(posture, address, status):
    """Each process says its own posture; one that is unknown gives no finding."""
    processes = [replace(process("broker-1"), posture=posture, address=address), process("broker-2")]
    (finding,) = check_postures(processes)
    assert (finding.check, finding.where, finding.status) == ("posture", "broker-1", status)
    assert finding.found.startswith(f"{posture}: ")
    assert bool(finding.action) == (status is Status.WARNING)


@pytest.mark.parametrize(
    ("credential", "user", "posture", "status"),
    [
        ("api_key_file=a.key", "ada", "required", Status.OK),
        (None, "certificate:ada", "open", Status.OK),
        ("ssl_certfile=a.crt", "", "open", Status.WARNING),
        (None, "", "open", Status.OK),
        (None, "", "observe", Status.WARNING),
    ],
)
def test_the_credential_of_the_caller_is_judged(credential, user, posture, status):
    """Whether the cluster knows a user by it, and what the lack of one will mean."""
    finding = check_credential(credential, CallerDescription(user, (), "API key" if user else "", (), posture, 0))
    assert (finding.check, finding.status, bool(finding.action)) == ("credential", status, status is not Status.OK)
    assert (credential or user or "none is configured") in finding.found


@pytest.mark.parametrize(
    ("named", "status"),
    [
        (certificate(31), Status.OK),
        (certificate(29), Status.WARNING),
        (certificate(-1), Status.FAILURE),
        (UnreadableCertificate("/none.pem", "No such file or directory"), Status.FAILURE),
    ],
)
def test_certificates_of_a_host_are_judged_as_those_of_a_process(named, status):
    """Certificates of a broker that does not run yet."""
    found = [each for each in check_host(replace(HOST, certificates=(named,)), NOW_MS) if each.check == "certificate"]
    assert [(each.status, each.where) for each in found] == [(status, "host here")]


def test_the_machine_can_be_asked(tmp_path):
    """Whatever it answers is of the right kind, and nothing is left in the directory."""
    found = doctor_host.look_at_host(tmp_path)
    assert found.clock_synchronised in (True, False, None)
    assert found.disk is not None
    assert found.disk.fsync_us > 0
    assert found.disk.total_bytes > found.disk.free_bytes > 0
    assert found.max_threads != 0
    assert list(tmp_path.iterdir()) == []


def test_a_containers_limits_are_those_of_its_control_groups(tmp_path, monkeypatch):
    """The kernel's figures are the machine's; the least of the group and those around it is what a process gets."""
    monkeypatch.setattr(doctor_host, "_own_group", lambda: "pod/broker")
    inner = tmp_path / "pod" / "broker"
    inner.mkdir(parents=True)
    (tmp_path / "pod" / "memory.max").write_text(f"{64 << 20}\n")
    (inner / "memory.max").write_text("max\n")
    (inner / "pids.max").write_text("100\n")
    found = doctor_host.look_at_host(None, control_groups=tmp_path)
    assert (found.available_memory_bytes, found.max_threads) == (64 << 20, 100)


def test_certificates_that_are_named_are_read(tmp_path):
    """Each of a file's chain; what is none says why."""
    authority = Authority(tmp_path / "ca", "authority")
    issued = authority.issue("broker-1")
    (tmp_path / "text").write_text("no certificate")
    paths = [issued.cert_file, tmp_path / "text", tmp_path / "none"]
    first, *rest = doctor_host.look_at_host(None, paths).certificates
    assert (first.path, first.subject) == (str(issued.cert_file), "CN=broker-1")
    assert rest[-2:] == [
        UnreadableCertificate(str(tmp_path / "text"), "there is no certificate in it"),
        UnreadableCertificate(str(tmp_path / "none"), "No such file or directory"),
    ]


@pytest.fixture
def healthy_host(monkeypatch):
    """This machine is well, whatever it is."""
    monkeypatch.setattr(doctor_host, "look_at_host", lambda data_dir, certificates: HOST)


@pytest.mark.parametrize(
    ("fields", "options", "code"),
    [
        ({}, (), ExitCode.OK),
        ({"max_open_files": 1_024}, (), ExitCode.OK),
        ({"max_open_files": 1_024}, ("--strict",), ExitCode.UNHEALTHY),
        ({"error": "UNAVAILABLE"}, (), ExitCode.UNHEALTHY),
    ],
)
def test_failures_end_with_five_and_warnings_where_asked(healthy_host, headrace, held, fields, options, code):
    """The worst comes first, each with what to do."""
    held.processes = cluster(**fields)
    ended = headrace("doctor", *options)
    assert ended.code == code
    lines = ended.out.splitlines()
    assert lines[0].split() == ["STATUS", "CHECK", "WHERE", "FOUND"]
    if fields:
        assert lines[1].startswith(("failure", "warning"))
        assert any(line.startswith("broker-1, ") for line in lines)


def test_certificates_that_are_named_decide_the_exit_code(monkeypatch, headrace):
    """Before there is a cluster, as a machine is made ready."""
    monkeypatch.setattr(
        doctor_host,
        "look_at_host",
        lambda data_dir, certificates: replace(
            HOST, certificates=tuple(UnreadableCertificate(str(path), "none") for path in certificates)
        ),
    )
    assert headrace("doctor", "--host-only").code == ExitCode.OK
    ended = headrace("doctor", "--host-only", "--certificate", "/a.pem", "--certificate", "/b.pem")
    assert ended.code == ExitCode.UNHEALTHY
    assert "/a.pem: none" in ended.out
    assert "/b.pem: none" in ended.out


def test_the_document_has_all_findings(healthy_host, headrace, held):
    """For programs: counts, and each finding with its words."""
    held.processes = cluster(open_files=99_000)
    document = json.loads(headrace("doctor", "--output", "json").out)
    assert document["counts"] == {"ok": len(document["findings"]) - 1, "warning": 0, "failure": 1}
    first = document["findings"][0]
    assert (first["status"], first["check"], first["where"]) == ("failure", "open_files", "broker-1")
    assert "LimitNOFILE" in first["action"]


def test_without_a_coordinator_the_host_is_still_looked_at(healthy_host, headrace, held):
    """Exit code 3, and what was found so far."""
    held.failure = NoBrokersAvailableError({"localhost:7170": "UNAVAILABLE"})
    ended = headrace("doctor")
    assert ended.code == ExitCode.UNREACHABLE
    assert "bootstrap_servers" in ended.out
    assert "open_files" in ended.out
    assert headrace("doctor", "--host-only").code == ExitCode.OK


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ConfigError("the certificate in ssl_certfile=/tls.crt has expired", action="Renew it."), ExitCode.USAGE),
        (StorageFullError("the disk is full"), ExitCode.FAILED),
    ],
)
def test_a_cluster_that_cannot_be_asked_is_one_finding(healthy_host, headrace, held, failure, code):
    """With the exit code of its error, after what was found on this machine."""
    held.failure = failure
    ended = headrace("doctor", "--output", "json")
    assert ended.code == code
    first, *rest = json.loads(ended.out)["findings"]
    assert (first["check"], first["found"], first["action"]) == ("cluster", failure.message, failure.action)
    assert "open_files" in {each["check"] for each in rest}


@pytest.mark.parametrize(
    ("method", "error", "check"),
    [
        ("who_am_i", UnauthenticatedError("the API key is not valid"), "credential"),
        ("describe_processes", UnauthenticatedError("the caller has no identity"), "credential"),
        ("describe_processes", NotAuthorizedError("ada has no grant of describe on the cluster"), "rights"),
    ],
)
def test_a_caller_that_is_refused_is_told_why(healthy_host, headrace, held, monkeypatch, method, error, check):
    """Exit code 8, after what was found on this machine; the key itself is not shown."""
    monkeypatch.setenv("HEADRACE_API_KEY", API_KEY)
    held.failures[method] = error
    ended = headrace("doctor", "--output", "json")
    assert ended.code == ExitCode.DENIED
    first, *rest = json.loads(ended.out)["findings"]
    assert (first["status"], first["check"], first["where"]) == ("failure", check, "this machine")
    assert error.message in first["found"]
    assert first["action"]
    assert "open_files" in {each["check"] for each in rest}
    assert API_KEY not in ended.out + ended.err


def test_the_postures_and_the_credential_are_among_the_findings(healthy_host, headrace, held, monkeypatch):
    """With what else was found of a cluster; a warning ends with 5 where asked."""
    monkeypatch.setenv("HEADRACE_API_KEY", API_KEY)
    held.processes = [replace(each, posture="open") for each in cluster()]
    held.identity.caller = CallerDescription("ada", (), "API key", (), "open", 0)
    ended = headrace("doctor", "--strict", "--output", "json")
    assert ended.code == ExitCode.UNHEALTHY
    found = [each for each in json.loads(ended.out)["findings"] if each["check"] in ("posture", "credential")]
    assert [each["where"] for each in found] == [*(each.name for each in cluster()), "this machine"]
    assert found[-1]["found"] == "HEADRACE_API_KEY is accepted: user ada by API key"


def test_the_log_level_is_set_for_ten_minutes_or_as_told(headrace, held):
    """A server that is away is named, and the exit code says so."""
    ended = headrace("cluster", "log-level", "debug")
    assert ended.code == ExitCode.FAILED
    assert "log level debug for 600 s on 1 server" in ended.out
    assert "broker-2: UNAVAILABLE" in ended.out
    headrace("cluster", "log-level", "info", "--server", "broker-1", "--for", "0")
    assert held.changes == [("log level", ("debug", None, 600_000)), ("log level", ("info", ["broker-1"], 0))]


def test_what_is_open_is_a_warning_with_the_next_step():
    """One for each process and access; a name of a newer server is shown as it is."""
    processes = [
        ProcessDescription("broker-1", "10.0.0.1:7181", open_access=("clients_without_tls", "etcd_without_users")),
        ProcessDescription("broker-2", "10.0.0.2:7181", open_access=("of_tomorrow",)),
        ProcessDescription("broker-3", "10.0.0.3:7181"),
    ]
    found = list(check_open_access(processes))
    assert {(each.where, each.status) for each in found} == {
        ("broker-1", Status.WARNING),
        ("broker-2", Status.WARNING),
    }
    assert [each.found for each in found] == [
        "clients connect without TLS",
        "etcd serves everyone who reaches it",
        "of_tomorrow",
    ]
    assert all(each.action for each in found)
