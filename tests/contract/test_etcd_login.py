"""A real etcd with authentication: tokens end while they are in use, and no call, view or lease does."""

import asyncio
import contextlib
import os

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from headrace.wire.errors import MetastoreUnavailableError, Outcome
from headrace_coordinator.etcd_auth import apply_etcd_auth, read_etcd_auth
from headrace_coordinator.settings import CoordinatorSettings
from headrace_devcluster.certificates import Authority
from headrace_devcluster.etcd import Etcd
from headrace_devcluster.etcd_program import find_etcd
from headrace_server.clock import SystemClock
from headrace_server.metastore import etcd_login
from headrace_server.metastore.api import Put
from headrace_server.metastore.etcd import EtcdMetastore
from headrace_server.metastore.etcd_login import EtcdLogin, EtcdRefusedError
from headrace_server.metastore.etcd_status import read_published
from headrace_server.metastore.etcd_users import EtcdUsers
from headrace_server.metastore.view import PrefixView
from headrace_server.tls import TlsIdentity
from headrace_server.tls_settings import TlsFiles

KEY = "/headrace/orders/1/key"
WAIT_SECONDS = 30
CHANGES = 30
PASSWORD = "planted-password-1"


@pytest.fixture
def passwords(tmp_path):
    """Files with the passwords of the services' user and of root, in a folder."""
    (tmp_path / "etcd.password").write_text(f"{PASSWORD}\n")
    (tmp_path / "root.password").write_text("planted-password-2\n")
    return tmp_path


def settings_of(etcd, passwords, **settings):
    user = {"etcd_user": "headrace", "etcd_password_file": str(passwords / "etcd.password")}
    return CoordinatorSettings(
        coordinator_id="a", cluster="orders", etcd_endpoints=(etcd.endpoint,), **(user | settings)
    )


async def set_up(etcd, passwords, certificate_users=(), *, enables=True, **settings):
    """Run the command `etcd-auth --apply --enable`."""
    found = settings_of(etcd, passwords, **settings)
    auth = read_etcd_auth(found, certificate_users, str(passwords / "root.password"), enables=enables)
    return await apply_etcd_auth(found, auth, WAIT_SECONDS)


@contextlib.asynccontextmanager
async def connected(etcd, passwords, identity=None, **settings):
    login = settings_of(etcd, passwords, **settings).etcd_login
    store = EtcdMetastore([etcd.endpoint], identity=identity, login=login)
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def administering(etcd, passwords):
    users = EtcdUsers([etcd.endpoint], login=EtcdLogin("root", str(passwords / "root.password")))
    try:
        yield users
    finally:
        await users.close()


class Counts(dict):
    """Number of calls that were served, by name."""

    def __init__(self, **counts):
        super().__init__(counts)
        self.changed = asyncio.Condition()


@contextlib.asynccontextmanager
async def load(store):
    """Writes, reads, renewals and a view, without a pause; yields the counts of calls. An error ends the block."""
    lease = await store.grant_lease(60_000)
    view = PrefixView(store, "/headrace/orders/", SystemClock())
    await view.load()
    counts = Counts(write=0, read=0, renew=0)

    async def write():
        result = await store.txn([], [Put(KEY, b"x", lease.lease_id)])
        await view.wait_for(result.revision, WAIT_SECONDS)

    async def repeat(name, call):
        while True:
            await call()
            counts[name] += 1
            async with counts.changed:
                counts.changed.notify_all()

    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(view.run()),
            tasks.create_task(repeat("write", write)),
            tasks.create_task(repeat("read", lambda: store.get(KEY))),
            tasks.create_task(repeat("renew", lambda: store.renew_lease(lease.lease_id))),
        ]
        yield counts
        for task in running:
            task.cancel()


async def progressed(counts):
    """Wait for some more of each call."""
    wanted = {name: count + 5 for name, count in counts.items()}
    async with asyncio.timeout(WAIT_SECONDS), counts.changed:
        await counts.changed.wait_for(lambda: all(counts[name] >= wanted[name] for name in wanted))


def signing_keys(folder):
    """Return etcd's argument for JSON Web Tokens as tokens."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = folder / "jwt.key", folder / "jwt.pub"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return f"--auth-token=jwt,pub-key={public},priv-key={private},sign-method=RS256"


@pytest.mark.parametrize("tokens", ["simple", "jwt"])
async def test_calls_do_not_fail_while_other_users_change(tmp_path, passwords, tokens):
    """Each change of a user refuses calls in progress, and ends every JSON Web Token (etcd #13300): they are sent
    again, and no write, read, renewal or watch fails."""
    arguments = (signing_keys(tmp_path),) if tokens == "jwt" else ()
    with Etcd(tmp_path / "etcd", extra_arguments=arguments) as etcd:
        await set_up(etcd, passwords)
        async with (
            connected(etcd, passwords) as store,
            administering(etcd, passwords) as users,
            load(store) as counts,
        ):
            await progressed(counts)
            for number in range(CHANGES):
                assert await users.put_role(f"other-{number}", f"/other/{number}/")
            await progressed(counts)
            assert await users.put_user("other", "other-1", "secret")
            await progressed(counts)


async def test_calls_do_not_fail_while_authentication_is_enabled(own_etcd, passwords):
    """A client with a user works before, meanwhile and afterwards: an open etcd is closed under load."""
    async with connected(own_etcd, passwords) as store, load(store) as counts:
        await progressed(counts)
        changed = await set_up(own_etcd, passwords)
        assert "etcd authenticates its callers" in changed
        await progressed(counts)
    async with connected(own_etcd, passwords, etcd_user="", etcd_password_file="") as stranger:
        with pytest.raises(EtcdRefusedError, match="Set etcd_user and etcd_password_file"):
            await stranger.get(KEY)
        with pytest.raises(EtcdRefusedError) as refused:
            await stranger.txn([], [Put(KEY, b"stranger")])
        assert refused.value.outcome is Outcome.NOT_APPLIED


async def test_a_restarted_etcd_gets_a_new_login(own_etcd, passwords):
    """It has forgotten all tokens: the next read and write of each client succeed, a view and a lease continue."""
    await set_up(own_etcd, passwords)
    async with connected(own_etcd, passwords) as store:
        view = PrefixView(store, "/headrace/orders/", SystemClock())
        await view.load()
        following = asyncio.create_task(view.run())
        lease = await store.grant_lease(60_000)
        await store.txn([], [Put(KEY, b"before", lease.lease_id)])
        renewer = store.make_renewer()
        for number in range(3):
            await asyncio.to_thread(own_etcd.stop)
            await asyncio.to_thread(own_etcd.start)
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    with contextlib.suppress(MetastoreUnavailableError):
                        written = await store.txn([], [Put(KEY, b"%d" % number, lease.lease_id)])
                        break
            await view.wait_for(written.revision, WAIT_SECONDS)
            assert view.get(KEY).value == b"%d" % number
            assert await store.renew_lease(lease.lease_id) == lease.ttl_ms
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    with contextlib.suppress(MetastoreUnavailableError):
                        assert await asyncio.to_thread(renewer.renew, lease.lease_id, 5) == lease.ttl_ms
                        break
        assert not following.done()
        assert await store.revoke_lease(lease.lease_id)
        following.cancel()
        renewer.close()


async def test_the_role_covers_the_keys_of_its_cluster_only(own_etcd, passwords):
    """Keys of another cluster and of other programs are refused, whatever the call, and nothing was applied; so is a
    watch, without an end of the process."""
    await set_up(own_etcd, passwords)
    async with connected(own_etcd, passwords) as store:
        assert (await store.txn([], [Put(KEY, b"own")])).succeeded
        for foreign in ("/headrace/orders2/key", "/headrace/order", "/registry/pods"):
            for call in (store.get(foreign), store.range(foreign), store.txn([], [Put(foreign, b"")])):
                with pytest.raises(EtcdRefusedError, match="permission denied") as refused:
                    await call
                assert refused.value.outcome is Outcome.NOT_APPLIED
            with pytest.raises(MetastoreUnavailableError, match="permission denied"):
                await anext(store.watch(foreign, 1))
        status = await store.status()  # Newer releases answer it to root only, and publish the same.
        assert status.revision
        assert status.version
        (member,) = await store.describe_members()
        assert not member.error
        assert member.has_leader
        assert member.version == status.version
        assert min(member.database_bytes, status.database_bytes) >= member.used_bytes > 0
        assert member.alarms == ()


async def test_a_wrong_password_is_reported_without_it(own_etcd, passwords):
    """The error names the user and the file. When the file is right, the same client works."""
    await set_up(own_etcd, passwords)
    (passwords / "etcd.password").write_text("planted-password-3")
    async with connected(own_etcd, passwords) as store:
        for call in (store.get(KEY), store.txn([], [Put(KEY, b"")])):
            with pytest.raises(EtcdRefusedError) as refused:
                await call
            assert "does not accept the password in" in str(refused.value)
            assert "for its user headrace" in str(refused.value)
            assert "planted" not in repr(refused.value) + str(refused.value)
        (member,) = await store.describe_members()
        assert "does not accept the password" in member.error
        (passwords / "etcd.password").write_text(PASSWORD)
        assert (await store.get(KEY)).key_value is None


async def test_a_changed_password_needs_no_restart(own_etcd, passwords):
    """`etcd-auth --apply` with another password in the file: clients log in with it, and no call fails."""
    await set_up(own_etcd, passwords)
    async with connected(own_etcd, passwords) as store, load(store) as counts:
        await progressed(counts)
        (passwords / "etcd.password").write_text("planted-password-4")
        assert await set_up(own_etcd, passwords) == ["user headrace has role headrace-orders"]
        await progressed(counts)
        assert await set_up(own_etcd, passwords) == []


async def test_a_certificate_identifies_a_user(tmp_path, passwords):
    """With TLS the common name is the user; one without a role is refused, and no password is needed."""
    authority = Authority(tmp_path / "authority", "headrace services")

    def identity_of(name):
        own = authority.issue(name)
        return TlsIdentity("etcd", TlsFiles(str(own.cert_file), str(own.key_file), str(own.ca_file)))

    own = authority.issue("broker-1")
    tls = {
        "etcd_tls_ca_file": str(own.ca_file),
        "etcd_tls_cert_file": str(own.cert_file),
        "etcd_tls_key_file": str(own.key_file),
    }
    no_user = {"etcd_user": "", "etcd_password_file": ""}
    with Etcd(tmp_path / "etcd", tls=authority.issue("etcd")) as etcd:
        await set_up(etcd, passwords, ("broker-1",), **tls, **no_user)
        async with connected(etcd, passwords, identity_of("broker-1"), **no_user) as store:
            assert (await store.txn([], [Put(KEY, b"own")])).succeeded
            with pytest.raises(EtcdRefusedError):
                await store.get("/other")
            (member,) = await store.describe_members()
            published = await read_published(etcd.endpoint, identity_of("broker-1").client_context(), WAIT_SECONDS)
            assert published.version == member.version != ""
            assert published.database_bytes >= published.used_bytes > 0
        async with connected(etcd, passwords, identity_of("stranger"), **no_user) as store:
            with pytest.raises(EtcdRefusedError):
                await store.get(KEY)


async def test_the_printed_commands_do_the_same(own_etcd, passwords):
    """An operator may run them with etcdctl: then the command has nothing to change."""
    found = settings_of(own_etcd, passwords)
    auth = read_etcd_auth(found, ("broker-1",), str(passwords / "root.password"), enables=True)
    commands = auth.commands()
    assert "planted" not in "".join(commands)
    environ = {
        "PATH": f"{find_etcd().parent}:{os.environ['PATH']}",
        "ETCDCTL_API": "3",
        "ETCDCTL_ENDPOINTS": own_etcd.endpoint,
    }
    process = await asyncio.create_subprocess_exec("sh", "-ec", "\n".join(commands), env=environ)
    assert await process.wait() == 0
    assert await apply_etcd_auth(found, auth, WAIT_SECONDS) == []
    async with connected(own_etcd, passwords) as store:
        assert (await store.txn([], [Put(KEY, b"own")])).succeeded


async def test_the_administrator_is_needed_to_change_users(own_etcd, passwords):
    """Without root's password, or with a wrong one, the command says what is missing."""
    await set_up(own_etcd, passwords)
    found = settings_of(own_etcd, passwords)
    with pytest.raises(EtcdRefusedError, match="--root-password-file"):
        await apply_etcd_auth(found, read_etcd_auth(found, (), "", enables=True), WAIT_SECONDS)
    (passwords / "root.password").write_text("planted-password-5")
    with pytest.raises(EtcdRefusedError, match="for its user root") as refused:
        await set_up(own_etcd, passwords)
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff"])
def test_a_password_file_that_cannot_be_used_is_named(tmp_path, content):
    """Missing, empty, not text: the error has the path."""
    file = tmp_path / "etcd.password"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(EtcdRefusedError, match=str(file)):
        etcd_login.read_password(str(file))
